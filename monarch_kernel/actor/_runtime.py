"""What carries the actors of a process: the same in a proc and in a controller, but for how requests reach a host."""

from __future__ import annotations

import json
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ActorStopped, MonarchError, StaleHandle
from ..protocol.links import new_id
from ..protocol.loop import IOThread
from ..protocol.records import CONTROLLER
from ..state.records import MeshRecord, Owner
from ._calls import Caller
from ._context import context
from ._executor import Executor
from ._future import Future, resolved
from ._handle import Handle
from ._lifecycle import STOP_WITHIN
from ._mailbox import Mailbox
from ._region import Region
from ._waits import Watch


@dataclass
class SpawnPlan:
    """A mesh that is wanted.

    Attributes
    ----------
    payload
        Class and arguments of actors, pickled.
    waits
        Meshes that must be there first.
    digest
        Of the constructor's arguments, None when they cannot be compared; asked for only where it matters.
    options
        Our own words, from ``options(...)``.
    replaces
        Meshes that are stopped once this one is there.
    then
        What has to be through as well before it is ready; begun once it is there, on the I/O thread.
    """

    record: MeshRecord
    payload: bytes
    waits: list[Future[Any]]
    digest: Callable[[], str | None] = lambda: None
    options: dict[str, Any] = field(default_factory=dict)
    replaces: list[int] = field(default_factory=list)
    then: Callable[[], Future[Any]] | None = None


