"""What a spawn means when its cell may have run before.

A notebook is run again and again, in parts and as a whole, by this kernel and by the next; each time its spawns should
find what they made. The *key* of a spawn made by notebook code is (notebook, cell, name, ordinal): the cell is the
front end's id for it, else a hash of its source; the ordinal counts spawns of one name within one execution.

* **Hit**: a live mesh has the key. Same spec, code and arguments: it is kept. Otherwise it is replaced.
* **Miss**: a live mesh of the same name and placement is adopted if this kernel has not claimed it, or has claimed it
  from a cell source that this execution replaces (no cell run since has its hash). That is how restart-and-run-all in
  another front end, and an edit without a cell id, find their meshes.
* **Neither**: it is new.

Two cells never hold one mesh: a mesh is claimed by the cell that spawned, kept or adopted it last, and where both cells
have ids, the one never adopts from the other. Without ids, cells of equal source are one cell.

What library code spawns while a cell runs is always new, tagged with the cell, and stopped when the cell is run again.
What is spawned outside of any cell (a script) is always new.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .records import Kind, MeshRecord

__all__ = [
    "Adopt",
    "Began",
    "Decision",
    "Ended",
    "Keep",
    "Key",
    "LiveMesh",
    "New",
    "Policy",
    "ReRunPolicy",
    "Replace",
    "StopThenNew",
]

Policy = Literal["reuse", "replace", "new"]


@dataclass(frozen=True, slots=True)
class Key:
    """Which spawn of which cell made a mesh, and what exactly was asked for. Kept in :attr:`MeshRecord.key`.

    Parameters
    ----------
    notebook
        The notebook, as far as it is known, else an empty string.
    cell
        ``id:<cell id>``, else ``source:<hash>``; empty for a spawn outside of cells.
    name
        The name of the mesh; None when nobody gave one.
    ordinal
        How many spawns of the same kind and name came before in the same execution.
    cell_hash
        The hash of the cell's source, also when the cell has an id.
    kind
        ``"procs"`` or ``"actors"``.
    library
        The spawn was made by library code.
    placement
        Digest of where: hosts and extent, or the proc mesh and region.
    spec
        Digest of how: environment, options.
    fingerprint
        Actors: of their class.
    args
        Digest of the constructor's arguments; None when they cannot be compared.
    """

    notebook: str
    cell: str
    name: str | None
    ordinal: int
    cell_hash: str
    kind: Kind
    library: bool = False
    placement: str = ""
    spec: str = ""
    fingerprint: str = ""
    args: str | None = ""

    @property
    def place(self) -> tuple[object, ...]:
        """The part that finds it again."""
        return self.notebook, self.cell, self.kind, self.name, self.ordinal

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Key | None:
        """Read what :meth:`to_dict` wrote; None when it is not there or is not one."""
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            return cls(**{name: value for name, value in data.items() if name in known}) if data else None
        except TypeError:
            return None


@dataclass(frozen=True, slots=True)
class LiveMesh:
    """A live mesh, as much of it as the policy looks at.

    Parameters
    ----------
    id, name, kind, created
        As in its record.
    key
        Its key, or None: it was not made by a notebook.
    size
        How many ranks it has.
    procs
        Actors: the proc mesh they run on.
    orphaned
        It was listed as orphaned before.
    shown
        How people know it: ``NAME~2`` for an older one of a name.
    """

    id: int
    name: str
    kind: Kind
    created: float = 0.0
    key: Key | None = None
    size: int = 0
    procs: int | None = None
    orphaned: bool = False
    shown: str = ""

    @classmethod
    def of(cls, record: MeshRecord, shown: str = "") -> LiveMesh:
        """The view of a record."""
        key = Key.from_dict(record.key)
        size, procs = record.size, record.procs
        return cls(record.id, record.name, record.kind, record.created, key, size, procs, record.orphaned, shown)

    def __str__(self) -> str:
        return self.shown or self.name


@dataclass(frozen=True, slots=True)
class Keep:
    """Use the mesh that the spawn found by its key. Give it this key: its cell's source may be another."""

    mesh: int
    key: Key
    note: str = ""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Use the mesh that the spawn found by name and placement, and give it this key."""

    mesh: int
    key: Key
    note: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Make another and let it take the place of this one; then call :meth:`ReRunPolicy.spawned`.

    Parameters
    ----------
    mesh
        The old one. On failure it stays.
    key
        For the new one.
    two_phase
        Always true: construct beside the old, then swap.
    stops
        What else ends with the old one: the actors on a proc mesh.
    note
        Why, in words.
    """

    mesh: int
    key: Key
    two_phase: bool
    stops: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True)
