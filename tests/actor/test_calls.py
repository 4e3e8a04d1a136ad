"""How endpoints are called, and what the answers are."""

from __future__ import annotations

from typing import Any

import pytest
from mesh_actors import Counter, Quiet, Runner

import monarch_kernel.actor as ma
from monarch_kernel.actor import Actor, Future, ValueMesh, endpoint

WAIT = 30


@pytest.fixture(scope="module")
def counters(procs: Any) -> Any:
    return procs.spawn("counters", Counter, 10)


@pytest.fixture(scope="module")
def runners(procs: Any) -> Any:
    return procs.spawn("runners", Runner)


def test_call_brings_an_answer_of_each_rank_as_a_value_mesh(procs):
    mesh = procs.spawn("counters", Counter, 10).add.call(2).get(timeout=WAIT)
    assert isinstance(mesh, ValueMesh)
    assert mesh.extent == ma.Extent(("hosts", "gpus"), (2, 2))
    assert list(mesh.values()) == [12] * 4
    assert mesh.item(hosts=1, gpus=0) == 12
    assert [point.rank for point, _ in mesh.items()] == [0, 1, 2, 3]
    assert list(mesh.slice(hosts=1).values()) == [12, 12]


def test_call_one_brings_the_answer_itself(counters):
    assert counters.slice(hosts=1, gpus=1).value.call_one().get(timeout=WAIT) == 10


def test_call_one_on_more_than_one_is_refused_at_the_call(counters):
    with pytest.raises(ValueError, match=r"call_one is for a mesh of one actor; counters has 4"):
        counters.value.call_one()
    with pytest.raises(ValueError, match="has 2"):
        counters.slice(hosts=0).value.call_one()


def test_choose_asks_one_rank_and_in_time_each(runners):
    def rank() -> int:
        return ma.context().actor_instance.rank.rank

    chosen = {future.get(timeout=WAIT) for future in [runners.run.choose(rank) for _ in range(80)]}
    assert chosen == {0, 1, 2, 3}


def test_stream_brings_answers_in_the_order_of_arrival(procs):
    mesh = procs.spawn("streamed", Runner)
    mesh.echo.call().get(timeout=WAIT)

    def last() -> int:
        import time

        import monarch_kernel.actor as ma

        rank = ma.current_rank().rank
        time.sleep(0.5 if rank == 0 else 0)
        return rank

    futures = list(mesh.run.stream(last))
    assert len(futures) == 4
    assert all(isinstance(future, Future) for future in futures)
    answers = [future.get(timeout=WAIT) for future in futures]
    assert sorted(answers) == [0, 1, 2, 3]
    assert answers[-1] == 0


def test_a_stream_with_an_error_brings_the_other_answers_too(counters):
    futures = list(counters.fail.stream("one of us", on=2))
    errors = [future.exception(timeout=WAIT) for future in futures]
    assert sum(isinstance(error, ma.ActorError) for error in errors) == 1
    assert [f.get() for f, error in zip(futures, errors, strict=True) if error is None] == ["fine"] * 3


def test_broadcast_returns_nothing_and_is_handled_in_its_place(procs):
    mesh = procs.spawn("counters", Counter)
    assert mesh.add.broadcast(3) is None
    assert list(mesh.value.call().get(timeout=WAIT).values()) == [3] * 4


def test_keywords_defaults_and_none(runners, counters):
    one = runners.slice(hosts=0, gpus=0)
    assert one.echo.call_one(1, b=2).get(timeout=WAIT) == ((1,), {"b": 2})
    assert one.echo.call_one(None).get(timeout=WAIT) == (None,)
    assert one.keep.call_one("x", 1).get(timeout=WAIT) is None
    assert counters.slice(hosts=0, gpus=0).add.call_one(by=0).get(timeout=WAIT) == 10


def test_a_class_defined_in_a_function_travels_by_value(procs):
    class Local(Actor):
        greeting = "hello"

        def __init__(self, name: str) -> None:
            self.name = name

        @endpoint
        def greet(self) -> str:
            return f"{self.greeting} {self.name}"

    mesh = procs.spawn("local", Local, "world")
    assert set(mesh.greet.call().get(timeout=WAIT).values()) == {"hello world"}


def test_instances_of_a_by_value_class_stay_instances(runners):
    class Batch:
        def __init__(self, n: int) -> None:
            self.n = n

    one = runners.slice(hosts=0, gpus=0)
    back = one.echo.call_one(Batch(3)).get(timeout=WAIT)[0]
    assert type(back) is Batch
    assert back.n == 3
    one.keep.call_one("batch", Batch(4)).get(timeout=WAIT)
    same = one.with_self.call_one(lambda self, other: isinstance(self.kept["batch"], type(other)), Batch(5))
    assert same.get(timeout=WAIT)


def test_class_state_set_on_the_worker_stays_over_calls(runners):
    class Config:
        level = 1

    def bump(config: type[Config]) -> int:
        config.level += 1
        return config.level

    one = runners.slice(hosts=1, gpus=1)
    assert [one.run.call_one(bump, Config).get(timeout=WAIT) for _ in range(3)] == [2, 3, 4]
    assert Config.level == 1


def test_a_new_body_under_the_same_name_runs(runners):
    def make(n: int) -> Any:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(f"def answer():\n    return {n}", namespace)
        return namespace["answer"]

    one = runners.slice(hosts=0, gpus=1)
    assert [one.run.call_one(make(n)).get(timeout=WAIT) for n in (1, 2, 1)] == [1, 2, 1]


def test_an_actor_without_endpoints_is_allowed(procs, until):
    mesh = procs.spawn("quiet", Quiet)
    mesh.initialized.get(timeout=WAIT)
    mesh.stop().get(timeout=WAIT)


def test_inherited_endpoints_are_endpoints(procs):
    class Twice(Counter):
        @endpoint
        def add(self, by: int = 1) -> int:
            self.n += 2 * by
            return self.n

    mesh = procs.spawn("twice", Twice)
    assert set(mesh.add.call(2).get(timeout=WAIT).values()) == {4}
    assert set(mesh.value.call().get(timeout=WAIT).values()) == {4}


def test_an_actors_own_methods_are_plain_methods(procs):
    class Inner(Actor):
        @endpoint
        def outer(self) -> int:
            return self.inner() + 1

        @endpoint
        def inner(self) -> int:
            return 1

    assert set(procs.spawn("inner", Inner).outer.call().get(timeout=WAIT).values()) == {2}


def test_two_meshes_may_have_one_name(procs):
    first, second = procs.spawn("same", Counter, 1), procs.spawn("same", Counter, 2)
    assert set(first.value.call().get(timeout=WAIT).values()) == {1}
    assert set(second.value.call().get(timeout=WAIT).values()) == {2}
