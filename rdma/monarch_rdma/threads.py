"""Threads that move large bodies."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonThreads(Executor):
    """Up to so many threads, started when they are needed.

    Those of a ThreadPoolExecutor are waited for at the end of the process, and with them for a peer that has stopped.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0  # threads that wait for a job, less the jobs that wait for a thread
        self._started = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it in one of the threads."""
        future: Future[Any] = Future()
        with self._lock:
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            self._waiting -= 1
            if self._waiting < 0 and self._started < self._most:
                self._started += 1
                self._waiting += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, work = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del future, work  # and with them what they hold, before the next wait
            with self._lock:
                self._waiting += 1
