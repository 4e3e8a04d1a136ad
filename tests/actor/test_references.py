"""Meshes as values: passed, returned, nested, kept, pickled."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from mesh_actors import BadConstructor, Counter, Relay, Runner

from monarch_kernel.actor import ActorError

WAIT = 30


@pytest.fixture(scope="module")
def counters(procs: Any) -> Any:
    return procs.spawn("counters", Counter)


@pytest.fixture(scope="module")
def runner(procs: Any) -> Any:
    return procs.slice(hosts=1, gpus=1).spawn("runner", Runner)


def test_a_mesh_passed_to_an_actor_works_there(procs):
    target = procs.spawn("target", Counter)
    relay = procs.slice(hosts=1, gpus=0).spawn("relay", Relay)
    relay.set.call_one(target).get(timeout=WAIT)
    assert relay.add.call_one(2).get(timeout=WAIT) == [2] * 4
    relay.set.call_one(target.slice(hosts=0)).get(timeout=WAIT)
    assert relay.add.call_one(2).get(timeout=WAIT) == [4] * 2
    assert list(target.value.call().get(timeout=WAIT).values()) == [4, 4, 2, 2]


def test_a_mesh_returned_is_the_same_mesh(procs, counters):
    relay = procs.slice(hosts=0, gpus=0).spawn("relay", Relay, counters.slice(gpus=1))
    back = relay.get.call_one().get(timeout=WAIT)
    assert back == counters.slice(gpus=1)
    assert hash(back) == hash(counters.slice(gpus=1))
    assert back != counters
    assert len(back.value.call().get(timeout=WAIT)) == 2


def test_nested_in_containers_and_objects(runner, procs, counters):
    class Plan:
        def __init__(self, **what: Any) -> None:
            self.__dict__.update(what)

    sent = {"mesh": [counters, (counters.slice(hosts=1), procs)], "plan": Plan(inner=counters)}
    (back,) = runner.echo.call_one(sent).get(timeout=WAIT)
    assert back["mesh"][0] == counters
    assert back["mesh"][1] == (counters.slice(hosts=1), procs)
    assert back["plan"].inner == counters


def test_a_mesh_in_a_closure(runner, counters):
    def outer() -> int:
        return sum(counters.value.call().get(timeout=10).values())

    assert runner.run.call_one(outer).get(timeout=WAIT) >= 0


def test_a_kept_reference_goes_on_working(runner, counters):
    runner.keep.call_one("mesh", counters).get(timeout=WAIT)

    def use(self: Any) -> int:
        return len(self.kept["mesh"].value.call().get(timeout=10))

    for _ in range(3):
        assert runner.with_self.call_one(use).get(timeout=WAIT) == 4


def test_process_and_host_meshes_travel_and_can_be_spawned_on(runner, procs, session):
    def spawn(procs: Any, cls: Any) -> list[int]:
        return list(procs.spawn("from afar", cls, 7).value.call().get(timeout=20).values())

    assert runner.run.call_one(spawn, procs.slice(hosts=0), Counter).get(timeout=WAIT) == [7, 7]
    (hosts,) = runner.echo.call_one(session.hosts).get(timeout=WAIT)
    assert hosts.extent == session.hosts.extent


def test_a_pickled_mesh_is_read_back(counters):
    half = counters.slice(hosts=0)
    back = pickle.loads(pickle.dumps(half))
    assert back == half
    assert len(back.value.call().get(timeout=WAIT)) == 2


def test_a_pickle_names_no_epoch_and_no_secret(session, counters):
    data = pickle.dumps(counters)
    assert session.file.secret.encode() not in data
    assert b"epoch" not in data


def test_a_mesh_that_is_still_being_spawned_can_be_passed(session, runner):
    procs = session.hosts.spawn_procs(per_host={"x": 1})
    young = procs.spawn("young", Counter, 3)
    relay = runner.run.call_one(lambda mesh: list(mesh.value.call().get(timeout=20).values()), young)
    assert relay.get(timeout=WAIT) == [3, 3]
    procs.stop().get(timeout=WAIT)


class Forgiving(Runner):
    """What it spawns may fail."""

    def __supervise__(self, failure: Any) -> bool:
        return True


def test_a_returned_mesh_that_is_not_there_yet_works_at_once_and_one_that_fails_says_why(one):
    runner = one.spawn("forgiving", Forgiving)

    def spawn(cls: Any) -> Any:
        from monarch_kernel.actor import this_host

        return this_host().spawn_procs(per_host={"x": 1}).spawn("made there", cls)

    assert runner.run.call_one(spawn, Counter).get(timeout=WAIT).add.call(1).get(timeout=WAIT).item(x=0) == 1
    with pytest.raises(ActorError, match="no such weights file"):
        runner.run.call_one(spawn, BadConstructor).get(timeout=WAIT)


def test_an_endpoint_cannot_be_sent_and_says_what_to_send(runner, counters):
    with pytest.raises(TypeError, match=r"send the mesh and call \.value on it there"):
        runner.echo.call_one(counters.value)


def test_a_reference_to_a_stopped_mesh_fails_where_it_is_used(procs, runner):
    gone = procs.spawn("gone", Counter)
    gone.value.call().get(timeout=WAIT)
    gone.stop("on purpose").get(timeout=WAIT)
    with pytest.raises(ActorError, match="on purpose"):
        runner.run.call_one(lambda mesh: mesh.value.call().get(timeout=10), gone).get(timeout=WAIT)


def test_actors_call_in_a_ring(procs):
    relays = procs.spawn("ring", Relay)
    end = procs.slice(hosts=1, gpus=1).spawn("end", Counter)
    parts = [relays.slice(hosts=h, gpus=g) for h in (0, 1) for g in (0, 1)]
    for mine, following in zip(parts, [*parts[1:], end], strict=True):
        mine.set.call_one(following).get(timeout=WAIT)

    # Each relay gets what the next one got, one level deeper.
    nested: Any = parts[0].add.call_one(5).get(timeout=WAIT)
    for _ in range(4):
        (nested,) = nested
    assert nested == 5
