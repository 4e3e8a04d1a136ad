"""Spawning on several hosts: everywhere or nowhere.

The head runs one :class:`SpawnCoordinator` a spawn, each host a :class:`Participant`. First every host prepares (starts
its processes, constructs its actors), then all commit, and only when all have committed is the spawn reported. Until
then nobody has seen the mesh, so anything that goes wrong (a constructor that raises, a host that is lost, a host that
gave up waiting) undoes it on every host, committed or not, and the spawn fails with the *earliest* cause.

Messages may be repeated and hosts may restart: all phases are idempotent by mesh id and generation. The head records
its phase before it acts on it (:class:`Record`), and a head that restarts goes on from there. A host whose head is gone
for good aborts what it has prepared after a bound.

A replacement in place (generation above 1) cannot be undone once swapped: from the first commit on it goes forward, and
hosts lost on the way are named in :class:`Done`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .registry import Decision, MeshRecord, RankChanged, Refused, Registry
from .times import TIMES

__all__ = ["Done", "Failed", "Fault", "Participant", "Record", "Reply", "Send", "SpawnCoordinator"]

Phase = Literal["prepare", "commit", "abort"]
Answer = Literal["prepared", "committed", "aborted", "failed"]
Progress = Literal["preparing", "committing", "aborting", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a spawn failed.

    Parameters
    ----------
    why
        In words for people.
    at
        When it happened on the head's clock (the driver subtracts the age that a host reports); the earliest is the
        cause, the others are mostly its consequences.
    host, rank
        Where, or None.
    data
        What a driver wants to carry along (a remote traceback).
    """

    why: str
    at: float
    host: int | None = None
    rank: int | None = None
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send this phase of the spawn to this host."""

    host: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Record:
    """Put this blob where a restarted head finds it, before acting on the decisions after this one; None: drop it."""

    blob: bytes | None


@dataclass(frozen=True, slots=True)
class Done:
    """The mesh is live on all hosts. `lost` names those a replacement went on without."""

    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing is left of the spawn on any host that can be reached."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Reply:
    """A host's answer to the head. `fault` only with ``failed``."""

    mesh: int
    generation: int
    answer: Answer
    fault: Fault | None = None


Step = Send | Record | Done | Failed


