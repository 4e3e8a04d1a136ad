"""Meshes of hosts: where processes are spawned, and the end of a session that nobody else has."""

from __future__ import annotations

import importlib
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..errors import NotOwner, SessionEnded
from ..protocol import pickling
from ..protocol.code import registry as code_registry
from ..protocol.fingerprint import arguments_digest
from ..protocol.links import new_id
from ..state.records import MeshRecord
from ._bootstrap import Setup, bindings_for, commands_for, setup_error
from ._endpoint import endpoints_of
from ._extent import Extent
from ._future import Future, resolved
from ._handle import mentioned_pending
from ._meshes import ActorMesh, ProcMesh
from ._ndslice import NDSlice
from ._provider import current_runtime, known_runtime, runtime_of
from ._region import Region
from ._runtime import Runtime, SpawnPlan
from ._shape import MeshTrait


class HostMesh(MeshTrait):
    """A mesh of hosts. Ranks of the whole mesh are host indices.

    As a context (``async with``) its hosts are shut down at the end of the block, where they are a session's own.

    Examples
    --------
    >>> procs = this_host().spawn_procs(per_host={"gpus": 4})       # doctest: +SKIP
    """

    def __init__(
        self, runtime: Runtime, region: Region, opts: Mapping[str, Any] | None = None, *, reference: bool = False
    ) -> None:
        self._runtime = runtime
        self._covered = region
        self._opts = dict(opts or {})
        self._reference = reference  # it came from elsewhere: whoever made it owns the hosts

    @property
    def _region(self) -> Region:
        return self._covered

    def _with_region(self, region: Region) -> HostMesh:
        return self._like(region, self._opts)

    def _like(self, region: Region, opts: Mapping[str, Any]) -> HostMesh:
        return HostMesh(self._runtime, region, opts, reference=self._reference)

    def _waits(self) -> list[Future[Any]]:
        """What has to be there before processes can be started."""
        return []

    def options(self, *, exclusive: bool = False) -> HostMesh:
        """Our own words for the next `spawn_procs`.

        Parameters
        ----------
        exclusive
            The devices of the new processes are given to no other mesh while they live.

        Examples
        --------
        >>> procs = this_host().options(exclusive=True).spawn_procs(per_host={"gpus": 4})       # doctest: +SKIP
        """
        return self._like(self._covered, {**self._opts, "exclusive": exclusive})

    def with_python_executable(self, python_executable: str) -> HostMesh:
        """The same hosts, where new processes, and those that these spawn in turn, run another Python.

        Parameters
        ----------
        python_executable
            Its path on the hosts. It must have this package, and the same minor version.

        Raises
        ------
        TypeError
            It is no text. One that is not there fails the spawn.

        Examples
        --------
        >>> hosts = this_host().with_python_executable("/opt/env/bin/python")       # doctest: +SKIP
        """
        if not isinstance(python_executable, str) or not python_executable:
            raise TypeError(f"the path of a Python is a text; got {python_executable!r}")
        return self._like(self._covered, {**self._opts, "executable": python_executable})

    @property
    def initialized(self) -> Future[bool]:
        """Always done: a host is there when its session is."""
        self._there()
        return resolved(True)

    @property
    def region(self) -> Region:
        """Which hosts of the session these are."""
        return self._covered

    @property
    def is_fake_in_process(self) -> bool:
        """Always False: processes are processes here."""
        return False

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], None] | Callable[[], Awaitable[None]] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: Any = None,
    ) -> ProcMesh:
        """Start processes on every host of the mesh; returns at once.

        Parameters
        ----------
        per_host
            Dimensions to add, as ``{"gpus": 4}``. The dimension ``gpus`` is laid over the host's devices. None starts
            one process a host.
        bootstrap
            A function, ``def`` or ``async def``, without arguments. It runs once in each process before any actor, and
            again where one is restarted.
        name
            The mesh's name; else the variable that it is assigned to in a notebook, else ``procs-N``.
        proc_bind
            What each process of a host is bound to: a list as long as a host has processes, of mappings with
            ``cpunodebind``, ``membind``, ``physcpubind`` (as of numactl) and ``cpus`` (as of taskset).
        bootstrap_command
            A `BootstrapCommand` that starts the processes, or a function that makes one of each process's `Point`.

        Raises
        ------
        ValueError
            A dimension that the hosts have already, a size below 1, a `proc_bind` of another length.
        TypeError
            An argument of another kind, or a `bootstrap` that cannot be pickled.
        RuntimeError
            The hosts were shut down.
        NotEnoughSlots
            At the first use of the mesh (in a notebook: at the end of the cell): more GPUs than a host has.
        ActorError
            In the same way: `bootstrap` raised. The processes are ended.
        SpawnError
            In the same way: they could not be started, as when numactl is not there.

        Examples
        --------
        >>> procs = this_host().spawn_procs(per_host={"gpus": 2}, proc_bind=[{"cpus": "0"}, {"cpus": "1"}])
        ...     # doctest: +SKIP
        """
        self._there()
        per = _checked(per_host, tuple(self._covered.labels))
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name must be a text; got {name!r}")
        count = math.prod(per.values())
        labels, sizes = (*self._covered.labels, *per), (*self._covered.sizes, *per.values())
        runtime = self._runtime
        spec = {**runtime.proc_spec(), "per_host": per, "exclusive": bool(self._opts.get("exclusive"))}
        if "executable" in self._opts:
            spec["executable"] = self._opts["executable"]
        if proc_bind is not None:
            spec["bind"] = bindings_for(proc_bind, count)
        if bootstrap_command is not None:
            spec["commands"] = commands_for(bootstrap_command, Extent(labels, sizes))
        if bootstrap is not None or len(spec.keys() & {"bind", "commands"}) or "executable" in self._opts:
            # In a notebook a re-run keeps the processes while this is the same, or a bootstrap cannot be compared.
            how = (spec.get("bind"), spec.get("commands"), spec["executable"])
            spec["how"] = arguments_digest((*how, bootstrap), {}) or arguments_digest(how, {})
        record = MeshRecord(
            id=new_id(),
            kind="procs",
            name=name or "",
            labels=labels,
            sizes=sizes,
            hosts=tuple(host for host in self._covered.ranks() for _ in range(count)),
            owner=runtime.owner(),
            spec=spec,
        )
        plan = SpawnPlan(record, b"", self._waits())
        if bootstrap is not None:
            plan.then = _setting_up(runtime, record, bootstrap)
        return ProcMesh(runtime.spawn(plan))

    def stop(self) -> Future[None]:
        """End all processes that the session has on these hosts; the hosts stay, for new ones.

        Controllers of `get_or_spawn_controller` stay, too.

        Raises
        ------
        RuntimeError
            They were shut down; or this is not the session's own mesh of all hosts, but a part or a reference.

        Examples
        --------
        >>> session.hosts.stop().get()      # doctest: +SKIP
        """
        self._owned("stop")
        return self._runtime.stop_hosts(release=False)

    def shutdown(self) -> Future[None]:
        """End all processes, and the hosts with them, and wait until they are gone.

        Raises
        ------
        RuntimeError
            They were shut down before; this is a part or a reference; or they belong to a session with a name, which
            ``%monarch down NAME`` ends.

        Examples
        --------
        >>> this_host().shutdown().get()    # doctest: +SKIP
        """
        self._owned("shut down")
        return self._runtime.stop_hosts(release=True)

    def _there(self) -> None:
        if self._runtime.hosts_gone:
            raise SessionEnded("HostMesh has already been shut down; this_host() starts anew")

    def _owned(self, what: str) -> None:
        self._there()
        if self._reference or not self._runtime.owns_hosts(self._covered.ranks()):
            raise NotOwner(
                f"cannot {what} `HostMesh` that is a reference instead of owned: {self!r} is not all hosts of the "
                "session in the hands of its controller"
            )

    async def __aenter__(self) -> HostMesh:
        self._there()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self._runtime.hosts_gone:
            await self.shutdown()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        return self._runtime.sid == other._runtime.sid and self._covered == other._covered

    def __hash__(self) -> int:
        return hash((self._runtime.sid, self._covered))

    def __reduce__(self) -> Any:
        reference = self._runtime.reference(tuple(self._covered.ranks()))
        return (_found_hosts, (reference, self._covered, self._opts.get("executable")))

    def __repr__(self) -> str:
        return f"<hosts of session {self._runtime.session!r} {self.extent!r}>"


