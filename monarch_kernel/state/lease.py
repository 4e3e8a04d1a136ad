"""How long a session lives with nobody there.

*attached* · *detached and working* · *detached and idle, time left counting* · *released*. The lease runs only while no
controller is connected anywhere and no call runs anywhere. ``max_detached`` caps the whole time without a controller,
also while calls run. Whoever comes back in time starts both anew.

All times are seconds of the monotonic clock of the host. A machine that slept (a closed laptop, a paused virtual
machine) gives its user a grace after waking, even when the lease went by meanwhile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .times import TIMES

__all__ = ["Lease", "Released", "format_duration", "parse_duration"]

State = Literal["attached", "working", "idle", "released"]

LONGEST = 3650 * 86400.0
"""Seconds: clocks and timers cannot count much further, and nobody means it."""

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WORDS = (("day", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True, slots=True)
class Released:
    """The session's time is over: free everything on this host. `reason` is for the tombstone."""

    reason: str


class Lease:
    """The lease of a session, as one host counts it.

    Parameters
    ----------
    lease
        Seconds a detached and idle session lives; None: for ever.
    max_detached
        Seconds a detached session lives even when calls run; None: for ever.
    now
        Monotonic time at the start of the host's part; nobody is attached yet, and nothing is released before
        `reconnect` has gone by.
    reconnect
        The reconnect window: after a controller was lost without a goodbye, nothing is released within it, however
        short the lease.
    grace
        Seconds given at least after the machine slept.
    jump
        A gap between two ticks longer than this, or wall time that runs ahead of monotonic time by more, means that the
        machine slept. Choose it far above the interval between ticks.
    slack
        What :meth:`deadline` adds for the keeper, so that it acts only when the daemon, which knows more, did not.
    """

    def __init__(
        self,
        lease: float | None,
        max_detached: float | None,
        now: float,
        *,
        reconnect: float = TIMES.reconnect_window,
        grace: float = TIMES.grace,
        jump: float = TIMES.jump,
        slack: float = 5.0,
    ) -> None:
        self.lease, self.max_detached = lease, max_detached
        self.reconnect, self.grace, self.jump, self.slack = reconnect, grace, jump, slack
        self.released: Released | None = None
        self._controllers: set[str] = set()
        self._running = 0
        self._peers_attached = self._peers_working = False
        # When the present spell without a controller, and the one without work, began.
        self._detached_since = now
        self._idle_since = now
        self._not_before = now + reconnect
        self._last_tick = now
        self._last_wall: float | None = None

    # -- events -----------------------------------------------------------------------------------------------------

    def controller_connected(self, client: str, now: float) -> None:
        """A controller's link to this host stands."""
        self._controllers.add(client)

    def controller_gone(self, client: str, now: float, *, clean: bool) -> None:
        """A controller's link to this host ended.

        Parameters
        ----------
        clean
            It said goodbye. If not, it may be back within the reconnect window, and nothing is released before.
        """
        if client not in self._controllers:
            return
        was = self.attached
        self._controllers.discard(client)
        if not clean:
            self._not_before = max(self._not_before, now + self.reconnect)
        self._left(was, now)

    def work(self, running: int, now: float) -> None:
        """So many calls run on this host now."""
        was = self.working
        self._running = running
        self._rested(was, now)

    def peers(self, attached: bool, working: bool, now: float) -> None:
        """What the other hosts of the session say: a controller is connected to one of them, a call runs on one.

        For a host that cannot be heard, the driver passes what it said last for the reconnect window, then nothing.
        """
        was_attached, was_working = self.attached, self.working
        self._peers_attached, self._peers_working = attached, working
        self._left(was_attached, now)
        self._rested(was_working, now)

    def update(self, lease: float | None, max_detached: float | None, now: float) -> None:
        """Set other times in place; what has run already stays counted."""
        self.lease, self.max_detached = lease, max_detached
        # A person who shortens a lease below what has run is there, and must not lose the session by it.
        self._not_before = max(self._not_before, now + self.reconnect)

    def tick(self, now: float, wall: float | None = None) -> Released | None:
        """Look at the time; call it about once a second.

        Parameters
        ----------
        now
            Monotonic time.
        wall
            Wall time, by which sleep is noticed that the monotonic clock does not count.

        Returns
        -------
        Released | None
            What to do, and from then on the same again.
        """
        gap = now - self._last_tick
        slept = gap > self.jump
        if wall is not None and self._last_wall is not None:
            slept = slept or wall - self._last_wall - gap > self.jump
        if slept:
            self._not_before = max(self._not_before, now + self.grace)
        self._last_tick, self._last_wall = now, wall
        if self.released is None and (left := self.left(now)) is not None and left <= 0:
            self.released = Released(self._reason(now))
        return self.released

    def release(self, reason: str) -> Released:
        """It is released for another reason (a person's `down`)."""
        if self.released is None:
            self.released = Released(reason)
        return self.released

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """A controller is connected to some host."""
        return bool(self._controllers) or self._peers_attached

    @property
    def working(self) -> bool:
        """A call runs on some host."""
        return self._running > 0 or self._peers_working

    @property
    def state(self) -> State:
        """``attached``, ``working`` (detached, calls run), ``idle`` (detached, time counts) or ``released``."""
        if self.released is not None:
            return "released"
        if self.attached:
            return "attached"
        return "working" if self.working else "idle"

    def left(self, now: float) -> float | None:
        """Seconds until the release if nothing happens; None when no time counts. Never negative."""
        if self.released is not None:
            return 0.0
        if self.attached:
            return None
        ends = []
        if self.max_detached is not None:
            ends.append(self._detached_since + self.max_detached)
        if self.lease is not None and not self.working:
            ends.append(max(self._detached_since, self._idle_since) + self.lease)
        if not ends:
            return None
        return max(0.0, max(min(ends), self._not_before) - now)

    def deadline(self, now: float) -> float | None:
        """Seconds after which the keeper shall release the host if this daemon does not renew it; None: never.

        While a controller or a call is there it is a whole lease (at least the grace): a daemon that does not come back
        for so long will not.
        """
        left = self.left(now)
        if left is None:
            if self.lease is None:
                return None
            left = max(self.lease, self.grace, self.reconnect)
        elif self.state == "working" and self.lease is not None:
            left = min(left, max(self.lease, self.grace, self.reconnect))
        return left + self.slack

    def describe(self, now: float) -> str:
        """The state in plain text."""
        left = self.left(now)
        match self.state:
            case "released":
                return f"released: {self.released.reason}" if self.released else "released"
            case "attached":
                return "attached"
            case "working":
                return "detached and working" + (f", at most {_words(left)} left" if left is not None else "")
            case _:
                return "detached and idle, " + (f"{_words(left)} left" if left is not None else "no lease")

    def to_dict(self) -> dict[str, Any]:
        """What a restarted daemon needs so that its restart renews nothing."""
        return {
            "lease": self.lease,
            "max_detached": self.max_detached,
            "detached": None if self.attached else self._detached_since,
            "idle": None if self.working else self._idle_since,
            "not_before": self._not_before,
        }

    def resume(self, data: Mapping[str, Any], now: float) -> None:
        """Go on from what :meth:`to_dict` gave in an earlier daemon of the same boot.

        Controllers and calls announce themselves again; until then both are taken as gone since now, and nothing is
        released within the reconnect window.
        """
        self.lease, self.max_detached = data.get("lease", self.lease), data.get("max_detached", self.max_detached)
        for name, attribute in (("detached", "_detached_since"), ("idle", "_idle_since")):
            since = data.get(name)
            setattr(self, attribute, min(float(since), now) if since is not None else now)
        self._not_before = max(float(data.get("not_before", now)), now + self.reconnect)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _left(self, was_attached: bool, now: float) -> None:
        if was_attached and not self.attached:
            self._detached_since = now

    def _rested(self, was_working: bool, now: float) -> None:
        if was_working and not self.working:
            self._idle_since = now

    def _reason(self, now: float) -> str:
        detached = now - self._detached_since
        if self.max_detached is not None and detached >= self.max_detached:
            return f"no controller for {_words(detached)} (max-detached {format_duration(self.max_detached)})"
        idle = now - max(self._detached_since, self._idle_since)
        return f"detached and idle for {_words(idle)} (lease {format_duration(self.lease or 0.0)})"


