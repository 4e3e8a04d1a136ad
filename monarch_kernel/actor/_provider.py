"""The one seam through which actors find what carries them.

In a proc, its main program sets the runtime. In a controller nothing is set until a session is, and then the first use
asks `monarch_kernel.session`, imported by name, for a private one. That is the only place where `actor` reaches up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import StaleHandle

if TYPE_CHECKING:
    from ._runtime import Runtime

_runtime: Runtime | None = None
_make: Callable[[], Runtime] | None = None


def set_runtime(runtime: Runtime | None) -> None:
    """Set, or with None take away, what carries the actors of this process."""
    global _runtime
    _runtime = runtime


def known_runtime() -> Runtime | None:
    """What carries the actors of this process, None where nothing does yet."""
    return _runtime


def current_runtime() -> Runtime:
    """What carries the actors of this process; in a controller without a session a private one is started."""
    if _runtime is None:
        importlib.import_module("monarch_kernel.session").start_private()
    assert _runtime is not None
    return _runtime


def runtime_of(reference: dict[str, Any], name: str) -> Runtime:
    """What carries an unpickled handle in this process. Never a private session that is started for it."""
    runtime = known_runtime()
    if runtime is None:
        raise StaleHandle(
            f"this handle belongs to session {reference['session']}, and nothing is attached here: "
            f"monarch_kernel.attach({reference['session']!r}) first",
            mesh=name,
        )
    runtime.check_reference(reference, name)
    return runtime
