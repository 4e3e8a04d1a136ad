"""A controller's runtime: one link to each host's daemon, and what comes back over them."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..actor import _config
from ..actor._actors import RunningActor
from ..actor._controllers import keeper_of_names, start_names
from ..actor._future import Future, from_concurrent, in_thread
from ..actor._handle import Handle
from ..actor._logging import prefix_records
from ..actor._region import Region
from ..actor._runtime import Runtime, SpawnPlan
from ..actor._supervision import MeshFailure
from ..errors import ConnectionLost, HostLost, MonarchError, NotAttached, SessionEnded
from ..launch.base import filtered_environment
from ..protocol import WIRE, dataplane, records, statefile
from ..protocol import host_pb2 as pb
from ..protocol.dial import DialledLink, lost_host
from ..protocol.frames import Record
from ..protocol.handshake import PYTHON, versions
from ..protocol.links import new_id
from ..protocol.loop import IOThread
from ..protocol.records import CONTROLLER, Kind
from ..protocol.rpc import Dialer, Stream
from ..protocol.sockets import SocketStream, message_socket
from ..protocol.statefile import SessionFile
from ..state.epoch import Epoch
from ..state.logs import PLAIN, QUIET, Mode
from ..state.merge import Merged, merge
from ..state.records import MeshRecord, Owner
from ..state.supervision import failure_of
from ..state.times import TIMES, Times
from ._faults import FaultHook
from ._logs import LogView

EVENTS_KEPT = 1000
RELEASING = 1.0
"""Seconds within which the hosts of a session that is released end after each other."""
COMES_BACK = 15.0
"""Seconds that attaching waits for a daemon which its keeper is about to start again."""


class Identity:
    """Who this controller says it is; the kernel extension sets `kind` and `title`."""

    kind = "script"
    title = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else ""


_fault_hook = FaultHook()
_io: IOThread | None = None
_io_lock = threading.Lock()


def io_thread() -> IOThread:
    """The controller's one I/O thread; it lives as long as the process."""
    global _io
    with _io_lock:
        if _io is None:
            _io = IOThread("controller")
            _io.start()
        _io.check_process()
        return _io


def detached(name: str) -> NotAttached:
    """What a use of a session says that this process has left."""
    return NotAttached(f"this process has detached from session {name!r}; attach again to use its meshes")


class Attached:
    """What attaching found."""

    def __init__(
        self, merged: Merged, calls: list[tuple[int, pb.CallInfo]], replies: dict[int, pb.AttachReply]
    ) -> None:
        self.merged = merged
        self.calls = calls
        self.replies = replies


