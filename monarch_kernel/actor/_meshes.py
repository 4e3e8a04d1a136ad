"""Host, process and actor meshes: handles that are sliced like arrays and hold nothing that cannot be read back."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from ..protocol import pickling
from ..protocol.code import registry as code_registry
from ..protocol.fingerprint import arguments_digest
from ..protocol.links import new_id
from ..state.records import MeshRecord
from ._context import chain, context
from ._endpoint import Endpoint, endpoints_of, plain_method
from ._future import Future, resolved
from ._handle import Handle, mention, mentioned_pending
from ._logging import LoggingManager
from ._mock import patched, travelling
from ._ndslice import NDSlice
from ._provider import current_runtime, runtime_of
from ._region import Region
from ._runtime import Runtime, SpawnPlan
from ._shape import MeshTrait

A = TypeVar("A")


class Mesh(MeshTrait):
    """What process and actor meshes share."""

    __slots__ = ("__weakref__", "_covered", "_handle", "_opts")

    def __init__(self, handle: Handle, region: Region | None = None, opts: Mapping[str, Any] | None = None) -> None:
        self._handle = handle
        self._covered = handle.region if region is None else region
        self._opts = dict(opts or {})

    @property
    def _region(self) -> Region:
        return self._covered

    def _with_region(self, region: Region) -> Any:
        return type(self)(self._handle, region, self._opts)

    @property
    def name(self) -> str:
        """The mesh's name."""
        return self._handle.name

    @property
    def initialized(self) -> Future[bool]:
        """Done once the mesh is spawned, or failed with the reason. Constructors may still run."""
        ready = self._handle.ready
        if ready is None:
            return resolved(True)
        future: Future[bool] = Future()

        def answer() -> bool:
            ready.get()
            return True

        ready._when_done(lambda: future._resolve(answer))
        return future

    def _whole(self, what: str) -> None:
        if self._covered != self._handle.region:
            raise NotImplementedError(f"{what} works on a whole mesh, not on a slice of one: {self!r}")

    def __reduce__(self) -> Any:
        handle = self._handle
        if handle.ready is not None:
            mention(handle)
        region = None if self._covered is handle.region else self._covered
        return (_found, (type(self), handle.runtime.reference(handle.hosts_used), _portable(handle.record), region))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return self._handle.id == other._handle.id and self._covered == other._covered

    def __hash__(self) -> int:
        return hash((self._handle.id, self._covered))


def _portable(record: MeshRecord) -> dict[str, Any]:
    data = record.to_dict()
    for name in ("ranks", "spec", "key", "payload"):
        data.pop(name)
    return data


def _found(cls: type[Mesh], reference: dict[str, Any], data: dict[str, Any], region: Region | None) -> Any:
    runtime = runtime_of(reference, data["name"])
    handle = runtime.handle(MeshRecord.from_dict(data))
    return cls(handle, region)