class StopThenNew:
    """Stop this one first, since both do not fit or the user says so; otherwise as :class:`Replace`."""

    mesh: int
    key: Key
    stops: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True)
class New:
    """Make a mesh with this key; then call :meth:`ReRunPolicy.spawned`."""

    name: str | None
    key: Key
    note: str = ""


Decision = Keep | Adopt | Replace | StopThenNew | New


@dataclass(frozen=True, slots=True)
class Began:
    """A cell begins. Stop these meshes: library code made them for it when it ran before."""

    stop: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell ended.

    Parameters
    ----------
    orphaned
        Live meshes that this cell had made, no longer spawns, and that were not orphaned before; empty when it failed.
    line
        What was kept and what was made, for the end of the cell's output; empty when it spawned nothing.
    """

    orphaned: tuple[int, ...]
    line: str


@dataclass(slots=True)
class _Claim:
    """A mesh that this kernel holds for a cell, and the execution since which it does."""

    key: Key
    execution: int


@dataclass(slots=True)
class _Execution:
    number: int
    notebook: str
    cell: str
    cell_hash: str
    ordinals: dict[tuple[bool, Kind, str | None], int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    # Cells whose source this one replaced, known by what it adopted from them.
    replaced: set[str] = field(default_factory=set)
    # Verb -> the meshes, by id: name, and what else is to be said of each.
    done: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)


#: Verbs of the summary line, in its order.
_VERBS = ("kept", "found by name", "replaced", "made", "stopped")


class ReRunPolicy:
    """The re-run policy of one kernel.

    Parameters
    ----------
    policy
        ``reuse``: as above. ``replace``: what is found is always replaced. ``new``: every spawn is new, what the cell
        had before is left as orphaned.
    """

    def __init__(self, policy: Policy = "reuse") -> None:
        self.policy: Policy = policy
        self._claims: dict[int, _Claim] = {}
        self._execution: _Execution | None = None
        self._count = 0
        # Source hash -> the last execution of a cell with it.
        self._last_run: dict[str, int] = {}
        # A mesh that is to replace another -> that one, and who had claimed it: for the case that it fails.
        self._before: dict[int, tuple[int, _Claim | None]] = {}

    # -- a cell -----------------------------------------------------------------------------------------------------

    def begin_execution(
        self, notebook: str, cell_id: str | None, source_hash: str, live: Iterable[LiveMesh] = ()
    ) -> Began:
        """A cell of a notebook begins to run.

        Parameters
        ----------
        notebook
            The notebook's path or name, empty when it is not known.
        cell_id
            The front end's id of the cell; None when it sends none, or one that is not stable.
        source_hash
            Of the cell's source as the user wrote it.
        live
            All live meshes.
        """
        self._count += 1
        cell = f"id:{cell_id}" if cell_id else f"source:{source_hash}"
        self._execution = execution = _Execution(self._count, notebook, cell, source_hash)
        self._last_run[source_hash] = self._count
        meshes = list(live)
        stop = tuple(
            mesh.id
            for mesh in meshes
            if (key := self._key(mesh)) is not None and key.library and self._of_cell(key, execution)
        )
        for mesh in meshes:
            if mesh.id in stop:
                self._say("stopped", mesh.id, str(mesh), mesh.kind, mesh.size)
        self._forget(meshes)
        return Began(stop)

    def spawn_request(
        self,
        name: str | None,
        kind: Kind,
        *,
        live: Sequence[LiveMesh],
        placement: str,
        spec: str = "",
        fingerprint: str = "",
        args: str | None = "",
        from_library: bool = False,
        stop_first: bool = False,
    ) -> Decision:
        """A spawn is asked for.

        Parameters
        ----------
        name
            The name given, else the variable it is assigned to, else None.
        kind
            ``"procs"`` or ``"actors"``.
        live
            All live meshes, now.
        placement, spec, fingerprint, args
            Digests, see :class:`Key`.
        from_library
            The caller is library code, not the notebook's.
        stop_first
            A mesh that is to be replaced cannot, or shall not, live beside the new one.
        """
        execution = self._execution
        if execution is None:
            # No cell will ever have this key, but a cell may adopt the mesh by its name.
            return New(name, Key("", "", name, 0, "", kind, from_library, placement, spec, fingerprint, args))
        slot = (from_library, kind, name)
        ordinal = execution.ordinals.get(slot, 0)
        execution.ordinals[slot] = ordinal + 1
        key = Key(
            execution.notebook,
            execution.cell,
            name,
            ordinal,
            execution.cell_hash,
            kind,
            from_library,
            placement,
            spec,
            fingerprint,
            args,
        )
        if from_library:
            return New(name, key)
        found = self._hit(key, live)
        adopted = False
        if found is None and self.policy != "new":
            found = self._adoptable(key, live, execution)
            adopted = found is not None
        if found is None or self.policy == "new":
            older = self._named(key, live)
            note = f"the one from before stays, as {older.name}~2" if older is not None else ""
            return New(name, key, note)
        old = self._key(found)
        if adopted and (claim := self._claims.get(found.id)) is not None:
            execution.replaced.add(claim.key.cell)
        execution.touched.add(found.id)
        changes = _changes(old, key)
        if self.policy == "replace":
            changes = changes or ["the re-run policy is 'replace'"]
        if not changes:
            self._claim(found.id, key, execution)
            note = _uncompared(old, key)
            self._say("found by name" if adopted else "kept", found.id, str(found), kind, found.size, note)
            if adopted:
                return Adopt(found.id, key, _join("found by its name", note))
            return Keep(found.id, key, note)
        ends = [mesh for mesh in live if kind == "procs" and mesh.procs == found.id]
        note = " and ".join(changes)
        if ends:
            note += f"; with it ends {', '.join(map(str, ends))}"
        stops = tuple(mesh.id for mesh in ends)
        if stop_first:
            return StopThenNew(found.id, key, stops, note)
        return Replace(found.id, key, True, stops, note)

    def spawned(self, mesh: int, decision: Decision, *, name: str, size: int = 0) -> None:
        """What :class:`New`, :class:`Replace` or :class:`StopThenNew` asked for is there.

        Parameters
        ----------
        mesh
            The id of the new mesh; after a replacement in place, of the same.
        decision
            What was decided.
        name
            The name that it has now.
        size
            How many ranks it has.
        """
        execution = self._execution
        if execution is None or isinstance(decision, (Keep, Adopt)):
            return
        key = decision.key
        if isinstance(decision, (Replace, StopThenNew)):
            self._before[mesh] = (decision.mesh, self._claims.pop(decision.mesh, None))
        self._claim(mesh, key, execution)
        self._say("made" if isinstance(decision, New) else "replaced", mesh, name, key.kind, size, decision.note)

    def failed(self, mesh: int) -> None:
        """What was :meth:`spawned` did not come up after all. One that it was to replace is again its cell's."""
        self._claims.pop(mesh, None)
        old, claim = self._before.pop(mesh, (0, None))
        if claim is not None:
            self._claims[old] = claim
        if self._execution is not None:
            for said in self._execution.done.values():
                said.pop(mesh, None)

    def end_execution(self, ok: bool, live: Iterable[LiveMesh] = ()) -> Ended:
        """The cell ended.

        Parameters
        ----------
        ok
            It ended without an error.
        live
            All live meshes, now.
        """
        execution, self._execution = self._execution, None
        if execution is None:
            return Ended((), "")
        meshes = list(live)
        orphaned = []
        if ok:
            for mesh in meshes:
                key = self._key(mesh)
                if key is None or mesh.orphaned or mesh.id in execution.touched:
                    continue
                # Library spawns of this very cell were stopped when it began.
                if self._of_cell(key, execution) and not (key.library and key.cell == execution.cell):
                    orphaned.append(mesh)
        shown = {mesh.id: str(mesh) for mesh in meshes}  # a name that nobody gave is known only now
        parts = []
        for verb in _VERBS:
            said = [
                f"{shown.get(mesh, name)} ({about})" if about else shown.get(mesh, name)
                for mesh, (name, about) in execution.done.get(verb, {}).items()
            ]
            if said:
                parts.append(f"{verb} {', '.join(said)}")
        if orphaned:
            parts.append(f"no longer spawned: {', '.join(map(str, orphaned))} (orphaned by re-run)")
        return Ended(tuple(mesh.id for mesh in orphaned), "; ".join(parts))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _key(self, mesh: LiveMesh) -> Key | None:
        """A mesh's key; what this kernel knows is newer than the snapshot."""
        claim = self._claims.get(mesh.id)
        return claim.key if claim is not None else mesh.key

    def _of_cell(self, key: Key, execution: _Execution) -> bool:
        return key.notebook == execution.notebook and (key.cell == execution.cell or key.cell in execution.replaced)

    def _hit(self, key: Key, live: Iterable[LiveMesh]) -> LiveMesh | None:
        hits = []
        for mesh in live:
            theirs = self._key(mesh)
            if theirs is not None and not theirs.library and theirs.place == key.place and mesh.kind == key.kind:
                hits.append(mesh)
        return max(hits, key=_age, default=None)

    def _adoptable(self, key: Key, live: Iterable[LiveMesh], execution: _Execution) -> LiveMesh | None:
        """The best mesh of this name and placement that may change hands."""
        candidates = []
        for mesh in live:
            theirs = self._key(mesh)
            if theirs is None or theirs.library or mesh.kind != key.kind or theirs.placement != key.placement:
                continue
            if key.name is None:
                same_name = theirs.name is None and theirs.ordinal == key.ordinal
            else:
                same_name = key.name in (theirs.name, mesh.name)
            if same_name and self._free(mesh, execution):
                # The same source under another id (a copied or re-opened notebook) is the likeliest, then the same
                # place among its namesakes, then the latest.
                rank = (theirs.cell_hash == key.cell_hash, theirs.ordinal == key.ordinal, *_age(mesh))
                candidates.append((rank, mesh))
        return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None

    def _free(self, mesh: LiveMesh, execution: _Execution) -> bool:
        if mesh.id in execution.touched:
            return False
        claim = self._claims.get(mesh.id)
        if claim is None:
            return True
        if claim.key.cell.startswith("id:") and execution.cell.startswith("id:"):
            # Two ids are two cells, whatever they contain.
            return claim.key.cell == execution.cell
        last = self._last_run.get(claim.key.cell_hash, 0)
        return claim.key.cell_hash != execution.cell_hash and last <= claim.execution

    def _named(self, key: Key, live: Iterable[LiveMesh]) -> LiveMesh | None:
        return next((mesh for mesh in live if mesh.kind == key.kind and mesh.name == key.name), None)

    def _claim(self, mesh: int, key: Key, execution: _Execution) -> None:
        execution.touched.add(mesh)
        self._claims[mesh] = _Claim(key, execution.number)

    def _forget(self, live: Iterable[LiveMesh]) -> None:
        there = {mesh.id for mesh in live}
        self._claims = {mesh: claim for mesh, claim in self._claims.items() if mesh in there}
        self._before = {mesh: before for mesh, before in self._before.items() if before[0] in there}

    def _say(self, verb: str, mesh: int, name: str, kind: Kind, size: int, why: str = "") -> None:
        if self._execution is not None:
            # The size of a proc mesh is what people want to see; actors have that of their procs.
            about = _join(str(size) if kind == "procs" and size else "", why)
            self._execution.done.setdefault(verb, {})[mesh] = (name, about)


def _age(mesh: LiveMesh) -> tuple[float, int]:
    return mesh.created, mesh.id


def _changes(old: Key | None, new: Key) -> list[str]:
    """What keeps a mesh from being the one that is asked for, in words."""
    if old is None:
        return []
    changes = []
    if old.placement != new.placement:
        changes.append("its placement changed")
    if old.spec != new.spec:
        changes.append("its options changed")
    if old.fingerprint != new.fingerprint:
        changes.append("its code changed")
    if old.args is not None and new.args is not None and old.args != new.args:
        changes.append("its arguments changed")
    return changes


def _uncompared(old: Key | None, new: Key) -> str:
    if old is not None and (old.args is None or new.args is None):
        return "its arguments cannot be compared and count as the same"
    return ""


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
