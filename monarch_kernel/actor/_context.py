"""Who am I: the context of the message that is being handled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import Deadlock
from ._ids import ActorAddr, Uid, as_label
from ._shape import Extent, Point

if TYPE_CHECKING:
    from ._actors import RunningActor
    from ._future import Future
    from ._meshes import ProcMesh

_NOWHERE = Point(0, Extent((), ()))


@dataclass(frozen=True, repr=False)
class Creator:
    """Who spawned an actor, and who spawned that one, up to the client; its repr names them all.

    Attributes
    ----------
    rank, name, class_name
        As of `Instance`.
    creator
        Who spawned it; None of the client.
    """

    rank: Point
    name: str
    class_name: str | None
    creator: Creator | None = None

    def __repr__(self) -> str:
        above = f"{self.creator!r}." if self.creator is not None else ""
        kind = f"{self.class_name} " if self.class_name is not None else ""
        return f"{above}<{kind}{self.name}{self.rank if len(self.rank) else ''}>"


@dataclass(repr=False)
class Instance:
    """The running actor (or, outside of actors, the client).

    Attributes
    ----------
    rank
        Its place in the mesh it was spawned in. A call on a slice does not change it; `Context.message_rank` does.
    name, class_name
        The mesh's name, and the actor's class with its module; the client is ``root`` and has no class.
    actor_id
        The `ActorAddr` of this actor: what tells it from all others. As a text it is good for logs.
    creator
        Who spawned it, as a `Creator`; None of the client.

    Examples
    --------
    >>> context().actor_instance
    <root>
    >>> class Watcher(Actor):
    ...     @endpoint
    ...     def leave(self, failed: bool) -> None:
    ...         me = context().actor_instance
    ...         if failed:
    ...             me.abort("nothing left to watch")      # me.kill(...) says killed in its place
    ...         else:
    ...             me.stop("done")
    """

    rank: Point
    name: str
    class_name: str | None
    actor_id: ActorAddr
    creator: Creator | None = None
    mesh: int = 0
    _procs: Any = None
    _actor: RunningActor | None = None
    # Free for whoever keeps a list of what it spawned, as helpers of Monarch programs do; what ends with its owner is
    # the daemon's to know.
    _children: list[Any] | None = None

    def __repr__(self) -> str:
        return repr(self._as_creator())

    def _as_rust(self) -> Instance:
        """Itself: programs written for Monarch hand this to what Monarch has in Rust."""
        return self

    def _as_creator(self) -> Creator:
        return Creator(self.rank, self.name, self.class_name, self.creator)

    def stop(self, reason: str | None = None) -> None:
        """End this one actor, after the messages that it has: its `__cleanup__` is given None.

        Raises
        ------
        RuntimeError
            Outside of actors.
        """
        self._running("stop").stop_itself(reason)

    def abort(self, reason: str | None = None) -> None:
        """Fail this actor once the message in progress is through; its owner is told, with the reason.

        Raises
        ------
        RuntimeError
            Outside of actors.
        """
        self._running("abort").abort("aborted", reason)

    def kill(self, reason: str | None = None) -> None:
        """The same as `abort`, in another word of the report.

        Raises
        ------
        RuntimeError
            Outside of actors.
        """
        self._running("kill").abort("killed", reason)

    def _running(self, what: str) -> RunningActor:
        if self._actor is None:
            raise RuntimeError(f"{what} is for actors; {self!r} is none")
        return self._actor

    @property
    def proc_id(self) -> str:
        """The process it runs in, as `ActorAddr.proc_id`."""
        return self.actor_id.proc_id

    @property
    def proc(self) -> ProcMesh:
        """The process it runs in, as a mesh of one."""
        from ._meshes import this_proc

        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """All processes of the mesh that it was spawned on."""
        return self._procs if self._procs is not None else self.proc


@dataclass(frozen=True)
class Context:
    """What `context` returns.

    Attributes
    ----------
    actor_instance
        The running actor; outside of actors, the client.
    message_rank
        Its rank in the mesh, or slice, that the message being handled was sent to.

    Examples
    --------
    >>> context().actor_instance.name, context().message_rank
    ('root', {})
    """

    actor_instance: Instance
    message_rank: Point


_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("monarch_context", default=None)
_client: list[Context] = []


def set_client(instance: Instance) -> None:
    """Who this process is outside of its actors."""
    _client[:] = [Context(instance, _NOWHERE)]


def chain(instance: Instance) -> list[list[Any]]:
    """An instance with all its creators as plain data, the client first: what the record of a mesh keeps."""
    found: list[list[Any]] = []
    one: Creator | None = instance._as_creator()
    while one is not None:
        labels, sizes = one.rank.extent.labels, one.rank.extent.sizes
        found.append([one.class_name, one.name, list(labels), list(sizes), one.rank.rank])
        one = one.creator
    return found[::-1]


def creators(chain: list[list[Any]]) -> Creator | None:
    """What `chain` wrote."""
    one = None
    for class_name, name, labels, sizes, rank in chain:
        one = Creator(Point(rank, Extent(labels, sizes)), name, class_name, one)
    return one


def context() -> Context:
    """The context of the running endpoint; outside of actors, the client's own.

    Examples
    --------
    >>> context().message_rank
    {}
    """
    here = _current.get()
    return here if here is not None else _client_context()


def _client_context() -> Context:
    if not _client:
        me = ActorAddr.of(Uid.from_string("client"), Uid.instance("local"), "inproc://0")
        set_client(Instance(_NOWHERE, "root", None, me))
    return _client[0]


def running_actor() -> Instance | None:
    """The actor whose code runs here; None outside of actors."""
    here = _current.get()
    return here.actor_instance if here is not None else None


def address(mesh: int, name: str) -> ActorAddr:
    """Where this process's actor of a mesh is."""
    process = _client_context().actor_instance.actor_id
    return process.within(Uid.instance_from_value(mesh, as_label(name)))


