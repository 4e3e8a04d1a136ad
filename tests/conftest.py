"""A place of their own for tests that start real sessions."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_kernel.actor import MeshFailure

sys.path.append(str(Path(__file__).parent / "e2e" / "modules"))  # actors and look-ups that tests of sessions share


class Faults(list[MeshFailure]):
    """The failures that reached the hook, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self._some = threading.Condition()

    def hook(self, failure: MeshFailure) -> None:
        with self._some:
            self.append(failure)
            self._some.notify_all()

    def wait(self, count: int = 1, timeout: float = 10.0) -> Faults:
        """Wait until there are so many."""
        with self._some:
            assert self._some.wait_for(lambda: len(self) >= count, timeout), f"{count} were expected; there are {self}"
        return self


@pytest.fixture(scope="session", autouse=True)
def late_faults() -> Iterator[None]:
    """A failure that is told after the test that made it, or while a fixture ends, is nobody's; it ends no tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monarch_kernel.actor.unhandled_fault_hook", lambda failure: None)
        yield


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """What no actor handled: a test looks at it, where Monarch's own hook would end the tests."""
    found = Faults()
    monkeypatch.setattr("monarch_kernel.actor.unhandled_fault_hook", found.hook)
    return found


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
