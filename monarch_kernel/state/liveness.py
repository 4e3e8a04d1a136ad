"""What is known of a process or a host that may be dead, stopped, busy or gone.

Evidence goes in (exits, ends of streams, heartbeats, samples of ``/proc``), a verdict comes out:

======================  ============================================================================================
*dead*                  the keeper saw its exit, or its stream ended without a goodbye
*ended*                 it said goodbye
*lost host*             no word from the daemon of its host
*stopped*               state T in ``/proc``
*alive*                 its heartbeats come
*busy*                  no heartbeat, but it uses CPU time (a C call that holds the GIL silences every thread of it)
*unresponsive*          neither
======================  ============================================================================================

The first that holds, from the top, is the verdict.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from .times import TIMES, Times

__all__ = ["HostLiveness", "HostState", "ProcLiveness", "ProcState", "Verdict"]

ProcState = Literal["dead", "ended", "lost host", "stopped", "alive", "busy", "unresponsive"]
HostState = Literal["alive", "suspect", "lost", "ended"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What something is, since when, and why we think so, in words."""

    state: ProcState
    since: float
    why: str


#: CPU seconds below which growth is noise: the clock tick of /proc is 0.01 s.
_NOISE = 0.015


class ProcLiveness:
    """The evidence about one process.

    Parameters
    ----------
    now
        When it was started or first seen.
    times
        The table of times.
    """

    def __init__(self, now: float, times: Times | None = None) -> None:
        self.times = times or TIMES
        self._heard = self._born = now
        self._exit: tuple[int, float] | None = None
        self._eof: float | None = None
        self._goodbye = False
        self._host_lost: float | None = None
        self._letter: tuple[str, float] | None = None
        self._stopped_since: float | None = None
        self._cpu: float | None = None
        self._grew: float | None = None

    # -- evidence ---------------------------------------------------------------------------------------------------

    def heartbeat(self, now: float) -> None:
        """A frame of it came, of whatever kind."""
        self._heard = now

    def connected(self, now: float) -> None:
        """Its stream is there, for the first time or again: the end of an earlier one means nothing."""
        self._heard, self._eof, self._goodbye = now, None, False

    def goodbye(self, now: float) -> None:
        """It said that it is about to end."""
        self._goodbye, self._heard = True, now

    def eof(self, now: float) -> None:
        """Its stream ended."""
        if self._eof is None:
            self._eof = now

    def exit(self, code: int, now: float) -> None:
        """The keeper saw its exit; a negative code is a signal."""
        if self._exit is None:
            self._exit = (code, now)

    def sample(self, letter: str | None, cpu: float, now: float) -> None:
        """A look at ``/proc/<pid>/stat``.

        Parameters
        ----------
        letter
            The state: R, S, D, T, t, Z, X; None when there is no such process any more.
        cpu
            User and system time of all its threads so far, seconds.
        """
        if letter in ("T", "t"):
            if self._stopped_since is None:
                self._stopped_since = now
        else:
            self._stopped_since = None
        if letter is None or letter in ("Z", "X"):
            # Its exit is on the way; who looks here learns it first.
            self.eof(now)
        else:
            self._letter = (letter, now)
        if self._cpu is not None and cpu - self._cpu >= _NOISE:
            self._grew = now
        if self._cpu is None or abs(cpu - self._cpu) >= _NOISE:
            self._cpu = cpu

    def host_lost(self, now: float) -> None:
        """The daemon of its host gives no word."""
        if self._host_lost is None:
            self._host_lost = now

    def host_back(self, now: float) -> None:
        """The daemon of its host is heard again; silence is counted anew."""
        if self._host_lost is not None:
            self._host_lost, self._heard = None, now

    def slept(self, now: float) -> None:
        """We ourselves did not run for a while: what was not heard meanwhile proves nothing."""
        self._heard = now

    # -- verdict ----------------------------------------------------------------------------------------------------

    def verdict(self, now: float) -> Verdict:
        """What the evidence says now."""
        if self._exit is not None:
            code, at = self._exit
            if code == 0 and self._goodbye:
                return Verdict("ended", at, "it ended")
            return Verdict("dead", at, _exit_text(code))
        if self._eof is not None:
            if self._goodbye:
                return Verdict("ended", self._eof, "it said goodbye")
            return Verdict("dead", self._eof, "its connection ended without a goodbye")
        if self._host_lost is not None:
            return Verdict("lost host", self._host_lost, "no word from its host")
        if self._stopped_since is not None and self._letter is not None and self._letter[1] >= self._heard:
            return Verdict("stopped", self._stopped_since, "it is stopped (state T): kill -CONT lets it go on")
        silent = now - self._heard
        if silent < self.times.suspect:
            return Verdict("alive", self._born, "its heartbeats come")
        if self._grew is not None and now - self._grew < self.times.suspect and self._grew > self._heard:
            return Verdict("busy", self._heard, f"no heartbeat for {silent:.0f} s, but it uses CPU time")
        waits = " and waits in the system (state D)" if self._letter is not None and self._letter[0] == "D" else ""
        return Verdict("unresponsive", self._heard, f"no heartbeat for {silent:.0f} s and no CPU time used{waits}")

    def due(self, now: float) -> bool:
        """Whether it is silent for so long that its ``/proc`` should be looked at."""
        return self._exit is None and self._eof is None and now - self._heard >= 2 * self.times.heartbeat


def _exit_text(code: int) -> str:
    if code < 0:
        try:
            return f"it was ended by signal {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"
    return f"it exited with code {code}"


class HostLiveness:
    """The evidence about one host: the words of its daemon.

    Parameters
    ----------
    now
        When it was last heard, or first expected.
    times
        The table of times.
    """

    def __init__(self, now: float, times: Times | None = None) -> None:
        self.times = times or TIMES
        self._heard = now
        self._ended = False

    def word(self, now: float) -> None:
        """Its daemon said something, be it a heartbeat."""
        self._heard, self._ended = now, False

    def ended(self, now: float) -> None:
        """Its keeper or daemon said that the host is released."""
        self._heard, self._ended = now, True

    def slept(self, now: float) -> None:
        """We ourselves did not run for a while: what was not heard meanwhile proves nothing."""
        self._heard = now

    def verdict(self, now: float) -> HostState:
        """``alive``, ``suspect`` (silent, but it may be a moment), ``lost``, or ``ended``."""
        if self._ended:
            return "ended"
        silent = now - self._heard
        if silent < self.times.suspect:
            return "alive"
        return "suspect" if silent < self.times.lost else "lost"
