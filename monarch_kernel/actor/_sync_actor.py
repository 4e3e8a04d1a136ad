"""An actor of ``def`` endpoints: its thread may block, since no event loop runs there."""

from __future__ import annotations

import functools
import queue
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _lifecycle
from ._actors import STOP, Item, RunningActor, Told
from ._context import _current, run_actor

_WAKE = "wake"
"""In the queue of an actor: there is a job that goes before the messages."""


class SyncActor(RunningActor):
    """An actor of ``def`` endpoints: no event loop runs on its thread, so that it may block."""

    thread_name = "monarch-actor-driver"

    def __init__(self, *args: Any) -> None:
        self._inbox: queue.SimpleQueue[Item | str] = queue.SimpleQueue()
        self._jobs: deque[Callable[[], object]] = deque()
        super().__init__(*args)

    def put(self, item: Item) -> None:
        """A message."""
        if self.error is None:
            self._inbox.put(item)
        else:
            self._refuse(item)

    def _stop(self) -> None:
        self._inbox.put(STOP)
        if self.error is not None and self._hook("__cleanup__") is None:
            self.over._resolve(lambda: None)  # nothing to wait for but the message in progress

    def _cut_off(self) -> None:
        self.over._resolve(lambda: None)  # a thread cannot be stopped from outside

    def _tell(self, told: Told) -> None:
        self._soon(functools.partial(self._hear, told))

    def _soon(self, job: Callable[[], object]) -> None:
        self._jobs.append(job)
        self._inbox.put(_WAKE)

    def _idle(self) -> bool:
        return self._inbox.empty()

    def _run(self) -> None:
        run_actor(self.record.id)
        _current.set(self._here)
        try:
            self._construct()
            self._serve()
        except BaseException as error:  # of the user's code all are caught: one of ours, or of an exception's own code
            self._fail(f"{_lifecycle.said(error)} ended the actor\n{_lifecycle.of_exception(error)}")
        finally:
            _current.set(self._here)
            self._clean()
            self._ended()

    def _serve(self) -> None:
        get, jobs = self._inbox.get, self._jobs
        while self.error is None:
            item = get()
            while jobs and self.error is None:
                jobs.popleft()()
            if isinstance(item, str):
                if item is STOP:
                    break
                continue
            if self.error is not None:
                break
            entered = self._enter(item)
            if entered is None:
                self.current = None
                continue
            method, args, kwargs = entered
            del entered
            try:
                value = method(*args, **kwargs)
            except BaseException as error:
                self._raised(item, error)
            else:
                self._returned(item, value)
                value = None
            # What a call was given and brought must not live until the next one comes.
            args, kwargs = (), {}
            del item, method
            self.current = None

    def _hear(self, told: Told) -> None:
        if self._stopping is not None:
            return
        _current.set(self._here)
        try:
            handled = self._hook_for(told)(told)
        except BaseException as error:
            self._unhandled(told, error)
        else:
            if not handled:
                self._unhandled(told, None)

    def _clean(self) -> None:
        cleanup = self._hook("__cleanup__")
        if cleanup is not None:
            self._bounded()
            try:
                cleanup(_lifecycle.reason_of(self._failure))
            except BaseException:
                traceback.print_exc()
