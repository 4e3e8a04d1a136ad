"""A session of two hosts for each module, and meshes on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_kernel as mk

# The processes of a mesh get this process's sys.path: they import the actors from here, as from a user's own folder.
sys.path.append(str(Path(__file__).parent))

WAIT = 30.0


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two hosts on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        made = mk.up(f"actors-{os.getpid()}", hosts=2)
        try:
            yield made
        finally:
            made.release()


@pytest.fixture(scope="module")
def procs(session: Any) -> Any:
    """Two processes on each of the two hosts."""
    return session.hosts.spawn_procs(per_host={"gpus": 2})


@pytest.fixture(scope="module")
def one(procs: Any) -> Any:
    """One process."""
    return procs.slice(hosts=0, gpus=0)


@pytest.fixture
def fresh(session: Any) -> Iterator[Callable[..., Any]]:
    """Spawn processes that may be killed: nobody else's."""
    made: list[Any] = []

    def spawn(**per_host: int) -> Any:
        made.append(session.hosts.spawn_procs(per_host=per_host or {"gpus": 2}))
        return made[-1]

    yield spawn
    for mesh in made:
        mesh.stop().get(timeout=WAIT)


def until(condition: Callable[[], Any], timeout: float = 10.0, what: str = "it") -> Any:
    """Wait for a condition that nothing announces."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {timeout} s"
        time.sleep(0.005)
    return found


@pytest.fixture(name="until")
def _until() -> Callable[..., Any]:
    return until
