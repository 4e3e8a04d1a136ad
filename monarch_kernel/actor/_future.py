"""Future: the answer of a call, to wait for from anywhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import os
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from ..protocol.loop import check_answerable
from . import _blocking
from ._context import check_self_wait

R = TypeVar("R", covariant=True)

# One lock for all futures: it is held for a few instructions only, never while an answer is opened.
_guard = threading.Lock()


def _new_guard() -> None:
    global _guard
    _guard = threading.Lock()  # a fork may have copied it while another thread held it


os.register_at_fork(after_in_child=_new_guard)

_SLICE = 0.2
"""Seconds: a signal that arrives just before a thread blocks on a lock does not wake it, so no wait is longer."""


def check_timeout(timeout: float | None) -> None:
    """Refuse a time-out that is none."""
    if timeout is not None and (math.isnan(timeout) or timeout < 0 or math.isinf(timeout)):
        raise ValueError(f"timeout must be a finite number of seconds, 0 or more; got {timeout!r}")


class Future(Generic[R]):
    """The answer of a call. Made by calls, never by hand.

    Waiting never runs on the caller's event loop: `get` works in plain code, in a notebook cell and in a synchronous
    endpoint, and ``await`` in any coroutine. Both may be used many times, and from several threads. What a call brought
    back is unpickled by whoever waits first, not by the I/O thread.

    Examples
    --------
    >>> future = trainers.step.call(batch)          # doctest: +SKIP
    >>> losses = future.get(timeout=60)             # doctest: +SKIP
    >>> losses = await trainers.step.call(batch)    # doctest: +SKIP
    >>> future.result(), future.exception(60)       # doctest: +SKIP
    """

    __slots__ = ("__weakref__", "_callbacks", "_done", "_error", "_made", "_make", "_value")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] | None = None
        self._done = False
        self._make: Callable[[], Any] | None = None
        self._made = False
        self._value: Any = None
        self._error: BaseException | None = None

    # -- for the runtime

    def _resolve(self, make: Callable[[], Any]) -> None:
        """The answer is here; `make` opens it (returns the value or raises) on the first waiter's thread."""
        with _guard:
            if self._done:
                return
            self._make = make
            self._done = True
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback()

    def _fail(self, error: BaseException) -> None:
        def make() -> Any:
            raise error

        self._resolve(make)

    def _observe(self) -> None:
        """Somebody is about to wait for it: a future whose work begins only then begins it."""

    def _when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the answer is here, at once if it is; on the thread that brings it."""
        with _guard:
            if not self._done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback()

    def _forget(self, callback: Callable[[], object]) -> None:
        """Whoever gave this to `_when_done` waits no more."""
        with _guard:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def _open(self) -> Any:
        if not self._made:
            make = self._make
            if make is not None:
                value, error = None, None
                try:
                    value = make()
                except BaseException as raised:
                    error = raised
                with _guard:  # two waiters may both have opened it: all see what the first one made
                    if not self._made:
                        self._value, self._error, self._made, self._make = value, error, True, None
        if self._error is not None:
            # Without what it gathered when it was raised before: each waiter gets a traceback of its own.
            raise self._error.with_traceback(None)
        return self._value

    def _block(self, until: float | None) -> bool:
        """Block this thread until the answer is here, or the monotonic time `until`; whether it is here."""
        latch = threading.Lock()
        latch.acquire()
        self._when_done(latch.release)
        seen: _blocking.Blocked | None = None
        try:
            while not self._done:
                left = _SLICE if until is None else min(_SLICE, until - time.monotonic())
                if left <= 0:
                    self._forget(latch.release)
                    return self._done
                if latch.acquire(timeout=left):
                    continue
                if seen is None:
                    seen = _blocking.enter(_blocking.Blocked(lambda: self, until is not None))
                elif seen.error is not None:
                    self._forget(latch.release)
                    raise seen.error
        finally:
            if seen is not None:
                _blocking.leave(seen)
        return True

    # -- for users

    def done(self) -> bool:
        """Whether the answer is here."""
        return self._done

    def get(self, timeout: float | None = None) -> R:
        """Wait for the answer and return it.

        Parameters
        ----------
        timeout
            Seconds; None waits as long as it takes. It can always be interrupted.

        Raises
        ------
        TimeoutError
            No answer yet. The call goes on, and `get` may be called again.
        ActorError, SupervisionError
            The call failed, see `monarch_kernel.errors`.
        """
        check_timeout(timeout)
        if not self._done:
            self._observe()
        if not self._done:
            check_answerable()
            check_self_wait(self, blocking=True)
            if not self._block(None if timeout is None else time.monotonic() + timeout):
                raise TimeoutError(f"no answer within {timeout:g} s; the call goes on")
        return self._open()  # type: ignore[no-any-return]

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error of the call, None when it succeeded."""
        try:
            self.get(timeout)
        except TimeoutError:
            if not self.done():
                raise
            if not self._made:  # it came just after the wait was over
                return self.exception()
        except Exception:  # it is returned below
            pass
        return self._error

    def __await__(self) -> Generator[Any, None, R]:
        return self._wait().__await__()

    async def _wait(self) -> R:
        if not self._done:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                raise ValueError("awaited outside of an event loop; use .get() there") from None
            if (waiter := self._waiter()) is not None:
                here = self._wake(waiter, lambda: waiter.set_result(None))
                try:
                    await waiter
                finally:
                    if not self._done:
                        self._forget(here)
        return self._open()  # type: ignore[no-any-return]

    def _waiter(self) -> _blocking.Waiter | None:
        """A future of the running loop to wait for this one with; None when the answer is here.

        Raises
        ------
        RuntimeError
            No loop runs here.
        """
        loop = asyncio.get_running_loop()
        self._observe()
        if self._done:
            return None
        check_answerable()
        check_self_wait(self, blocking=False)
        waiter = _blocking.Waiter(loop=loop)
        waiter.source = self
        return waiter

    def _wake(self, waiter: asyncio.Future[Any], finish: Callable[[], None]) -> Callable[[], None]:
        """Once the answer is here, `finish` on the loop of `waiter` if that still waits."""
        loop = waiter.get_loop()

        def wake() -> None:
            if not waiter.done():
                finish()

        def here() -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:  # that loop is closed: nobody waits any more
                pass

        self._when_done(here)
        return here

    def as_asyncio(self) -> asyncio.Future[R]:
        """An `asyncio.Future` of the running loop with the same answer. Cancelling it leaves the call alone.

        Raises
        ------
        RuntimeError
            No loop runs here.
        """
        if not self._done and (waiter := self._waiter()) is not None:
            here = self._wake(waiter, lambda: self._settle(waiter))
            waiter.add_done_callback(lambda done: self._forget(here) if done.cancelled() else None)
            return waiter
        settled = asyncio.get_running_loop().create_future()
        self._settle(settled)
        return settled

    def _settle(self, waiter: asyncio.Future[Any]) -> None:
        try:
            value = self._open()
        except asyncio.CancelledError:
            waiter.cancel()
        except StopIteration as error:  # no asyncio future takes it
            waiter.set_exception(RuntimeError(f"the call raised {error!r}"))
        except BaseException as error:
            waiter.set_exception(error)
        else:
            waiter.set_result(value)

    def __repr__(self) -> str:
        if not self.done():
            return "<Future: waiting>"
        if not self._made:
            return "<Future: answered>"
        return f"<Future: {type(self._error).__name__}>" if self._error is not None else "<Future: done>"


def resolved(value: Any) -> Future[Any]:
    """A future that is done."""
    future: Future[Any] = Future()
    future._resolve(lambda: value)
    return future


def in_thread(work: Callable[[], Any], name: str) -> Future[Any]:
    """A future of what `work` returns or raises, on a thread of its own that begins at once."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:
            future._fail(error)
        else:
            future._resolve(lambda: value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def from_concurrent(source: concurrent.futures.Future[Any]) -> Future[Any]:
    """A future that follows one of `concurrent.futures`."""
    future: Future[Any] = Future()
    source.add_done_callback(lambda done: future._resolve(done.result))
    return future
