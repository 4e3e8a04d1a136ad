"""The kernel class: ipykernel's, with our name on it and our extension loaded.

All features are in the extension, so that VS Code, Colab and any other IPython kernel have them too.
"""

from __future__ import annotations

import inspect
import sys
from importlib import metadata
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from IPython.core import release


def _version() -> str:
    try:
        return metadata.version("monarch-kernel")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


class MonarchKernel(IPythonKernel):
    """IPython's kernel with the extension loaded from the start."""

    implementation = "monarch-kernel"
    implementation_version = _version()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]  # ipykernel annotates it in part
        shell: Any = self.shell
        try:
            shell.extension_manager.load_extension("monarch_kernel")
        except Exception:
            # A kernel that computes is worth more than none; the magics will be missing, and the log says why.
            self.log.exception("The extension monarch_kernel could not be loaded; this is a plain Python kernel.")

    @property
    def banner(self) -> str:  # type: ignore[override]  # a property in IPythonKernel, a trait in its base
        """What a console shows at its start."""
        python = sys.version.split()[0]
        versions = f"Python {python}, IPython {release.version}"
        return f"Monarch kernel {self.implementation_version} ({versions}); %monarch help\n"

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """End the kernel, and nothing else: what the session holds is released by a person or by its lease.

        Asynchronous because ipykernel warns about a synchronous one.
        """
        reply: Any = super().do_shutdown(restart)  # type: ignore[no-untyped-call]  # the same
        if inspect.isawaitable(reply):
            reply = await reply
        return dict(reply)
