"""Who controls the session: one epoch at a time, given by one host.

The head's :class:`EpochGate` grants epochs; the gates of all hosts admit the messages of the highest epoch they have
seen and refuse those of an older one, naming who took over. An epoch is a pair that only rises: ``(term, count)``. The
count rises with each controller that attaches, the term when another host becomes head, so that a head that was lost
and comes back cannot grant what its successor has granted.

Observers need no epoch: what only reads does not pass a gate.

The driver puts :meth:`EpochGate.persist` into the keeper *before* it answers a grant: an epoch that was told to
somebody and then forgotten could be granted twice. Times in here are only ever shown to people, so `now` is wall time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["Admitted", "Epoch", "EpochGate", "Granted", "Holder", "Refused"]


class Epoch(NamedTuple):
    """A place in the line of controllers; compares as a tuple."""

    term: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of an epoch


#: Below every epoch that was ever granted.
NONE = Epoch(0, 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """The controller that an epoch was granted to.

    Parameters
    ----------
    client
        Its id: random, one per controller process.
    epoch
        What it was granted.
    since
        When, wall time.
    label
        Who it is in words for people ("kernel 4711 on host lab1"), may be empty.
    """

    client: str
    epoch: Epoch
    since: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Granted:
    """The client now controls the session. `previous` is who did before it, to be told, or None."""

    epoch: Epoch
    previous: Holder | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The message may be obeyed. `raised` says that this host learned of the epoch by it: persist the gate."""

    epoch: Epoch
    raised: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Not granted, not adopted, not admitted.

    Parameters
    ----------
    why
        ``held``: another controller is connected and alive; ``changed``: the holder is not the one the client expected;
        ``waiting``: a new head has not yet heard from all hosts which epochs they have seen; ``older``: a later epoch
        was granted.
    holder
        Who holds the session, as far as this host knows.
    alive
        Whether the holder is connected and alive; None where that was not the question.
    waiting
        The hosts that a new head waits for.
    """

    why: Literal["held", "changed", "waiting", "older"]
    holder: Holder | None = None
    alive: bool | None = None
    waiting: tuple[int, ...] = ()


class EpochGate:
    """What one host knows of the epoch.

    Parameters
    ----------
    others
        Only for the head's first gate of an incarnation: the other hosts. It grants nothing before each of them has
        been :meth:`heard`, so that it starts above the highest epoch that any host has seen.
    """

    def __init__(self, others: Iterable[int] = ()) -> None:
        self.epoch = NONE
        self.holder: Holder | None = None
        self._unheard = set(others)
        # The highest epoch seen anywhere; higher than `epoch` when a host remembers more than a new head.
        self._floor = NONE

    @property
    def waiting(self) -> tuple[int, ...]:
        """The hosts that must be heard before the first grant."""
        return tuple(sorted(self._unheard))

    def heard(self, host: int, epoch: Epoch) -> None:
        """A host says which epoch it has seen. The head asks each when a host, or itself, is new."""
        self._unheard.discard(host)
        self._floor = max(self._floor, Epoch(*epoch))

    def grant(
        self,
        client: str,
        takeover: bool,
        other_alive: bool,
        now: float,
        *,
        label: str = "",
        expected: Epoch | None = None,
    ) -> Granted | Refused:
        """Give the session to a client; on the head only.

        Parameters
        ----------
        client
            Who asks. The holder that asks again (its answer was lost) gets its own epoch again.
        takeover
            It may push out a controller that is connected and alive.
        other_alive
            Whether the holder, if it is another client, is connected and alive. One that is gone needs no takeover.
        now
            Wall time.
        expected
            Compare and set: refuse unless this is still the current epoch.
        """
        if self._unheard:
            return Refused("waiting", self.holder, None, self.waiting)
        holder = self.holder
        if holder is not None and holder.client == client and holder.epoch >= self._floor:
            return Granted(holder.epoch, None)
        if expected is not None and Epoch(*expected) != self.epoch:
            return Refused("changed", holder, other_alive)
        other = holder is not None and holder.client != client
        if other and other_alive and not takeover:
            return Refused("held", holder, True)
        highest = max(self.epoch, self._floor)
        self.epoch = Epoch(highest.term, highest.count + 1)
        self._floor = self.epoch
        self.holder = Holder(client, self.epoch, now, label)
        return Granted(self.epoch, holder if other else None)

    def adopt(self, epoch: Epoch, holder: Holder | None = None) -> Admitted | Refused:
        """Learn from the head, or from the controller itself, who holds which epoch."""
        epoch = Epoch(*epoch)
        if epoch < self.epoch:
            return Refused("older", self.holder)
        raised = epoch > self.epoch
        if raised:
            self.epoch, self.holder = epoch, None
            self._floor = max(self._floor, epoch)
        if holder is not None and self.holder is None and holder.epoch == epoch:
            self.holder, raised = holder, True
        return Admitted(epoch, raised)

    def admit(self, epoch: Epoch) -> Admitted | Refused:
        """Judge a message by the epoch of its sender.

        A higher one than this host knows is proof that the head granted it (the link's handshake has proven the
        secret): it is adopted, since the head's own word may have been lost.
        """
        return self.adopt(epoch)

    def persist(self) -> bytes:
        """The gate as a blob for the keeper."""
        data: dict[str, Any] = {"epoch": list(self.epoch), "floor": list(self._floor), "unheard": self.waiting}
        if self.holder is not None:
            data["holder"] = [self.holder.client, list(self.holder.epoch), self.holder.since, self.holder.label]
        return json.dumps(data).encode()

    @classmethod
    def restore(cls, blob: bytes | None, others: Iterable[int] = ()) -> EpochGate:
        """A gate from its blob; from None, or a blob that cannot be read, the first of an incarnation.

        Parameters
        ----------
        others
            As in the constructor, for the head; used only when there is no blob.
        """
        if blob:
            try:
                data = json.loads(blob)
                gate = cls(int(host) for host in data["unheard"])
                gate.epoch, gate._floor = _pair(data["epoch"]), _pair(data["floor"])
                if (holder := data.get("holder")) is not None:
                    gate.holder = Holder(str(holder[0]), _pair(holder[1]), float(holder[2]), str(holder[3]))
            except (ValueError, TypeError, KeyError, IndexError):
                # Starting blank is safe: a gate that has heard all others grants above what they have seen.
                return cls(others)
            return gate
        return cls(others)


def _pair(value: Any) -> Epoch:
    term, count = value
    return Epoch(int(term), int(count))
