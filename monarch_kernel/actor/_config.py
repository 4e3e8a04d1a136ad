"""The configuration of this process: what Monarch's defaults, the client that started it, and this program say.

`monarch_kernel.config` is its public face. A process that is started from here gets the program's part in its
environment, so that actors see what their client has set.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

from ..state.humantime import parse_humantime
from ._config_keys import KEYS, checked, from_text, to_text

__all__ = ["clear_runtime_config", "configure", "configured", "get_global_config", "get_runtime_config", "seconds"]

ENVIRONMENT = "MONARCH_KERNEL_CONFIG"
"""Where a process finds what its client has set, as JSON."""

_lock = threading.Lock()
_runtime: dict[str, Any] = {}


def _inherited() -> dict[str, Any]:
    """What the client has set. Of another version it may hold keys that are none here: those are left out."""
    try:
        found = json.loads(os.environ.get(ENVIRONMENT) or "{}")
        return {name: from_text(name, value) for name, value in found.items() if name in KEYS}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


_client = _inherited()


def configure(**settings: Any) -> None:
    """Set keys of this process's configuration, under Monarch's names; all of them or, where one is wrong, none.

    Processes that are spawned later see them too. Durations are texts such as ``"30s"`` and ``"1h 30m"``. Not every key
    has a counterpart here: those that do are listed in the user guide, the others are checked, kept and read back, and
    change nothing.

    Raises
    ------
    ValueError
        There is no such key (names those near it), or the value is out of range.
    TypeError
        The value is none of that key.

    Examples
    --------
    >>> configure(mesh_attach_config_timeout="90s")
    >>> get_global_config()["mesh_attach_config_timeout"]
    '1m 30s'
    >>> clear_runtime_config()
    """
    new = {name: checked(name, value) for name, value in settings.items()}
    with _lock:
        _runtime.update(new)


def get_runtime_config() -> dict[str, Any]:
    """What this program has set with `configure`, as a copy."""
    with _lock:
        return dict(_runtime)


def get_global_config() -> dict[str, Any]:
    """Every key and the value that holds: the program's, else that of the client that started it, else the default."""
    with _lock:
        return {**{name: key.default for name, key in KEYS.items()}, **_client, **_runtime}


def clear_runtime_config() -> None:
    """Forget what this program has set."""
    with _lock:
        _runtime.clear()


@contextlib.contextmanager
def configured(**overrides: Any) -> Iterator[dict[str, Any]]:
    """Set keys for a block, and afterwards what held before; yields `get_global_config`.

    It changes the whole process, other threads included.

    Examples
    --------
    >>> with configured(rdma_disable_ibverbs=True) as config:
    ...     config["rdma_disable_ibverbs"]
    True
    >>> get_global_config()["rdma_disable_ibverbs"]
    False
    """
    before = get_runtime_config()
    configure(**overrides)
    try:
        yield get_global_config()
    finally:
        with _lock:
            _runtime.clear()
            _runtime.update(before)


def setting(name: str) -> Any:
    """The value that holds for one key."""
    with _lock:
        return _runtime.get(name, _client.get(name, KEYS[name].default))


def seconds(name: str) -> float:
    """A duration of the configuration, in seconds."""
    return parse_humantime(setting(name)) / 1e9


def for_children() -> dict[str, str]:
    """What to add to the environment of a process that is started from here."""
    with _lock:
        words = {name: to_text(value) for name, value in {**_client, **_runtime}.items()}
    return {ENVIRONMENT: json.dumps(words)} if words else {}
