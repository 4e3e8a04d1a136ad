"""The kernelspec: what Jupyter needs to offer and start the kernel."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "monarch"
DISPLAY_NAME = "Monarch (Python)"
_RESOURCES = Path(__file__).parent / "resources"


def kernel_json(executable: str | None = None) -> dict[str, Any]:
    """Return the contents of ``kernel.json``.

    Parameters
    ----------
    executable
        The interpreter that runs the kernel; by default this one.
    """
    return {
        # Frozen modules are off for the debugger, as in ipykernel's own spec.
        "argv": [
            executable or sys.executable,
            "-Xfrozen_modules=off",
            "-m",
            "monarch_kernel.kernel",
            "-f",
            "{connection_file}",
        ],
        "display_name": DISPLAY_NAME,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, "supported_encryption": ["curve"]},
        "kernel_protocol_version": "5.5",
    }


def write(folder: Path, executable: str | None = None) -> Path:
    """Write a complete kernelspec to a folder that does not exist yet, and return it."""
    shutil.copytree(_RESOURCES, folder)
    (folder / "kernel.json").write_text(json.dumps(kernel_json(executable), indent=1) + "\n", encoding="utf-8")
    return folder


def install(*, user: bool = False, prefix: str | None = None) -> Path:
    """Install the kernelspec and return where it is.

    Parameters
    ----------
    user
        For this user, in every environment's Jupyter.
    prefix
        Into ``PREFIX/share/jupyter/kernels``; `sys.prefix` is seen by the Jupyter of this environment only.
        With neither, for all users of the machine.

    Raises
    ------
    PermissionError
        The place cannot be written.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as scratch:
        spec = write(Path(scratch) / NAME)
        # An older one is replaced as a whole.
        return Path(KernelSpecManager().install_kernel_spec(str(spec), NAME, user=user, prefix=_absolute(prefix)))


def uninstall(*, user: bool = False, prefix: str | None = None) -> list[Path]:
    """Remove the kernelspec and return where it was.

    With neither argument, from every place where this environment's Jupyter looks. A kernelspec of the same name that
    does not start our kernel is left alone.
    """
    from jupyter_core.paths import jupyter_data_dir, jupyter_path

    if user:
        places = [Path(jupyter_data_dir(), "kernels")]
    elif prefix is not None:
        places = [Path(prefix, "share", "jupyter", "kernels")]
    else:
        places = [Path(folder) for folder in jupyter_path("kernels")]
    removed = []
    for place in places:
        if starts_ours(place / NAME):
            shutil.rmtree(place / NAME)
            removed.append(place / NAME)
    return removed


def starts_ours(folder: Path) -> bool:
    """Whether a folder is a kernelspec that starts our kernel."""
    try:
        argv = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))["argv"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return "monarch_kernel.kernel" in argv


def _absolute(prefix: str | None) -> str | None:
    return None if prefix is None else str(Path(prefix).expanduser().absolute())
