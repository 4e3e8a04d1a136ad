"""Who this kernel says it is to a session: other controllers are told by it who took over."""

from __future__ import annotations

from typing import Any

from monarch_kernel.kernel.cells import CellExecution, CellWatch
from monarch_kernel.session import Identity


class KernelIdentity:
    """Sets the kind and title of the controller in this process."""

    def __init__(self, kernel: Any, cells: CellWatch) -> None:
        self._kernel = kernel
        self._cells = cells
        self._before = (Identity.kind, Identity.title)

    def install(self) -> None:
        """Begin."""
        self._before = (Identity.kind, Identity.title)
        if self._kernel is not None:
            Identity.kind, Identity.title = "kernel", ""
        self._cells.add(self)

    def remove(self) -> None:
        """End."""
        self._cells.discard(self)
        Identity.kind, Identity.title = self._before

    def on_begin(self, execution: CellExecution) -> None:
        """The notebook's name is known once a cell runs."""
        if self._kernel is not None and execution.notebook and not execution.notebook.startswith("folder:"):
            Identity.title = execution.notebook.rpartition("/")[2]

    def on_end(self, execution: CellExecution, ok: bool) -> None:
        """Nothing."""