def _found_hosts(reference: dict[str, Any], region: Region, executable: str | None = None) -> HostMesh:
    opts = {} if executable is None else {"executable": executable}
    return HostMesh(runtime_of(reference, "hosts"), region, opts, reference=True)


def _checked(per_host: Mapping[str, int] | None, labels: tuple[str, ...]) -> dict[str, int]:
    if per_host is not None and not isinstance(per_host, Mapping):
        raise TypeError(f"per_host says how many processes each dimension has, as {{'gpus': 4}}; got {per_host!r}")
    per = dict(per_host or {})
    for label, size in per.items():
        if not isinstance(label, str) or not label.isidentifier():
            raise ValueError(f"a dimension is named by an identifier; got {label!r}")
        if label in labels:
            raise ValueError(f"the hosts have a dimension {label!r} already; name the new one differently")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"per_host[{label!r}] must be a whole number of processes, 1 or more; got {size!r}")
    return per


def _setting_up(runtime: Runtime, procs: MeshRecord, bootstrap: Callable[[], Any]) -> Callable[[], Future[Any]]:
    """What runs `bootstrap` in each of the processes once they are there."""
    if not callable(bootstrap):
        raise TypeError(f"bootstrap is a function without arguments; got {bootstrap!r}")
    payload = b"".join(pickling.encode(pickling.dumps_call((Setup, bootstrap), {})))
    waits = list(mentioned_pending())
    record = MeshRecord(
        id=new_id(),
        kind="actors",
        name="setup",
        labels=procs.labels,
        sizes=procs.sizes,
        hosts=procs.hosts,
        owner=procs.owner,
        spec={"bootstrap": True},
        procs=procs.id,
        proc_ranks=tuple(range(procs.size)),
        module=Setup.__module__,
        qualname=Setup.__qualname__,
        fingerprint=code_registry().fingerprint(Setup),
        endpoints=endpoints_of(Setup),
    )

    def begin() -> Future[Any]:
        handle = runtime.start(SpawnPlan(record, payload, waits))
        handle.used = True  # it is no mesh of the user's, for whom a notebook does something at the first use
        call = ActorMesh[Any](handle).setup.call()
        future: Future[Any] = Future()

        def outcome() -> None:
            error = call.exception(0)
            if error is not None:
                raise setup_error(error)

        call._when_done(lambda: future._resolve(outcome))
        return future

    return begin


