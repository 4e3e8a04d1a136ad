"""Whether the processes of this host give signs of life: busy, unresponsive and dead are three things.

The daemon judges, since it has the processes beside it: a silent one is looked at in ``/proc``. A dead one is the
keeper's to tell, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import get_args

from monarch_kernel.state.records import Health as Said
from monarch_kernel.state.registry import Decision
from monarch_kernel.state.times import TIMES
from monarch_worker.host import Host, running
from monarch_worker.procs import Proc, Procs


class Health:
    """Looks at each process, once a tick.

    Parameters
    ----------
    changed
        Takes what the registry decides when the health of a process changes.
    """

    def __init__(self, host: Host, procs: Procs, changed: Callable[[Iterable[Decision]], None]) -> None:
        self.host = host
        self.procs = procs
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ticked = self._awake = self._loop.time()

    def tick(self) -> None:
        """Look."""
        now = self._loop.time()
        if now - self._ticked > TIMES.suspect:
            self._awake = now  # this daemon did not run: what it has not heard meanwhile proves nothing
        self._ticked = now
        changes: list[Decision] = []
        for proc in self.procs.by_id.values():
            if proc.dead is None and proc.up.done():
                changes += self._look(proc, now)
        self._changed(changes)

    def _look(self, proc: Proc, now: float) -> list[Decision]:
        liveness = proc.liveness
        liveness.heartbeat(max(proc.link.heard, self._awake))
        if liveness.due(now):
            liveness.sample(*running(proc.pid), now)
        state = liveness.verdict(now).state
        for health in get_args(Said):
            if health == state:
                return self.host.registry.rank_health(proc.mesh, proc.rank, health)
        return []  # it has just ended: the keeper says so next


__all__ = ["Health"]
