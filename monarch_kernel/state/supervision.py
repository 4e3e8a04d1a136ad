"""Who is told of what failed, and in which words. Meshes and faults go in, what to tell whom comes out.

A mesh has an owner: the actor that spawned it, or the session. What fails is told to the owner of its mesh, one
`failure` for each mesh and rank. An owner that does not handle it fails itself, which is a fault of *its* mesh and so
goes to the owner of that, and on, until somebody handles it or it reaches the session's controller.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .changes import Decision, RankChanged
from .records import MeshRecord, Owner
from .registry import Registry

__all__ = [
    "Lost",
    "Supervision",
    "Told",
    "actor_title",
    "died_text",
    "failed_text",
    "failure_of",
    "how_it_died",
    "plain_text",
    "stopped_text",
]

#: Spawns that failed lately, whose other ranks may fail too: kept to know whom to tell.
_ABORTED = 64


@dataclass(frozen=True, slots=True)
class Told:
    """Tell `owner` (None: whoever controls the session) of a failure, as `MeshFailure.to_dict` has it."""

    owner: Owner | None
    mesh: int
    rank: int
    failure: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """This actor has ended: the meshes that it owns end with it."""

    owner: Owner
    reason: str


class Supervision:
    """One host's part: its registry says what changed, this says who is told.

    Parameters
    ----------
    registry
        The host's.
    host
        Its index.
    """

    def __init__(self, registry: Registry, host: int) -> None:
        self.registry = registry
        self.host = host
        self._aborted: dict[int, MeshRecord] = {}

    def changed(self, decisions: Iterable[Decision]) -> list[Told | Lost]:
        """What to do after these decisions of the registry."""
        found: list[Told | Lost] = []
        for decision in decisions:
            if not isinstance(decision, RankChanged) or decision.record.state not in ("failed", "dead"):
                continue
            record = self.record(decision.mesh)
            if record is None or record.state == "stopped" or decision.record.fault is None:
                continue
            if record.kind == "procs" and self._has_actors(record.id, decision.rank):
                continue  # each of its actors has failed, and says so itself
            found += self._failed(record, decision.rank, decision.record.fault)
        return found

    def host_lost(self, host: int, fault: Mapping[str, Any]) -> list[Told]:
        """On the head, whose registry has all meshes: which actors own ranks on a host that gives no word any more.

        The session's controller has seen it itself. What actors on that host own goes on: it may be back.
        """
        elsewhere = [
            (record, owner)
            for record in self.registry.live()
            if (owner := Owner.parse(record.owner)) is not None and owner.host != host
        ]
        return [
            Told(owner, record.id, rank, failure_of(record, rank, fault, host))
            for record, owner in elsewhere
            for rank in record.ranks_on(host)
            if record.kind == "actors" or not self._has_actors(record.id, rank)
        ]

    def _failed(self, record: MeshRecord, rank: int, fault: dict[str, Any]) -> list[Told | Lost]:
        failure = failure_of(record, rank, fault, self.host)
        told: list[Told | Lost] = [Told(Owner.parse(record.owner), record.id, rank, failure)]
        if record.kind == "actors":
            told.append(Lost(Owner(record.id, rank, self.host), f"{record.name}, which owned it, has failed"))
        return told

    def record(self, mesh: int) -> MeshRecord | None:
        """The record of a mesh, be it live, stopped, prepared, or (once this was asked of it) given up."""
        record = self.registry.get(mesh)
        if record is not None:
            return record
        record = next((pending for pending in self.registry.pending() if pending.id == mesh), None)
        if record is None:
            return self._aborted.get(mesh)
        self._aborted[mesh] = record  # a rank of it has failed: it will be given up
        while len(self._aborted) > _ABORTED:
            del self._aborted[next(iter(self._aborted))]
        return record

    def _has_actors(self, procs: int, rank: int) -> bool:
        actors = [*self.registry.live("actors"), *(r for r in self.registry.pending() if r.kind == "actors")]
        return any(record.procs == procs and rank in record.proc_ranks for record in actors)


def failure_of(record: MeshRecord, rank: int, fault: Mapping[str, Any], host: int) -> dict[str, Any]:
    """A failure as plain data: what `MeshFailure.from_dict` reads, and what a notebook needs to show it once.

    Parameters
    ----------
    fault
        An error of ours as `protocol.faults` writes it; with a ``code`` it is the death of the process.
    """
    died = record.kind == "actors" and "code" in fault and rank < len(record.proc_ranks)
    return {
        "mesh_name": record.name,
        "ranks": [rank],
        "text": failed_text(record, rank, str(fault.get("text") or fault.get("why") or "")),
        "error": fault.get("error", "SupervisionError"),
        "host": host,
        "died": f"{record.procs:x}.{record.proc_ranks[rank]}" if died else None,
        "notebook": record.key is not None,
    }


# -- the words; the first line of each is Monarch's own, which programs look for

_FAILED = " and all its descendants have failed"
_ON = "the process this actor was running on"


def actor_title(record: MeshRecord, rank: int) -> str:
    """One actor (or process) of a mesh, with who spawned it in front; of no rank of it, the mesh as a whole.

    >>> actor_title(MeshRecord(1, "actors", "a", ("g",), (2,), (0, 0), module="m", qualname="C"), 1)
    "<root>.<m.C a{'g': 1/2}>"
    """
    known = 0 <= rank < max(1, record.size)
    creators = getattr(record, "creator", None) or [[None, "root", [], [], 0]]
    above = "".join(f"{_title(*creator)}." for creator in creators)
    kind = f"{record.module}.{record.qualname}" if record.qualname else None
    return above + _title(kind, record.name, record.labels if known else (), record.sizes if known else (), rank)


def _title(kind: str | None, name: str, labels: Sequence[str], sizes: Sequence[int], rank: int) -> str:
    point = []
    for label, size in zip(reversed(labels), reversed(sizes), strict=True):
        rank, index = divmod(rank, size)
        point.append(f"{label!r}: {index}/{size}")
    where = "{" + ", ".join(reversed(point)) + "}" if point else ""
    return f"<{f'{kind} ' if kind is not None else ''}{name}{where}>"


def failed_text(record: MeshRecord, rank: int, why: str) -> str:
    """The text of a failure; one that has this line already stays as it is."""
    title = actor_title(record, rank)
    if f"{title}{_FAILED}" in why:
        return why
    return f"The {'actor' if record.kind == 'actors' else 'process'} {title}{_FAILED}:\n{why}"


def plain_text(text: str) -> str:
    """Such a text without Monarch's first lines, for a person.

    >>> plain_text(failed_text(MeshRecord(1, "actors", "a"), 0, "a, rank 0: ValueError in step"))
    'a, rank 0: ValueError in step'
    """
    for words in (_FAILED, _ON):
        first, _, rest = text.partition("\n")
        if words in first and rest.strip():
            text = rest
    return text


def stopped_text(record: MeshRecord, rank: int, reason: str) -> str:
    """The text of a call to what was stopped.

    >>> print(stopped_text(MeshRecord(1, "actors", "a", module="m", qualname="C"), 0, "its owner has ended"))
    Supervision event: actor <root>.<m.C a> has status: stopped
    a was stopped: its owner has ended
    """
    title = actor_title(record, rank)
    said = f"{record.name} was stopped" + (f": {reason}" if reason else "")
    return f"Supervision event: actor {title} has status: stopped\n{said}"


def how_it_died(code: int) -> str:
    """How a process ended, in Monarch's words.

    >>> how_it_died(-9)
    'Killed(sig=9)'
    >>> how_it_died(7)
    'exited with non-zero code 7'
    """
    if code < 0:
        name = "Killed" if code == -signal.SIGKILL else (signal.strsignal(-code) or "signal")
        return f"{name}(sig={-code})"
    return f"exited with non-zero code {code}" if code else "exited with code 0"


def died_text(record: MeshRecord, rank: int, code: int, more: str) -> str:
    """The text of the death of an actor's process; `more` says which process it was, and what it printed last."""
    how = how_it_died(code)
    link = "failed: " if code < 0 else ""
    return failed_text(record, rank, f"{_ON} {link}{how}\n{more}")