def one_host(runtime: Runtime, host: int) -> HostMesh:
    """One host of a session, as a mesh without dimensions."""
    return HostMesh(runtime, Region((), NDSlice(offset=host, sizes=(), strides=())))


def all_hosts(runtime: Runtime, count: int) -> HostMesh:
    """All hosts of a session, dimension ``hosts``."""
    return HostMesh(runtime, Region.row_major(("hosts",), (count,)))


def this_host() -> HostMesh:
    """The host of the calling actor, as a mesh without dimensions; in a controller, the head host of its session.

    Without a session a private one is started on this machine; see `monarch_kernel.up` for one with a name.
    """
    runtime = current_runtime()
    return one_host(runtime, runtime.host)


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End what this process has of us: a private session is released, one with a name is left to go on.

    It begins at once, whether or not the future is waited for. Where there is nothing to end, or it is being ended, the
    future is done. A later `this_host` starts anew. In an actor's process it does nothing.

    Parameters
    ----------
    host_timeout
        Seconds that the hosts have to end by themselves before they are forced to; None for 30.

    Raises
    ------
    ValueError
        `host_timeout` is no finite number of seconds, 0 or more.

    Examples
    --------
    >>> shutdown_context().get()
    """
    if host_timeout is not None and not 0 <= host_timeout < 2**63:  # not a number, too
        raise ValueError(f"host_timeout is a finite number of seconds, 0 or more; got {host_timeout!r}")
    runtime = known_runtime()
    if runtime is None or not runtime.controller:
        return resolved(None)
    ended: Future[None] = importlib.import_module("monarch_kernel.session").end_context(host_timeout)
    return ended


__all__ = ["HostMesh", "all_hosts", "one_host", "shutdown_context", "this_host"]