class SpawnCoordinator:
    """The head's side of one spawn.

    Parameters
    ----------
    mesh
        The id of the mesh. A spawn asked for again with the same id and generation is the same spawn.
    hosts
        All hosts that take part, the head among them.
    now
        Monotonic time.
    generation
        1 for a spawn, more for a replacement in place.
    timeout
        Seconds after which preparing fails; None leaves it to the constructors.
    resend
        Seconds between repeats to hosts that have not answered, and between the prepares that tell the others that the
        head is still there. Well under the bound of :class:`Participant`.
    """

    def __init__(
        self,
        mesh: int,
        hosts: Iterable[int],
        now: float,
        *,
        generation: int = 1,
        timeout: float | None = None,
        resend: float = TIMES.spawn_resend,
    ) -> None:
        self.mesh, self.generation = mesh, generation
        self.hosts = tuple(sorted(set(hosts)))
        if not self.hosts:
            raise ValueError("a spawn needs a host")
        self.progress: Progress = "preparing"
        self.fault: Fault | None = None
        self._timeout, self._resend = timeout, resend
        self._began = self._sent_at = now
        # Hosts that have not answered the present phase, and hosts that cannot be reached.
        self._waiting = set(self.hosts)
        self._lost: set[int] = set()

    # -- events -----------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Step]:
        """Begin, or go on after a restart of the head: the present phase is sent again."""
        if (outcome := self._outcome()) is not None:
            return [outcome]
        self._began = self._sent_at = now
        return [Record(self._blob()), *self._send(self._waiting), *self._settle(now)]

    def answered(self, host: int, reply: Reply, now: float) -> list[Step]:
        """A host answers."""
        if (reply.mesh, reply.generation) != (self.mesh, self.generation) or host not in self.hosts:
            return []
        if reply.answer == "failed":
            return self._failed(host, reply.fault or Fault("the host could not spawn", now, host), now)
        # A host may be ahead: it answers "committed" to the prepare of a head that has lost its record.
        enough: dict[Progress, tuple[Answer, ...]] = {
            "preparing": ("prepared", "committed"),
            "committing": ("committed",),
            # A replacement that a host has swapped in already stays there: nothing is left to undo it with.
            "aborting": ("aborted", "committed") if self.generation > 1 else ("aborted",),
            "failed": ("aborted", "committed") if self.generation > 1 else ("aborted",),
            "done": ("committed",),
        }
        if reply.answer in enough[self.progress]:
            if host not in self._waiting:
                return []
            self._waiting.discard(host)
            return self._settle(now)
        # It missed the decision, or answered before it came.
        return self._send([host])

    def host_lost(self, host: int, now: float) -> list[Step]:
        """No word from a host. What it may hold it aborts by itself, or is told to when it is back."""
        if host not in self.hosts:
            return []
        self._lost.add(host)
        if self.progress == "preparing" or (self.progress == "committing" and self.generation == 1):
            return self._abort(Fault("the host was lost during the spawn", now, host), now)
        self._waiting.discard(host)
        return self._settle(now)

    def host_back(self, host: int, now: float) -> list[Step]:
        """A host is heard again: after a failed spawn it may still hold a part, which it is told to undo.

        Keep the coordinator of a failed spawn while :attr:`unsettled` names hosts.
        """
        if host not in self._lost or self.progress not in ("aborting", "failed"):
            return []
        self._lost.discard(host)
        self._waiting.add(host)
        return [Record(self._blob()), *self._send([host])]

    def cancel(self, why: str, now: float, data: dict[str, Any] | None = None) -> list[Step]:
        """Whoever asked for the spawn wants it no more; too late once it is done, or a replacement commits."""
        if self.progress == "preparing" or (self.progress == "committing" and self.generation == 1):
            return self._abort(Fault(why, now, data=data), now)
        return []

    def tick(self, now: float) -> list[Step]:
        """Look at the time: repeat what was not answered, give up preparing after the timeout."""
        if self.progress == "preparing" and self._timeout is not None and now - self._began >= self._timeout:
            first = min(self._waiting)
            return self._abort(Fault(f"it was not ready within {self._timeout:g} s", now, first), now)
        if now - self._sent_at < self._resend:
            return []
        self._sent_at = now
        # While preparing all hear from the head, or the hosts that are ready would think that it is gone.
        return self._send(self.hosts if self.progress == "preparing" else self._waiting)

    @property
    def unsettled(self) -> tuple[int, ...]:
        """Hosts that may hold a part of a spawn that failed: they are lost, or have not answered the abort."""
        return tuple(sorted(self._waiting | self._lost)) if self.progress in ("aborting", "failed") else ()

    @classmethod
    def resume(cls, blob: bytes, now: float, *, resend: float = TIMES.spawn_resend) -> SpawnCoordinator:
        """The coordinator that a head recorded before it restarted; call :meth:`start` on it.

        The time to prepare starts again. Hosts that were lost are, until :meth:`host_back`.
        """
        data = json.loads(blob)
        timeout, generation = data["timeout"], data["generation"]
        coordinator = cls(data["mesh"], data["hosts"], now, generation=generation, timeout=timeout, resend=resend)
        coordinator.progress = data["progress"]
        coordinator._lost = set(data["lost"])
        coordinator._waiting -= coordinator._lost
        if coordinator.progress in ("done", "failed"):
            coordinator._waiting.clear()
        if data["fault"] is not None:
            coordinator.fault = Fault(**data["fault"])
        return coordinator

    # -- inside -----------------------------------------------------------------------------------------------------

    def _failed(self, host: int, fault: Fault, now: float) -> list[Step]:
        match self.progress:
            case "preparing":
                return self._abort(fault, now)
            case "committing" if self.generation == 1:
                return self._abort(fault, now)
            case "committing":
                self._lost.add(host)
                self._waiting.discard(host)
                return self._settle(now)
            case "aborting":
                # An earlier cause may come later; nothing was reported yet.
                self._blame(fault)
        return []

    def _abort(self, fault: Fault, now: float) -> list[Step]:
        self._blame(fault)
        return self._go("aborting", now)

    def _go(self, progress: Progress, now: float) -> list[Step]:
        self.progress = progress
        self._waiting = set(self.hosts) - self._lost
        self._sent_at = now
        return [Record(self._blob()), *self._send(self._waiting), *self._settle(now)]

    def _settle(self, now: float) -> list[Step]:
        """Take the next step when all have answered."""
        if self._waiting:
            return []
        match self.progress:
            case "preparing":
                return self._go("committing", now)
            case "committing":
                self.progress = "done"
                return [Record(None), Done(tuple(sorted(self._lost)))]
            case "aborting":
                self.progress = "failed"
                assert self.fault is not None
                return [Record(self._blob() if self._lost else None), Failed(self.fault)]
            case "failed":
                return [Record(self._blob() if self._lost else None)]
        return []

    def _outcome(self) -> Done | Failed | None:
        if self.progress == "done":
            return Done(tuple(sorted(self._lost)))
        return Failed(self.fault) if self.progress == "failed" and self.fault is not None else None

    def _send(self, hosts: Iterable[int]) -> list[Step]:
        phases: dict[Progress, Phase] = {"preparing": "prepare", "committing": "commit", "done": "commit"}
        phase = phases.get(self.progress, "abort")
        return [Send(host, phase) for host in sorted(hosts) if host not in self._lost]

    def _blame(self, fault: Fault) -> None:
        if self.fault is None or fault.at < self.fault.at:
            self.fault = fault

    def _blob(self) -> bytes:
        data = {
            "mesh": self.mesh,
            "generation": self.generation,
            "hosts": self.hosts,
            "progress": self.progress,
            "timeout": self._timeout,
            # A host that is to be told to abort, and has not answered, is as one that was lost.
            "lost": sorted(self._lost | self._waiting if self.progress == "failed" else self._lost),
            "fault": dataclasses.asdict(self.fault) if self.fault is not None else None,
        }
        return json.dumps(data).encode()


