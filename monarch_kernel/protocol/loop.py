"""The one I/O thread of a process, with its one event loop. User code never runs on it.

Whatever a process has to say to another goes through here: other threads leave a callable with `IOThread.post` (one
wake-up for a whole burst) or wait for a coroutine with `IOThread.run`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from ..errors import MonarchError

T = TypeVar("T")


class Batch:
    """What is to be written once the events at hand are handled: all that one wake-up causes leaves in one frame.

    Use it as a context around the handling of an event; what is added outside of one is written in the next turn.
    """

    _of: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batch]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._soon = loop.call_soon
        self._depth = 0
        self._flushes: list[Callable[[], None]] = []

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Batch:
        """The one of this loop."""
        found = cls._of.get(loop)
        if found is None:
            found = cls._of[loop] = Batch(loop)
        return found

    def add(self, flush: Callable[[], None]) -> None:
        """Call `flush` at the end."""
        if not self._flushes and not self._depth:
            self._soon(self._run)
        self._flushes.append(flush)

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if not self._depth and self._flushes:
            self._run()

    def _run(self) -> None:
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()


_orphaned = False  # in a process forked from one with an I/O thread, which a fork does not bring along
_FORKED = (
    "this process was forked from one that drives a mesh, and has no link of its own: use the mesh from the parent, or "
    "start the child with the 'spawn' method"
)


def check_answerable() -> None:
    """Fail, instead of waiting for ever, where no answer can come: in such a fork."""
    if _orphaned:
        raise MonarchError(_FORKED)


class IOThread:
    """An event loop, in a daemon thread of its own or (`serve`) in the thread that calls.

    Examples
    --------
    >>> io = IOThread("doc")
    >>> io.start()
    >>> async def answer() -> int:
    ...     return 42
    >>> io.run(answer(), timeout=5)
    42
    >>> io.stop()
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._name = name
        self._jobs: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._awake = False
        self._forked = False
        os.register_at_fork(after_in_child=self._after_fork)
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._batch = Batch.of(self.loop)

    def start(self) -> None:
        """Run the loop in a thread of its own."""
        self._thread = threading.Thread(target=self.serve, name=f"monarch-io-{self._name}", daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Run the loop in this thread until `stop`."""
        self._thread = threading.current_thread()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def stop(self) -> None:
        """Stop the loop; returns when it has stopped, unless called on it."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    @property
    def here(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self._thread

    def _after_fork(self) -> None:
        global _orphaned
        self._forked = True
        _orphaned = _orphaned or not self.loop.is_closed()

    def check_process(self) -> None:
        """Fail, instead of hanging, in a process forked from the one that has the thread."""
        if self._forked:
            raise MonarchError(_FORKED)

    def post(self, job: Callable[..., object], *args: Any) -> None:
        """Run ``job(*args)`` on the loop, soon and in order. From any thread; never blocks."""
        self._jobs.append((job, args))
        if not self._awake:
            self._awake = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: the process is ending, and nobody is left to hear
                self._jobs.clear()

    def _drain(self) -> None:
        # Cleared first: a job that comes in from here on makes a new wake-up.
        self._awake = False
        jobs = self._jobs
        with self._batch:
            while jobs:
                job, args = jobs.popleft()
                try:
                    job(*args)
                except Exception as error:
                    self.loop.call_exception_handler({"message": f"{job!r} failed", "exception": error})

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that is kept until it ends. On the loop's thread only."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it here; an interrupt or the time-out cancels it."""
        self.check_process()
        if self.here:
            coroutine.close()
            raise MonarchError("a blocking call was made on the I/O thread; it would wait for itself")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"no answer within {timeout:g} s") from None
        except BaseException:
            future.cancel()
            raise