def current_rank() -> Point:
    """Rank of this actor in the mesh, or slice, that the running message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Sizes, by dimension, of the mesh or slice that the running message was sent to."""
    extent = context().message_rank.extent
    return dict(zip(extent.labels, extent.sizes, strict=True))


def current_actor_name() -> str:
    """`Instance.actor_id` of the running actor, as a text.

    Examples
    --------
    >>> current_actor_name()                # doctest: +SKIP
    'trainers<4CVg2ZNHHp5>.procs-1-0<rj4Mgs19Cj3>@inproc://0'
    """
    return str(context().actor_instance.actor_id)


# -- actors that would wait for themselves

_thread = threading.local()
_own_calls: weakref.WeakKeyDictionary[Future[Any], _OwnCall] = weakref.WeakKeyDictionary()


class _OwnCall(NamedTuple):
    mesh: int
    endpoint: str
    handled: Callable[[], bool]


def run_actor(mesh: int, task: asyncio.Task[Any] | None = None) -> None:
    """This thread (and, of an async actor, this task) handles the messages of the actor of this mesh from now on."""
    _thread.mesh, _thread.task = mesh, task


def acting() -> int:
    """The mesh of the actor whose message this thread handles, 0 where it handles none."""
    return getattr(_thread, "mesh", 0)


def note_own_call(future: Future[Any], mesh: int, endpoint: str, handled: Callable[[], bool]) -> None:
    """The answer that `future` stands for needs the actor that this process has of this mesh.

    `handled` says whether that actor has answered, be the answer here or not.
    """
    _own_calls[future] = _OwnCall(mesh, endpoint, handled)


def check_self_wait(future: Future[Any], *, blocking: bool) -> None:
    """Refuse a wait that could never end: of an actor, in the middle of a message, for its own next one.

    A task that an async actor has started may wait: the actor goes on meanwhile, unless the wait blocks its loop.
    """
    mesh = acting()
    if not mesh or not (own := _own_calls.get(future)) or own.mesh != mesh or own.handled():
        return
    # A synchronous actor has no task: whatever loop runs on its thread runs in the middle of a message.
    if not blocking and _thread.task is not None and asyncio.current_task() is not _thread.task:
        return
    raise Deadlock(
        f"{context().actor_instance!r} would wait for ever: its call of {own.endpoint!r} goes to itself, and an actor "
        f"handles one message at a time. Call the method itself (self.{own.endpoint}(...)), or do not wait for the "
        "answer here"
    )
