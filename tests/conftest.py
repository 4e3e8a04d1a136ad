"""A place of their own for tests that start real sessions."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "e2e" / "modules"))  # actors and look-ups that tests of sessions share


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State and sockets in a place of this module's; every session in it ends with it."""
    from monarch_kernel.protocol import statefile
    from monarch_kernel.session import down, session

    folder = tmp_path_factory.mktemp("place")
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("XDG_RUNTIME_DIR", sockets)
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join(str(root / part) for part in ("", "worker", "rdma", "tests/e2e/modules")),
        )
        yield folder
        try:
            session().detach()
        except RuntimeError:
            pass
        for file in statefile.load_all():
            if statefile.written_here(file):
                down(file.name)
        assert list(Path(sockets).glob("monarch-kernel/*/*")) == []
