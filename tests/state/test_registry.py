"""The registry of meshes, by example and against a naive model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from monarch_kernel.state.merge import merge
from monarch_kernel.state.registry import (
    HISTORY,
    Already,
    Endpoint,
    EndRanks,
    Kind,
    Live,
    MeshRecord,
    NoSuchMesh,
    RankChanged,
    RankRecord,
    Refused,
    Registry,
    StartRanks,
    Stopped,
    Swapped,
)


def procs(mesh: int, name: str = "procs", *, hosts: tuple[int, ...] = (0, 0, 1, 1), **more: Any) -> MeshRecord:
    return MeshRecord(mesh, "procs", name, ("hosts", "gpus"), (2, len(hosts) // 2), hosts, created=float(mesh), **more)


def actors(mesh: int, on: int, name: str = "trainers", **more: Any) -> MeshRecord:
    more.setdefault("hosts", (0, 0, 1, 1))
    ranks = tuple(range(len(more["hosts"])))
    return MeshRecord(mesh, "actors", name, created=float(mesh), procs=on, proc_ranks=ranks, **more)


def live(*records: MeshRecord, host: int | None = 0) -> Registry:
    registry = Registry(host)
    for record in records:
        registry.prepare(record, 0.0)
        for rank in record.ranks_on(host) if host is not None else range(record.size):
            registry.rank_started(record.id, rank, pid=1000 + rank, start=7)
            registry.rank_constructed(record.id, rank)
        registry.commit(record.id, record.generation)
    return registry


def states(registry: Registry, mesh: int) -> dict[int, str]:
    record = registry.get(mesh)
    assert record is not None
    return {rank: held.state for rank, held in record.ranks.items()}


def test_a_record_survives_json_and_ignores_what_it_does_not_know() -> None:
    record = actors(5, on=4, endpoints=[Endpoint("step", "async", "(batch)", "Train.")], fingerprint="f", payload="p")
    record.ranks[1] = RankRecord("dead", 10, 20, 2, True, {"why": "SIGKILL"})
    data = json.loads(json.dumps(record.to_dict()))
    data["later"] = data["ranks"]["1"]["later"] = data["endpoints"][0]["later"] = 1
    assert MeshRecord.from_dict(data) == record == record.copy()


def test_a_host_holds_only_its_own_ranks_of_a_mesh() -> None:
    registry = Registry(1)
    assert registry.prepare(procs(1), 0.0) == [StartRanks(1, 1, (2, 3))]
    assert registry.live() == []
    assert registry.commit(1) == [Live(1)]
    assert list(states(registry, 1)) == [2, 3]


def test_every_phase_of_a_spawn_can_be_repeated() -> None:
    registry = Registry(0)
    registry.prepare(procs(1), 0.0)
    assert registry.prepare(procs(1), 1.0) == [Already(1, "prepared")]
    assert registry.commit(1) == [Live(1)]
    assert registry.commit(1) == [Already(1, "live")]
    assert registry.prepare(procs(1), 2.0) == [Already(1, "live")]
    assert registry.abort(1) == [EndRanks(1, 1, (0, 1), "the spawn was given up"), Stopped(1, "the spawn was given up")]
    assert registry.abort(1) == []


def test_a_late_prepare_or_commit_after_an_abort_is_refused() -> None:
    registry = Registry(0)
    registry.abort(1)
    assert registry.prepare(procs(1), 0.0) == [Refused(1, "it was aborted")]
    assert isinstance(registry.commit(1)[0], Refused)
    assert isinstance(registry.commit(2)[0], Refused)


def test_what_nobody_commits_is_aborted_after_the_bound_counted_from_the_last_prepare() -> None:
    registry = Registry(0)
    registry.prepare(procs(1), 0.0)
    registry.prepare(procs(1), 50.0)
    assert registry.expire(100.0, 60.0) == []
    assert registry.expire(110.0, 60.0) == [EndRanks(1, 1, (0, 1), "nobody committed the spawn in time")]
    assert registry.pending() == []


def test_a_replacement_is_prepared_beside_the_old_and_swapped() -> None:
    registry = live(procs(1), actors(2, on=1))
    assert registry.next_generation(2) == 2
    registry.prepare(actors(2, on=1, generation=2), 0.0)
    registry.rank_died(2, 0, {"why": "old"})
    registry.rank_constructed(2, 0, generation=2)
    assert states(registry, 2) == {0: "dead", 1: "ok"}
    assert registry.commit(2, 2) == [Swapped(2, 1, 2)]
    assert states(registry, 2) == {0: "ok", 1: "starting"}
    assert registry.abort(2, 2) == [Refused(2, "the replacement has already taken its place")]


def test_an_aborted_replacement_leaves_the_old_and_its_generation_is_not_used_again() -> None:
    registry = live(procs(1), actors(2, on=1))
    registry.prepare(actors(2, on=1, generation=2), 0.0)
    assert [type(d) for d in registry.abort(2, 2)] == [EndRanks]
    assert states(registry, 2) == {0: "ok", 1: "ok"}
    assert registry.next_generation(2) == 3


def test_actors_stop_before_the_procs_they_run_in_and_prepared_ones_are_aborted() -> None:
    registry = live(procs(1), actors(2, on=1), actors(3, on=1, owner="actor:2.0@0"))
    registry.prepare(actors(4, on=1), 0.0)
    decisions = registry.stop(1, "done with it")
    assert [d.mesh for d in decisions if isinstance(d, EndRanks)] == [4, 3, 2, 1]
    assert [d.mesh for d in decisions if isinstance(d, Stopped)] == [3, 2, 1]
    assert registry.stop(1) == []
    assert isinstance(registry.prepare(actors(5, on=1), 0.0)[0], Refused)


def test_meshes_that_own_each_other_can_be_stopped() -> None:
    registry = live(procs(1), actors(2, on=1, owner="actor:3.0@0"), actors(3, on=1, owner="actor:2.0@0"))
    registry.stop(2)
    assert [record.id for record in registry.live()] == [1]


def test_a_name_means_the_latest_live_mesh_of_its_kind() -> None:
    registry = live(procs(1, "a"), procs(2, "a"), procs(3, "b"), actors(4, on=1, name="a"), procs(5, "a"))
    assert {name: record.id for name, record in registry.names("procs").items()} == {"a~3": 1, "a~2": 2, "b": 3, "a": 5}
    assert registry.lookup("a").id == 5
    assert registry.lookup("a", "actors").id == 4
    assert registry.name_of(1) == "a~3"
    registry.stop(5)
    assert registry.lookup("a", "procs").id == 2
    assert registry.lookup("a").id == 4


def test_a_miss_says_what_there_is_and_what_is_nearest() -> None:
    registry = live(procs(1, "procs"), actors(2, on=1, name="trainers"))
    with pytest.raises(NoSuchMesh, match=r"no mesh named 'trainer'; did you mean 'trainers'\? Live meshes: procs, tr"):
        registry.lookup("trainer")
    registry.stop(2)
    with pytest.raises(NoSuchMesh, match="'trainers' was stopped"):
        registry.lookup("trainers")
    with pytest.raises(NoSuchMesh, match="There are no live meshes"):
        Registry().lookup("x")


def test_names_nobody_gave_are_never_used_twice() -> None:
    registry = live(procs(1, "procs-2"))
    assert [registry.auto_name() for _ in range(2)] == ["procs-1", "procs-3"]
    assert Registry.from_blob(registry.to_blob()).auto_name() == "procs-4"


def test_a_dead_process_takes_its_actors_along_and_old_news_of_it_is_ignored() -> None:
    registry = live(procs(1), actors(2, on=1))
    changed = registry.rank_died(1, 1, {"why": "SIGKILL"}, pid=1001)
    assert [(d.mesh, d.rank) for d in changed if isinstance(d, RankChanged)] == [(1, 1), (2, 1)]
    registry.rank_restarted(1, 1, pid=2001, start=9)
    registry.rank_constructed(1, 1)
    assert registry.rank_died(1, 1, {"why": "SIGKILL"}, pid=1001) == []
    record = registry.get(1)
    assert record is not None
    assert record.ranks[1] == RankRecord("ok", 2001, 9, restarts=1)


def test_ranks_of_a_lost_host_come_back_as_that_host_says() -> None:
    parts = {host: live(procs(1), host=host) for host in (0, 1)}
    registry = merge(dict(parts)).registry
    registry.host_lost(1, {"why": "no word"})
    assert states(registry, 1) == {0: "ok", 1: "ok", 2: "lost", 3: "lost"}
    parts[1].rank_died(1, 3, {"why": "SIGSEGV"})
    assert len(registry.host_back(1, parts[1])) == 2
    assert states(registry, 1) == {0: "ok", 1: "ok", 2: "ok", 3: "dead"}


def test_a_restarted_daemon_finds_everything_in_the_blob() -> None:
    registry = live(procs(1), procs(2), actors(3, on=1))
    registry.prepare(procs(4), 5.0)
    registry.stop(2)
    registry.abort(9)
    registry.bind({"t": {"mesh": 3, "kind": "actors", "region": None}})
    again = Registry.from_blob(registry.to_blob())
    assert again.to_blob() == registry.to_blob()
    assert again.host == 0
    assert again.problems == []


@pytest.mark.parametrize("blob", [b"\xff", b"[]", b"{", b"null"])
def test_a_damaged_blob_gives_an_empty_registry_that_says_so(blob: bytes) -> None:
    registry = Registry.from_blob(blob, host=1)
    assert registry.problems
    assert registry.live() == []
    assert registry.host == 1


def test_one_damaged_record_costs_only_itself() -> None:
    data = json.loads(live(procs(1), procs(2)).to_blob())
    data["live"][0]["kind"] = "nonsense"
    data["live"].append(7)
    data["stopped"] = None
    registry = Registry.from_blob(json.dumps(data).encode())
    assert [record.id for record in registry.live()] == [2]
    assert len(registry.problems) == 2


def test_bindings_of_stopped_meshes_go() -> None:
    registry = live(procs(1), procs(2))
    registry.bind({"a": {"mesh": 1}, "b": {"mesh": 2}, "c": {"mesh": 99}})
    registry.stop(1)
    assert registry.live_bindings() == {"b": {"mesh": 2}}


def test_orphans_are_marked_until_a_run_keeps_them() -> None:
    registry = live(procs(1))
    before = registry.revision
    registry.orphan([1, 99])
    assert registry.lookup("procs").orphaned
    registry.rekey(1, {"cell": "c"})
    assert not registry.lookup("procs").orphaned
    assert registry.revision > before


def test_history_is_bounded() -> None:
    registry = Registry(0)
    for mesh in range(2 * HISTORY):
        registry.prepare(procs(mesh), 0.0)
        registry.commit(mesh)
        registry.stop(mesh)
        registry.abort(-mesh - 1)
    data = json.loads(registry.to_blob())
    assert len(data["stopped"]) == len(data["aborted"]) == HISTORY


def test_merge_reports_what_was_cut_half_way() -> None:
    parts = {host: live(procs(1), procs(2), procs(3), procs(4), actors(5, on=4), host=host) for host in (0, 1)}
    parts[1].stop(2)
    parts[1] = Registry.from_blob(parts[1].to_blob())
    del parts[1]._live[3]
    parts[0].prepare(procs(6), 0.0)
    parts[0].prepare(actors(5, on=4, generation=2), 0.0)
    parts[0].commit(5, 2)
    merged = merge({0: parts[0].to_blob(), 1: parts[1], 2: None})
    assert merged.unreachable == (2,)
    assert merged.stopping == {2: (0,)}
    assert merged.incomplete == {3: (1,)}
    assert merged.behind == {5: (1,)}
    assert merged.pending == (6,)
    assert sorted(record.id for record in merged.registry.live()) == [1, 4, 5]
    record = merged.registry.get(5)
    assert record is not None
    assert [held.outdated for held in record.ranks.values()] == [False, False, True, True]


HOSTS = (0, 1, 2)


class RegistryMachine(RuleBasedStateMachine):
    """Three hosts and a model that is a dictionary: mesh -> (name, kind, hosts, parent, rank states)."""

    meshes = Bundle("meshes")

    def __init__(self) -> None:
        super().__init__()
        self.parts = {host: Registry(host) for host in HOSTS}
        self.model: dict[int, dict[str, Any]] = {}
        self.next = 0
        self.revisions = dict.fromkeys(HOSTS, 0)

    @rule(
        target=meshes,
        name=st.sampled_from("abc"),
        hosts=st.lists(st.sampled_from(HOSTS), min_size=1, max_size=5),
        parent=st.none() | meshes,
        commit=st.booleans(),
    )
    def spawn(self, name: str, hosts: list[int], parent: int | None, commit: bool) -> int:
        self.next += 1
        mesh = self.next
        if parent is not None and (parent not in self.model or self.model[parent]["kind"] == "actors"):
            parent = None
        if parent is not None:
            hosts = self.model[parent]["hosts"]
            record = actors(mesh, parent, name, hosts=tuple(hosts))
        else:
            record = procs(mesh, name, hosts=tuple(hosts))
        for part in self.parts.values():
            part.prepare(record, 0.0)
            for rank in record.ranks_on(part.host or 0):
                part.rank_started(mesh, rank, pid=10 * mesh + rank, start=1)
                part.rank_constructed(mesh, rank)
        for part in self.parts.values():
            if commit:
                part.commit(mesh)
            else:
                part.abort(mesh)
        if commit:
            ranks = dict.fromkeys(range(len(hosts)), "ok")
            self.model[mesh] = {
                "name": name,
                "kind": record.kind,
                "hosts": list(hosts),
                "parent": parent,
                "ranks": ranks,
            }
        return mesh

    @rule(mesh=consumes(meshes))
    def stop(self, mesh: int) -> None:
        for part in self.parts.values():
            part.stop(mesh)
        self.model.pop(mesh, None)
        for child in [m for m, record in self.model.items() if record["parent"] == mesh]:
            del self.model[child]

    @rule(mesh=meshes, rank=st.integers(0, 4))
    def die(self, mesh: int, rank: int) -> None:
        for part in self.parts.values():
            part.rank_died(mesh, rank, {"why": "x"})
        for m, record in self.model.items():
            if (m == mesh or record["parent"] == mesh) and rank in record["ranks"]:
                record["ranks"][rank] = "dead"

    @rule(mesh=meshes, rank=st.integers(0, 4))
    def restart(self, mesh: int, rank: int) -> None:
        for part in self.parts.values():
            part.rank_restarted(mesh, rank, pid=99, start=2)
            part.rank_constructed(mesh, rank)
        if mesh in self.model and rank in self.model[mesh]["ranks"]:
            self.model[mesh]["ranks"][rank] = "ok"

    @rule(host=st.sampled_from(HOSTS))
    def daemon_restarts(self, host: int) -> None:
        self.parts[host] = Registry.from_blob(self.parts[host].to_blob())

    @rule(down=st.sets(st.sampled_from(HOSTS), max_size=2))
    def attach(self, down: set[int]) -> None:
        views = {host: None if host in down else self.parts[host].to_blob() for host in HOSTS}
        merged = merge(views)
        assert not merged.incomplete
        assert not merged.stopping
        assert not merged.behind
        assert set(merged.unreachable) == down
        got = {
            record.id: {rank: held.state for rank, held in record.ranks.items()} for record in merged.registry.live()
        }
        assert got == {
            mesh: {r: "lost" if record["hosts"][r] in down else state for r, state in record["ranks"].items()}
            for mesh, record in self.model.items()
        }

    @invariant()
    def names_are_those_of_the_model(self) -> None:
        kinds: tuple[Kind, ...] = ("procs", "actors")
        for kind in kinds:
            expected: dict[str, int] = {}
            for mesh in sorted((m for m, r in self.model.items() if r["kind"] == kind), reverse=True):
                name = self.model[mesh]["name"]
                older = [taken.split("~")[0] for taken in expected].count(name)
                expected[f"{name}~{older + 1}" if older else name] = mesh
            for part in self.parts.values():
                names = part.names(kind)
                assert {name: record.id for name, record in names.items()} == expected

    @invariant()
    def nothing_is_left_prepared_and_revisions_never_fall(self) -> None:
        for host, part in self.parts.items():
            assert part.pending() == []
            assert part.revision >= self.revisions[host]
            self.revisions[host] = part.revision


TestRegistryMachine = RegistryMachine.TestCase
TestRegistryMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
