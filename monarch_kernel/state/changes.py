"""What a registry of meshes tells its driver: what to start, to end, to answer and to pass on."""

from __future__ import annotations

from dataclasses import dataclass

from .records import RankRecord

__all__ = [
    "Already",
    "Decision",
    "EndRanks",
    "Live",
    "RankChanged",
    "Refused",
    "StartRanks",
    "Stopped",
    "Swapped",
]


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start these ranks of a prepared mesh; when all are up, say prepared."""

    mesh: int
    generation: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndRanks:
    """End these ranks: processes are killed with all they started, actors are dropped. It may be too late for some."""

    mesh: int
    generation: int
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Live:
    """The mesh is committed: it has a name and may be called."""

    mesh: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """A replacement took the mesh's place: calls go to `generation`, the ranks of `old` are to be dropped."""

    mesh: int
    old: int
    generation: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The mesh is stopped for good; its name means the one before it."""

    mesh: int
    reason: str


@dataclass(frozen=True, slots=True)
class RankChanged:
    """A rank has another state: tell whoever is attached."""

    mesh: int
    generation: int
    rank: int
    record: RankRecord


@dataclass(frozen=True, slots=True)
class Already:
    """The message came before; answer as then. `phase` is ``prepared`` or ``live``."""

    mesh: int
    phase: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The message cannot be obeyed any more, and why."""

    mesh: int
    reason: str


Decision = StartRanks | EndRanks | Live | Swapped | Stopped | RankChanged | Already | Refused