class ActorMesh(Mesh, Generic[A]):
    """A mesh of actors of one class. Each endpoint is an attribute: ``trainers.step.call(batch)``.

    Examples
    --------
    >>> trainers.slice(gpus=slice(0, 2)).step.call(batch).get()     # doctest: +SKIP
    """

    def __getattr__(self, name: str) -> Any:
        # Only asked when there is no such attribute. Names that begin with _ must not look at _handle, which may not
        # be there yet while a handle is unpickled.
        if name.startswith("__") or name == "_handle":
            raise AttributeError(name)
        handle = self._handle
        record = handle.endpoints.get(name)
        if record is not None:
            made: Endpoint[..., Any] = Endpoint(self, record)
            self.__dict__[name] = made
            return made
        cls = handle.record.qualname or "the actor"
        if (method := plain_method(self, name)) is not None:
            return method
        if handle.cls is not None and hasattr(handle.cls, name):
            raise AttributeError(f"{cls}.{name} is no endpoint: mark the method with @endpoint to call it from outside")
        known = ", ".join(handle.endpoints) or "none"
        near = difflib.get_close_matches(name, handle.endpoints, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"{cls} has no endpoint {name!r} (its endpoints: {known}){hint}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._handle.endpoints]

    def _hosts(self, region: Region) -> Sequence[int]:
        """The hosts that a call on this region names: each once for the whole mesh or one host, else one a rank."""
        handle = self._handle
        if region is handle.region:
            return handle.hosts_used
        hosts = [handle.hosts[rank] for rank in region.ranks()]
        return hosts[:1] if hosts.count(hosts[0]) == len(hosts) else hosts

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the actors; their processes stay. Messages sent before are handled first. May be said twice."""
        self._whole("stop")
        return self._handle.runtime.stop(self._handle, reason)

    def __repr__(self) -> str:
        return f"<{self._handle.record.qualname} actors {self.name!r} {self.extent!r}>"


class ProcMesh(Mesh):
    """A mesh of processes, one a rank.

    Examples
    --------
    >>> procs = this_host().spawn_procs(per_host={"gpus": 4})       # doctest: +SKIP
    >>> trainers = procs.spawn("trainers", Trainer, lr=1e-3)        # doctest: +SKIP
    """

    def options(self, *, wait: bool = True) -> ProcMesh:
        """Our own words for the next `spawn`, kept apart from the constructor's arguments.

        Parameters
        ----------
        wait
            In a notebook, whether the cell waits for the constructors, and fails when one does.
        """
        return ProcMesh(self._handle, self._covered, {"wait": wait})

    def spawn(self, name: str, Class: type[A], *args: Any, **kwargs: Any) -> A:  # noqa: N803  # Monarch's name
        """Spawn an actor on every process; returns at once. Calls made before it is there wait for it.

        Parameters
        ----------
        name
            The mesh's name.
        Class
            A subclass of `Actor`. Classes of a notebook travel by value.
        *args, **kwargs
            Go to the constructor on every rank.

        Raises
        ------
        TypeError
            It is no actor class, the arguments do not fit its constructor, or one cannot be pickled.
        ValueError
            Its endpoints mix ``def`` and ``async def``.
        """
        Class = cast("type[A]", patched(Class))  # noqa: N806  # as the parameter
        endpoints = endpoints_of(Class)
        if not isinstance(name, str) or not name:
            raise TypeError(f"spawn needs a name, a text; got {name!r}")
        try:
            inspect.signature(Class).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{Class.__qualname__}(...): {error}") from None
        except ValueError:  # no signature to be had (a C constructor): it is checked there
            pass
        handle = self._handle
        runtime = handle.runtime
        payload = b"".join(pickling.encode(pickling.dumps_call((travelling(Class), *args), kwargs)))
        waits = [*handle.waits(), *mentioned_pending()]
        ranks = self._covered.ranks()
        record = MeshRecord(
            id=new_id(),
            kind="actors",
            name=name,
            labels=tuple(self._covered.labels),
            sizes=tuple(self._covered.sizes),
            hosts=tuple(handle.hosts[rank] for rank in ranks),
            owner=runtime.owner(),
            creator=chain(context().actor_instance),
            procs=handle.id,
            proc_ranks=tuple(ranks),
            module=Class.__module__,
            qualname=Class.__qualname__,
            fingerprint=code_registry().fingerprint(Class),
            endpoints=endpoints,
        )
        plan = SpawnPlan(record, payload, waits, digest=lambda: arguments_digest(args, kwargs), options=self._opts)
        found = runtime.spawn(plan)
        found.cls = Class
        return cast("A", ActorMesh(found))

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """End the processes and all actors on them. May be said twice."""
        self._whole("stop")
        return self._handle.runtime.stop(self._handle, reason)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Set how what the processes print is shown, and from which level on they log.

        What was printed before is still shown in the old way. All of it goes to a file a rank in any case.

        Parameters
        ----------
        stream_to_client
            Show each line after ``[name] [rank]``. When False, a script prints the lines as they are, and a notebook
            none.
        aggregate_window_sec
            Seconds over which similar lines of all ranks (that differ in numbers only) are shown as one with their
            count. None shows each line.
        level
            Of Python's logging in the processes: the level of the root logger.

        Raises
        ------
        ValueError
            A level outside of 0 to 255, a window that is no positive number, or one without ``stream_to_client``.

        Examples
        --------
        >>> await procs.logging_option(stream_to_client=True, aggregate_window_sec=3)     # doctest: +SKIP
        """
        await self._logging_manager.logging_option(stream_to_client, aggregate_window_sec, level)

    @property
    def _logging_manager(self) -> LoggingManager:
        return LoggingManager(self._handle)

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a mesh of processes that lives on one."""
        hosts = {self._handle.hosts[rank] for rank in self._covered.ranks()}
        if len(hosts) != 1:
            raise NotImplementedError(f"host_mesh of a mesh over {len(hosts)} hosts: slice it to one host first")
        return _one_host(self._handle.runtime, hosts.pop())

    async def __aenter__(self) -> ProcMesh:
        await self.initialized
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<processes {self.name!r} {self.extent!r}>"


class HostMesh(MeshTrait):
    """A mesh of hosts. Ranks of the whole mesh are host indices."""

    def __init__(self, runtime: Runtime, region: Region, opts: Mapping[str, Any] | None = None) -> None:
        self._runtime = runtime
        self._covered = region
        self._opts = dict(opts or {})

    @property
    def _region(self) -> Region:
        return self._covered

    def _with_region(self, region: Region) -> HostMesh:
        return self._like(region, self._opts)

    def _like(self, region: Region, opts: Mapping[str, Any]) -> HostMesh:
        return HostMesh(self._runtime, region, opts)

    def _waits(self) -> list[Future[Any]]:
        """What has to be there before processes can be started."""
        return []

    def options(self, *, exclusive: bool = False) -> HostMesh:
        """Our own words for the next `spawn_procs`.

        Parameters
        ----------
        exclusive
            The devices of the new processes are given to no other mesh while they live.
        """
        return self._like(self._covered, {"exclusive": exclusive})

    @property
    def initialized(self) -> Future[bool]:
        """Always done: a host is there when its session is."""
        return resolved(True)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[..., Any] | None = None,
        name: str | None = None,
        proc_bind: Any = None,
        bootstrap_command: Any = None,
    ) -> ProcMesh:
        """Start processes on every host of the mesh; returns at once.

        Parameters
        ----------
        per_host
            Dimensions to add, as ``{"gpus": 4}``. The dimension ``gpus`` is laid over the host's devices. None starts
            one process a host.
        name
            The mesh's name; else the variable that it is assigned to in a notebook, else ``procs-N``.
        bootstrap, proc_bind, bootstrap_command
            Monarch's; not offered yet.

        Raises
        ------
        ValueError
            A dimension that the hosts have already, or a size below 1.
        NotEnoughSlots
            At the first use of the mesh (in a notebook: at the end of the cell): more GPUs than a host has.
        """
        for given, word in (
            (bootstrap, "bootstrap"),
            (proc_bind, "proc_bind"),
            (bootstrap_command, "bootstrap_command"),
        ):
            if given is not None:
                raise TypeError(f"spawn_procs({word}=...) is not supported by this version")
        if per_host is not None and not isinstance(per_host, Mapping):
            raise TypeError(f"per_host says how many processes each dimension has, as {{'gpus': 4}}; got {per_host!r}")
        per = dict(per_host or {})
        labels = tuple(self._covered.labels)
        for label, size in per.items():
            if not isinstance(label, str) or not label.isidentifier():
                raise ValueError(f"a dimension is named by an identifier; got {label!r}")
            if label in labels:
                raise ValueError(f"the hosts have a dimension {label!r} already; name the new one differently")
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"per_host[{label!r}] must be a whole number of processes, 1 or more; got {size!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name must be a text; got {name!r}")
        count = 1
        for size in per.values():
            count *= size
        runtime = self._runtime
        hosts = tuple(host for host in self._covered.ranks() for _ in range(count))
        record = MeshRecord(
            id=new_id(),
            kind="procs",
            name=name or "",
            labels=(*labels, *per),
            sizes=(*self._covered.sizes, *per.values()),
            hosts=hosts,
            owner=runtime.owner(),
            spec={**runtime.proc_spec(), "per_host": per, "exclusive": bool(self._opts.get("exclusive"))},
        )
        return ProcMesh(runtime.spawn(SpawnPlan(record, b"", self._waits())))

    def __reduce__(self) -> Any:
        return (_found_hosts, (self._runtime.reference(tuple(self._covered.ranks())), self._covered))

    def __repr__(self) -> str:
        return f"<hosts of session {self._runtime.session!r} {self.extent!r}>"


def _found_hosts(reference: dict[str, Any], region: Region) -> HostMesh:
    runtime = runtime_of(reference, "hosts")
    return HostMesh(runtime, region)


def _one_host(runtime: Runtime, host: int) -> HostMesh:
    return HostMesh(runtime, Region((), NDSlice(offset=host, sizes=(), strides=())))


def all_hosts(runtime: Runtime, count: int) -> HostMesh:
    """All hosts of a session, dimension ``hosts``."""
    return HostMesh(runtime, Region.row_major(("hosts",), (count,)))


def this_host() -> HostMesh:
    """The host of the calling actor, as a mesh without dimensions; in a controller, the head host of its session.

    Without a session a private one is started on this machine; see `monarch_kernel.up` for one with a name.
    """
    runtime = current_runtime()
    return _one_host(runtime, runtime.host)


def this_proc() -> ProcMesh:
    """The process of the calling actor, as a mesh of one; in a controller, the controller's own process.

    Actors spawned on the controller's own process are the only ones that end with it.
    """
    return ProcMesh(*current_runtime().own_procs())


def mesh_for(handle: Handle, region: Region | None = None) -> ActorMesh[Any] | ProcMesh:
    """The mesh of a handle."""
    return ActorMesh(handle, region) if handle.record.kind == "actors" else ProcMesh(handle, region)


__all__ = ["ActorMesh", "Handle", "HostMesh", "ProcMesh", "all_hosts", "mesh_for", "this_host", "this_proc"]
