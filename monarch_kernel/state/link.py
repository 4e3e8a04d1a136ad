"""One end of a resumable link: first in, first out, nothing lost and nothing twice over any number of cuts.

A link outlives the streams that carry it. Each end numbers the units that it sends from 1, keeps them until the peer
says that it has them, and drops what it has already had. After a cut the two ends tell each other how far they got
and go on from there. The machine does no I/O: `frame` says what to write next, `received` takes what was read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

Unit = bytes | bytearray | memoryview

FRAME_BYTES = 1 << 20
"""A frame is closed once it holds this many bytes, so that an acknowledgement never waits behind a long transfer."""

WINDOW_BYTES = 16 << 20
"""At most this many unacknowledged bytes are under way; what else is queued waits."""

ACK_EVERY_BYTES = 1 << 20
ACK_EVERY_UNITS = 512
"""An end that has nothing to say acknowledges after this much, so that the peer's window opens again."""


class LinkBroken(Exception):
    """The peer's numbers do not fit ours: it is not the other end of this link."""


class Frame(NamedTuple):
    """What to write next: the number of the first unit, how far we have received, and the units."""

    first: int
    ack: int
    units: Sequence[Unit]


class Link:
    """One end of a link.

    Attributes
    ----------
    got
        Number of the last unit received in order.
    """

    __slots__ = ("_acked_to_peer", "_ahead", "_next", "_pending", "_pending_bytes", "_unacked", "_unacked_bytes",
                 "_unsaid_bytes", "got")  # fmt: skip

    def __init__(self) -> None:
        self._pending: deque[Unit] = deque()  # never written
        self._pending_bytes = 0
        self._unacked: deque[Unit] = deque()  # written, the peer may not have them; numbers end at _next - 1
        self._unacked_bytes = 0
        self._next = 1  # number of the first pending unit
        self._ahead = 0  # how many of _unacked are to be written again, at the front of what is written next
        self.got = 0
        self._acked_to_peer = 0
        self._unsaid_bytes = 0

    # -- sending

    def send(self, unit: Unit) -> None:
        """Queue one unit."""
        self._pending.append(unit)
        self._pending_bytes += len(unit)

    @property
    def sent(self) -> int:
        """Number of the last unit queued."""
        return self._next - 1 + len(self._pending)

    @property
    def acked(self) -> int:
        """Number of the last unit that the peer is known to have."""
        return self._next - 1 - len(self._unacked)

    @property
    def idle(self) -> bool:
        """Nothing is queued and the peer has everything."""
        return not self._pending and not self._unacked

    def ack_due(self) -> bool:
        """Whether so much came in unacknowledged that an empty frame should go out."""
        return self.got - self._acked_to_peer >= ACK_EVERY_UNITS or self._unsaid_bytes >= ACK_EVERY_BYTES

    def can_write(self) -> bool:
        """Whether there are units that may be written now."""
        return bool(self._ahead or (self._pending and self._open()))

    def _open(self) -> bool:
        return self._unacked_bytes < WINDOW_BYTES

    def frame(self, *, empty: bool = False) -> Frame | None:
        """Take the next frame to write; None when there is nothing to say, unless `empty` asks for a bare pulse."""
        units: list[Unit] = []
        size = 0
        if self._ahead:
            start = len(self._unacked) - self._ahead
            first = self._next - self._ahead
            for index in range(start, len(self._unacked)):
                units.append(self._unacked[index])
                size += len(units[-1])
                if size >= FRAME_BYTES:
                    break
            self._ahead -= len(units)
        else:
            first = self._next
            pending, unacked = self._pending, self._unacked
            if pending and self._open():
                if self._pending_bytes < FRAME_BYTES:
                    units.extend(pending)
                    pending.clear()
                    size = self._pending_bytes
                else:
                    while pending and size < FRAME_BYTES:
                        units.append(pending.popleft())
                        size += len(units[-1])
                unacked.extend(units)
                self._pending_bytes -= size
                self._unacked_bytes += size
                self._next += len(units)
            elif not empty and not self.ack_due():
                return None
        self._acked_to_peer = self.got
        self._unsaid_bytes = 0
        return Frame(first, self.got, units)

    # -- receiving

    def received(self, first: int, ack: int, units: Sequence[Unit]) -> Sequence[Unit]:
        """Take a frame that was read; returns the units that are new, in order.

        Raises
        ------
        LinkBroken
            The frame leaves a gap or acknowledges what was never sent.
        """
        self._take_ack(ack)
        count = len(units)
        if not count:
            return units
        expected = self.got + 1
        if first > expected:
            raise LinkBroken(f"units {expected} to {first - 1} are missing")
        if first < expected:
            units = units[expected - first :]
        self.got = max(self.got, first + count - 1)
        for unit in units:
            self._unsaid_bytes += len(unit)
        return units

    def _take_ack(self, ack: int) -> None:
        acked = self._next - 1 - len(self._unacked)
        if ack <= acked:
            return
        if ack >= self._next:
            raise LinkBroken(f"unit {ack} was acknowledged, but only {self._next - 1} were written")
        unacked = self._unacked
        for _ in range(ack - acked):
            self._unacked_bytes -= len(unacked.popleft())
        if self._ahead > len(unacked):
            self._ahead = len(unacked)

    # -- cuts

    def resume(self, peer_got: int) -> None:
        """A new stream is up and the peer says how far it got: what it lacks is written again, in order."""
        if peer_got >= self._next or peer_got < self.acked:
            raise LinkBroken(f"the peer has {peer_got} units; {self.acked} to {self._next - 1} are possible")
        self._take_ack(peer_got)
        self._ahead = len(self._unacked)
        self._acked_to_peer = self.got
