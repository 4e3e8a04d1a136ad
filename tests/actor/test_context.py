"""Who am I: in calls on whole meshes and on slices, and outside of actors."""

from __future__ import annotations

from typing import Any

import pytest
from mesh_actors import Counter, Runner

from monarch_kernel.actor import Point, context, current_rank, current_size

WAIT = 30


@pytest.fixture(scope="module")
def counters(procs: Any) -> Any:
    return procs.spawn("counters", Counter)


def test_in_a_call_on_the_whole_mesh_the_ranks_are_those_of_the_spawn(counters):
    seen = counters.where.call().get(timeout=WAIT)
    for number, (point, (rank, flat, sizes, spawned)) in enumerate(seen.items()):
        assert rank == spawned == dict(point)
        assert flat == number
        assert sizes == {"hosts": 2, "gpus": 2}


def test_a_slice_counts_its_ranks_anew_and_the_spawn_rank_stays(counters):
    seen = counters.slice(hosts=1).where.call().get(timeout=WAIT)
    assert list(seen.values()) == [
        ({"gpus": 0}, 0, {"gpus": 2}, {"hosts": 1, "gpus": 0}),
        ({"gpus": 1}, 1, {"gpus": 2}, {"hosts": 1, "gpus": 1}),
    ]
    assert [dict(point) for point, _ in seen.items()] == [{"gpus": 0}, {"gpus": 1}]


def test_a_slice_by_range_keeps_its_dimension(counters):
    seen = list(counters.slice(hosts=slice(1, 2), gpus=slice(1, 2)).where.call().get(timeout=WAIT).values())
    assert seen == [({"hosts": 0, "gpus": 0}, 0, {"hosts": 1, "gpus": 1}, {"hosts": 1, "gpus": 1})]


def test_a_slice_of_one_has_no_dimensions(counters):
    rank, flat, sizes, spawned = counters.slice(hosts=0, gpus=1).where.call_one().get(timeout=WAIT)
    assert (rank, flat, sizes, spawned) == ({}, 0, {}, {"hosts": 0, "gpus": 1})


def test_a_slice_over_hosts(counters):
    seen = counters.slice(gpus=1).where.call().get(timeout=WAIT)
    assert list(seen.values()) == [
        ({"hosts": 0}, 0, {"hosts": 2}, {"hosts": 0, "gpus": 1}),
        ({"hosts": 1}, 1, {"hosts": 2}, {"hosts": 1, "gpus": 1}),
    ]


def test_reshaped_meshes_count_as_they_are_shaped(counters):
    flat = list(counters.flatten("rank").where.call().get(timeout=WAIT).values())
    assert [seen[0] for seen in flat] == [{"rank": n} for n in range(4)]
    split = list(counters.flatten("rank").split(rank=("a", "b"), b=2).where.call().get(timeout=WAIT).values())
    assert [seen[0] for seen in split] == [{"a": a, "b": b} for a in range(2) for b in range(2)]
    renamed = list(counters.rename(gpus="g").where.call().get(timeout=WAIT).values())
    assert renamed[3][0] == {"hosts": 1, "g": 1}


def test_in_the_constructor_the_rank_is_known(procs):
    class Ranked(Counter):
        def __init__(self) -> None:
            super().__init__(current_rank().rank)

    assert list(procs.spawn("ranked", Ranked).value.call().get(timeout=WAIT).values()) == [0, 1, 2, 3]


def test_actors_on_a_slice_of_the_processes_have_ranks_of_their_own(procs):
    mesh = procs.slice(hosts=1).spawn("half", Counter)
    seen = list(mesh.where.call().get(timeout=WAIT).values())
    assert [s[3] for s in seen] == [{"gpus": 0}, {"gpus": 1}]


def test_the_instance_says_who_it_is(procs):
    def look() -> tuple[str, str, str, int]:
        me = context().actor_instance
        return me.name, me.class_name, me.actor_id, len(me.proc)

    seen = list(procs.spawn("watched", Runner).run.call(look).get(timeout=WAIT).values())
    assert {s[0] for s in seen} == {"watched"}
    assert {s[1] for s in seen} == {"mesh_actors.Runner"}
    assert len({s[2] for s in seen}) == 4
    assert {s[3] for s in seen} == {1}


def test_an_actor_reaches_the_mesh_of_its_processes(procs):
    def size() -> int:
        return len(context().actor_instance.proc_mesh)

    assert set(procs.spawn("watched", Runner).run.call(size).get(timeout=WAIT).values()) == {4}


def test_the_context_of_a_call_does_not_stay_for_the_next(procs):
    mesh = procs.spawn("both", Counter)
    mesh.slice(hosts=0, gpus=0).where.broadcast()
    assert mesh.where.call().get(timeout=WAIT).item(hosts=0, gpus=0)[2] == {"hosts": 2, "gpus": 2}


def test_a_thread_of_an_actor_may_call_meshes(procs, counters):
    def work() -> int:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: len(counters.add.call(0).get(timeout=10))).result()

    assert set(procs.spawn("threads", Runner).run.call(work).get(timeout=WAIT).values()) == {4}


def test_the_processes_of_a_slice_of_processes(procs):
    def look() -> tuple[dict[str, int], list[int]]:
        mesh = context().actor_instance.proc_mesh
        return dict(mesh.extent), list(mesh._region.ranks())

    half = procs.slice(gpus=1).spawn("half", Runner)
    assert list(half.run.call(look).get(timeout=WAIT).values()) == [({"hosts": 2}, [1, 3])] * 2


def test_outside_of_actors_the_client_answers():
    assert current_rank() == Point(0, current_rank().extent)
    assert current_size() == {}
    assert repr(context().actor_instance) == "<root>"


def test_tasks_of_an_async_actor_see_the_message_they_were_made_in(one):
    from mesh_actors import AsyncRunner

    async def inner() -> dict[str, int]:
        return current_size()

    async def outer() -> Any:
        import asyncio

        return await asyncio.create_task(inner())

    assert one.spawn("tasks", AsyncRunner).run.call(outer).get(timeout=WAIT).item() == {}
