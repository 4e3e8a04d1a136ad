"""What a spawn means when its cell ran before: by example, and notebooks that are run, edited and restarted at will."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from monarch_kernel.state.records import MeshRecord
from monarch_kernel.state.rerun import (
    Adopt,
    Decision,
    Ended,
    Keep,
    Key,
    LiveMesh,
    New,
    Policy,
    Replace,
    ReRunPolicy,
    StopThenNew,
)


@dataclass
class Spawn:
    """One spawn statement of a cell."""

    name: str | None = "procs"
    kind: Any = "procs"
    placement: str = "4"
    spec: str = ""
    fingerprint: str = ""
    args: str | None = ""
    library: bool = False
    stop_first: bool = False
    on: str | None = None


@dataclass
class Session:
    """The live meshes, which outlive kernels, and the kernel of now."""

    policy: ReRunPolicy = field(default_factory=ReRunPolicy)
    live: dict[int, LiveMesh] = field(default_factory=dict)
    ids: int = 0

    def restart_kernel(self, policy: Policy = "reuse") -> None:
        self.policy = ReRunPolicy(policy)

    def meshes(self) -> list[LiveMesh]:
        return list(self.live.values())

    def rekey(self, mesh: int, key: Key) -> None:
        old = self.live[mesh]
        self.live[mesh] = LiveMesh(mesh, old.name, old.kind, old.created, key, old.size, old.procs)

    def orphan(self, ended: Ended) -> None:
        for mesh in ended.orphaned:
            old = self.live[mesh]
            self.live[mesh] = LiveMesh(mesh, old.name, old.kind, old.created, old.key, old.size, old.procs, True)

    def remove(self, mesh: int) -> None:
        for other in [m.id for m in self.live.values() if m.id == mesh or m.procs == mesh]:
            self.live.pop(other, None)

    def request(self, spawn: Spawn) -> Decision:
        return self.policy.spawn_request(
            spawn.name,
            spawn.kind,
            live=self.meshes(),
            placement=spawn.placement,
            spec=spawn.spec,
            fingerprint=spawn.fingerprint,
            args=spawn.args,
            from_library=spawn.library,
            stop_first=spawn.stop_first,
        )

    def make(self, spawn: Spawn, decision: Decision) -> int:
        self.ids += 1
        name = spawn.name or f"procs-{self.ids}"
        procs = next((m.id for m in reversed(self.meshes()) if m.name == spawn.on), None) if spawn.on else None
        if isinstance(decision, (Replace, StopThenNew)):
            self.remove(decision.mesh)
        self.live[self.ids] = LiveMesh(self.ids, name, spawn.kind, float(self.ids), decision.key, 4, procs)
        self.policy.spawned(self.ids, decision, name=name, size=4)
        return self.ids

    def spawn(self, spawn: Spawn) -> tuple[Decision, int]:
        decision = self.request(spawn)
        if isinstance(decision, (Keep, Adopt)):
            self.rekey(decision.mesh, decision.key)
            return decision, decision.mesh
        return decision, self.make(spawn, decision)

    def run(self, source: str, *spawns: Spawn, cell: str | None = None) -> tuple[list[Decision], list[int], Ended]:
        for mesh in self.policy.begin_execution("nb", cell, source, self.meshes()).stop:
            self.remove(mesh)
        done = [self.spawn(spawn) for spawn in spawns]
        ended = self.policy.end_execution(True, self.meshes())
        return [decision for decision, _ in done], [mesh for _, mesh in done], ended


PROCS = Spawn("procs")
TRAINERS = Spawn("trainers", "actors", "1:all", fingerprint="v1", args="lr=1", on="procs")


def test_a_cell_that_is_run_again_keeps_what_it_made() -> None:
    for cell in ("c", None):
        session = Session()
        _, first, made = session.run("h", PROCS, TRAINERS, cell=cell)
        decisions, again, kept = session.run("h", PROCS, TRAINERS, cell=cell)
        assert first == again
        assert [type(d) for d in decisions] == [Keep, Keep]
        assert made.line == "made procs (4), trainers"
        assert kept.line == "kept procs (4), trainers"


def test_a_new_kernel_finds_them_too() -> None:
    for cell in ("c", None):
        session = Session()
        _, first, _ = session.run("h", PROCS, TRAINERS, cell=cell)
        session.restart_kernel()
        assert session.run("h", PROCS, TRAINERS, cell=cell)[1] == first


def test_a_replacement_that_fails_leaves_the_old_with_its_cell() -> None:
    session = Session()
    _, (procs, old), _ = session.run("h", PROCS, TRAINERS, cell="c")
    session.policy.begin_execution("nb", "c", "h", session.meshes())
    session.spawn(PROCS)
    changed = Spawn("trainers", "actors", "1:all", fingerprint="v2", args="lr=1", on="procs")
    decision = session.request(changed)
    assert isinstance(decision, Replace)
    session.policy.spawned(99, decision, name="trainers", size=4)
    session.policy.failed(99)
    ended = session.policy.end_execution(False, session.meshes())
    assert ended.line == "kept procs (4)"
    # Another cell does not get hold of it, and its own finds it as it was.
    (_, other), _, _ = session.run("h", PROCS, TRAINERS, cell="d")
    assert isinstance(other, New)
    session = Session(live={mesh: session.live[mesh] for mesh in (procs, old)}, policy=session.policy, ids=session.ids)
    (_, kept), _, ended = session.run("h", PROCS, TRAINERS, cell="c")
    assert isinstance(kept, Keep)
    assert kept.mesh == old


def test_changed_code_replaces_the_actors_beside_the_old_on_the_same_procs() -> None:
    session = Session()
    session.run("h", PROCS, TRAINERS, cell="c")
    changed = Spawn("trainers", "actors", "1:all", fingerprint="v2", args="lr=2", on="procs")
    (kept, replaced), _, ended = session.run("h2", PROCS, changed, cell="c")
    assert isinstance(kept, Keep)
    assert isinstance(replaced, Replace)
    assert replaced.two_phase
    assert replaced.note == "its code changed and its arguments changed"
    assert ended.line == "kept procs (4); replaced trainers (its code changed and its arguments changed)"


def test_a_replacement_that_fails_leaves_the_old_claimed_and_no_orphan() -> None:
    session = Session()
    _, (mesh,), _ = session.run("h", TRAINERS, cell="c")
    session.policy.begin_execution("nb", "c", "h2", session.meshes())
    assert isinstance(session.request(Spawn("trainers", "actors", "1:all", fingerprint="v2")), Replace)
    assert session.policy.end_execution(True, session.meshes()) == Ended((), "")
    decisions, again, _ = session.run("h", TRAINERS, cell="c")
    assert again == [mesh]
    assert isinstance(decisions[0], Keep)


def test_other_procs_say_what_ends_with_the_old_ones() -> None:
    session = Session()
    _, (_, trainers), _ = session.run("h", PROCS, TRAINERS, cell="c")
    (decision,), _, _ = session.run("h2", Spawn("procs", placement="2"), cell="c")
    assert isinstance(decision, Replace)
    assert decision.stops == (trainers,)
    assert decision.note == "its placement changed; with it ends trainers"


def test_what_cannot_live_beside_the_old_stops_it_first() -> None:
    session = Session()
    _, (mesh,), _ = session.run("h", PROCS, cell="c")
    (decision,), _, _ = session.run("h2", Spawn("procs", spec="x", stop_first=True), cell="c")
    assert isinstance(decision, StopThenNew)
    assert decision.mesh == mesh


def test_arguments_that_cannot_be_compared_count_as_the_same_and_it_says_so() -> None:
    session = Session()
    session.run("h", TRAINERS, cell="c")
    (decision,), _, _ = session.run("h", Spawn("trainers", "actors", "1:all", fingerprint="v1", args=None), cell="c")
    assert isinstance(decision, Keep)
    assert decision.note == "its arguments cannot be compared and count as the same"


def test_two_equal_cells_with_ids_do_not_share() -> None:
    session = Session()
    first = [session.run("h", PROCS, cell=cell)[1] for cell in ("c1", "c2")]
    assert first[0] != first[1]
    session.restart_kernel()
    assert [session.run("h", PROCS, cell=cell)[1] for cell in ("c1", "c2")] == first


def test_two_spawns_of_one_name_in_one_cell_do_not_share() -> None:
    session = Session()
    _, first, _ = session.run("h", PROCS, PROCS, cell="c")
    assert len(set(first)) == 2
    assert session.run("h", PROCS, PROCS, cell="c")[1] == first


def test_an_edit_without_a_cell_id_finds_its_mesh_by_name() -> None:
    session = Session()
    _, first, _ = session.run("h", PROCS)
    (decision,), again, ended = session.run("h2", PROCS)
    assert again == first
    assert isinstance(decision, Adopt)
    assert decision.note == "found by its name"
    assert ended.line == "found by name procs (4)"


def test_another_cell_does_not_take_what_a_cell_that_ran_since_made() -> None:
    session = Session()
    _, first, _ = session.run("h", PROCS)
    session.policy.begin_execution("nb", None, "h", session.meshes())
    session.policy.end_execution(False, session.meshes())
    (decision,), other, _ = session.run("h2", PROCS)
    assert other != first
    assert isinstance(decision, New)
    assert decision.note == "the one from before stays, as procs~2"


def test_a_cell_with_an_id_does_not_take_from_another_id() -> None:
    session = Session()
    _, first, _ = session.run("h", PROCS, cell="c1")
    assert session.run("h2", PROCS, cell="c2")[1] != first


def test_a_mesh_that_a_script_made_is_adopted_but_a_script_never_shares() -> None:
    session = Session()
    (decision, mesh), (_, other) = session.spawn(PROCS), session.spawn(PROCS)
    assert isinstance(decision, New)
    assert mesh != other
    assert session.run("h", PROCS)[1] == [other]


def test_a_mesh_without_a_name_is_found_by_its_ordinal() -> None:
    session = Session()
    _, first, _ = session.run("h", Spawn(None), Spawn(None))
    assert session.run("h2", Spawn(None), Spawn(None))[1] == first


def test_library_spawns_are_new_each_time_and_stop_when_their_cell_runs_again() -> None:
    session = Session()
    library = Spawn("pool", library=True)
    _, first, _ = session.run("h", library, PROCS, cell="c")
    _, again, ended = session.run("h", library, PROCS, cell="c")
    assert first[0] != again[0]
    assert first[1] == again[1]
    assert first[0] not in session.live
    assert ended.line == "kept procs (4); made pool (4); stopped pool (4)"
    session.restart_kernel()
    session.run("h", PROCS, cell="c")
    assert again[0] not in session.live


def test_what_a_cell_no_longer_spawns_is_orphaned_once_and_only_after_success() -> None:
    session = Session()
    _, (_, evaluators), _ = session.run("h", PROCS, Spawn("evaluators"), cell="c")
    session.policy.begin_execution("nb", "c", "h2", session.meshes())
    assert session.policy.end_execution(False, session.meshes()).orphaned == ()
    ended = session.run("h2", PROCS, cell="c")[2]
    assert ended.orphaned == (evaluators,)
    assert ended.line == "kept procs (4); no longer spawned: evaluators (orphaned by re-run)"
    session.orphan(ended)
    assert session.run("h2", PROCS, cell="c")[2].orphaned == ()


def test_an_edit_without_a_cell_id_orphans_what_the_replaced_source_made() -> None:
    session = Session()
    _, (_, evaluators), _ = session.run("h", PROCS, Spawn("evaluators"))
    assert session.run("h2", PROCS)[2].orphaned == (evaluators,)


def test_the_policies_replace_and_new() -> None:
    session = Session()
    _, (mesh,), _ = session.run("h", PROCS, cell="c")
    session.policy.policy = "replace"
    (decision,), (second,), _ = session.run("h", PROCS, cell="c")
    assert isinstance(decision, Replace)
    assert decision.note == "the re-run policy is 'replace'"
    assert mesh not in session.live
    session.policy.policy = "new"
    (decision,), (third,), ended = session.run("h", PROCS, cell="c")
    assert isinstance(decision, New)
    assert ended.orphaned == (second,)
    session.policy.policy = "reuse"
    assert session.run("h", PROCS, cell="c")[1] == [third]


def test_a_key_lives_in_the_record_and_foreign_ones_are_none() -> None:
    key = Key("nb", "id:c", "procs", 0, "h", "procs", args=None)
    record = MeshRecord(1, "procs", "procs", hosts=(0, 0), key={**key.to_dict(), "later": 1}, orphaned=True)
    assert LiveMesh.of(record) == LiveMesh(1, "procs", "procs", 0.0, key, 2, None, True)
    assert Key.from_dict({"cell": "c"}) is None
    assert Key.from_dict(None) is None


# A cell is its list of spawns; cells of equal lists have equal source.
statements = st.builds(
    Spawn,
    name=st.sampled_from(["a", "b", None]),
    placement=st.sampled_from(["4", "4", "2"]),
    spec=st.sampled_from(["", "env"]),
    library=st.sampled_from([False, False, False, True]),
)
programs = st.lists(statements, min_size=0, max_size=3)


class NotebookMachine(RuleBasedStateMachine):
    """A notebook whose cells are run, edited, copied and moved; kernels come and go; meshes stay."""

    with_ids = True

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.cells: list[tuple[str, list[Spawn]]] = []
        self.made = 0
        # What each cell's last run in this kernel holds.
        self.holds: dict[str, set[int]] = {}
        # Source -> the number of the last run of a cell with it in this kernel, and mesh -> (source, run) that has it.
        self.runs = 0
        self.last: dict[str, int] = {}
        self.claimed: dict[int, tuple[str, int]] = {}

    def add(self, program: list[Spawn], at: int) -> None:
        self.made += 1
        self.cells.insert(at % (len(self.cells) + 1), (f"c{self.made}", program))

    @initialize(program=programs)
    def first_cell(self, program: list[Spawn]) -> None:
        self.add(program, 0)

    @rule(program=programs, at=st.integers(0, 5))
    def insert(self, program: list[Spawn], at: int) -> None:
        if len(self.cells) < 5:
            self.add(program, at)

    @rule(which=st.integers(0, 5), at=st.integers(0, 5))
    def copy(self, which: int, at: int) -> None:
        if len(self.cells) < 5:
            self.add(self.cells[which % len(self.cells)][1], at)

    @rule(which=st.integers(0, 5), program=programs)
    def edit(self, which: int, program: list[Spawn]) -> None:
        index = which % len(self.cells)
        self.cells[index] = (self.cells[index][0], program)

    @rule()
    def kernel_restarts(self) -> None:
        self.session.restart_kernel()
        self.holds.clear()
        self.last.clear()
        self.claimed.clear()

    @rule(which=st.integers(0, 5), fails_at=st.sampled_from([None, None, 0, 1]))
    def run_cell(self, which: int, fails_at: int | None) -> None:
        self.execute(which, fails_at)

    def execute(self, which: int, fails_at: int | None) -> list[tuple[Decision, int]]:
        cell, program = self.cells[which % len(self.cells)]
        session, source = self.session, f"{zlib.crc32(repr(program).encode()):x}"
        self.runs += 1
        before = set(session.live)
        began = session.policy.begin_execution("nb", cell if self.with_ids else None, source, session.meshes())
        for mesh in began.stop:
            key = session.live[mesh].key
            assert key is not None
            assert key.library, "only what library code made is stopped"
            session.remove(mesh)
        self.last[source] = self.runs
        done: list[tuple[Decision, int]] = []
        for number, spawn in enumerate(program):
            if number == fails_at:
                break
            decision, mesh = session.spawn(spawn)
            assert mesh not in {m for _, m in done}, "two spawns of one execution share a mesh"
            if isinstance(decision, (Keep, Adopt)):
                assert mesh in before
                assert not spawn.library
                owner, run = self.claimed.get(mesh, (source, 0))
                if isinstance(decision, Adopt) and mesh in self.claimed:
                    assert owner != source, "cells of equal source share by accident"
                    assert self.last[owner] <= run, "taken from a cell that ran since"
            else:
                assert mesh not in before
            self.claimed[mesh] = (source, self.runs)
            done.append((decision, mesh))
        ok = fails_at is None or fails_at >= len(program)
        ended = session.policy.end_execution(ok, session.meshes())
        got = {mesh for _, mesh in done}
        assert not got & set(ended.orphaned)
        assert ok or not ended.orphaned
        if self.with_ids:
            for other, meshes in self.holds.items():
                if other != cell:
                    assert not got & meshes, "two cells hold one mesh"
                    assert not meshes & set(ended.orphaned) & set(session.live), "another cell's mesh is orphaned"
        session.orphan(ended)
        self.holds[cell] = got if ok else self.holds.get(cell, set()) | got
        return done

    def run_all(self) -> list[list[tuple[Decision, int]]]:
        return [self.execute(index, None) for index in range(len(self.cells))]

    @rule()
    def restart_and_run_all_finds_all(self) -> None:
        before = self.run_all()
        self.kernel_restarts()
        after = self.run_all()
        for (_, program), old, new in zip(self.cells, before, after, strict=True):
            for spawn, (_, old_mesh), (decision, mesh) in zip(program, old, new, strict=True):
                if spawn.library:
                    assert isinstance(decision, New)
                elif self.with_ids:
                    assert isinstance(decision, Keep)
                    assert mesh == old_mesh
                else:
                    # Without ids a later cell may have taken over an earlier one's mesh, and replaced it in turn.
                    assert not isinstance(decision, New), "a spawn was not found again"


class NotebookWithoutIdsMachine(NotebookMachine):
    """The same, from a front end that sends no ids."""

    with_ids = False


TestNotebookMachine = NotebookMachine.TestCase
TestNotebookMachine.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestNotebookWithoutIdsMachine = NotebookWithoutIdsMachine.TestCase
TestNotebookWithoutIdsMachine.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