class Controller(Runtime):
    """The runtime of a kernel or script that controls a session.

    Parameters
    ----------
    on_event
        Called on the I/O thread with each event that a host tells.
    on_over
        Called on the I/O thread when the session is no longer ours, with why.
    """

    def __init__(
        self,
        io: IOThread,
        file: SessionFile,
        on_event: Callable[[dict[str, Any]], None],
        on_over: Callable[[MonarchError], None],
        times: Times | None = None,
    ) -> None:
        super().__init__(io, session=file.name, sid=file.sid, host=0, controller=True)
        self.file = file
        self.epoch = Epoch(0, 0)
        self.times = times or TIMES
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.packages: dict[int, str] = {}
        self.decide: Callable[[SpawnPlan], Handle] | None = None
        self.on_first_use: Callable[[], None] | None = None
        self.end_hosts: Callable[[bool], None] = lambda release: None
        self.controllers_survive = Identity.kind == "kernel"
        if Identity.kind != "kernel":
            prefix_records(client=True)
        self.on_spawned: Callable[[MeshRecord], None] = lambda record: None
        self.on_lent_ended: Callable[[int], None] = lambda index: None
        self.fault_hook = _fault_hook
        self.caller.on_refused = self._told_of_refused
        self._on_event = on_event
        self._on_over = on_over
        self._dialers: dict[int, Dialer] = {}
        self._links: dict[int, DialledLink] = {}
        self.logs = LogView(io, self._links, notebook=Identity.kind == "kernel")
        self._lost: dict[int, MonarchError] = {}
        self._came: dict[int, int] = {}  # by which host each proc's calls of actors of this process come
        self._over: MonarchError | None = None
        self._own: Handle | None = None
        self._closed = False
        self._names = keeper_of_names(self, survives=False)
        self._names_kept = False  # whether the actor is here that keeps the names of controllers

    # -- attaching, on the I/O thread

    def client(self) -> pb.Client:
        """Who we are."""
        return pb.Client(
            client=self.sender,
            kind=Identity.kind,
            pid=os.getpid(),
            hostname=socket.gethostname(),
            user=_user(),
            title=Identity.title,
        )

    async def attach(self, takeover: bool) -> Attached:
        """Take the session: versions first, then an epoch from the head, then the links."""
        replies: dict[int, pb.AttachReply] = {}
        for member in self.file.members:
            self._dialers[member.index] = Dialer(member.address, self.file.secret, self.sender)

        async def greet(index: int) -> None:
            try:
                await self._shake(index)
            except ConnectionLost as error:
                if index == 0:
                    raise
                self._lost[index] = HostLost(f"host {index} of {self.session!r} does not answer: {error}", host=index)

        await asyncio.gather(*map(greet, self._dialers))
        request = pb.AttachRequest(client=self.client(), takeover=takeover)
        replies[0] = await self._reach(0, "Attach", request, 30.0)
        self.epoch = Epoch(replies[0].epoch.term, replies[0].epoch.count)

        async def join(index: int) -> None:
            adopt = pb.AttachRequest(client=self.client(), epoch=replies[0].epoch)
            try:
                replies[index] = await self._reach(index, "Attach", adopt, 30.0)
            except ConnectionLost as error:
                self._lost[index] = HostLost(f"host {index} does not answer: {error}", host=index)

        await asyncio.gather(*(join(index) for index in self._dialers if index and index not in self._lost))
        for index in replies:
            self._links[index] = self._link(index)
        await self.linked(replies)
        if self._over is not None:
            raise self._over
        for index in self._lost:
            self.caller.host_lost(index, self._lost[index])
        views = {index: replies[index].registry if index in replies else None for index in self._dialers}
        calls = [(index, call) for index, reply in replies.items() for call in reply.calls]
        return Attached(merge(views), calls, replies)

    async def _shake(self, index: int) -> None:
        hello = pb.HandshakeRequest(wire=WIRE, python=PYTHON, sid=self.sid, client=self.client())
        answer = await self._reach(index, "Handshake", hello, 10.0)
        self.incarnations[index] = answer.incarnation
        self.packages[index] = answer.package

    async def linked(self, hosts: Iterable[int]) -> None:
        """Wait until the links to these hosts stand."""
        for index in hosts:
            try:
                await asyncio.wait_for(self._links[index].ready.wait(), COMES_BACK)
            except TimeoutError:
                raise ConnectionLost(
                    f"host {index} of {self.session!r} took no messages for {COMES_BACK:g} s"
                ) from None
            self.logs.greet(index)

    async def greet(self, members: Iterable[statefile.Member]) -> None:
        """Take hosts that have just joined the session."""

        async def one(member: statefile.Member) -> None:
            index = member.index
            self._dialers[index] = Dialer(member.address, self.file.secret, self.sender)
            await self._shake(index)
            epoch = pb.Epoch(term=self.epoch.term, count=self.epoch.count)
            await self._reach(index, "Attach", pb.AttachRequest(client=self.client(), epoch=epoch), 30.0)
            self._links[index] = self._link(index)

        await asyncio.gather(*map(one, members))

    async def part(self, hosts: Iterable[int]) -> None:
        """Have no more to do with hosts that leave the session. What is asked of them still, fails."""
        for index in hosts:
            if self._lost.pop(index, None) is None:
                self.caller.host_lost(index, HostLost(f"host {index} has left session {self.session!r}", host=index))
            if (link := self._links.pop(index, None)) is not None:
                await link.close()
            if (dialer := self._dialers.pop(index, None)) is not None:
                await dialer.close()

    async def _reach(self, index: int, method: str, message: Any, timeout: float) -> Any:
        """An RPC of attaching. While a host has its keeper, a daemon that does not answer will be there again."""
        member = self._member(index)
        until = self.io.loop.time() + COMES_BACK
        while True:
            try:
                return await self._dialers[index].call(method, message, timeout)
            except ConnectionLost:
                if self.io.loop.time() > until or statefile.ended(self.file, member):
                    raise

    def _member(self, index: int) -> statefile.Member:
        return next(member for member in self.file.members if member.index == index)

    @property
    def lost(self) -> set[int]:
        """The hosts that have not been heard of for longer than the reconnect window."""
        return set(self._lost)

    def _link(self, index: int) -> DialledLink:
        dialer = self._dialers[index]
        path = message_socket(dialer.address)

        def stream() -> Stream | SocketStream:
            # On this machine the daemon takes links on its private socket too, where a frame costs a third.
            return SocketStream(path, self.file.secret) if path is not None else Stream(dialer, self.io.loop)

        return DialledLink(
            stream,
            lambda: {
                "role": "controller",
                "id": self.sender,
                **versions(),
                "sid": self.sid,
                "epoch": list(self.epoch),
                "title": Identity.title,
            },
            lambda batch: self._take(batch, index),
            renewed=lambda: self._renewed(index),
            lost=lambda error: self._host_lost(index, error),
            back=lambda: self._host_back(index),
            refused=self._refused,
            ended=lambda: self._host_ended(index),
            times=self.times,
        )

    def _renewed(self, index: int) -> None:
        self.caller.resend(index)
        self.logs.greet(index)

    async def leave(self, *, say: bool) -> None:
        """End the links; with `say`, tell the hosts goodbye."""
        self._closed = True
        if say:
            self.caller.flush_releases()
            await self.logs.close()

            async def bye(index: int) -> None:
                try:
                    await self._dialers[index].call("Detach", pb.DetachRequest(client=self.client()), 5.0)
                except MonarchError:
                    pass  # a host that is gone needs no goodbye

            await asyncio.gather(*map(bye, self._links))
        await asyncio.gather(*(link.close() for link in self._links.values()))
        await asyncio.gather(*(dialer.close() for dialer in self._dialers.values()))

    # -- what comes, on the I/O thread

    def _take(self, batch: list[Record], host: int | None = None) -> None:
        caller = self.caller
        for record in batch:
            kind = record[0]
            if kind == Kind.REPLY:
                caller.on_reply(record)
            elif kind == Kind.STABLE:
                caller.on_stable(record)
            elif kind == Kind.EVENT:
                self._told(records.parse_notice(record)[0])
            elif kind == Kind.SUPERVISE:
                what = records.parse_notice(record)[0]
                getattr(self.executor, "supervise", print)(what["owner"][0], what["failure"])
            elif kind == Kind.CALL:
                if host is not None:
                    self._came[records.parse_call(record).sender] = host
                if not self._names_kept and records.parse_call(record).mesh == self._names:
                    self._names_kept = True
                    start_names(self)
                self.executor.on_call(record)
            elif kind == Kind.RELEASE:
                self.executor.on_release(record)
            elif kind == Kind.WAIT:
                self.watch.heard(record)
            elif kind == Kind.LOG and host is not None:
                self.logs.take(host, *records.parse_notice(record))

    def _told(self, event: dict[str, Any]) -> None:
        """Something happened. A failure that no actor handled goes to the program's hook, if that is to have it."""

        def show(text: str) -> None:
            again = {"mesh": event.get("mesh"), "rank": event.get("rank"), "name": event.get("name"), "at": time.time()}
            self.io.post(self._on_event, {**again, "failure": {**event["failure"], "text": text}})

        if "stopped" in event and (handle := self.known_handle(event["stopped"])) is not None:
            handle.stopped = handle.stopped or event["reason"]
        if "failure" in event:
            event["hooked"] = self.fault_hook.take(event["failure"], kernel=Identity.kind == "kernel", show=show)
        self.events.append(event)
        self._on_event(event)

    def _told_of_refused(self, failure: MeshFailure) -> None:
        """A message was too large to be sent. Whoever sent it has the error; a hook of the program's own is told."""

        def tell() -> None:
            self.fault_hook.take(failure.to_dict(), kernel=True, show=lambda text: print(text, file=sys.stderr))

        self.io.post(tell)

    def _all_ended(self) -> bool:
        # Of a host on another machine nothing is known; those of this one are the session's own.
        return all(statefile.ended(self.file, member) for member in self.file.members if member.keeper_pid)

    def _host_ended(self, index: int) -> bool:
        """Whether a host that does not answer will not come back: its keeper is gone."""
        if not statefile.ended(self.file, self._member(index)):
            return False
        # The hosts of a session that is released end one by one, and its end says more than the loss of the first.
        cut = self._links[index].link.cut_at
        return self._all_ended() or (cut is not None and self.io.loop.time() - cut > RELEASING)

    def _host_lost(self, index: int, error: MonarchError) -> None:
        if self._all_ended():
            stone = statefile.tombstone(self.session)
            why = stone.reason if stone is not None and stone.sid == self.sid else "its hosts are gone"
            self._refused(
                SessionEnded(f"session {self.session!r} has ended ({why}). Start it anew: %monarch up {self.session}")
            )
            return
        now = self.io.loop.time()
        lost = lost_host(self.session, index, now - (self._links[index].link.cut_at or now), error)
        self._lost[index] = lost
        self.caller.host_lost(index, lost)
        self._on_event({"host_lost": index, "text": str(lost), "at": time.time()})
        member = self._member(index)
        if member.worker and statefile.ended(self.file, member):
            self.on_lent_ended(index)

    def _host_back(self, index: int) -> None:
        self._lost.pop(index, None)
        self.caller.host_back(index)
        self._on_event({"host_back": index, "at": time.time()})

    def _refused(self, error: MonarchError) -> None:
        if self._over is None and not self._closed:
            self._over = error
            for link in self._links.values():
                link.link.close()
            self.caller.fail_all(error, broken=True)
            self._on_over(error)

    # -- what meshes ask for

    def send(self, host: int, *chunks: Any) -> None:
        """Send a record to a host, or to the actors of this very process."""
        if host == CONTROLLER:
            self.io.post(self._take, [b"".join(chunks)])
        else:
            if (link := self._links.get(host)) is not None:  # else it has left: the caller knows
                link.send(*chunks)

    def send_from(self, host: int, *chunks: Any) -> None:
        """The same from any thread."""
        if host == CONTROLLER:
            self.io.post(self._take, [b"".join(chunks)])
        else:
            if (link := self._links.get(host)) is not None:
                link.send_from(*chunks)

    def _answer(self, sender: int, at_once: bool, *chunks: Any) -> None:
        self.io.post(self._route_answer, sender, chunks)

    def _route_answer(self, sender: int, chunks: tuple[Record, ...]) -> None:
        kind = chunks[0][0]
        if kind == Kind.CREATED:
            what = records.parse_notice(b"".join(chunks))[0]
            if what["state"] == "failed":
                self._failed_here(what["mesh"], what["fault"])
            if what["state"] != "ok":
                ended = "was stopped" if what["state"] == "stopped" else "has failed"
                self.end_owned(what["mesh"], 0, f"the actor that owned it {ended}")
        elif sender == self.sender:
            self._take([b"".join(chunks)])
        elif (link := self._links.get(self._came.get(sender, 0))) is not None:
            link.send(*chunks)

    def _failed_here(self, mesh: int, fault: dict[str, Any]) -> None:
        """An actor of this very process has failed."""
        running = self.executor.actors.get(mesh)
        if not isinstance(running, RunningActor):
            return
        record = running.record
        failure = failure_of(record, 0, fault, CONTROLLER)
        owner = Owner.parse(record.owner)
        if owner is not None and owner.host == CONTROLLER:
            self.executor.supervise(owner.mesh, failure)
        else:
            state = {"state": "failed", "fault": fault}
            event = {"rank": 0, "mesh": mesh, "name": record.name, "kind": "actors", "record": state}
            self._told({**event, "failure": failure, "at": time.time()})

    def request(self, method: str, message: Callable[[Any], Any], timeout: float | None = None) -> Future[Any]:
        """An RPC at the head; cut off by a restart of its daemon it is asked again, since all may be repeated."""
        return from_concurrent(asyncio.run_coroutine_threadsafe(self.ask(method, message(pb), timeout), self.io.loop))

    async def ask(self, method: str, message: Any, timeout: float | None = None, host: int = 0) -> Any:
        """The same as a coroutine, at any host."""
        until = self.io.loop.time() + self.times.reconnect_window
        while True:
            if self._over is not None:
                raise self._over
            if self._closed:
                raise detached(self.session)
            if (dialer := self._dialers.get(host)) is None:
                raise HostLost(f"host {host} has left session {self.session!r}", host=host)
            try:
                return await dialer.call(method, message, timeout)
            except ConnectionLost:
                if host in self._lost:
                    raise self._lost[host] from None
                if self.io.loop.time() > until:
                    raise
                await asyncio.sleep(0.05)

    def spawn(self, plan: SpawnPlan) -> Handle:
        """Start a mesh, or in a notebook find the one that an earlier run of the cell started (`decide`)."""
        if self.decide is not None and plan.record.hosts[0] != CONTROLLER:
            return self.decide(plan)
        return self.start(plan)

    def first_use(self, handle: Handle) -> None:
        """A notebook sends what its variables hold before the first call leaves."""
        if self.on_first_use is not None:
            self.on_first_use()

    def spawned(self, record: MeshRecord) -> None:
        """A mesh that was asked for here is live."""
        self.on_spawned(record)

    def proc_spec(self) -> dict[str, Any]:
        """New processes start as this one runs: same interpreter, directory, modules and (filtered) environment."""
        env = {**filtered_environment(proxies=True), **_config.for_children()}
        path = [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]
        return {
            "executable": sys.executable,
            "cwd": os.getcwd(),
            "sys_path": path,
            "env": env,
            "controllers_survive": self.controllers_survive,
        }

    def owns_hosts(self, hosts: Sequence[int]) -> bool:
        """Whether these are all of them, and it is no actor of this process that asks."""
        return self.owner() == "session" and set(hosts) == set(range(self.file.hosts))

    def on_their_way(self, kind: str) -> list[Handle]:
        """What this process spawns, and is not there yet."""
        handles = [handle for handle in self.all_handles() if handle.spawned_here and handle.record.kind == kind]
        return [handle for handle in handles if handle.ready is not None and not handle.ready.done()]

    def stop_hosts(self, *, release: bool) -> Future[None]:
        """Stop what the session has on its hosts; with `release` end the hosts, too."""

        def work() -> None:
            self.end_hosts(release)
            self.hosts_gone = self.hosts_gone or release

        return in_thread(work, "monarch-end-hosts")

    def own_procs(self) -> tuple[Handle, Region | None]:
        """This process, as a mesh of one."""
        if self._own is None:
            record = MeshRecord(id=new_id(), kind="procs", name="controller", hosts=(CONTROLLER,), owner="client")
            self._own = self.handle(record)
        return self._own, None

    def data_plane(self) -> tuple[bytes, str]:
        """Of a session on this machine, on the loopback."""
        addresses = [member.address for member in self.file.members]
        return dataplane.key(self.file.secret, self.sid), dataplane.address_towards(addresses)

    def show_logs(self, mesh: int, stream: bool, window: float | None) -> Future[None]:
        """In a script a mesh that is not streamed prints as its processes do; in a notebook it prints nothing."""
        if stream:
            return self.logs.set(mesh, Mode("streamed", window))
        return self.logs.set(mesh, QUIET if self.logs.notebook else PLAIN)

    def streams(self, wanted: bool) -> bool:
        """A script shows the lines in any case."""
        return wanted or not self.logs.notebook

    def flush_logs(self, mesh: int | None = None) -> Future[None]:
        """Done when all that ranks have printed until now is written."""
        return self.logs.flush(mesh)

    def close_calls(self, error: MonarchError) -> None:
        """Every call fails, later ones too."""
        self.caller.fail_all(error, broken=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


__all__ = ["Attached", "Controller", "Identity", "detached", "io_thread"]
