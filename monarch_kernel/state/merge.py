"""One view of the meshes of a session, from the parts that its hosts hold.

Attach sees it. Hosts may be out of reach, and a spawn or a stop may have been cut half way, so the merged view also
says what is left to finish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .records import MeshRecord, RankRecord
from .registry import Registry

__all__ = ["Merged", "merge"]


@dataclass(slots=True)
class Merged:
    """What :func:`merge` found.

    Parameters
    ----------
    registry
        All live meshes with the ranks of all hosts; those of unreachable hosts are ``lost``.
    unreachable
        The hosts that gave no view.
    incomplete
        Meshes that some reachable hosts have committed and others, that should hold ranks of them, have not (those are
        listed). No spawn of such a mesh was ever reported as done. Not in `registry`; the head finishes or undoes them.
    stopping
        Meshes that one host has stopped and another has not yet: stop them there. Not in `registry`.
    behind
        Replaced meshes with the hosts that still run the generation before.
    pending
        Meshes that are prepared somewhere and live nowhere.
    """

    registry: Registry
    unreachable: tuple[int, ...] = ()
    incomplete: dict[int, tuple[int, ...]] = field(default_factory=dict)
    stopping: dict[int, tuple[int, ...]] = field(default_factory=dict)
    behind: dict[int, tuple[int, ...]] = field(default_factory=dict)
    pending: tuple[int, ...] = ()


def merge(views: Mapping[int, Registry | bytes | None]) -> Merged:
    """Merge the views of hosts.

    Parameters
    ----------
    views
        Host index -> its registry, or the blob of it, or None when it was not reached. Each host speaks for its own
        ranks only; the host of the lowest index (the head, when it is there) speaks for what concerns a whole mesh.
    """
    parts: dict[int, Registry] = {}
    for host, view in sorted(views.items()):
        if view is not None:
            parts[host] = view if isinstance(view, Registry) else Registry.from_blob(view, host)
    merged = Merged(Registry(), tuple(host for host in sorted(views) if host not in parts))
    live: dict[int, dict[int, MeshRecord]] = {}
    pending: set[int] = set()
    for host, part in parts.items():
        for record in part.live():
            live.setdefault(record.id, {})[host] = record
        pending.update(record.id for record in part.pending())
        if part.bindings and not merged.registry.bindings:
            merged.registry.bind(part.bindings)
        merged.registry.problems += [f"host {host}: {problem}" for problem in part.problems]
    merged.pending = tuple(sorted(pending - live.keys()))

    for mesh, found in live.items():
        if any(_stopped(part, mesh) for part in parts.values()):
            merged.stopping[mesh] = tuple(found)
            continue
        missing = tuple(host for host in _holders(found) if host in parts and host not in found)
        if missing:
            merged.incomplete[mesh] = missing
            continue
        latest = max(record.generation for record in found.values())
        if behind := tuple(host for host, record in found.items() if record.generation < latest):
            merged.behind[mesh] = behind
        merged.registry.add(_whole(found, latest))
    return merged


def _stopped(part: Registry, mesh: int) -> bool:
    record = part.get(mesh)
    return record is not None and record.state == "stopped"


def _holders(found: Mapping[int, MeshRecord]) -> list[int]:
    return sorted({host for record in found.values() for host in record.hosts})


def _whole(found: Mapping[int, MeshRecord], generation: int) -> MeshRecord:
    """One record with all ranks, from those of each host."""
    whole = next(record for record in found.values() if record.generation == generation).copy()
    whole.ranks = {}
    for rank, host in enumerate(whole.hosts):
        theirs = found[host].ranks.get(rank) if host in found else None
        if theirs is None:
            whole.ranks[rank] = RankRecord("lost", fault={"kind": "lost", "host": host})
            continue
        mine = whole.ranks[rank] = RankRecord.from_dict(theirs.to_dict())
        mine.outdated = mine.outdated or found[host].generation < generation
    return whole
