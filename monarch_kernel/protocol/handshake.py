"""What two processes must agree on before anything is unpickled between them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..errors import VersionSkew
from . import WIRE

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Of this process."""


def versions() -> dict[str, Any]:
    """What a greeting says of its sender: the wire version and the Python minor version."""
    return {"wire": WIRE, "python": PYTHON}


def check_versions(words: Mapping[str, Any]) -> None:
    """Refuse a peer of another wire version or Python minor version, naming both. Before anything is unpickled."""
    if words.get("wire") != WIRE:
        raise VersionSkew(
            f"the host speaks wire version {WIRE}, the caller {words.get('wire')}: use the same version of "
            "monarch-kernel on both sides"
        )
    if words.get("python") != PYTHON:
        raise VersionSkew(
            f"the session runs Python {PYTHON}, the caller Python {words.get('python')}: what is sent between them is "
            f"pickled, so both need the same minor version. Start the kernel with Python {PYTHON}, or release the "
            "session and start it anew"
        )
