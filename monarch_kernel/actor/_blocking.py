"""What a thread or a task waits for at this moment, as others may see it: for `_waits`, which looks for circles.

Nothing is written down when a wait begins. A thread says that it is blocked once it has been for a while; what a task
waits for stands in the task, and is followed through tasks, `asyncio.gather`, `asyncio.wait` and task groups. Nothing
is found where it is not known what would end a wait, or where something else could: a time-out, an event, any one of
several answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._future import Future


class Blocked:
    """A thread waits for a `Future`, or runs a loop until a task is done.

    Attributes
    ----------
    on
        The one or the other; None for a task that is not there yet.
    timed
        Whether the wait ends by itself.
    error
        Set by who knows that it will never end: the wait raises it.
    """

    __slots__ = ("error", "on", "timed")

    def __init__(self, on: Callable[[], Future[Any] | asyncio.Task[Any] | None], timed: bool) -> None:
        self.on = on
        self.timed = timed
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End the wait with an error."""
        self.error = error


_blocked: dict[int, list[Blocked]] = {}


def enter(wait: Blocked) -> Blocked:
    """This thread is blocked in it from now on."""
    _blocked.setdefault(threading.get_ident(), []).append(wait)
    return wait


def leave(wait: Blocked) -> None:
    """It is not any more."""
    here = _blocked[threading.get_ident()]
    here.remove(wait)
    if not here:
        del _blocked[threading.get_ident()]


@contextlib.contextmanager
def until_done(task: Callable[[], asyncio.Task[Any] | None], timed: bool) -> Iterator[None]:
    """This thread does nothing else until a task is done."""
    wait = enter(Blocked(task, timed))
    try:
        yield
    finally:
        leave(wait)


def blocked_in(thread: int | None) -> list[Blocked]:
    """The waits that a thread is blocked in, the innermost last. From any thread."""
    return list(_blocked.get(thread or 0, ()))


class Waiter(asyncio.Future[Any]):
    """What a coroutine awaits in place of a `Future`, its `source`: the one that its loop has to set."""

    __slots__ = ("source",)
    source: Future[Any]

    def fail(self, error: BaseException) -> None:
        """End the wait with an error. From any thread."""

        def end() -> None:
            if not self.done():
                self.set_exception(error)

        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
            self.get_loop().call_soon_threadsafe(end)


def driven_in(thread: int | None) -> asyncio.Task[Any] | None:
    """The task that a thread runs a loop for, as `asyncio.run` does. From any thread."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        if frame.f_code is _RUN:
            task = frame.f_locals.get("future")
            return task if isinstance(task, asyncio.Task) else None
        frame = frame.f_back
    return None


_RUN = asyncio.BaseEventLoop.run_until_complete.__code__
_WAIT: CodeType = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]
_GROUP = {
    getattr(asyncio.TaskGroup, name).__code__ for name in ("__aexit__", "_aexit") if hasattr(asyncio.TaskGroup, name)
}


def awaited(task: asyncio.Task[Any]) -> list[Waiter]:
    """What must all be set before a task can end, as far as it can be told. From any thread.

    Each step is read from the one who waits to the one waited for: while that is not done, the step before still holds.
    """
    try:
        return _awaited(task)
    except (AttributeError, KeyError, RuntimeError, TypeError):  # it went on while it was read, or is of no known kind
        return []


def _awaited(task: asyncio.Task[Any]) -> list[Waiter]:
    timed = _timed(task.get_loop())
    if timed is None:
        return []
    found: list[Waiter] = []
    seen: set[int] = set()
    todo: list[Any] = [task]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen or one.done():
            continue
        seen.add(id(one))
        if isinstance(one, Waiter):
            found.append(one)
        elif isinstance(one, asyncio.Task):
            if one not in timed:
                todo += [getattr(one, "_fut_waiter", None), *_inside(one)]
        else:
            todo += getattr(one, "_children", ())  # of `asyncio.gather`
    return found


def _inside(task: asyncio.Task[Any]) -> list[Any]:
    """What a task waits for by a future that says nothing: in `asyncio.wait`, or at the end of a task group."""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            return []
        if frame.f_code is _WAIT:
            local = frame.f_locals
            for_all = local.get("return_when") != asyncio.FIRST_COMPLETED or len(local.get("fs", ())) == 1
            return list(local.get("fs", ())) if for_all and local.get("timeout") is None else []
        if frame.f_code in _GROUP:
            return list(frame.f_locals["self"]._tasks)
        coroutine = getattr(coroutine, "cr_await", None)
    return []


def _timed(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]] | None:
    """The tasks that a timer of their loop will cancel, as of `asyncio.timeout`; None when that cannot be told."""
    scheduled = getattr(loop, "_scheduled", None)
    if scheduled is None:
        return None
    found: set[asyncio.Task[Any]] = set()
    for handle in list(scheduled):
        owner = getattr(handle._callback, "__self__", None)
        task = owner if isinstance(owner, asyncio.Task) else getattr(owner, "_task", None)
        if isinstance(task, asyncio.Task) and not handle.cancelled():
            found.add(task)
    return found
