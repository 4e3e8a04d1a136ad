"""Which meshes there are, what their names mean, and what happened to each rank.

A daemon keeps a :class:`Registry` of its own part of every mesh (the full extent, but only the ranks of its host) and
puts :meth:`Registry.to_blob` into its keeper after each change, so that a restarted daemon loses nothing. A controller
that attaches makes one registry of the parts of all hosts with :func:`~monarch_kernel.state.merge.merge`.

Names are never stored twice. A mesh has the name it was given; what that name *means* follows from which meshes are
live: ``NAME`` is the latest, ``NAME~2`` the one before it, and so on, for meshes of processes and of actors apart.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .changes import Already, Decision, EndRanks, Live, RankChanged, Refused, StartRanks, Stopped, Swapped
from .records import Endpoint, Health, Kind, MeshRecord, Owner, RankRecord, RankState

__all__ = [
    "Already",
    "Decision",
    "EndRanks",
    "Endpoint",
    "Kind",
    "Live",
    "MeshRecord",
    "NoSuchMesh",
    "RankChanged",
    "RankRecord",
    "RankState",
    "Refused",
    "Registry",
    "StartRanks",
    "Stopped",
    "Swapped",
]

#: Stopped meshes and aborted spawns that are remembered, so that a late message about one is answered, not obeyed.
HISTORY = 256

#: Names listed in a :class:`NoSuchMesh` before it says "and N more".
_SHOWN = 12


class NoSuchMesh(LookupError):
    """No live mesh has this name.

    Parameters
    ----------
    name
        What was asked for.
    known
        The names that exist.
    nearest
        The known name most like it, or None.
    was_stopped
        A mesh of this name was there and is stopped.
    """

    def __init__(self, name: str, known: Iterable[str], *, was_stopped: bool = False) -> None:
        self.name = name
        self.known = tuple(known)
        close = difflib.get_close_matches(name, self.known, n=1, cutoff=0.6)
        self.nearest = close[0] if close else None
        self.was_stopped = was_stopped
        text = f"the mesh {name!r} was stopped" if was_stopped else f"there is no mesh named {name!r}"
        if self.nearest:
            text += f"; did you mean {self.nearest!r}?"
        else:
            text += "."
        if self.known:
            shown = ", ".join(self.known[:_SHOWN])
            more = len(self.known) - _SHOWN
            text += f" Live meshes: {shown}" + (f" and {more} more." if more > 0 else ".")
        else:
            text += " There are no live meshes."
        super().__init__(text)


@dataclass(slots=True)
class _Pending:
    """A mesh that is prepared here and not committed yet, and when the head last asked for it."""

    record: MeshRecord
    since: float


class Registry:
    """The meshes one host, or one controller, knows of.

    Every change returns decisions for its driver and raises :attr:`revision`. The order of what it returns is the order
    to act in: actors end before the processes they run in.

    Parameters
    ----------
    host
        The index of the host whose ranks this registry holds; None for one that holds all (a controller's).
    """

    def __init__(self, host: int | None = None) -> None:
        self.host = host
        self.revision = 0
        self.bindings: dict[str, dict[str, Any]] = {}
        #: What :meth:`from_blob` could not read, in words.
        self.problems: list[str] = []
        self._live: dict[int, MeshRecord] = {}
        self._pending: dict[int, _Pending] = {}
        # Stopped meshes in order of their end; aborted spawns as id -> highest aborted generation. Both bounded.
        self._stopped: dict[int, MeshRecord] = {}
        self._aborted: dict[int, int] = {}
        self._auto = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    def get(self, mesh: int) -> MeshRecord | None:
        """The record of a live or stopped mesh, or None."""
        return self._live.get(mesh) or self._stopped.get(mesh)

    def live(self, kind: Kind | None = None) -> list[MeshRecord]:
        """The live meshes, oldest first."""
        records = [record for record in self._live.values() if kind is None or record.kind == kind]
        return sorted(records, key=_age)

    def pending(self) -> list[MeshRecord]:
        """Meshes that are prepared and neither committed nor aborted."""
        return [pending.record for pending in self._pending.values()]

    def names(self, kind: Kind) -> dict[str, MeshRecord]:
        """What each name means now, oldest mesh first."""
        counts: dict[str, int] = {}
        latest_first = []
        for record in reversed(self.live(kind)):
            if record.spec.get("bootstrap"):
                continue  # part of its processes, nobody's to name
            nth = counts[record.name] = counts.get(record.name, 0) + 1
            latest_first.append((record.name if nth == 1 else f"{record.name}~{nth}", record))
        return dict(reversed(latest_first))

    def name_of(self, mesh: int) -> str:
        """The name under which a mesh is found now; the one it was given when it is not live."""
        record = self.get(mesh)
        if record is None:
            raise KeyError(mesh)
        for name, candidate in self.names(record.kind).items():
            if candidate.id == mesh:
                return name
        return record.name

    def lookup(self, name: str, kind: Kind | None = None) -> MeshRecord:
        """Find a live mesh by name (``NAME`` or ``NAME~2``).

        Parameters
        ----------
        name
            The name, as :meth:`names` gives it.
        kind
            Where to look; None looks in both, and the younger mesh wins when both have the name.

        Raises
        ------
        NoSuchMesh
            With what exists and the nearest name.
        """
        spaces = [self.names(k) for k in (("procs", "actors") if kind is None else (kind,))]
        found = [space[name] for space in spaces if name in space]
        if found:
            return max(found, key=_age)
        stopped = any(r.name == name and (kind is None or r.kind == kind) for r in self._stopped.values())
        raise NoSuchMesh(name, [known for space in spaces for known in space], was_stopped=stopped)

    def children(self, mesh: int) -> list[MeshRecord]:
        """The live actor meshes that run in this proc mesh, and those that its actors own, oldest first."""
        return [record for record in self.live() if _below(record, mesh)]

    def owned(self, mesh: int) -> list[MeshRecord]:
        """The live meshes that actors of this mesh (or in it) own and that do not run in it, oldest first."""
        actors = {mesh, *(record.id for record in self.live("actors") if record.procs == mesh)}
        owners = ((record, Owner.parse(record.owner)) for record in self.live())
        return [r for r, owner in owners if owner is not None and owner.mesh in actors and r.id not in actors]

    def auto_name(self) -> str:
        """A name nobody gave: ``procs-N``, never one that was used before."""
        used = {record.name for record in (*self._live.values(), *self._stopped.values(), *self.pending())}
        self._auto += 1
        while f"procs-{self._auto}" in used:
            self._auto += 1
        self.revision += 1
        return f"procs-{self._auto}"

    # -- spawn, in two phases ---------------------------------------------------------------------------------------

    def add(self, record: MeshRecord) -> list[Decision]:
        """Record a mesh that is already committed elsewhere (a controller's view of it)."""
        self._pending.pop(record.id, None)
        if record.state == "stopped":
            self._remember_stopped(record)
        elif record.id not in self._stopped:
            self._live[record.id] = record
        self.revision += 1
        return [Live(record.id)] if record.id in self._live else []

    def prepare(self, record: MeshRecord, now: float) -> list[Decision]:
        """Begin a spawn, or the replacement of a live mesh by one of a higher generation, beside the old.

        A repeated prepare is answered and renews the time until :meth:`expire` gives up on it.
        """
        mesh, generation = record.id, record.generation
        if mesh in self._stopped:
            return [Refused(mesh, "it was stopped")]
        if generation <= self._aborted.get(mesh, 0):
            return [Refused(mesh, "it was aborted")]
        live = self._live.get(mesh)
        if live is not None and generation == live.generation:
            return [Already(mesh, "live")]
        if live is not None and generation < live.generation:
            return [Refused(mesh, "a later generation of it is live")]
        if (pending := self._pending.get(mesh)) is not None:
            if pending.record.generation != generation:
                return [Refused(mesh, "another replacement of it is under way")]
            pending.since = max(pending.since, now)
            return [Already(mesh, "prepared")]
        if record.procs is not None and record.procs in self._stopped:
            return [Refused(mesh, "the processes it would run in were stopped")]
        if (owner := Owner.parse(record.owner)) is not None and owner.mesh in self._stopped:
            return [Refused(mesh, "the actor that spawns it was stopped")]
        record = record.copy()
        record.ranks = {rank: record.ranks.get(rank, RankRecord()) for rank in self._mine(record)}
        self._pending[mesh] = _Pending(record, now)
        self.revision += 1
        return [StartRanks(mesh, generation, tuple(record.ranks))]

    def commit(self, mesh: int, generation: int = 1) -> list[Decision]:
        """Make a prepared mesh live; a replacement takes the place of the old."""
        live = self._live.get(mesh)
        if live is not None and live.generation >= generation:
            return [Already(mesh, "live")]
        pending = self._pending.get(mesh)
        if pending is None or pending.record.generation != generation:
            known = mesh in self._stopped or mesh in self._aborted
            return [Refused(mesh, "it was given up" if known else "it was never prepared here")]
        del self._pending[mesh]
        self._live[mesh] = pending.record
        self.revision += 1
        if live is None:
            return [Live(mesh)]
        pending.record.orphaned = False
        return [Swapped(mesh, live.generation, generation)]

    def abort(self, mesh: int, generation: int = 1, reason: str = "the spawn was given up") -> list[Decision]:
        """Undo a spawn, committed or not, as if it had never been; repeated, or too early, it is only remembered.

        A committed *replacement* cannot be undone (the old is gone): that is refused.
        """
        live = self._live.get(mesh)
        if live is not None and 1 < generation <= live.generation:
            return [Refused(mesh, "the replacement has already taken its place")]
        self._aborted[mesh] = max(generation, self._aborted.pop(mesh, 0))
        _bound(self._aborted)
        self.revision += 1
        decisions: list[Decision] = []
        pending = self._pending.get(mesh)
        if pending is not None and pending.record.generation <= generation:
            del self._pending[mesh]
            decisions.append(EndRanks(mesh, pending.record.generation, tuple(pending.record.ranks), reason))
        if live is not None and live.generation == generation:
            decisions += self.stop(mesh, reason)
        return decisions

    def expire(self, now: float, bound: float) -> list[Decision]:
        """Abort what was prepared and not asked for again within `bound` seconds: its head is gone."""
        decisions: list[Decision] = []
        for mesh, pending in list(self._pending.items()):
            if now - pending.since >= bound:
                decisions += self.abort(mesh, pending.record.generation, "nobody committed the spawn in time")
        return decisions

    def stop(self, mesh: int, reason: str = "it was stopped") -> list[Decision]:
        """Stop a mesh, its children first. Stopping what is not live here does nothing."""
        decisions: list[Decision] = []
        # Out of the way before its children, so that two meshes that own each other cannot stop one another for ever.
        record = self._live.pop(mesh, None)
        for pending in self.pending():
            if (pending.id == mesh and record is not None) or _below(pending, mesh):
                decisions += self.abort(pending.id, pending.generation, reason)
        if record is None:
            return decisions
        for child in self.children(mesh):
            decisions += self.stop(child.id, reason)
        running = tuple(rank for rank, r in record.ranks.items() if r.state in ("starting", "ok"))
        for rank_record in record.ranks.values():
            if rank_record.state in ("starting", "ok", "lost"):
                rank_record.state = "stopped"
        record.state = "stopped"
        self._remember_stopped(record)
        self.bindings = {var: b for var, b in self.bindings.items() if b.get("mesh") != mesh}
        self.revision += 1
        return [*decisions, EndRanks(mesh, record.generation, running, reason), Stopped(mesh, reason)]

    def next_generation(self, mesh: int) -> int:
        """The generation for the next attempt to replace a live mesh; one that was aborted is not used again."""
        live = self._live.get(mesh)
        return max(live.generation if live is not None else 0, self._aborted.get(mesh, 0)) + 1

    # -- what happens to ranks --------------------------------------------------------------------------------------

    # Each takes the generation it is about; None means the live one, else the prepared one.

    def rank_started(
        self, mesh: int, rank: int, pid: int | None, start: int | None, generation: int | None = None
    ) -> list[Decision]:
        """Its process runs; its constructor may not have."""
        return self._change(mesh, rank, generation, state="starting", pid=pid, start=start, fault=None)

    def rank_constructed(self, mesh: int, rank: int, generation: int | None = None) -> list[Decision]:
        """It is ready to be called."""
        return self._change(mesh, rank, generation, only=("starting",), state="ok", fault=None)

    def rank_failed(self, mesh: int, rank: int, fault: dict[str, Any], generation: int | None = None) -> list[Decision]:
        """Its process or constructor did not get to ready."""
        return self._change(mesh, rank, generation, only=("starting",), state="failed", fault=fault)

    def rank_died(
        self, mesh: int, rank: int, fault: dict[str, Any], pid: int | None = None, generation: int | None = None
    ) -> list[Decision]:
        """It ended by itself, and with it all actors in it, the prepared ones too.

        Parameters
        ----------
        pid
            The process that ended; when the rank has another one by now, the news is old and nothing changes.
        """
        record = self._of(mesh, generation)
        known = record.ranks.get(rank) if record is not None else None
        if known is None or (pid is not None and known.pid is not None and known.pid != pid):
            return []
        up: tuple[RankState, ...] = ("starting", "ok", "lost")
        changed = self._change(mesh, rank, generation, only=up, state="dead", fault=fault)
        for child in [*self.live("actors"), *self.pending()]:
            if child.procs == mesh:
                for theirs, proc_rank in enumerate(child.proc_ranks):
                    if proc_rank == rank:
                        changed += self._change(child.id, theirs, child.generation, only=up, state="dead", fault=fault)
        return changed

    def rank_restarted(
        self, mesh: int, rank: int, pid: int | None, start: int | None, generation: int | None = None
    ) -> list[Decision]:
        """It was started again; :meth:`rank_constructed` follows."""
        record = self._of(mesh, generation)
        if record is None or rank not in record.ranks:
            return []
        restarts = record.ranks[rank].restarts + 1
        return self._change(
            mesh,
            rank,
            generation,
            state="starting",
            pid=pid,
            start=start,
            restarts=restarts,
            fault=None,
            health="alive",
        )

    def rank_outdated(self, mesh: int, rank: int, outdated: bool = True) -> list[Decision]:
        """It runs (or no longer runs) older code than its mesh has."""
        return self._change(mesh, rank, None, outdated=outdated)

    def rank_health(self, mesh: int, rank: int, health: Health) -> list[Decision]:
        """Whether its process gives signs of life, and which."""
        return self._change(mesh, rank, None, only=("starting", "ok"), health=health)

    def rank_lost(self, mesh: int, rank: int, fault: dict[str, Any]) -> list[Decision]:
        """No word from its host; it may well be alive."""
        return self._change(mesh, rank, None, only=("starting", "ok"), state="lost", fault=fault)

    def rank_back(self, mesh: int, rank: int, record: RankRecord) -> list[Decision]:
        """Its host is heard again and says how the rank is."""
        live = self._live.get(mesh)
        if live is None or rank not in live.ranks or live.ranks[rank] == record:
            return []
        live.ranks[rank] = RankRecord.from_dict(record.to_dict())
        self.revision += 1
        return [RankChanged(mesh, live.generation, rank, RankRecord.from_dict(record.to_dict()))]

    def host_lost(self, host: int, fault: dict[str, Any]) -> list[Decision]:
        """Every rank on this host is lost."""
        changed: list[Decision] = []
        for record in self.live():
            for rank in record.ranks_on(host):
                changed += self.rank_lost(record.id, rank, fault)
        return changed

    def host_back(self, host: int, view: Registry) -> list[Decision]:
        """The host is heard again, and `view` is what it knows; ranks it no longer has stay lost."""
        changed: list[Decision] = []
        for record in self.live():
            theirs = view._live.get(record.id)
            if theirs is not None:
                for rank in record.ranks_on(host):
                    if rank in theirs.ranks:
                        changed += self.rank_back(record.id, rank, theirs.ranks[rank])
        return changed

    # -- what a notebook adds ---------------------------------------------------------------------------------------

    def orphan(self, meshes: Iterable[int], orphaned: bool = True) -> None:
        """Mark meshes that a re-run no longer spawns, or take the mark away."""
        for mesh in meshes:
            if (record := self._live.get(mesh)) is not None and record.orphaned != orphaned:
                record.orphaned = orphaned
                self.revision += 1

    def rekey(self, mesh: int, key: Mapping[str, Any]) -> None:
        """A re-run kept or adopted the mesh: from now on it is found by this key, and is no orphan."""
        if (record := self._live.get(mesh)) is not None:
            record.key, record.orphaned = dict(key), False
            self.revision += 1

    def bind(self, bindings: Mapping[str, Mapping[str, Any]]) -> None:
        """Set which variables hold which meshes: variable -> ``{"mesh": id, "kind": ..., "region": ...}``.

        The whole map replaces the one before, since a variable that went must not come back at attach.
        """
        new = {str(var): dict(binding) for var, binding in bindings.items()}
        if new != self.bindings:
            self.bindings = new
            self.revision += 1

    def specify(self, mesh_id: int, **words: Any) -> None:
        """Add to the spec of a live mesh, by which ranks that start later are started."""
        record = self._live.get(mesh_id)
        if record is not None and any(record.spec.get(word) != value for word, value in words.items()):
            record.spec.update(words)
            self.revision += 1

    def live_bindings(self) -> dict[str, dict[str, Any]]:
        """The bindings whose mesh is still live."""
        return {var: dict(b) for var, b in self.bindings.items() if b.get("mesh") in self._live}

    # -- as bytes ---------------------------------------------------------------------------------------------------

    def to_blob(self) -> bytes:
        """Everything, as JSON."""
        data = {
            "version": 1,
            "host": self.host,
            "revision": self.revision,
            "auto": self._auto,
            "live": [record.to_dict() for record in self._live.values()],
            "pending": [{"record": p.record.to_dict(), "since": p.since} for p in self._pending.values()],
            "stopped": [record.to_dict() for record in self._stopped.values()],
            "aborted": [[mesh, generation] for mesh, generation in self._aborted.items()],
            "bindings": self.bindings,
        }
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_blob(cls, blob: bytes | bytearray | memoryview | None, host: int | None = None) -> Registry:
        """Read a blob, as much of it as can be read; :attr:`problems` says what could not.

        Never raises: a daemon that cannot start for one bad record would lose all the good ones.
        """
        registry = cls(host)
        if not blob:
            return registry
        try:
            data = json.loads(bytes(blob))
            if not isinstance(data, dict):
                raise ValueError("not an object")
        except ValueError as error:
            registry.problems.append(f"the registry's blob is not readable: {error}")
            return registry

        def part(name: str, read: Any) -> None:
            entries = data.get(name)
            if not isinstance(entries, list):
                return
            for entry in entries:
                try:
                    read(entry)
                except (TypeError, ValueError, KeyError, AttributeError) as error:
                    registry.problems.append(f"an entry of {name!r} is not readable: {error}")

        def live(entry: Any) -> None:
            record = MeshRecord.from_dict(entry)
            registry._live[record.id] = record

        def stopped(entry: Any) -> None:
            record = MeshRecord.from_dict(entry)
            registry._stopped[record.id] = record

        def pending(entry: Any) -> None:
            record = MeshRecord.from_dict(entry["record"])
            registry._pending[record.id] = _Pending(record, float(entry["since"]))

        def aborted(entry: Any) -> None:
            registry._aborted[int(entry[0])] = int(entry[1])

        part("live", live)
        part("stopped", stopped)
        part("pending", pending)
        part("aborted", aborted)
        if registry.host is None and isinstance(data.get("host"), int):
            registry.host = data["host"]
        if isinstance(bindings := data.get("bindings"), dict):
            registry.bindings = {var: dict(b) for var, b in bindings.items() if isinstance(b, dict)}
        registry.revision = data["revision"] if isinstance(data.get("revision"), int) else 0
        registry._auto = data["auto"] if isinstance(data.get("auto"), int) else 0
        return registry

    # -- inside -----------------------------------------------------------------------------------------------------

    def _mine(self, record: MeshRecord) -> tuple[int, ...]:
        return tuple(range(record.size)) if self.host is None else record.ranks_on(self.host)

    def _remember_stopped(self, record: MeshRecord) -> None:
        self._live.pop(record.id, None)
        self._stopped.pop(record.id, None)
        self._stopped[record.id] = record
        _bound(self._stopped)

    def _of(self, mesh: int, generation: int | None) -> MeshRecord | None:
        """The live record, or the prepared one, since ranks start before the commit."""
        live = self._live.get(mesh)
        if live is not None and generation in (None, live.generation):
            return live
        pending = self._pending.get(mesh)
        if pending is not None and generation in (None, pending.record.generation):
            return pending.record
        return None

    def _change(
        self,
        mesh: int,
        rank: int,
        generation: int | None,
        *,
        only: tuple[RankState, ...] | None = None,
        **values: Any,
    ) -> list[Decision]:
        record = self._of(mesh, generation)
        if record is None or (held := record.ranks.get(rank)) is None:
            return []
        if only is not None and held.state not in only:
            return []
        if all(getattr(held, name) == value for name, value in values.items()):
            return []
        for name, value in values.items():
            setattr(held, name, dict(value) if isinstance(value, dict) else value)
        self.revision += 1
        return [RankChanged(mesh, record.generation, rank, RankRecord.from_dict(held.to_dict()))]


def _below(record: MeshRecord, mesh: int) -> bool:
    """Whether a mesh ends with another: it runs in its processes, or its actors own it."""
    owner = Owner.parse(record.owner)
    return record.procs == mesh or (owner is not None and owner.mesh == mesh)


def _age(record: MeshRecord) -> tuple[float, int]:
    """Order of meshes by their birth; the id decides between two of one instant, the same way on every host."""
    return record.created, record.id


def _bound(history: dict[int, Any]) -> None:
    while len(history) > HISTORY:
        del history[next(iter(history))]
