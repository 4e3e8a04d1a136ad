"""Finds, among the actors of a process, waits that can never end, and ends them with an error.

`state.waits` says what a probe means and when one is due; this looks at the actors and sends. A few times a second,
while an actor is in the middle of something, it sees what that waits for: a message that is quick is never seen, and
no call or wait does anything for it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Deadlock
from ..protocol import records
from ..protocol.frames import Record
from ..protocol.records import Kind
from ..state.waits import Activity, Circle, Probe, Wait, Waits
from ._actors import RunningActor
from ._async_actor import AsyncActor
from ._blocking import Waiter, awaited, blocked_in, driven_in
from ._sync_actor import SyncActor

if TYPE_CHECKING:
    from ._calls import Call
    from ._executor import Outcome
    from ._future import Future
    from ._runtime import Runtime

TICK = 0.25
"""Seconds between two looks at the actors that are in the middle of something."""

_QUIET = 2
"""Looks with nothing under way before there are no more: between two messages of a burst it may seem so for once."""


class _End(Protocol):
    def fail(self, error: BaseException) -> None:
        """End the wait."""


_Ends = dict[records.Key, list[_End]]
"""What waits in the activity for each call."""


class Watch:
    """One process's watch over its actors. All of it runs on the I/O thread.

    Attributes
    ----------
    on
        Whether it looks; whoever gives an actor work calls `start` where it does not.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.on = False
        self._runtime = runtime
        self._executor = runtime.executor
        self._waits = Waits(runtime.sender)
        self._quiet = 0

    def start(self) -> None:
        """An actor has something to do."""
        self.on = True
        self._quiet = 0
        self._runtime.io.loop.call_later(TICK, self._look)

    def heard(self, record: Record) -> None:
        """A WAIT record came."""
        probe = Probe.from_dict(records.parse_notice(record)[0])
        sender, mesh, number = probe.key
        running = self._executor.actors.get(mesh)
        outcome = self._executor.unanswered(sender, mesh, number)
        if not isinstance(running, RunningActor):
            return
        if outcome is not None and outcome.actor is running:
            found = self._holding(running, outcome)
        elif outcome is None and running.constructing:
            # Calls leave for a mesh once its actors are constructed.
            found = (*built, True) if (built := self._of_thread(running)) is not None else None
        else:
            return
        if found is None:
            return
        activity, ends, queued = found
        result = self._waits.arrived(probe, queued, activity, time.monotonic())
        if isinstance(result, Circle):
            error = Deadlock(_told(result), mesh=running.name, rank=running.rank, host=self._executor.host)
            for end in ends[result.key]:
                end.fail(error)
        else:
            self._send(result)

    def _send(self, probes: list[Probe]) -> None:
        for probe in probes:
            self._runtime.send(probe.host, *records.notice(Kind.WAIT, probe.to_dict()))

    def _look(self) -> None:
        actors = [a for a in self._executor.actors.values() if isinstance(a, RunningActor)]
        activities = [activity for actor in actors for activity, _ in self._activities(actor)]
        self._quiet = 0 if activities or any(actor.under_way() for actor in actors) else self._quiet + 1
        if self._quiet < _QUIET:
            self._runtime.io.loop.call_later(TICK, self._look)
        else:
            self.on = False
        self._send(self._waits.observe(activities, time.monotonic()))

    # -- what an actor is in the middle of

    def _activities(self, actor: RunningActor) -> list[tuple[Activity, _Ends]]:
        """All that wait."""
        found = [self._of_thread(actor)]
        if found[0] is None and isinstance(actor, AsyncActor):
            found = [self._of_task(actor, task, outcome) for task, outcome in actor.tasks()]
        return [one for one in found if one is not None]

    def _holding(self, actor: RunningActor, outcome: Outcome) -> tuple[Activity, _Ends, bool] | None:
        """What keeps a message from being answered, if that waits; and whether the message has yet to begin."""
        tasks = actor.tasks() if isinstance(actor, AsyncActor) else []
        current = actor.current
        task = next((task for task, its in tasks if its is outcome), None)
        if outcome.begun and ((outcome is not current and task is None) or outcome.port):
            return None  # it has returned, or its answer may come from elsewhere
        if (found := self._of_thread(actor)) is not None:
            return (*found, outcome is not current)
        if task is None:
            task = next((task for task, its in tasks if its is current), None)
        if task is None or (its := outcome if outcome.begun else current) is None:
            return None
        found = self._of_task(actor, task, its)
        return None if found is None else (*found, not outcome.begun)

    def _of_thread(self, actor: RunningActor) -> tuple[Activity, _Ends] | None:
        """What blocks an actor's thread, and with it all that the actor does."""
        waits = blocked_in(actor.thread)
        if any(wait.timed for wait in waits):
            return None
        on = waits[-1].on() if waits else None
        if on is None and isinstance(actor, SyncActor):
            on = driven_in(actor.thread)
        if on is None:
            return None
        if isinstance(on, asyncio.Task):
            return self._activity(actor, actor.current, [(waiter.source, waiter) for waiter in awaited(on)])
        return self._activity(actor, actor.current, [(on, waits[-1])])

    def _of_task(self, actor: RunningActor, task: asyncio.Task[Any], outcome: Outcome) -> tuple[Activity, _Ends] | None:
        waiters: list[Waiter] = awaited(task)
        return self._activity(actor, outcome, [(waiter.source, waiter) for waiter in waiters])

    def _activity(
        self, actor: RunningActor, outcome: Outcome | None, found: list[tuple[Future[Any], _End]]
    ) -> tuple[Activity, _Ends] | None:
        if not found:
            return None
        calls = self._calls()
        ends: _Ends = {}
        waits: dict[records.Key, Wait] = {}
        for future, end in found:
            call = calls.get(id(future))
            ranks = call.missing() if call is not None else []
            if call is None or not ranks:
                continue
            key = (call.sender, call.handle.id, call.number)
            hosts: dict[int, list[int]] = {}
            for rank in ranks:
                hosts.setdefault(call.handle.hosts[rank], []).append(rank)
            waits[key] = Wait(key, call.endpoint, tuple((host, tuple(theirs)) for host, theirs in hosts.items()))
            ends.setdefault(key, []).append(end)
        if not waits:
            return None
        between = "__init__" if actor.constructing else "__supervise__"
        endpoint = outcome.endpoint if outcome is not None else between
        which = id(outcome) if outcome is not None else id(actor)
        return Activity(which, f"{actor.name}[{actor.rank}]", endpoint, tuple(waits.values())), ends

    def _calls(self) -> dict[int, Call]:
        """The calls under way, by the futures that need all of their answers."""
        calls = self._runtime.caller.under_way()
        return {id(future): call for call in calls for future in call.needs_all()}


def _told(circle: Circle) -> str:
    steps = circle.steps
    who = "an actor waits for itself" if len({step.actor for step in steps}) == 1 else "actors wait for each other"
    lines = "\n".join(f"  {line}" for line in circle.lines())
    return (
        f"deadlock: {who}, and no answer can ever come, since an actor handles one message at a time.\n{lines}\n"
        "Do not wait for that answer inside of the endpoint (keep the future, or broadcast), mark an endpoint that "
        "waits with @concurrent_endpoint, or call the method itself where it is the actor's own"
    )
