"""The IPython kernel, a thin shell, and the extension that does the work.

The kernel class is `monarch_kernel.kernel.kernel.MonarchKernel`, started by ``python -m monarch_kernel.kernel``; any
other IPython kernel gets the same features by ``%load_ext monarch_kernel``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_kernel.kernel.barrier import Barrier as Barrier
    from monarch_kernel.kernel.cells import CellExecution as CellExecution
    from monarch_kernel.kernel.cells import CellWatch as CellWatch
    from monarch_kernel.kernel.extension import MonarchExtension as MonarchExtension
    from monarch_kernel.kernel.extension import loaded as loaded

__all__ = ["Barrier", "CellExecution", "CellWatch", "MonarchExtension", "loaded"]

_HOMES = {
    "Barrier": "barrier",
    "CellExecution": "cells",
    "CellWatch": "cells",
    "MonarchExtension": "extension",
    "loaded": "extension",
}


# Lazy, so that `monarch-kernel install` and a worker host can name this package without IPython.
def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
