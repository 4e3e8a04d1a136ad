"""Which cell is running.

JupyterLab sends each cell's id with it; nbclient and plain jupyter_client send none, and VS Code a document URI that
changes, which counts as none. Without an id a cell is known by the hash of its source.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

_log = logging.getLogger(__name__)

#: What nbformat allows as the id of a cell; a URI does not match.
_CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, eq=False)
class CellExecution:
    """One execution of one cell.

    Attributes
    ----------
    notebook
        What tells this notebook from others: the path that the Jupyter server gives its kernel, else the folder the
        kernel started in. None in a terminal, where no cell is ever run again.
    cell_id
        The id the front end sent, or None.
    source, source_hash
        The cell as it was written, and 16 hexadecimal digits over it that ignore trailing white space.
    count
        The number in the prompt.
    parent
        The message that asked for it, as ``kernel.get_parent()`` gives it; empty in a terminal.
    """

    notebook: str | None
    cell_id: str | None
    source: str
    source_hash: str
    count: int
    parent: dict[str, Any] = field(repr=False)

    @property
    def cell(self) -> str:
        """What tells this cell from others of the notebook: its id, else the hash of its source."""
        return self.cell_id or self.source_hash


class CellListener(Protocol):
    """Who wants to know about cells. Called on the thread that runs the cell, within its output."""

    def on_begin(self, execution: CellExecution) -> None:
        """Hear of a cell before any of its code runs."""

    def on_end(self, execution: CellExecution, ok: bool) -> None:
        """Hear of its end, after whatever it waited for; not ok where it raised or was interrupted."""


def source_hash(source: str) -> str:
    r"""Return 16 hexadecimal digits over a cell's source, the same for any line ends and trailing white space.

    >>> source_hash("a = 1") == source_hash("a = 1  \r\n")
    True
    """
    lines = "\n".join(line.rstrip() for line in source.splitlines()).rstrip()
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class CellWatch:
    """Follows the executions of one shell.

    Silent executions (a front end looking something up) are not cells. A cell run from within a cell, by ``%run`` or
    ``run_cell``, belongs to the outer one. Cells may run on several threads at a time (subshells).
    """

    def __init__(self, ip: Any) -> None:
        self._ip = ip
        self._listeners: list[CellListener] = []
        self._running: dict[int, tuple[CellExecution, Any]] = {}  # by thread; with IPython's own record of the cell
        self._started_in = os.getcwd()
        self._main = threading.main_thread().ident

    def install(self) -> None:
        """Follow the shell from now on, the cell included that is running."""
        self._ip.events.register("pre_run_cell", self._pre_run_cell)
        self._ip.events.register("post_run_cell", self._post_run_cell)
        result = getattr(self._ip.displayhook, "exec_result", None)
        if result is not None:  # the cell that says %load_ext
            self._pre_run_cell(result.info)

    def remove(self) -> None:
        """Stop following."""
        self._ip.events.unregister("pre_run_cell", self._pre_run_cell)
        self._ip.events.unregister("post_run_cell", self._post_run_cell)
        self._running.clear()

    def add(self, listener: CellListener) -> None:
        """Tell a listener of each cell from now on."""
        self._listeners.append(listener)

    def discard(self, listener: CellListener) -> None:
        """Tell it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def current(self) -> CellExecution | None:
        """The cell that this thread runs; for a thread that runs none, the one that the main thread runs."""
        mine = self._running.get(threading.get_ident()) or self._running.get(self._main or 0)
        return mine[0] if mine else None

    def _pre_run_cell(self, info: Any) -> None:
        thread = threading.get_ident()
        parent = self._parent()
        outer = self._running.get(thread)
        if outer is not None:
            if _message_id(outer[0].parent) == _message_id(parent):
                return  # run from within the outer cell
            self._end(thread, ok=False)  # its end was never announced
        execution = CellExecution(
            notebook=self._notebook(),
            cell_id=_cell_id(parent, info),
            source=info.raw_cell,
            source_hash=source_hash(info.raw_cell),
            count=self._ip.execution_count - bool(info.store_history),  # IPython has counted it already
            parent=parent,
        )
        self._running[thread] = (execution, info)
        self._tell("on_begin", execution)

    def _post_run_cell(self, result: Any) -> None:
        thread = threading.get_ident()
        running = self._running.get(thread)
        if running is None:
            return
        if result is None:  # an asynchronous cell was cancelled from outside
            self._end(thread, ok=False)
        elif result.info is running[1] or result.info.raw_cell == running[1].raw_cell:
            self._end(thread, ok=bool(result.success))

    def _end(self, thread: int, *, ok: bool) -> None:
        execution, _ = self._running.pop(thread)
        self._tell("on_end", execution, ok)

    def _tell(self, what: str, *details: Any) -> None:
        for listener in tuple(self._listeners):
            try:
                getattr(listener, what)(*details)
            except Exception as error:  # the others still hear of it, and the cell is not failed by it
                name = type(listener).__name__
                print(f"monarch-kernel: {name} failed at the cell's {what[3:]}: {error!r}", file=sys.stderr)
                _log.debug("%s.%s failed", name, what, exc_info=True)

    def _parent(self) -> dict[str, Any]:
        kernel = getattr(self._ip, "kernel", None)
        if kernel is None:
            return {}
        return dict(kernel.get_parent("shell") or {})

    def _notebook(self) -> str | None:
        if getattr(self._ip, "kernel", None) is None:
            return None
        # Set by the Jupyter server, and by VS Code in the user's namespace.
        given = os.environ.get("JPY_SESSION_NAME") or self._ip.user_ns.get("__vsc_ipynb_file__")
        return str(given) if given else f"folder:{self._started_in}"


def _message_id(parent: dict[str, Any]) -> Any:
    return parent.get("header", {}).get("msg_id")


def _cell_id(parent: dict[str, Any], info: Any) -> str | None:
    given = parent.get("metadata", {}).get("cellId") or getattr(info, "cell_id", None)
    return given if isinstance(given, str) and _CELL_ID.match(given) else None
