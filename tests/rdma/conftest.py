"""A session of two hosts for each module, with a process on each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_kernel as mk

sys.path.append(str(Path(__file__).parent))  # the processes import the actors from here


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        made = mk.up(f"rdma-{os.getpid()}", hosts=2)
        try:
            yield made
        finally:
            made.release()


@pytest.fixture(scope="module")
def procs(session: Any) -> Any:
    return session.hosts.spawn_procs(per_host={"gpus": 2})


@pytest.fixture(scope="module")
def owner(procs: Any) -> Any:
    from buffers import Owner

    return procs.slice(hosts=0, gpus=0).spawn("owner", Owner)


@pytest.fixture(scope="module")
def reader(procs: Any) -> Any:
    """On the other host."""
    from buffers import Reader

    return procs.slice(hosts=1, gpus=0).spawn("reader", Reader)


@pytest.fixture
def fresh(session: Any) -> Iterator[Any]:
    """An owner in a process of its own, which may be killed."""
    from buffers import Owner

    mesh = session.hosts.slice(hosts=0).spawn_procs(per_host={"gpus": 1})
    yield mesh.spawn("fresh", Owner)
    mesh.stop().get(timeout=30)


def wait_until(condition: Any, timeout: float = 10.0) -> Any:
    """Wait for a condition that nothing announces."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"it did not happen within {timeout} s"
        time.sleep(0.005)
    return found


@pytest.fixture
def until() -> Any:
    return wait_until
