"""Who is told of a failure, and in which words, without a process."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_kernel.state.records import MeshRecord, Owner
from monarch_kernel.state.registry import Registry
from monarch_kernel.state.supervision import Lost, Supervision, Told, died_text, failed_text, plain_text

PROCS, ACTORS, CHILD = 1, 2, 3
FAULT = {"error": "SupervisionError", "text": "why", "at": 0.0}
DEATH = {"error": "ProcDied", "text": "killed", "at": 0.0, "code": -9}


def registry() -> Registry:
    """Two processes, an actor in each, and a mesh that the actor of rank 1 has spawned in both."""
    made = Registry(0)
    for record in (
        MeshRecord(PROCS, "procs", "procs", ("x",), (2,), (0, 0)),
        MeshRecord(ACTORS, "actors", "parents", ("x",), (2,), (0, 0), procs=PROCS, proc_ranks=(0, 1), qualname="P"),
        MeshRecord(
            CHILD, "actors", "children", ("x",), (2,), (0, 0), owner=str(Owner(ACTORS, 1, 0)), procs=PROCS,
            proc_ranks=(0, 1), qualname="C",
        ),
    ):  # fmt: skip
        made.prepare(record, 0.0)
        made.commit(record.id)
        for rank in (0, 1):
            made.rank_started(record.id, rank, 100 + rank, 1)
            made.rank_constructed(record.id, rank)
    return made


def told(steps: list[Told | Lost]) -> list[tuple[Owner | None, str, list[int]]]:
    return [(s.owner, s.failure["mesh_name"], s.failure["ranks"]) for s in steps if isinstance(s, Told)]


def lost(steps: list[Told | Lost]) -> list[Owner]:
    return [step.owner for step in steps if isinstance(step, Lost)]


def test_a_failure_is_told_to_the_owner_and_what_the_failed_actor_owned_is_lost():
    meshes = registry()
    core = Supervision(meshes, 0)
    steps = core.changed(meshes.rank_died(CHILD, 0, FAULT))
    assert told(steps) == [(Owner(ACTORS, 1, 0), "children", [0])]
    assert lost(steps) == [Owner(CHILD, 0, 0)]
    steps = core.changed(meshes.rank_died(ACTORS, 1, FAULT))
    assert told(steps) == [(None, "parents", [1])]
    assert lost(steps) == [Owner(ACTORS, 1, 0)]


def test_a_dead_process_is_told_once_for_each_mesh_of_actors_in_it_and_not_for_itself():
    meshes = registry()
    steps = Supervision(meshes, 0).changed(meshes.rank_died(PROCS, 1, DEATH))
    assert sorted(told(steps), key=str) == sorted(
        [(None, "parents", [1]), (Owner(ACTORS, 1, 0), "children", [1])], key=str
    )
    assert {step.failure["died"] for step in steps if isinstance(step, Told)} == {"1.1"}


def test_a_process_without_actors_is_told_itself():
    meshes = registry()
    meshes.stop(ACTORS, "over")
    meshes.stop(CHILD, "over")
    assert told(Supervision(meshes, 0).changed(meshes.rank_died(PROCS, 0, DEATH))) == [(None, "procs", [0])]


@pytest.mark.parametrize("asked", [True, False])
def test_a_spawn_that_was_given_up_is_still_told_to_its_owner_if_that_was_asked_for(asked):
    meshes = registry()
    core = Supervision(meshes, 0)
    late = MeshRecord(9, "actors", "late", ("x",), (2,), (0, 0), procs=PROCS, proc_ranks=(0, 1), qualname="L")
    meshes.prepare(late, 0.0)
    if asked:
        core.record(9)
    meshes.abort(9)
    assert (core.record(9) is not None) is asked


def test_of_a_lost_host_the_owners_elsewhere_are_told():
    meshes = registry()
    for record in meshes.live():
        record.hosts = (0, 1)
    core = Supervision(meshes, 0)
    meshes.get(CHILD).owner = str(Owner(ACTORS, 0, 0))  # type: ignore[union-attr]
    assert told(list(core.host_lost(1, FAULT))) == [(Owner(ACTORS, 0, 0), "children", [1])]
    meshes.get(CHILD).owner = str(Owner(ACTORS, 1, 1))  # type: ignore[union-attr]
    assert core.host_lost(1, FAULT) == []


def test_the_first_line_is_monarchs_and_stands_once_for_each_level() -> None:
    def text(name: str, **more: Any) -> MeshRecord:
        return MeshRecord(1, "actors", name, ("x",), (2,), (0, 0), module="m", qualname="C", **more)

    once = failed_text(text("a"), 1, "ValueError: no")
    assert once == "The actor <root>.<m.C a{'x': 1/2}> and all its descendants have failed:\nValueError: no"
    assert failed_text(text("a"), 1, once) == once
    above = failed_text(text("b"), 0, once)
    assert above.count("and all its descendants have failed") == 2
    assert plain_text(once) == "ValueError: no"
    died = died_text(text("a"), 0, -9, "pid 7")
    assert "\nthe process this actor was running on failed: Killed(sig=9)\npid 7" in died
    assert plain_text(died) == "pid 7"
