"""A host that a worker loop lends: its processes start as the loop was started, and it ends with the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from monarch_kernel.protocol.statefile import prove

FROM_CLIENT = ("MONARCH_KERNEL_CONFIG",)
"""Of the client's environment only this counts: what it has configured."""


def as_here(spec: dict[str, Any], own: dict[str, Any] | None) -> dict[str, Any]:
    """How processes are started that were asked for elsewhere.

    Parameters
    ----------
    spec
        As the client asks: its own interpreter, directory, environment, and modules.
    own
        The worker loop's; None on a host that is not lent. Its interpreter stands in for the client's, but not for one
        that was asked for on purpose.
    """
    if own is None:
        return spec
    executable = spec["executable"]
    path = spec.get("sys_path", [])
    return {
        **spec,
        "executable": own["executable"] if executable == own["instead_of"] else executable,
        "cwd": own["cwd"],
        "sys_path": [*path, *(entry for entry in own["sys_path"] if entry not in path)],
        "env": {**own["env"], **{name: spec["env"][name] for name in FROM_CLIENT if name in spec.get("env", {})}},
    }


def tie_to_lender(config: dict[str, Any], release: Callable[[str], None]) -> None:
    """End this host when its worker loop has ended, or has already."""
    if "lender" not in config:
        return
    gone = "the worker loop that lent the host has ended"
    loop = asyncio.get_running_loop()
    fd = prove(*config["lender"])
    if fd is None:
        release(gone)
        return

    def ended() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        release(gone)

    loop.add_reader(fd, ended)