def parse_duration(text: str | float) -> float:
    """Seconds from ``2h``, ``90m``, ``7d``, ``45s``, ``1h30m``, or plain seconds.

    Raises
    ------
    ValueError
        With what was given and what is understood.

    Examples
    --------
    >>> parse_duration("1h30m"), parse_duration("7d"), parse_duration("0.5h"), parse_duration(90)
    (5400.0, 604800.0, 1800.0, 90.0)
    """
    problem = f"{text!r} is not a duration; write for example 45s, 90m, 2h, 7d, 1h30m, or a number of seconds"
    if isinstance(text, bool):
        raise ValueError(problem)
    if isinstance(text, (int, float)):
        seconds = float(text)
    else:
        compact = "".join(text.split()).lower()
        if re.fullmatch(r"[0-9]*\.?[0-9]+", compact, re.ASCII):
            seconds = float(compact)
        elif re.fullmatch(r"([0-9]*\.?[0-9]+[dhms])+", compact, re.ASCII):
            parts = re.findall(r"([0-9]*\.?[0-9]+)([dhms])", compact, re.ASCII)
            units = [unit for _, unit in parts]
            if len(set(units)) != len(units):
                raise ValueError(problem)
            seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
        else:
            raise ValueError(problem)
    if not 0 <= seconds < math.inf:
        raise ValueError(problem)
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is longer than ten years; the longest is {LONGEST / 86400:g}d")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads as these seconds, rounded to a second.

    Examples
    --------
    >>> format_duration(7200), format_duration(5400), format_duration(0)
    ('2h', '1h30m', '0s')
    """
    rest = round(seconds)
    text = ""
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, int(size))
        if count:
            text += f"{count}{unit}"
    return text or "0s"


def _words(seconds: float) -> str:
    """A duration for people, rounded up: ``42 min``, ``2 h 5 min``, ``3 days 4 h``."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    # Rounded up to whole minutes first, so that 59 min 59 s reads as 1 h and never as 60 min.
    rest = math.ceil(seconds / 60) * 60
    parts = []
    for unit, size in _WORDS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(parts[:2])
