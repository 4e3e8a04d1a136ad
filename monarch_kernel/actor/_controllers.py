"""Actors of which a session has one for each name: where they live, and who makes them.

One actor per session keeps the names. Its id follows from the session's, so that every process of the session finds it
without asking. In a script it lives in the script's own process, as the controllers that it spawns do; in a kernel in a
process on the head host, so that they survive the kernel. Which of the two holds, processes have from who started them;
those that a script has left to a kernel still ask its client, where the keeper passes them on to the one that survives.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar, cast

from ..protocol import pickling
from ..protocol.code import registry as code_registry
from ..protocol.records import CONTROLLER
from ..state.records import MeshRecord
from ._endpoint import Actor, endpoint, endpoints_of
from ._future import Future
from ._meshes import ActorMesh, this_proc
from ._provider import current_runtime
from ._runtime import Runtime, SpawnPlan

A = TypeVar("A")

NAME = "controllers"


class Controllers(Actor):
    """Keeps the controllers of a session by name."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, Any]] = {}
        self._failed: dict[str, str] = {}

    @endpoint
    def get_or_spawn(self, name: str, Class: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: N803
        """The controller of this name; the first who asks has it spawned."""
        runtime = current_runtime()
        if runtime.controller and runtime.controllers_survive:
            # Who asks was started by a script, and knows of no other keeper; the session has been a kernel's since.
            return _names(runtime).get_or_spawn.call_one(name, Class, args, kwargs).get()
        wanted = f"{Class.__module__}.{Class.__qualname__}"
        if name not in self._made:
            self._made[name] = (wanted, this_proc().spawn(name, Class, *args, **kwargs))
        if name in self._failed:
            raise ValueError(f"Failure on {name}: {self._failed[name]}")
        kind, mesh = self._made[name]
        if kind != wanted:
            raise ValueError(f"the controller {name!r} is a {kind}, and a {wanted} was asked for: take another name")
        return mesh

    def __supervise__(self, failure: Any) -> bool:
        """A controller failed: whoever asks for it next is told. The others are none the worse."""
        for name, (_, mesh) in self._made.items():
            if failure.mesh_name == mesh._handle.name:
                self._failed.setdefault(name, str(failure))
                return True
        return False


def get_or_spawn_controller(name: str, Class: type[A], *args: Any, **kwargs: Any) -> Future[A]:  # noqa: N803
    """The one actor of this name that the session has; spawned by whoever asks first.

    Parameters
    ----------
    name
        Its name, the same wherever it is asked for: in the client, in actors of any process.
    Class
        A subclass of `Actor`.
    *args, **kwargs
        Go to the constructor if it is not there yet; else they are not looked at.

    Returns
    -------
    Future
        A mesh of the one actor. In a script it lives in the script's process and ends with it, as in Monarch; in a
        kernel it lives in a process of the head host, and the next kernel finds it.

    Raises
    ------
    TypeError
        `Class` is no actor class, or an argument cannot be pickled.
    ActorError
        When waited for: the controller failed before, or one of another class has that name.

    Examples
    --------
    >>> metrics = get_or_spawn_controller("metrics", Metrics).get()     # doctest: +SKIP
    >>> metrics.add.call_one("loss", 0.5).get()                         # doctest: +SKIP
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"a controller has a name, a text; got {name!r}")
    endpoints_of(Class)
    mesh = _names(current_runtime())
    return cast("Future[A]", mesh.get_or_spawn.call_one(name, Class, args, kwargs))


def _id(runtime: Runtime, what: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{runtime.sid} {what}".encode(), digest_size=8).digest(), "little") >> 1


def keeper_of_names(runtime: Runtime, *, survives: bool) -> int:
    """The id of the mesh of the one actor that keeps the names: of that in the client, or of that which survives it."""
    return _id(runtime, "surviving controllers" if survives else "controllers")


def _record(runtime: Runtime, host: int, procs: int | None) -> MeshRecord:
    return MeshRecord(
        id=keeper_of_names(runtime, survives=procs is not None),
        kind="actors",
        name=NAME,
        hosts=(host,),
        procs=procs,
        proc_ranks=() if procs is None else (0,),
        module=Controllers.__module__,
        qualname=Controllers.__qualname__,
        fingerprint=code_registry().fingerprint(Controllers),
        endpoints=endpoints_of(Controllers),
    )


def _names(runtime: Runtime) -> ActorMesh[Controllers]:
    if not runtime.controllers_survive:
        handle = runtime.handle(_record(runtime, CONTROLLER, None))
        handle.used = True
        return ActorMesh(handle)
    # The head spawns what has an id once, whoever asks and however often.
    procs = MeshRecord(
        id=_id(runtime, "controllers' process"), kind="procs", name=NAME, hosts=(0,), spec=runtime.proc_spec()
    )
    record = _record(runtime, 0, procs.id)
    known = runtime.known_handle(record.id)
    if known is not None and not _failed(known.ready):
        handle = known
    else:
        ready = runtime.start(SpawnPlan(procs, b"", [])).pending()
        handle = runtime.start(SpawnPlan(record, _payload(), ready))
        handle.used = True
    return ActorMesh(handle)


def _failed(ready: Future[Any] | None) -> bool:
    return ready is not None and ready.done() and ready.exception(0) is not None


def _payload() -> bytes:
    return b"".join(pickling.encode(pickling.dumps_call((Controllers,), {})))


def start_names(runtime: Runtime) -> None:
    """A message for the keeper of names came to the controller's process, where it lives: it is made for the first."""
    runtime.executor.create(_record(runtime, CONTROLLER, None), 0, _payload(), None)


__all__ = ["Controllers", "get_or_spawn_controller", "keeper_of_names", "start_names"]
