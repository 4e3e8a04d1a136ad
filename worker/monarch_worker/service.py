"""The Host service: what controllers, shells and other hosts ask of this daemon."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import grpc

from monarch_kernel.errors import ControllerPresent, MonarchError, SessionError
from monarch_kernel.protocol import WIRE, host_pb2_grpc, records
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol.faults import error_to_json
from monarch_kernel.protocol.frames import Record
from monarch_kernel.protocol.handshake import PYTHON, check_versions
from monarch_kernel.protocol.links import QueuePipe
from monarch_kernel.protocol.rpc import CLIENT_KEY, abort
from monarch_kernel.state.epoch import Epoch, Granted, Holder
from monarch_kernel.state.ledger import Entry
from monarch_kernel.state.records import MeshRecord, Owner
from monarch_kernel.state.spawn import Reply

if TYPE_CHECKING:
    from monarch_worker.daemon import Daemon
    from monarch_worker.peers import Other
    from monarch_worker.procs import Proc
    from monarch_worker.router import Router

_ALIVE_GRACE = 1.0
_ARRIVES = 2.0
"""Seconds that a controller has to dial its link after it was granted the session; nobody gets in between."""


def package_version() -> str:
    """Our own version, for people."""
    try:
        return version("monarch-kernel")
    except PackageNotFoundError:
        return "unknown"


class HostService(host_pb2_grpc.HostServicer):
    """Each method answers one RPC; errors of ours go to the caller as themselves."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.host = daemon.host
        self.before: Holder | None = None

    async def _run(self, context: Any, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except MonarchError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.daemon.log(error)
            what = f"host {self.host.index} could not do it: {type(error).__name__}: {error}"
            await abort(context, SessionError(what))

    def _client(self, context: Any) -> None:
        """Refuse what a controller asks that has the session no more. Shells and hosts name no client."""
        for key, value in context.invocation_metadata() or ():
            if key == CLIENT_KEY:
                self.daemon.peers.check(int(value))

    def _head(self) -> None:
        if not self.host.head:
            raise SessionError(f"host {self.host.index} is not the head of the session")

    # -- who is who

    async def Handshake(self, request: pb.HandshakeRequest, context: Any) -> pb.HandshakeReply:  # noqa: N802
        """Before anything else: versions and identity."""

        async def work() -> pb.HandshakeReply:
            check_versions({"wire": request.wire, "python": request.python})
            if request.sid != self.host.sid:
                raise SessionError("the session that the caller means is not here any more")
            return pb.HandshakeReply(
                wire=WIRE,
                python=PYTHON,
                package=package_version(),
                session=self.host.session,
                sid=self.host.sid,
                host=self.host.index,
                incarnation=self.host.incarnation,
                daemon=self.host.daemon,
                epoch=pb.Epoch(term=self.host.gate.epoch.term, count=self.host.gate.epoch.count),
            )

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Attach(self, request: pb.AttachRequest, context: Any) -> pb.AttachReply:  # noqa: N802
        """A controller takes the session: the head grants an epoch, the other hosts adopt it."""
        return await self._run(context, self._attach(request))  # type: ignore[no-any-return]

    async def _attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        host, gate = self.host, self.host.gate
        before = gate.holder
        label = describe(request.client)
        if request.HasField("epoch"):
            epoch = Epoch(request.epoch.term, request.epoch.count)
            gate.adopt(epoch, Holder(str(request.client.client), epoch, time.time(), label))
            if gate.holder is None or gate.holder.client != str(request.client.client):
                raise self.daemon.peers.taken_over()
        else:
            self._head()
            await self._hear_others()
            await self._grant(request, label)
        host.save()
        if before is not None and before.client != str(request.client.client):
            self.before = before
        self.daemon.peers.fence()
        faults = [json.dumps(fault).encode() for fault in host.faults]
        dropped = host.faults_dropped
        host.faults.clear()
        host.faults_dropped = 0
        reply = pb.AttachReply(
            epoch=pb.Epoch(term=gate.epoch.term, count=gate.epoch.count),
            registry=host.registry.to_blob(),
            calls=[call_info(entry, self.daemon.router) for entry in self._left_behind()],
            faults=faults,
            faults_dropped=dropped,
            lease=host.lease.describe(time.monotonic()),
        )
        if self.before is not None:
            reply.before.title = self.before.label
            reply.before_gone = self.daemon.peers.controller_gone_at
        return reply

    async def _hear_others(self) -> None:
        """A head that is new asks every host for the epoch it has seen before it grants one."""
        gate = self.host.gate
        for index in gate.waiting:
            other = self.daemon.peers.others.get(index)
            if other is None:
                continue
            request = pb.HandshakeRequest(wire=WIRE, python=PYTHON, sid=self.host.sid)
            answer = await other.dialer.call("Handshake", request, 10.0)
            gate.heard(index, Epoch(answer.epoch.term, answer.epoch.count))

    async def _grant(self, request: pb.AttachRequest, label: str) -> None:
        gate, peers = self.host.gate, self.daemon.peers
        client = str(request.client.client)
        until = asyncio.get_running_loop().time() + _ALIVE_GRACE
        while True:
            connected = peers.controller() is not None or self._arriving()
            verdict = gate.grant(client, request.takeover, connected, time.time(), label=label)
            if isinstance(verdict, Granted):
                return
            # A controller that was killed a moment ago may still look connected; and one that was granted the session
            # before this daemon was restarted may have left it since: whether it dials is seen soon.
            if verdict.why != "held":
                break
            waited = asyncio.get_running_loop().time() > until
            if waited and (peers.controller() is not None or not self._arriving()):
                break
            await asyncio.sleep(0.05)
        if verdict.why == "held" and verdict.holder is not None:
            since = time.strftime("%H:%M:%S", time.localtime(verdict.holder.since))
            raise ControllerPresent(
                f"session {self.host.session!r} is controlled by {verdict.holder.label}, connected since {since}. "
                f"To take it over: %monarch attach {self.host.session} --takeover (its calls go on, and it is told)"
            )
        raise SessionError(f"the head cannot grant control now ({verdict.why}); try again")

    def _arriving(self) -> bool:
        """Whether the controller that got the session last has yet to dial its link."""
        holder = self.host.gate.holder
        if holder is None or int(holder.client) == self.daemon.peers.arrived:
            return False
        return 0 <= time.time() - holder.since < _ARRIVES

    def _left_behind(self) -> list[Entry]:
        holder = self.host.gate.holder
        present = int(holder.client) if holder is not None else 0
        return [
            entry
            for entry in self.host.ledger.entries.values()
            if not entry.quiet
            and entry.key[0] != present
            and (entry.origin is None or getattr(entry.origin, "kind", "") == "controller")
        ]

    async def Detach(self, request: pb.DetachRequest, context: Any) -> pb.DetachReply:  # noqa: N802
        """A controller leaves, cleanly."""

        async def work() -> pb.DetachReply:
            number = request.client.client
            caller = self.daemon.peers.callers.get(("controller", number))
            self.host.lease.controller_gone(str(number), time.monotonic(), clean=True)
            if caller is not None:
                self.daemon.peers.gone(caller)
            gate = self.host.gate
            if gate.holder is not None and gate.holder.client == str(number):
                self.before = gate.holder
                self.daemon.peers.controller_gone_at = time.time()
            return pb.DetachReply(lease=self.host.lease.describe(time.monotonic()))

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        """How this host is. Needs no epoch."""
        host, gate = self.host, self.host.gate
        now = time.monotonic()
        left = host.lease.left(now)
        return pb.StatusReply(
            session=host.session,
            host=host.index,
            incarnation=host.incarnation,
            daemon=host.daemon,
            pid=os.getpid(),
            keeper_pid=host.keeper_pid,
            epoch=pb.Epoch(term=gate.epoch.term, count=gate.epoch.count),
            controller=pb.Client(title=gate.holder.label if gate.holder is not None else ""),
            controller_connected=self.daemon.peers.controller() is not None,
            lease=host.lease.describe(now),
            lease_left=-1.0 if left is None else left,
            registry=host.registry.to_blob(),
            calls=[call_info(entry, self.daemon.router) for entry in host.ledger.entries.values() if not entry.quiet],
            package=package_version(),
            slots=json.dumps(host.config["slots"]).encode(),
        )

    # -- meshes

    async def Spawn(self, request: pb.SpawnRequest, context: Any) -> pb.SpawnReply:  # noqa: N802
        """Spawn a mesh; on the head."""

        async def work() -> pb.SpawnReply:
            self._client(context)
            return await self.spawn(request)

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def spawn(self, request: pb.SpawnRequest) -> pb.SpawnReply:
        """The same for a proc of this host."""
        if not self.host.head:
            return await self.daemon.peers.at_head("Spawn", request)  # type: ignore[no-any-return]
        record = await self.daemon.spawning.spawn(request)
        return pb.SpawnReply(record=json.dumps(record.to_dict()).encode())

    async def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.PrepareReply:  # noqa: N802
        """This host's part of a spawn."""

        async def work() -> pb.PrepareReply:
            record = MeshRecord.from_dict(json.loads(request.record))
            return pb.PrepareReply(record=reply_json(await self.daemon.spawning.prepare(record, request.payload)))

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Decide(self, request: pb.DecideRequest, context: Any) -> pb.DecideReply:  # noqa: N802
        """Commit or undo this host's part."""

        async def work() -> pb.DecideReply:
            return pb.DecideReply(record=reply_json(await self.daemon.spawning.decide(request.mesh, request.commit)))

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:  # noqa: N802
        """Stop a mesh."""

        async def work() -> pb.StopReply:
            self._client(context)
            return await self.stop(request)

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def stop(self, request: pb.StopRequest) -> pb.StopReply:
        """The same for a proc of this host."""
        if request.here:
            return pb.StopReply(stopped=await self.daemon.spawning.stop_here(request.mesh, request.reason))
        if not self.host.head:
            return await self.daemon.peers.at_head("Stop", request)  # type: ignore[no-any-return]
        if (owner := Owner.parse(request.owner)) is not None:
            return pb.StopReply(stopped=await self.daemon.spawning.stop_owned(owner, request.reason))
        return pb.StopReply(stopped=await self.daemon.spawning.stop(request.mesh, request.reason))

    async def Restart(self, request: pb.RestartRequest, context: Any) -> pb.RestartReply:  # noqa: N802
        """Restart ranks."""

        async def work() -> pb.RestartReply:
            self._client(context)
            return await self.restart(request)

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def restart(self, request: pb.RestartRequest) -> pb.RestartReply:
        """The same for a proc of this host."""
        spawning = self.daemon.spawning
        if request.here:
            ranks = await spawning.restart_here(request.mesh, list(request.ranks), request.level)
        elif not self.host.head:
            return await self.daemon.peers.at_head("Restart", request)  # type: ignore[no-any-return]
        else:
            ranks = await spawning.restart(request.mesh, list(request.ranks), request.level)
        return pb.RestartReply(ranks=json.dumps(ranks).encode())

    async def Debug(self, request: pb.DebugRequest, context: Any) -> pb.DebugReply:  # noqa: N802
        """The ranks at a breakpoint, or a line for the debugger of one. A shell may ask too."""

        async def work() -> pb.DebugReply:
            self._client(context)
            return await self.debug(request)

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def debug(self, request: pb.DebugRequest) -> pb.DebugReply:
        """The same for a proc of this host."""
        if request.here:
            return await self.daemon.debugging.here(request)
        if not self.host.head:
            return await self.daemon.peers.at_head("Debug", request)  # type: ignore[no-any-return]
        return await self.daemon.debugging.everywhere(request)

    async def Log(self, request: pb.LogRequest, context: Any) -> pb.LogReply:  # noqa: N802
        """What a mesh of processes logs, and whether its lines are sent to the controller."""

        async def work() -> pb.LogReply:
            self._client(context)
            return await self.logging(request)

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def logging(self, request: pb.LogRequest) -> pb.LogReply:
        """The same for a proc of this host."""
        if not request.here:
            if not self.host.head:
                return await self.daemon.peers.at_head("Log", request)  # type: ignore[no-any-return]
            theirs = pb.LogRequest(mesh=request.mesh, stream=request.stream, level=request.level, here=True)
            others = [other for other in self.daemon.peers.others.values() if not other.lost]
            await asyncio.gather(*(other.dialer.call("Log", theirs, 10.0) for other in others))
        self.daemon.procs.logging(request.mesh, request.stream, request.level)
        return pb.LogReply()

    async def from_proc(self, proc: Proc | Other, record: Record) -> None:
        """A proc asks for an RPC over its own link; or a host that cannot dial the head over that of the head."""
        number, method, message = records.parse_request(record)
        handlers: dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]] = {
            "Spawn": (pb.SpawnRequest, self.spawn),
            "Stop": (pb.StopRequest, self.stop),
            "Restart": (pb.RestartRequest, self.restart),
            "Debug": (pb.DebugRequest, self.debug),
            "Log": (pb.LogRequest, self.logging),
        }
        try:
            kind, handler = handlers[method]
            answer = await handler(kind.FromString(bytes(message)))
        except Exception as error:
            if not isinstance(error, MonarchError):
                self.daemon.log(error)
            proc.send(records.response(number, ok=False), error_to_json(error))
        else:
            proc.send(records.response(number, ok=True), answer.SerializeToString())

    async def Bind(self, request: pb.BindRequest, context: Any) -> pb.BindReply:  # noqa: N802
        """The controller's names for meshes, and what a re-run orphaned."""

        async def work() -> pb.BindReply:
            self._client(context)
            words = json.loads(request.bindings)
            registry = self.host.registry
            if "variables" in words:
                registry.bind(words["variables"])
            for mesh, key in words.get("keys", {}).items():
                registry.rekey(int(mesh), key)
            registry.orphan(request.orphaned)
            self.host.save()
            return pb.BindReply()

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Revise(self, request: pb.ReviseRequest, context: Any) -> pb.ReviseReply:  # noqa: N802
        """Other times for the lease."""

        async def work() -> pb.ReviseReply:
            self._client(context)
            lease = self.host.lease
            lease.update(request.lease or lease.lease, request.max_detached or lease.max_detached, time.monotonic())
            self.host.save_lease()
            return pb.ReviseReply(lease=lease.describe(time.monotonic()))

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Hosts(self, request: pb.HostsRequest, context: Any) -> pb.HostsReply:  # noqa: N802
        """The session has grown or shrunk."""

        async def work() -> pb.HostsReply:
            self._client(context)
            self.daemon.peers.grow(request.addresses)
            await self.host.find_data_address()
            return pb.HostsReply()

        return await self._run(context, work())  # type: ignore[no-any-return]

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:  # noqa: N802
        """End this host: everything of ours on it."""
        self._client(context)
        asyncio.get_running_loop().call_later(0.05, self.daemon.release, request.reason or "released")
        return pb.ReleaseReply()

    # -- the link

    async def Messages(self, requests: Any, context: Any) -> None:  # noqa: N802
        """A stream that carries a link."""
        first = await context.read()
        if first is grpc.aio.EOF:
            return
        loop = asyncio.get_running_loop()
        try:
            try:
                words = dict(json.loads(first.data))
            except (TypeError, ValueError):
                words = {}
            caller, answer, resumed = self.daemon.peers.greet(words)
        except MonarchError as error:
            await context.write(pb.Frame(data=error_to_json(error)))
            return
        await context.write(pb.Frame(data=json.dumps(answer).encode()))
        task = asyncio.current_task()
        assert task is not None

        async def write(data: bytes) -> None:
            await context.write(pb.Frame(data=data))

        pipe = QueuePipe(loop, write, task.cancel)
        link = caller.link
        try:
            self.daemon.peers.joined(caller, pipe, words["received"] if resumed else 0)
            while (frame := await context.read()) is not grpc.aio.EOF:
                link.feed(frame.data)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self.daemon.log(error)
        finally:
            if link.down(pipe) or caller.link is not link:
                self.daemon.peers.cut(caller) if caller.link is link else None


def reply_json(reply: Reply) -> bytes:
    """A participant's answer."""
    data = {"mesh": reply.mesh, "generation": reply.generation, "answer": reply.answer}
    fault = dataclasses.asdict(reply.fault) if reply.fault is not None else None
    return json.dumps({**data, "fault": fault}).encode()


def call_info(entry: Entry, router: Router) -> pb.CallInfo:
    """A call of the book."""
    sender, mesh, number = entry.key
    return pb.CallInfo(
        sender=sender,
        mesh=mesh,
        number=number,
        endpoint=entry.endpoint,
        started=entry.started,
        ranks=router.whole(entry),
        done=sorted(entry.answers),
        failed=sorted(entry.failed or ()),
        region=entry.region,
        kept_bytes=entry.kept_bytes,
        dropped=entry.dropped,
    )


def describe(client: pb.Client) -> str:
    """A controller in words."""
    title = f" of {client.title}" if client.title else ""
    return f"{client.kind or 'client'} {client.pid}{title} on {client.hostname or 'an unnamed host'}"
