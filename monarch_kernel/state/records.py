"""The records of meshes: plain dataclasses that go to JSON and back.

They cross the wire and lie in the keeper's blobs, so a record written by another version must load: unknown keys are
ignored, missing ones take their defaults.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

__all__ = ["Endpoint", "Health", "Kind", "MeshRecord", "Owner", "RankRecord", "RankState"]

Kind = Literal["procs", "actors"]
RankState = Literal["starting", "ok", "failed", "dead", "stopped", "lost"]
Health = Literal["alive", "stopped", "busy", "unresponsive"]


def _known(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only what this version knows: a record written by a newer one must still load."""
    names = {f.name for f in dataclasses.fields(cls)}
    return {key: value for key, value in data.items() if key in names}


class Owner(NamedTuple):
    """The actor that spawned a mesh: the mesh ends with it, and its faults go to it.

    >>> str(Owner(mesh=7, rank=2, host=0))
    'actor:7.2@0'
    >>> Owner.parse("actor:7.2@0")
    Owner(mesh=7, rank=2, host=0)
    >>> Owner.parse("session") is None
    True
    """

    mesh: int
    rank: int
    host: int

    def __str__(self) -> str:
        return f"actor:{self.mesh}.{self.rank}@{self.host}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The actor that a record's `owner` names; None where that is no actor."""
        if not text.startswith("actor:"):
            return None
        actor, _, host = text.removeprefix("actor:").partition("@")
        mesh, _, rank = actor.partition(".")
        return cls(int(mesh), int(rank or 0), int(host or 0))


@dataclass(slots=True)
class Endpoint:
    """One endpoint of an actor class, as attach needs it: enough to build a handle without the class.

    Parameters
    ----------
    name
        The method's name.
    kind
        ``"sync"`` for ``def``, ``"async"`` for ``async def``.
    signature
        The text of its signature without ``self``, for help and for checking arguments before they are sent.
    doc
        Its docstring.
    explicit_response_port
        Whether it answers through a port that it gets as its first argument.
    concurrent
        Whether it runs as a task beside the actor's other messages.
    """

    name: str
    kind: Literal["sync", "async"] = "sync"
    signature: str = "()"
    doc: str = ""
    explicit_response_port: bool = False
    concurrent: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Endpoint:
        """Read what :meth:`to_dict` wrote; unknown keys are ignored."""
        return cls(**_known(cls, data))


@dataclass(slots=True)
class RankRecord:
    """One rank of a mesh on the host that holds it.

    Parameters
    ----------
    state
        ``starting`` (its process or constructor runs), ``ok``, ``failed`` (it never got to ``ok``), ``dead`` (it did,
        and ended by itself), ``stopped`` (on purpose), ``lost`` (no word from its host).
    pid, start
        Its process and that process's start time in clock ticks since boot: together they name it for good.
    restarts
        How often it was started again.
    outdated
        It still runs code older than its mesh's.
    fault
        Why it is not ``ok``, as plain data, or None.
    health
        Of a process: ``alive`` (its heartbeats come), ``stopped`` (by a signal), ``busy`` (silent, but it uses CPU
        time, as in a C call that holds the GIL), ``unresponsive`` (silent without). It may be ``ok`` with each.
    """

    state: RankState = "starting"
    pid: int | None = None
    start: int | None = None
    restarts: int = 0
    outdated: bool = False
    fault: dict[str, Any] | None = None
    health: Health = "alive"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RankRecord:
        """Read what :meth:`to_dict` wrote; unknown keys are ignored."""
        record = cls(**_known(cls, data))
        if record.state not in get_args(RankState):
            raise ValueError(f"unknown rank state {record.state!r}")
        if record.health not in get_args(Health):
            record.health = "alive"  # a word of another version's: the next look says it anew
        return record


@dataclass(slots=True)
class MeshRecord:
    """One mesh of processes or actors.

    Parameters
    ----------
    id
        A random 63 bit number; the same on all hosts.
    kind
        ``"procs"`` or ``"actors"``.
    name
        The name it was given. What this name means now is :meth:`Registry.names`.
    labels, sizes
        Its extent: dimension names and lengths. Ranks count in row-major order.
    hosts
        The index of the host of each rank, for all ranks.
    created
        Wall time, for people; it also orders meshes of one name.
    generation
        1 when spawned; one more with each replacement in place.
    owner
        ``"session"``, ``"client"``, or an actor (:class:`Owner`, as text): with whom it ends, and who is told of its
        faults.
    creator
        Who that was, with who spawned it in turn, the client first: for each the class's name or None, the name of
        its mesh, the labels and sizes of the mesh, and its rank in it.
    key
        The re-run key of the spawn, as plain data, or None when it was not a notebook's.
    orphaned
        A re-run of its cell no longer spawns it.
    state
        ``"live"`` or ``"stopped"``.
    ranks
        The ranks held by whoever keeps this record; a daemon holds only those of its host.
    spec
        Procs: env, executable, cwd, sys_path, per_host, exclusive, devices per rank, bootstrap blob name.
    procs, proc_ranks
        Actors: the proc mesh they run on, and for each actor rank the rank of its process in it.
    module, qualname, fingerprint, endpoints
        Actors: what their class is, without the class.
    payload
        Actors: the keeper's blob with class and constructor arguments.
    """

    id: int
    kind: Kind
    name: str
    labels: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    created: float = 0.0
    generation: int = 1
    owner: str = "session"
    creator: list[list[Any]] = field(default_factory=list)
    key: dict[str, Any] | None = None
    orphaned: bool = False
    state: Literal["live", "stopped"] = "live"
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    procs: int | None = None
    proc_ranks: tuple[int, ...] = ()
    module: str = ""
    qualname: str = ""
    fingerprint: str = ""
    endpoints: list[Endpoint] = field(default_factory=list)
    payload: str | None = None

    @property
    def size(self) -> int:
        """How many ranks the whole mesh has."""
        return len(self.hosts)

    def ranks_on(self, host: int) -> tuple[int, ...]:
        """The ranks that live on the host of this index."""
        return tuple(rank for rank, where in enumerate(self.hosts) if where == host)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("labels", "sizes", "hosts", "proc_ranks"):
            data[name] = list(data[name])
        data["ranks"] = {str(rank): record.to_dict() for rank, record in self.ranks.items()}
        data["endpoints"] = [endpoint.to_dict() for endpoint in self.endpoints]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeshRecord:
        """Read what :meth:`to_dict` wrote; unknown keys are ignored, missing ones take their defaults."""
        known = _known(cls, data)
        for name in ("labels", "sizes", "hosts", "proc_ranks"):
            if name in known:
                known[name] = tuple(known[name])
        known["ranks"] = {int(rank): RankRecord.from_dict(record) for rank, record in known.get("ranks", {}).items()}
        known["endpoints"] = [Endpoint.from_dict(endpoint) for endpoint in known.get("endpoints", [])]
        record = cls(**known)
        if record.kind not in get_args(Kind):
            raise ValueError(f"unknown kind of mesh {record.kind!r}")
        return record

    def copy(self) -> MeshRecord:
        """A record that shares nothing that changes."""
        return MeshRecord.from_dict(json.loads(json.dumps(self.to_dict())))
