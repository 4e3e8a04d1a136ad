"""The extension: ``%load_ext monarch_kernel`` in any IPython kernel, or in a terminal."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from monarch_kernel import magics
from monarch_kernel.kernel.barrier import Barrier
from monarch_kernel.kernel.bindings import Bindings
from monarch_kernel.kernel.cells import CellWatch
from monarch_kernel.kernel.identity import KernelIdentity
from monarch_kernel.kernel.notices import Notices
from monarch_kernel.kernel.rerun import ReRuns
from monarch_kernel.kernel.tracebacks import Tracebacks
from monarch_kernel.protocol.code import registry


class Part(Protocol):
    """One thing that the extension adds to a shell, and can take away again."""

    def install(self) -> None:
        """Add it."""

    def remove(self) -> None:
        """Put everything back as it was."""


class Magics:
    """``%monarch``."""

    def __init__(self, ip: Any, extension: MonarchExtension) -> None:
        self._ip = ip
        self._extension = extension

    def install(self) -> None:
        """Register it."""
        magics.register(self._ip, self._extension)

    def remove(self) -> None:
        """Take it away."""
        magics.unregister(self._ip)


class Namespace:
    """Lets classes that come back from the cluster be the ones that the notebook has now."""

    def install(self) -> None:
        """Look in the notebook's namespace first."""
        registry().namespace = lambda: sys.modules["__main__"].__dict__

    def remove(self) -> None:
        """As in a proc: the first that came stays."""
        registry().namespace = None


class MonarchExtension:
    """What is added to one shell.

    Parameters
    ----------
    ip
        The IPython shell.

    Attributes
    ----------
    kernel
        The kernel that the shell belongs to; None in a terminal.
    cells : CellWatch
        Which cell runs; calls listeners when one begins and ends.
    barrier : Barrier
        What a cell waits for before it ends.
    """

    def __init__(self, ip: Any) -> None:
        self.ip = ip
        self.kernel: Any = getattr(ip, "kernel", None)
        self.cells = CellWatch(ip)
        if self.kernel is None:
            self.barrier = Barrier(ip)
            self._parts: list[Part] = [self.cells, self.barrier]
            lines: list[Part] = []
        else:
            # Only a kernel has ipykernel; a terminal may be without it.
            from monarch_kernel.kernel.comms import CommRouting
            from monarch_kernel.kernel.interrupts import PromptInterrupts
            from monarch_kernel.kernel.output import Output

            interrupts = PromptInterrupts(self.kernel)
            self.barrier = Barrier(ip, interrupts.take_missed)
            self._parts = [self.cells, self.barrier, interrupts, CommRouting()]
            lines = [Output(self.kernel, self.cells, self.barrier)]
        self.rerun = ReRuns(ip, self.cells, self.barrier)
        self.bindings = Bindings(ip, self.cells)
        # In this order: a cell's end says first what was kept and made, then sends it, then shows what happened.
        self._parts += [
            Tracebacks(ip),
            Namespace(),
            KernelIdentity(self.kernel, self.cells),
            self.rerun,
            self.bindings,
            *lines,
            Notices(self.cells),
            Magics(ip, self),
        ]
        self._installed: list[Part] = []

    def add(self, part: Part) -> None:
        """Install a part; it is removed when the extension is unloaded."""
        part.install()
        self._installed.append(part)

    def install(self) -> None:
        """Install all parts, or none where one of them fails."""
        try:
            for part in self._parts:
                self.add(part)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove all parts, the last one first."""
        while self._installed:
            self._installed.pop().remove()


_loaded: MonarchExtension | None = None


def loaded() -> MonarchExtension | None:
    """Return the extension of this process, or None where it is not loaded."""
    return _loaded


def load_ipython_extension(ip: Any) -> None:
    """Add the features to a shell (IPython calls this for ``%load_ext``)."""
    global _loaded
    if _loaded is not None:
        if _loaded.ip is ip:
            return
        _loaded.remove()
    extension = MonarchExtension(ip)
    extension.install()
    _loaded = extension


def unload_ipython_extension(ip: Any) -> None:
    """Put a shell back as it was (IPython calls this for ``%unload_ext``)."""
    global _loaded
    if _loaded is not None and _loaded.ip is ip:
        _loaded.remove()
        _loaded = None
