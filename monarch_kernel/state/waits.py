"""Waits that can never end: probes that follow, from process to process, what actors wait for.

An actor handles one message at a time. A message that waits for the answer of a call depends on the message that the
call has become: on what that one waits for, or, while it is queued, on what the message in front of it waits for. Where
this leads back to the wait that it began with, no answer will ever come. So a wait that lasts sends probes along the
calls that it is for; whoever gets one and waits itself passes it on; whoever does not wait drops it. This is the
edge-chasing of Chandy, Misra and Haas (1983) for waits that need *all* of their answers.

No wait that can end is reported. Whoever passed a probe on was waiting at that moment, and the last one for a message
that cannot begin before the first wait is over. That still stands when the probe is back, so the last one waits still,
and so does the one before it, back to the first. What may end otherwise (a wait with a time-out, for any one of several
answers, for an event) is not handed in here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, NamedTuple

__all__ = ["EVERY", "FIRST", "HOPS", "SECOND", "Activity", "Circle", "Probe", "Step", "Wait", "Waits"]

Key = tuple[int, int, int]

FIRST = 0.5
SECOND = 1.0
EVERY = 10.0
"""Seconds: how long a wait has lasted when it sends its first and second probe, and what is between later ones. The
last wait of a circle finds it with its first probe; the others are for what was lost, or came before its call."""

HOPS = 64
"""The longest circle that is found; a probe that has gone this far is dropped."""

CLOSE = 0.3
"""Seconds: of two waits that began so close together nobody knows which was the later one."""

_REMEMBERED = 30.0


@dataclass(frozen=True, slots=True)
class Wait:
    """A call of an endpoint of which answers are missing, all of which are needed: `ranks` of its mesh, by host."""

    key: Key
    endpoint: str
    ranks: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """What an actor is in the middle of, and cannot end before all its waits have.

    Attributes
    ----------
    id
        Tells it from others of this process that are under way.
    actor, endpoint
        For people: ``name[rank]``, and what it is in the middle of.
    """

    id: int
    actor: str
    endpoint: str
    waits: tuple[Wait, ...]


class Step(NamedTuple):
    """One activity on a probe's way.

    Attributes
    ----------
    process, wait
        Which of its waits the probe followed: the process and its own number for it.
    age
        Seconds for which that wait had lasted.
    actor, endpoint
        As of the activity.
    called
        The endpoint that the step before waits for; empty in the first step.
    queued
        Whether that call is another message, which this activity keeps from going on.
    """

    process: int
    wait: int
    age: float
    actor: str
    endpoint: str
    called: str
    queued: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """On its way to the actors of `ranks` on `host`, to ask what keeps them from answering the call `key`."""

    key: Key
    endpoint: str
    host: int
    ranks: tuple[int, ...]
    turn: int
    path: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "key": list(self.key),
            "endpoint": self.endpoint,
            "host": self.host,
            "ranks": list(self.ranks),
            "turn": self.turn,
            "path": [list(step) for step in self.path],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Probe:
        """What `to_dict` wrote."""
        sender, mesh, number = data["key"]
        path = tuple(Step(*step) for step in data["path"])
        return cls((sender, mesh, number), data["endpoint"], data["host"], tuple(data["ranks"]), data["turn"], path)


@dataclass(frozen=True, slots=True)
class Circle:
    """The wait of `activity` for the call `key` can never end; the last step is the first one again."""

    activity: int
    key: Key
    steps: tuple[Step, ...]

    def lines(self) -> list[str]:
        """Who waits for what, in order."""
        found = []
        for waits, needed in pairwise(self.steps):
            call = f"{needed.actor}.{needed.called}"
            found.append(f"{waits.actor}.{waits.endpoint} waits for {call}")
            if needed.queued:
                found.append(f"{call} cannot be answered before {needed.actor}.{needed.endpoint} has ended")
        return found


@dataclass(slots=True)
class _Open:
    number: int
    since: float
    due: float
    turn: int = 0


class Waits:
    """The part of one process. Times are seconds of one monotonic clock.

    Parameters
    ----------
    process
        A number that no other process has.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self._open: dict[tuple[int, Key], _Open] = {}
        self._numbers = count(1)
        self._passed: dict[tuple[int, int, int], tuple[float, set[int]]] = {}  # what each probe has been to, and when

    def observe(self, activities: Iterable[Activity], now: float) -> list[Probe]:
        """All activities that wait at present. Returns the probes that are due."""
        probes: list[Probe] = []
        still: dict[tuple[int, Key], _Open] = {}
        for activity in activities:
            for wait in activity.waits:
                held = still[(activity.id, wait.key)] = self._held(activity, wait, now)
                if now >= held.due:
                    probes += _along(wait, held.turn, (self._step(activity, held, now, "", False),))
                    held.turn += 1
                    held.due = now + (SECOND - FIRST if held.turn == 1 else EVERY)
        self._open = still
        for probe, (when, _) in list(self._passed.items()):
            if now - when > _REMEMBERED:
                del self._passed[probe]
        return probes

    def arrived(self, probe: Probe, queued: bool, activity: Activity, now: float) -> list[Probe] | Circle:
        """A probe has found what keeps its call from being answered: `activity`, if that waits itself.

        Parameters
        ----------
        queued
            Whether the call is queued behind the activity; else the activity is the call.

        Returns
        -------
        list of Probe, or Circle
            How it goes on, perhaps nowhere; or that it is back where it began.
        """
        first = probe.path[0]
        if first.process == self.process:
            for wait in activity.waits:
                held = self._open.get((activity.id, wait.key))
                if held is not None and held.number == first.wait:
                    closing = first._replace(called=probe.endpoint, queued=queued)
                    circle = Circle(activity.id, wait.key, (*probe.path, closing))
                    # All waits of a circle find it. One that ends is enough: the latest, if that can be said.
                    return circle if probe.turn > 0 or _is_latest(probe.path) else []
        if len(probe.path) >= HOPS:
            return []
        _, been = self._passed.setdefault((first.process, first.wait, probe.turn), (now, set()))
        if activity.id in been:
            return []
        been.add(activity.id)
        onward: list[Probe] = []
        for wait in activity.waits:
            held = self._open.setdefault((activity.id, wait.key), self._held(activity, wait, now))
            onward += _along(wait, probe.turn, (*probe.path, self._step(activity, held, now, probe.endpoint, queued)))
        return onward

    def _held(self, activity: Activity, wait: Wait, now: float) -> _Open:
        held = self._open.get((activity.id, wait.key))
        return held if held is not None else _Open(next(self._numbers), now, now + FIRST)

    def _step(self, activity: Activity, held: _Open, now: float, called: str, queued: bool) -> Step:
        age = now - held.since
        return Step(self.process, held.number, age, activity.actor, activity.endpoint, called, queued)


def _along(wait: Wait, turn: int, path: tuple[Step, ...]) -> list[Probe]:
    return [Probe(wait.key, wait.endpoint, host, ranks, turn, path) for host, ranks in wait.ranks]


def _is_latest(path: tuple[Step, ...]) -> bool:
    first, *others = path
    for step in others:
        later = first.age - step.age
        if later > CLOSE or (later >= -CLOSE and (step.process, step.wait) > (first.process, first.wait)):
            return False
    return True
