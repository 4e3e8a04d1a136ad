"""More GPUs than there are, and exclusive ones: on a session with two slots a host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mesh_actors import Counter, Runner

import monarch_kernel as mk
from monarch_kernel.errors import NotEnoughSlots, ProcDied

WAIT = 30


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # Where there is a driver, devices cannot be made up.
        if os.path.exists("/proc/driver/nvidia"):
            pytest.skip("this machine has real devices")
        made = mk.up(f"slots-{os.getpid()}", hosts=2, gpus=2)
        try:
            yield made
        finally:
            made.release()


def test_more_than_there_are_is_refused_with_the_numbers(session):
    began = time.monotonic()
    procs = session.hosts.spawn_procs(per_host={"gpus": 3})
    with pytest.raises(NotEnoughSlots, match=r"3 CPU slots a host were asked for; there are 2, of which 2 are free"):
        procs.initialized.get(timeout=WAIT)
    with pytest.raises(NotEnoughSlots):
        procs.spawn("too many", Counter).value.call().get(timeout=WAIT)
    assert time.monotonic() - began < 3


def test_a_call_that_waits_for_such_a_mesh_fails_with_the_same(session):
    with pytest.raises(NotEnoughSlots, match="3 CPU slots"):
        session.hosts.spawn_procs(per_host={"gpus": 3}).spawn("too many", Counter).value.call().get(timeout=WAIT)


def test_other_dimensions_take_no_slots(session):
    procs = session.hosts.spawn_procs(per_host={"workers": 3})
    assert len(procs.spawn("many", Counter).value.call().get(timeout=WAIT)) == 6
    procs.stop().get(timeout=WAIT)


@pytest.fixture
def spawn(session: Any) -> Iterator[Callable[..., Any]]:
    """Spawn processes with so many slots, ready; all end with the test."""
    made: list[Any] = []

    def spawn(gpus: int, *, exclusive: bool = False, hosts: Any = None) -> Any:
        where = (hosts or session.hosts).options(exclusive=exclusive)
        procs = where.spawn_procs(per_host={"gpus": gpus})
        procs.initialized.get(timeout=WAIT)
        made.append(procs)
        return procs

    yield spawn
    for procs in made:
        procs.stop().get(timeout=WAIT)


def test_meshes_share_slots(spawn):
    spawn(2)
    spawn(2)
    with pytest.raises(NotEnoughSlots, match="of which 0 are free"):
        spawn(1, exclusive=True)


def test_exclusive_slots_are_nobody_elses_until_they_are_given_back(spawn):
    mine = spawn(1, exclusive=True)
    spawn(1)
    with pytest.raises(NotEnoughSlots, match=r"of which 1 are free.*exclusive"):
        spawn(2)
    mine.stop().get(timeout=WAIT)
    spawn(2)


def test_exclusive_slots_of_one_host_leave_the_other_free(session, spawn):
    spawn(2, exclusive=True, hosts=session.hosts.slice(hosts=0))
    spawn(2, exclusive=True, hosts=session.hosts.slice(hosts=1))
    with pytest.raises(NotEnoughSlots):
        spawn(1, hosts=session.hosts.slice(hosts=1))


def test_slots_of_a_process_that_was_killed_are_given_back(spawn):
    procs = spawn(2, exclusive=True)
    with pytest.raises(ProcDied):
        procs.spawn("dies", Runner).run.call(lambda: os._exit(1)).get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    spawn(2, exclusive=True)
