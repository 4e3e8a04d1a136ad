"""What an owner is told when a whole host is lost. It costs a session."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from conftest import WAIT
from mesh_actors import Runner

from monarch_kernel.actor import Actor, MeshFailure, endpoint
from monarch_kernel.errors import HostLost


class Parent(Actor):
    def __init__(self, procs: Any) -> None:
        self.child = procs.spawn("child", Runner)
        self.told: list[MeshFailure] = []

    @endpoint
    def mesh(self) -> Any:
        return self.child

    @endpoint
    def failures(self) -> list[MeshFailure]:
        return self.told

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure)
        return True


def test_the_owner_of_a_mesh_on_a_host_that_is_lost_is_told_and_the_rest_goes_on(session, procs, until, faults):
    parent = procs.slice(hosts=0, gpus=0).spawn("parent", Parent, procs)
    child = parent.mesh.call_one().get(timeout=WAIT)
    child.pid.call().get(timeout=WAIT)
    os.kill(session.file.members[1].keeper_pid, signal.SIGKILL)
    until(lambda: len(parent.failures.call_one().get(timeout=WAIT)) == 2, what="word of two ranks")
    found = parent.failures.call_one().get(timeout=WAIT)
    assert sorted((failure.mesh_name, failure.crashed_ranks) for failure in found) == [("child", (2,)), ("child", (3,))]
    assert "no word from host 1" in found[0].report()
    with pytest.raises(HostLost):
        child.pid.call().get(timeout=WAIT)
    assert len(child.slice(hosts=0).pid.call().get(timeout=WAIT)) == 2
    assert faults == []
