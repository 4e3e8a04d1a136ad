"""What ranks print appears under the cell that runs, or ran last, and not without end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from monarch_kernel.kernel.barrier import Wait
from monarch_kernel.kernel.cells import CellExecution, CellWatch
from monarch_kernel.session import Session, listen
from monarch_kernel.state.logs import Budget, Stream

LINES, CHARACTERS = 10_000, 2_000_000
"""What one cell shows of its ranks' output: more makes a notebook too heavy to open, and the logs have it all."""

SETTLES = 1.0
"""Seconds that a cell's end waits for the lines of its ranks at most."""


class Output:
    """Shows the lines of all ranks in one kernel.

    They are sent as the kernel's own stream messages with the cell as their parent: ipykernel takes the parent of what
    is written on another thread to be the cell that started the thread.
    """

    def __init__(self, kernel: Any, cells: CellWatch, barrier: Any) -> None:
        self._kernel = kernel
        self._cells = cells
        self._barrier = barrier
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._parent: dict[str, Any] = {}
        self._budget = Budget(LINES, CHARACTERS)
        self._stop_listening: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Begin."""
        self._cells.add(self)
        self._barrier.add(self._pending)
        self._stop_listening = listen(self._attached)

    def remove(self) -> None:
        """Lines go to `sys.stdout` and `sys.stderr`, as in a script."""
        self._stop_listening()
        self._cells.discard(self)
        self._barrier.discard(self._pending)
        if self._session is not None:
            self._session.controller.logs.restore()
        self._session = None

    def _attached(self, session: Session) -> None:
        self._session = session
        session.controller.logs.write = self._write
        current = self._cells.current
        if current is not None and not self._parent:
            self._parent = current.parent

    def on_begin(self, execution: CellExecution) -> None:
        """From here on lines belong to this cell; the one before says how many it did not show."""
        with self._lock:
            before, self._parent = self._parent, execution.parent
            left_out, self._budget = self._budget.left_out, Budget(LINES, CHARACTERS)
        if left_out:
            self._send(before, "err", f"monarch: {left_out} more lines were left out here\n")

    def on_end(self, execution: CellExecution, ok: bool) -> None:
        """What comes later still belongs to it, until another begins."""

    def _pending(self) -> Iterable[Wait]:
        session = self._session
        if session is None or session.over is not None:
            return
        flushed = session.controller.flush_logs()
        until = time.monotonic() + SETTLES

        def wait(seconds: float) -> bool:
            try:
                flushed.get(timeout=max(0.0, min(seconds, until - time.monotonic())))
            except TimeoutError:
                return time.monotonic() >= until
            return True

        yield wait

    def _write(self, stream: Stream, text: str) -> None:
        """On the thread of the log view."""
        with self._lock:
            parent = self._parent
            whole = not self._budget.left_out
            shown = self._budget.take(text)
            cut = whole and self._budget.left_out
        if shown:
            self._send(parent, stream, shown)
        if cut:
            self._send(
                parent,
                "err",
                f"monarch: this cell has shown {LINES} lines or {CHARACTERS} characters of its ranks' output and "
                "shows no more: their logs on the hosts have it all\n",
            )

    def _send(self, parent: dict[str, Any], stream: Stream, text: str) -> None:
        for own in (sys.stdout, sys.stderr):
            own.flush()  # what the cell printed before comes first
        kernel = self._kernel
        name = "stdout" if stream == "out" else "stderr"
        content = {"name": name, "text": text}
        topic = f"stream.{name}".encode()
        kernel.session.send(kernel.iopub_socket, "stream", content, parent=parent, ident=topic)
