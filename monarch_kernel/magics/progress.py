"""One line that says that something takes a while; it ends as one line that says how long it took."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Progress"]

T = TypeVar("T")

#: Seconds of silence before the line appears.
PATIENCE = 1.0


class Progress:
    """Runs what may take a while, for one shell.

    The line is shown only to a person: in a notebook as one output that changes, on a terminal as one line that is
    written over, elsewhere not at all.
    """

    def __init__(self, ip: Any) -> None:
        self._kernel = getattr(ip, "kernel", None) is not None

    def run(self, words: str, work: Callable[[], T], *, to_the_end: bool = False) -> T:
        """Do the work on this thread, so that an interrupt reaches it.

        Parameters
        ----------
        words
            What is being done: "starting session 'lab'".
        work
            What to run.
        to_the_end
            An interrupt leaves the work to itself on another thread: it must not stop half way.
        """
        line = _Line(words, self._kernel)
        how = "failed"
        try:
            done = _aside(work) if to_the_end else work()
            how = ""
            return done
        except KeyboardInterrupt:
            how = "interrupted"
            raise
        finally:
            line.end(how)


def _aside(work: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # it is the caller's, and raised there
            errors.append(error)

    thread = threading.Thread(target=run, name="monarch-magic", daemon=True)
    thread.start()
    while thread.is_alive():
        # In slices: a signal that comes just before a wait does not wake it.
        thread.join(0.2)
    if errors:
        raise errors[0]
    return results[0]


class _Line:
    def __init__(self, words: str, kernel: bool) -> None:
        self._words = words
        self._began = time.monotonic()
        self._over = threading.Event()
        self._shown = False
        self._width = 0
        self._handle = secrets.token_hex(8)
        self._write = self._display if kernel else self._overwrite if sys.stderr.isatty() else None
        self._thread = threading.Thread(target=self._tick, name="monarch-progress", daemon=True)
        if self._write is not None:
            self._thread.start()

    def _tick(self) -> None:
        while not self._over.wait(PATIENCE):
            if self._write is not None:
                self._write(f"{self._words} … {time.monotonic() - self._began:.0f} s")
                self._shown = True

    def end(self, how: str) -> None:
        """Leave one line, if there was one."""
        self._over.set()
        if self._write is None:
            return
        self._thread.join()
        if self._shown:
            seconds = f"{time.monotonic() - self._began:.1f} s"
            self._write(f"{self._words}: {f'{how} after ' if how else ''}{seconds}")
            if self._write == self._overwrite:
                sys.stderr.write("\n")
                sys.stderr.flush()

    def _display(self, text: str) -> None:
        from IPython.display import display, update_display

        if self._shown:
            update_display({"text/plain": text}, raw=True, display_id=self._handle)
        else:
            display({"text/plain": text}, raw=True, display_id=self._handle)

    def _overwrite(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)
