"""Coroutine functions that return a `Future`, for operations that plain code and coroutines use alike."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar

from ..errors import WouldBlockRuntime
from ._blocking import until_done
from ._context import acting, run_actor
from ._future import Future, check_timeout

P = ParamSpec("P")
R = TypeVar("R")

_Body = tuple[Coroutine[Any, Any, Any], contextvars.Context]

_take_lock = threading.Lock()
_here = threading.local()  # .hidden: how many `fake_sync_state` are active; .driving: a `get` runs a body here
_running: set[asyncio.Task[Any]] = set()  # asyncio itself holds tasks weakly only


@contextlib.contextmanager
def fake_sync_state() -> Iterator[None]:
    """Hide the running event loop, so that code which looks for one behaves as in plain code."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    _here.hidden = getattr(_here, "hidden", 0) + 1
    try:
        yield
    finally:
        _here.hidden -= 1
        asyncio._set_running_loop(loop)


def in_fake_sync_state() -> bool:
    """Whether a loop runs on this thread that `fake_sync_state` hides."""
    return getattr(_here, "hidden", 0) > 0


class BodyFuture(Future[R]):
    """The answer of a coroutine that begins when it is first waited for, where that happens.

    ``await`` runs it as a task of the awaiting loop, and a waiter that is cancelled leaves it alone. `get` runs it in
    a loop of its own on the calling thread, or on a helper thread where a loop runs already; when that `get` is over
    its time or interrupted, it is cancelled, and `get` returns once it has cleaned up.
    """

    __slots__ = ("_body", "_thread")

    def __init__(self, body: Coroutine[Any, Any, R], context: contextvars.Context) -> None:
        super().__init__()
        self._body: _Body | None = (body, context)
        self._thread = 0  # where it runs, once it does

    def __del__(self) -> None:
        body = getattr(self, "_body", None)
        if body is not None:  # never waited for: none of it runs
            body[0].close()

    def _take(self) -> _Body | None:
        with _take_lock:
            taken, self._body = self._body, None
        return taken

    def _start(self, taken: _Body, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
        body, context = taken
        self._thread = threading.get_ident()
        task = loop.create_task(body, context=context)
        _running.add(task)
        task.add_done_callback(self._settled)
        return task

    def _settled(self, task: asyncio.Task[Any]) -> None:
        _running.discard(task)
        if task.cancelled():
            self._fail(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._fail(error)
        else:
            self._resolve(task.result)

    def _observe(self) -> None:
        """An ``await``: it runs on that loop."""
        if (taken := self._take()) is not None:
            self._start(taken, asyncio.get_running_loop())

    def get(self, timeout: float | None = None) -> R:
        """Run it if nobody has, and wait.

        Raises
        ------
        TimeoutError
            When this `get` runs it, it is cancelled, and all who wait get this error too.
        WouldBlockRuntime
            The wait would stop the loop that runs it.
        """
        check_timeout(timeout)
        if self._done:
            return self._open()  # type: ignore[no-any-return]
        inside = in_fake_sync_state() or asyncio._get_running_loop() is not None
        if inside and getattr(_here, "driving", False):
            raise WouldBlockRuntime("get() inside of an operation that another get() runs: await it there")
        if (taken := self._take()) is None:
            if self._thread == threading.get_ident():
                raise WouldBlockRuntime("get() would stop the event loop that runs the operation: await it there")
            return super().get(timeout)
        if inside:
            self._drive_on_helper(taken, timeout)
        else:
            self._drive(taken, timeout)
        return self._open()  # type: ignore[no-any-return]

    result = get

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"not finished within {timeout:g} s; it was cancelled")

    def _drive(self, taken: _Body, timeout: float | None) -> None:
        """Run it on this thread."""
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:
            self._unstarted(taken, error)
            raise
        _here.driving = True
        try:
            task = self._start(taken, loop)
            try:
                with until_done(lambda: task, timed=timeout is not None):
                    done, _ = loop.run_until_complete(asyncio.wait({task}, timeout=timeout))
            except BaseException:
                self._fail(asyncio.CancelledError())
                raise
            if not done:
                self._fail(self._late(timeout))
        finally:
            _here.driving = False
            _close(loop)
        # Its callback may still have been waiting for a turn of the loop.
        self._settled(task)

    def _drive_on_helper(self, taken: _Body, timeout: float | None) -> None:
        """Run it on a thread of its own, since a loop runs on this one."""
        finished = threading.Event()
        mesh = acting()
        bodies = [taken]  # whoever pops it decides whether it runs
        cancelled: list[BaseException] = []  # why, once nobody wants it any more
        box: dict[str, asyncio.Task[Any]] = {}
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:
            self._unstarted(taken, error)
            raise

        def run() -> None:
            if mesh:
                run_actor(mesh)  # a wait for the actor that is blocked by this is refused, see `check_self_wait`
            _here.driving = True
            try:
                box["task"] = task = self._start(bodies.pop(), loop)
                if cancelled:
                    task.cancel()
                loop.run_until_complete(asyncio.wait({task}))
                self._settled(task)
            except BaseException as error:
                self._fail(error if isinstance(error, Exception) else asyncio.CancelledError())
            finally:
                try:
                    _close(loop)
                finally:
                    finished.set()

        helper = threading.Thread(target=run, name="returns_future", daemon=True)
        try:
            helper.start()
            # Not `Thread.join`, which returns at once after one that was interrupted.
            with until_done(lambda: box.get("task"), timed=timeout is not None):
                finished.wait(timeout)
        except BaseException as error:
            if bodies:  # the thread could not start, or has not begun
                with contextlib.suppress(IndexError):
                    self._unstarted(bodies.pop(), error)
                    if isinstance(error, RuntimeError):
                        loop.close()
                    raise
            self._cancel_on_helper(asyncio.CancelledError(), loop, box, cancelled, finished)
            raise
        if not finished.is_set():
            self._cancel_on_helper(self._late(timeout), loop, box, cancelled, finished)

    def _cancel_on_helper(
        self,
        why: BaseException,
        loop: asyncio.AbstractEventLoop,
        box: dict[str, asyncio.Task[Any]],
        cancelled: list[BaseException],
        finished: threading.Event,
    ) -> None:
        """Cancel it there, and wait until it has cleaned up."""
        self._fail(why)
        cancelled.append(why)
        if (task := box.get("task")) is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is over
                loop.call_soon_threadsafe(task.cancel)
        finished.wait()

    def _unstarted(self, taken: _Body, error: BaseException) -> None:
        taken[0].close()
        self._fail(error if isinstance(error, Exception) else asyncio.CancelledError())


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what the operation left behind on its loop, as `asyncio.run` does, and close it."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def returns_future(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Future[R]]:
    """Make a function that returns a `Future` of an ``async def``.

    The body runs once, when the future is first waited for, in the context variables of the call. What has to happen
    at the call belongs into a plain function around it.

    Examples
    --------
    >>> @returns_future
    ... async def answer() -> int:
    ...     return 42
    >>> answer().get()
    42
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return BodyFuture(function(*args, **kwargs), contextvars.copy_context())

    return call