class Participant:
    """A host's side of all spawns: what the head sends goes in, what to do and to answer comes out.

    Its state is the host's :class:`Registry` (prepared meshes), so it survives the daemon with the registry's blob.

    Parameters
    ----------
    registry
        The host's.
    bound
        Seconds without a word from the head after which a prepared mesh is aborted.
    """

    def __init__(self, registry: Registry, *, bound: float = TIMES.spawn_bound) -> None:
        self.registry = registry
        self.bound = bound

    def prepare(self, record: MeshRecord, now: float) -> list[Decision | Reply]:
        """The head asks to prepare. The answer comes when all ranks of this host are up: see :meth:`after`."""
        decisions = self.registry.prepare(record, now)
        return [*decisions, *self._answers(record.id, record.generation, decisions, now)]

    def commit(self, mesh: int, generation: int, now: float) -> list[Decision | Reply]:
        """The head asks to commit. Refused when a rank was lost since it was prepared."""
        pending = self._pending(mesh, generation)
        if pending is not None and any(rank.state != "ok" for rank in pending.ranks.values()):
            fault = _fault(pending, now, self.registry.host)
            decisions = self.registry.abort(mesh, generation, fault.why)
            return [*decisions, Reply(mesh, generation, "failed", fault)]
        decisions = self.registry.commit(mesh, generation)
        return [*decisions, *self._answers(mesh, generation, decisions, now)]

    def abort(self, mesh: int, generation: int, now: float) -> list[Decision | Reply]:
        """The head asks to undo."""
        decisions = self.registry.abort(mesh, generation)
        refused = any(isinstance(decision, Refused) for decision in decisions)
        return [*decisions, Reply(mesh, generation, "committed" if refused else "aborted")]

    def after(self, decisions: Iterable[Decision], now: float) -> list[Reply]:
        """What to tell the head after these decisions of the registry (rank events): each spawn they settle."""
        meshes = {(d.mesh, d.generation): None for d in decisions if isinstance(d, RankChanged)}
        return [reply for mesh, generation in meshes for reply in self._settled(mesh, generation, now)]

    def again(self, now: float) -> list[Reply]:
        """What to tell a head that may not have heard: after a restart of either."""
        return [reply for r in self.registry.pending() for reply in self._settled(r.id, r.generation, now)]

    def tick(self, now: float) -> list[Decision]:
        """Look at the time: abort what the head has forgotten."""
        return self.registry.expire(now, self.bound)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _pending(self, mesh: int, generation: int) -> MeshRecord | None:
        return next((r for r in self.registry.pending() if (r.id, r.generation) == (mesh, generation)), None)

    def _answers(self, mesh: int, generation: int, decisions: Iterable[Decision], now: float) -> list[Reply]:
        for decision in decisions:
            if isinstance(decision, Refused):
                fault = Fault(decision.reason, now, self.registry.host)
                return [Reply(mesh, generation, "failed", fault)]
        if self._pending(mesh, generation) is not None:
            return self._settled(mesh, generation, now)
        return [Reply(mesh, generation, "committed")]

    def _settled(self, mesh: int, generation: int, now: float) -> list[Reply]:
        """The answer to a prepare, once there is one."""
        record = self._pending(mesh, generation)
        if record is None:
            return []
        states = {rank.state for rank in record.ranks.values()}
        if states <= {"ok"}:
            return [Reply(mesh, generation, "prepared")]
        if states <= {"ok", "starting"}:
            return []
        return [Reply(mesh, generation, "failed", _fault(record, now, self.registry.host))]


def _fault(record: MeshRecord, now: float, host: int | None) -> Fault:
    """The earliest fault of the ranks of one host."""
    faults = []
    for rank, held in record.ranks.items():
        if held.state not in ("ok", "starting"):
            data = held.fault or {}
            at, why = data.get("at"), data.get("why")
            when = float(at) if isinstance(at, (int, float)) else now
            faults.append(Fault(str(why or f"rank {rank} is {held.state}"), when, host, rank, data or None))
    return min(faults, key=lambda fault: fault.at, default=Fault("a rank was not ready", now, host))
