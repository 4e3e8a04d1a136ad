"""An actor of ``async def`` endpoints: its thread runs an event loop."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from . import _lifecycle
from ._actors import STOP, Item, RunningActor, Told
from ._context import _current, run_actor

if TYPE_CHECKING:
    from ._executor import Outcome

BATCH = 64
"""Messages that an async actor handles before its other tasks get a turn, when none of the messages waits."""


class AsyncActor(RunningActor):
    """An actor of ``async def`` endpoints: an event loop runs on its thread; each message is awaited to its end.

    Concurrent endpoints and `__supervise__` are tasks beside it.
    """

    thread_name = "monarch-actor-event-loop"

    def __init__(self, *args: Any) -> None:
        self._items: deque[Item | str] = deque()
        self._loop = asyncio.new_event_loop()
        self._some = asyncio.Event()
        self._awake = False
        self._closing = False
        self._main_task: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], Outcome] = {}
        self._told: deque[Told] = deque()
        self._jobs: deque[Callable[[], object]] = deque()
        self._hearing: asyncio.Task[None] | None = None
        super().__init__(*args)
        self._concurrent = frozenset(e.name for e in self.record.endpoints if e.concurrent)

    def put(self, item: Item) -> None:
        """A message."""
        if self.error is None:
            self._add(item)
        else:
            self._refuse(item)

    def _add(self, item: Item | str) -> None:
        self._items.append(item)
        if not self._awake:
            self._awake = True
            self._on_loop(self._some.set)

    def _cut_off(self) -> None:
        self._on_loop(self._leave)
        self._bounded()  # it may be one that never awaits

    def _on_loop(self, job: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(job)
        except RuntimeError:  # the loop is closed: it is over
            pass

    def _stop(self) -> None:
        self._on_loop(self._stop_hearing)
        self._add(STOP)
        if self.error is not None:
            self._on_loop(self._leave)

    def _tell(self, told: Told) -> None:
        self._told.append(told)
        self._on_loop(self._start_hearing)

    def _soon(self, job: Callable[[], object]) -> None:
        self._jobs.append(job)
        self._on_loop(self._run_jobs)

    def _idle(self) -> bool:
        return not self._items

    def tasks(self) -> list[tuple[asyncio.Task[Any], Outcome]]:
        """The messages that it is in the middle of, with the tasks in which they are awaited. From any thread."""
        found: list[tuple[asyncio.Task[Any], Outcome]] = list(self._tasks.items())
        main, current = self._main_task, self.current
        if main is not None and current is not None:
            found.append((main, current))
        return found

    def under_way(self) -> bool:
        """Whether it is in the middle of something, or a message waits."""
        return super().under_way() or bool(self._tasks)

    # -- on the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        loop = self._loop
        try:
            main = loop.create_task(self._main())
            try:
                loop.run_until_complete(main)
            except BaseException as error:  # SystemExit of a task that the actor has started stops the loop
                self._fail(f"{_lifecycle.said(error)} in a task ended the actor\n{_lifecycle.of_exception(error)}")
                main.cancel()
            loop.run_until_complete(self._finish())
        finally:
            loop.close()
            self._ended()

    async def _main(self) -> None:
        self._main_task = asyncio.current_task()
        run_actor(self.record.id, self._main_task)
        _current.set(self._here)
        self._construct()
        items = self._items
        streak = 0
        while self.error is None:
            if not items:
                await self._wait()
                continue
            item = items.popleft()
            if isinstance(item, str):
                return
            await self._handle(item)
            del item
            streak += 1
            if streak >= BATCH or self._told or self._jobs:
                streak = 0
                await self._turn()

    async def _wait(self) -> None:
        try:
            await self._some.wait()
        except asyncio.CancelledError:  # a body that has cancelled its own task, and did not wait itself
            self._not_cancelled()
            return
        self._some.clear()
        self._awake = False

    async def _turn(self) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._not_cancelled()

    def _not_cancelled(self) -> None:
        assert self._main_task is not None
        while self._main_task.uncancel():
            pass

    async def _handle(self, item: Item) -> None:
        entered = self._enter(item)
        if entered is None:
            self.current = None
            return
        method, args, kwargs = entered
        if item[0].endpoint in self._concurrent:
            task = self._loop.create_task(self._beside(item, method, args, kwargs))
            self._tasks[task] = item[2]
            task.add_done_callback(self._tasks.pop)
            self.current = None
            return
        try:
            value = method(*args, **kwargs)
            if type(value) is CoroutineType or asyncio.iscoroutine(value):
                value = await value
        except BaseException as error:
            self.current = None
            if isinstance(error, asyncio.CancelledError):
                self._not_cancelled()
                if self.error is not None:
                    return  # cut off by the actor's end, which answers
            self._raised(item, error)
        else:
            self.current = None
            self._returned(item, value)

    async def _beside(self, item: Item, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            value = await method(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._closing:
                return
            self._raised(item, error)
            self._leave()
        else:
            self._returned(item, value)

    def _run_jobs(self) -> None:
        while self._jobs and self.error is None:
            self._jobs.popleft()()
        self._leave()

    def _leave(self) -> None:
        """Once there is an error: cut off the message that is awaited, and go."""
        if self.error is None or self._main_task is None:
            return
        if self.current is not None and asyncio.current_task() is not self._main_task:
            self._main_task.cancel()
        else:
            self._some.set()

    def _start_hearing(self) -> None:
        if self._told and self._hearing is None and self.error is None and self._stopping is None:
            self._hearing = self._loop.create_task(self._hear())

    def _stop_hearing(self) -> None:
        self._told.clear()
        if self._hearing is not None:
            self._hearing.cancel()

    async def _hear(self) -> None:
        _current.set(self._here)
        while self._told and self.error is None and self._stopping is None:
            told = self._told[0]
            try:
                handled = self._hook_for(told)(told)
                if isinstance(handled, Awaitable):
                    handled = await handled
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and (self._closing or self._stopping is not None):
                    break
                self._unhandled(told, error)
            else:
                if not handled:
                    self._unhandled(told, None)
            if self._told:
                self._told.popleft()
        self._hearing = None
        self._leave()

    async def _finish(self) -> None:
        self._closing = True
        _current.set(self._here)
        run_actor(self.record.id, asyncio.current_task())
        self._bounded()
        self._stop_hearing()
        await self._cancelled({*self._tasks, *([self._hearing] if self._hearing is not None else [])})
        cleanup = self._hook("__cleanup__")
        if cleanup is not None:
            try:
                made = cleanup(_lifecycle.reason_of(self._failure))
                if isinstance(made, Awaitable):
                    await asyncio.wait_for(made, _lifecycle.cleanup_within())
            except BaseException:
                traceback.print_exc()
        await self._cancelled(asyncio.all_tasks(self._loop) - {asyncio.current_task()})

    async def _cancelled(self, tasks: set[Any]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_lifecycle.cleanup_within())
