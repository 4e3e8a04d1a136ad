"""Process and actor meshes: handles that are sliced like arrays and hold nothing that cannot be read back."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..errors import NotOwner, SpawnError
from ..protocol import pickling
from ..protocol.code import registry as code_registry
from ..protocol.fingerprint import arguments_digest
from ..protocol.links import new_id
from ..protocol.records import CONTROLLER
from ..state.records import MeshRecord
from ._context import chain, context
from ._endpoint import Endpoint, endpoints_of, plain_method
from ._future import Future, resolved
from ._handle import Handle, mention, mentioned_pending
from ._logging import LoggingManager
from ._mock import patched, travelling
from ._provider import current_runtime, runtime_of
from ._region import Region
from ._runtime import SpawnPlan
from ._shape import MeshTrait

if TYPE_CHECKING:
    from ._hosts import HostMesh

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
    def _name(self) -> Future[str]:
        """The same as programs ask Monarch for it, to compare it with `MeshFailure.mesh_name`: they await it."""
        return self._initialized(self._handle.name)

    def _initialized(self, value: Any) -> Future[Any]:
        """A future of `value` once the mesh is spawned."""
        ready = self._handle.ready
        if ready is None:
            return resolved(value)
        future: Future[Any] = Future()

        def answer() -> Any:
            ready.get()
            return value

        ready._when_done(lambda: future._resolve(answer))
        return future

    def _owned(self, what: str) -> None:
        if self._covered != self._handle.region:
            raise NotOwner(f"{what} works on a whole mesh, not on a slice of one: {self!r}", mesh=self._handle.name)
        if not self._handle.runtime.owns(self._handle):
            raise NotOwner(
                f"{what} is for who spawned the mesh, and {self!r} was spawned by somebody else: ask the owner",
                mesh=self._handle.name,
            )

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

    @property
    def name(self) -> Any:
        """The mesh's name; where its actors have an endpoint that is called so, that endpoint, as any other."""
        return self.__getattr__("name") if "name" in self._handle.endpoints else self._handle.name

    @property
    def initialized(self) -> Future[None]:
        """Done once the mesh is spawned, or failed with the reason. Constructors may still run."""
        return self._initialized(None)

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
        """Stop the actors; their processes stay. Messages sent before are handled first.

        It begins at once, whether or not the future is waited for, and may be said twice. Later calls raise a
        `SupervisionError` with the reason.

        Raises
        ------
        NotImplementedError
            It is a slice, or was spawned by somebody else: only the owner stops a mesh.

        Examples
        --------
        >>> trainers.stop("enough trained").get()       # doctest: +SKIP
        """
        self._owned("stop")
        return self._handle.runtime.stop(self._handle, reason)

    def __repr__(self) -> str:
        return f"<{self._handle.record.qualname} actors {self._handle.name!r} {self.extent!r}>"


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

        Examples
        --------
        >>> trainers = procs.options(wait=False).spawn("trainers", Trainer, lr=1e-3)        # doctest: +SKIP
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
            Its endpoints mix ``def`` and ``async def``, or one is named like something that every mesh has.
        RuntimeError
            The processes were stopped. Processes that could not be started fail the first call.
        """
        self._running()
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
        waits = [*handle.pending(), *mentioned_pending()]
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
        """End the processes and all actors on them. May be said twice; a later `spawn` raises a RuntimeError.

        Raises
        ------
        NotImplementedError
            It is a slice, or was spawned by somebody else: only the owner stops a mesh.

        Examples
        --------
        >>> procs.stop().get()      # doctest: +SKIP
        """
        self._owned("stop")
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
    def initialized(self) -> Future[bool]:
        """Done (True) once the processes are there, or failed with the reason."""
        return self._initialized(True)

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a mesh of processes that lives on one.

        Raises
        ------
        NotImplementedError
            It lives on several hosts: slice it to one first.
        """
        from ._hosts import one_host

        hosts = {self._handle.hosts[rank] for rank in self._covered.ranks()}
        if len(hosts) != 1:
            raise NotImplementedError(f"host_mesh of a mesh over {len(hosts)} hosts: slice it to one host first")
        runtime, host = self._handle.runtime, hosts.pop()
        return one_host(runtime, runtime.host if host == CONTROLLER else host)

    async def __aenter__(self) -> ProcMesh:
        self._running()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._handle.stopped is None:
            await self.stop()

    def _running(self) -> None:
        if self._handle.stopped is not None:
            raise SpawnError(
                f"`ProcMesh` has already been stopped ({self._handle.name}: {self._handle.stopped}); "
                "spawn processes anew",
                mesh=self._handle.name,
            )

    def __repr__(self) -> str:
        return f"<processes {self._handle.name!r} {self.extent!r}>"


def this_proc() -> ProcMesh:
    """The process of the calling actor, as a mesh of one; in a controller, the controller's own process.

    Actors spawned on the controller's own process are the only ones that end with it.
    """
    return ProcMesh(*current_runtime().own_procs())


def mesh_for(handle: Handle, region: Region | None = None) -> ActorMesh[Any] | ProcMesh:
    """The mesh of a handle."""
    return ActorMesh(handle, region) if handle.record.kind == "actors" else ProcMesh(handle, region)


__all__ = ["ActorMesh", "Handle", "Mesh", "ProcMesh", "mesh_for", "this_proc"]
