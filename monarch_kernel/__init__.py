"""monarch-kernel: a Jupyter kernel that is the single controller of a GPU cluster.

>>> import monarch_kernel as mk
>>> session = mk.up("lab", hosts=2)                            # doctest: +SKIP
>>> procs = mk.hosts().spawn_procs(per_host={"gpus": 4})       # doctest: +SKIP

============================  ==================================================================
`up`, `attach`                start a session, or take control of one that is live
`session`, `sessions`         the one that this process is attached to; all of this user
`hosts`                       the hosts of the attached session: where processes are spawned
`down`                        end a session by name and wait until all of it is gone
`Session`                     meshes, calls and times of a session; what `up` and `attach` return
`monarch_kernel.actor`        the programming model: Actor, endpoint, meshes, Future
`monarch_kernel.rdma`         memory that other processes of the session read and write
`monarch_kernel.errors`       the one tree of errors
============================  ==================================================================

What a session holds outlives the process that started it: a kernel or script that ends, by any death, ends nothing of
it. Importing the package is cheap: neither torch nor Jupyter nor gRPC is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .kernel.extension import load_ipython_extension, unload_ipython_extension
    from .session import Session, attach, down, hosts, session, sessions, up

__all__ = [
    "Session",
    "attach",
    "down",
    "hosts",
    "load_ipython_extension",
    "session",
    "sessions",
    "unload_ipython_extension",
    "up",
]

_SESSION = frozenset({"Session", "attach", "down", "hosts", "sessions", "up"})
_EXTENSION = frozenset({"load_ipython_extension", "unload_ipython_extension"})


def __getattr__(name: str) -> Any:
    import importlib

    if name == "session":
        return importlib.import_module(".session", __name__)  # callable, see there
    if name in _SESSION:
        return getattr(importlib.import_module(".session", __name__), name)
    if name in _EXTENSION:
        return getattr(importlib.import_module(".kernel.extension", __name__), name)
    if name == "errors":
        return importlib.import_module(".errors", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "errors"})