class Runtime(ABC):
    """What meshes ask for.

    Attributes
    ----------
    session, sid
        The session's name and number.
    host
        Index of the host of this process; in a controller, of the head.
    controller
        Whether it is a controller's.
    hosts_gone
        The session's hosts were shut down from here.
    controllers_survive
        Controllers of `get_or_spawn_controller` live in a process on the head host, not in the client.
    incarnations
        The incarnation of each host, as far as known here.
    """

    def __init__(self, io: IOThread, *, session: str, sid: str, host: int, controller: bool) -> None:
        self.io = io
        self.session = session
        self.sid = sid
        self.host = host
        self.controller = controller
        self.hosts_gone = False
        self.controllers_survive = False
        self.incarnations: dict[int, int] = {}
        self.sender = new_id()
        self.caller = Caller(io, self.sender, self.send, self.send_from, None if controller else host)
        self.executor = Executor(io, self._answer, CONTROLLER if controller else host)
        self._owners: set[int] = set()  # the actors of this process that have spawned something
        self._handles: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self._handles_lock = threading.Lock()
        self.mailbox = Mailbox(self)
        self.executor.actors[self.sender] = self.mailbox  # it is called like an actor
        self.watch = self.executor.watch = Watch(self)

    # -- what a process's kind decides

    @abstractmethod
    def send(self, host: int, *chunks: Any) -> None:
        """Send a record towards a host. On the I/O thread."""

    @abstractmethod
    def send_from(self, host: int, *chunks: Any) -> None:
        """Send a record towards a host from any thread, without the I/O thread where that can be."""

    @abstractmethod
    def request(self, method: str, message: Callable[[Any], Any], timeout: float | None = None) -> Future[Any]:
        """An RPC of the Host service, at the head. `message` makes the request from the generated messages."""

    @abstractmethod
    def proc_spec(self) -> dict[str, Any]:
        """How processes are started from here: executable, working directory, sys.path, environment."""

    @abstractmethod
    def own_procs(self) -> tuple[Handle, Region | None]:
        """The mesh that this process is a rank of, and the region of this rank."""

    @abstractmethod
    def data_plane(self) -> tuple[bytes, str]:
        """The key of the session's data plane, and the address at which this process is reached there."""

    def owner(self) -> str:
        """With whom a mesh that is spawned now ends."""
        instance = context().actor_instance
        if not instance.mesh:
            return "session"
        self._owners.add(instance.mesh)
        return str(Owner(instance.mesh, instance.rank.rank, self.executor.host))

    def end_owned(self, mesh: int, rank: int, reason: str) -> None:
        """End all that an actor of this process has spawned: it has ended. From any thread."""
        if mesh in self._owners:
            self._owners.discard(mesh)
            owner = str(Owner(mesh, rank, self.executor.host))
            self.request("Stop", lambda pb: pb.StopRequest(owner=owner, reason=reason))

    def owns(self, handle: Handle) -> bool:
        """Whether a mesh is whoever asks now's to stop. What belongs to the session is its controller's."""
        owner = self.owner()
        return handle.record.owner == owner and (owner != "session" or self.controller or handle.spawned_here)

    def owns_hosts(self, hosts: Sequence[int]) -> bool:
        """Whether these are all hosts of the session, and whoever asks now controls it."""
        return False

    @abstractmethod
    def stop_hosts(self, *, release: bool) -> Future[None]:
        """Stop what the session has on its hosts; with `release` end the hosts, too. For the controller."""

    def first_use(self, handle: Handle) -> None:  # noqa: B027  # only a notebook has something to do
        """A mesh is called for the first time from here: a notebook sends what its variables hold."""

    def spawned(self, record: MeshRecord) -> None:  # noqa: B027  # only a controller keeps a list
        """A mesh that was asked for here is live. On the I/O thread."""

    def show_logs(self, mesh: int, stream: bool, window: float | None) -> Future[None]:
        """Show the lines of a mesh in another way, see `ProcMesh.logging_option`. Only a controller shows any."""
        if window is not None:
            raise NotImplementedError("lines are gathered where they are shown: set aggregate_window_sec from there")
        return resolved(None)

    def streams(self, wanted: bool) -> bool:
        """Whether hosts send the lines of a mesh for which streaming is `wanted`, or not."""
        return wanted

    def flush_logs(self, mesh: int | None = None) -> Future[None]:
        """Done when all that ranks have printed until now is shown."""
        return resolved(None)

    @abstractmethod
    def _answer(self, sender: int, at_once: bool, *chunks: Any) -> None:
        """Send an answer of an actor of this process, see `Executor`. From any thread."""

    # -- handles

    def handle(self, record: MeshRecord, ready: Future[Any] | None = None) -> Handle:
        """The one handle of a mesh in this process."""
        with self._handles_lock:
            found = self._handles.get(record.id)
            if found is None:
                found = self._handles[record.id] = Handle(self, record, ready)
            return found

    def known_handle(self, mesh: int) -> Handle | None:
        """The handle of a mesh that this process has one of."""
        with self._handles_lock:
            return self._handles.get(mesh)

    def all_handles(self) -> list[Handle]:
        """The handles that this process has."""
        with self._handles_lock:
            return list(self._handles.values())

    def reference(self, hosts: tuple[int, ...]) -> dict[str, Any]:
        """What a pickled handle says of where it belongs: never the epoch, so that it outlives controllers."""
        known = {host: self.incarnations[host] for host in hosts if host in self.incarnations}
        return {"session": self.session, "sid": self.sid, "incarnations": known}

    def check_reference(self, reference: dict[str, Any], name: str) -> None:
        """Refuse a handle of another session or of an earlier incarnation of its hosts."""
        if reference["sid"] != self.sid:
            raise StaleHandle(
                f"the handle of {name!r} belongs to session {reference['session']!r} as it was then; attached here is "
                f"{self.session!r}. If it is still there: monarch_kernel.attach({reference['session']!r})",
                mesh=name,
            )
        for host, incarnation in reference["incarnations"].items():
            if self.incarnations.get(host, incarnation) != incarnation:
                raise StaleHandle(
                    f"the handle of {name!r} is stale: host {host} was started anew since, and what ran there is gone; "
                    "spawn it again",
                    mesh=name,
                    host=host,
                )

    # -- spawning and stopping

    def spawn(self, plan: SpawnPlan) -> Handle:
        """Start a mesh and return its handle at once."""
        return self.start(plan)

    def start(self, plan: SpawnPlan) -> Handle:
        """Start a new mesh, whatever there is."""
        ready: Future[Any] = Future()
        handle = self.handle(plan.record, ready)
        handle.options = plan.options
        handle.spawned_here = True
        if plan.record.hosts[0] == CONTROLLER:
            self.executor.create(plan.record, 0, plan.payload, None)
            ready._resolve(lambda: True)
        else:
            self.io.check_process()
            self.io.post(self._start, plan, handle, ready)
        return handle

    def _start(self, plan: SpawnPlan, handle: Handle, ready: Future[Any]) -> None:
        for wait in plan.waits:
            if not wait.done():
                wait._when_done(lambda: self.io.post(self._start, plan, handle, ready))
                return
        try:
            for wait in plan.waits:
                wait.get(0)
        except MonarchError as error:
            ready._fail(error)
            return
        if ready.done():  # stopped before it began
            return
        handle.asked = True
        answer = self.request(
            "Spawn",
            lambda pb: pb.SpawnRequest(
                record=json.dumps(plan.record.to_dict()).encode(), payload=plan.payload, stop=plan.replaces
            ),
        )

        answer._when_done(lambda: self.io.post(self._spawned, plan, handle, ready, answer))

    def _spawned(self, plan: SpawnPlan, handle: Handle, ready: Future[Any], answer: Future[Any]) -> None:
        try:
            reply = answer.get(0)
        except BaseException as error:
            ready._fail(error)
            return
        record = MeshRecord.from_dict(json.loads(reply.record))
        handle.record.name = record.name
        handle.record.ranks = record.ranks
        self.spawned(record)
        if plan.then is None:
            ready._resolve(lambda: True)
            return
        more = plan.then()

        def through() -> None:
            error = more.exception(0)
            if error is None:
                ready._resolve(lambda: True)
            else:  # nothing of the attempt is left
                ready._fail(error)
                self.stop(handle, "its processes could not be set up")

        more._when_done(lambda: self.io.post(through))

    def stop(self, handle: Handle, reason: str) -> Future[None]:
        """Stop a mesh."""
        self.io.check_process()
        future: Future[None] = Future()
        if handle.hosts[0] == CONTROLLER:

            def here() -> None:
                self.executor.stop(handle.id, reason)._when_done(lambda: future._resolve(lambda: None))

            # Behind what was sent before: a call comes through the same queue.
            self.io.post(self.io.post, here)
            return future

        def go() -> None:
            if (ready := handle.ready) is not None and not ready.done():
                ready._when_done(lambda: self.io.post(go))
                self.io.loop.call_later(STOP_WITHIN, self._give_up, handle, ready, reason)
                return
            answer = self.request("Stop", lambda pb: pb.StopRequest(mesh=handle.id, reason=reason))

            def stopped() -> None:
                answer.get(0)
                handle.stopped = reason

            answer._when_done(lambda: future._resolve(stopped))
            answer._when_done(lambda: self.io.post(future.exception))  # opens it, so that later spawns know

        # Behind what was sent before: a call leaves through the same queue.
        self.io.post(go)
        return future

    def _give_up(self, handle: Handle, ready: Future[Any], reason: str) -> None:
        """A mesh that is to be stopped is still being spawned: its constructors have had their time."""
        if ready.done():
            return
        if handle.asked:
            self.request("Stop", lambda pb: pb.StopRequest(mesh=handle.id, reason=reason))
        else:
            ready._fail(ActorStopped(f"{handle.name} was stopped: {reason}", mesh=handle.name))
