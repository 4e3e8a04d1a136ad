"""One process of a mesh: ``python -m monarch_worker.proc``, started by the keeper: a thin main around `actor`.

The main thread carries the I/O loop and one link to the host's daemon; actors have threads of their own.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from monarch_kernel.actor import _config
from monarch_kernel.actor._context import Instance, set_client
from monarch_kernel.actor._debugger import Breakpoints
from monarch_kernel.actor._future import Future
from monarch_kernel.actor._handle import Handle
from monarch_kernel.actor._ids import ActorAddr, Uid, as_label
from monarch_kernel.actor._lifecycle import EXIT_WITHIN, cleanup_within
from monarch_kernel.actor._logging import prefix_records, set_level
from monarch_kernel.actor._meshes import ProcMesh
from monarch_kernel.actor._ndslice import NDSlice
from monarch_kernel.actor._provider import set_runtime
from monarch_kernel.actor._region import Region
from monarch_kernel.actor._runtime import Runtime
from monarch_kernel.protocol import records
from monarch_kernel.protocol.faults import error_from_json
from monarch_kernel.protocol.frames import Record
from monarch_kernel.protocol.links import ResumableLink, new_id
from monarch_kernel.protocol.loop import IOThread
from monarch_kernel.protocol.records import Kind
from monarch_kernel.protocol.sockets import SocketPipe, Take
from monarch_kernel.state.records import MeshRecord
from monarch_kernel.state.times import TIMES
from monarch_worker.lifeline import tie_to_keeper, watch_keeper

_BACK_OFF = 0.02  # a daemon of this host is back in a tenth of a second, and a call may be waiting


class ProcRuntime(Runtime):
    """The runtime of a proc: everything goes through the daemon of its host."""

    def __init__(self, io: IOThread, me: dict[str, Any]) -> None:
        super().__init__(io, session=me["session"], sid=me["sid"], host=me["host"], controller=False)
        self.me = me
        self.incarnations[me["host"]] = me["incarnation"]
        self.record = MeshRecord.from_dict(me["record"])
        self.link = ResumableLink(io.loop, self._take, new_id())
        self.controllers_survive = bool(self.record.spec.get("controllers_survive"))
        self._requests: dict[int, tuple[str, bytes, Future[Any], Any]] = {}
        self._request_number = 0
        self._carried = False
        self._created: dict[int, dict[str, Any]] = {}
        self._lost = asyncio.Event()
        self.breakpoints = Breakpoints(lambda what: self.executor.tell(what, Kind.DEBUG), (me["mesh"], me["rank"]))
        self.executor.breakpoints = self.breakpoints
        self._data_plane = (b"", "")

    # -- what actors ask for

    def send(self, host: int, *chunks: Any) -> None:
        """Everything goes to the daemon."""
        self.link.send(*chunks)

    def send_from(self, host: int, *chunks: Any) -> None:
        """The same, from any thread."""
        self.link.send_from(*chunks, at_once=True)

    def _answer(self, sender: int, at_once: bool, *chunks: Any) -> None:
        if chunks[0][0] == Kind.CREATED:
            what = records.parse_notice(chunks[0])[0]
            if what["state"] != "stopped":
                self._created[what["mesh"]] = what
            else:  # by itself, as far as the daemon knows; of one that has failed the daemon sees to it
                self.end_owned(what["mesh"], what["rank"], "the actor that owned it was stopped")
        self.link.send_from(*chunks, at_once=at_once)

    def request(self, method: str, message: Callable[[Any], Any], timeout: float | None = None) -> Future[Any]:
        """An RPC through the daemon."""
        from monarch_kernel.protocol import host_pb2 as pb

        future: Future[Any] = Future()
        data = message(pb).SerializeToString()
        answer = getattr(pb, method + "Reply")
        self.io.post(self._ask, method, data, future, answer)
        return future

    def _ask(self, method: str, data: bytes, future: Future[Any], answer: Any) -> None:
        self._request_number += 1
        self._requests[self._request_number] = (method, data, future, answer)
        self.link.send(records.request(self._request_number, method), data)

    def proc_spec(self) -> dict[str, Any]:
        """New processes start as this one was started."""
        env = {key: value for key, value in os.environ.items() if key not in ("MONARCH_PROC", "MONARCH_KEEPER")}
        env.update(_config.for_children())
        # Not sys.executable: that may be what a wrapper has exec'ed, or what a command of this mesh's own has run.
        spec = self.record.spec
        return {
            "executable": spec.get("executable") or sys.executable,
            "cwd": os.getcwd(),
            "sys_path": list(sys.path),
            "env": env,
            "controllers_survive": self.controllers_survive,
        }

    def stop_hosts(self, *, release: bool) -> Future[None]:
        """Never asked: an actor owns no hosts."""
        raise NotImplementedError

    def own_procs(self) -> tuple[Handle, Region | None]:
        """This rank of its mesh."""
        handle = self.handle(self.record)
        return handle, handle.region.sliced(dict(handle.region.point(self.me["rank"])))

    def data_plane(self) -> tuple[bytes, str]:
        """As the daemon said: no actor is made before it has greeted."""
        return self._data_plane

    def _procs_of(self, mesh: MeshRecord) -> ProcMesh:
        """The processes that a mesh of actors was spawned on, in its shape."""
        ranks, strides, step = mesh.proc_ranks, [], len(mesh.proc_ranks)
        for size in mesh.sizes:
            step //= size
            strides.append(ranks[step] - ranks[0] if size > 1 else 0)
        region = Region(mesh.labels, NDSlice(offset=ranks[0], sizes=mesh.sizes, strides=strides))
        return ProcMesh(self.handle(self.record), region)

    # -- what comes

    def _take(self, batch: list[Record]) -> None:
        for record in batch:
            kind = record[0]
            if kind == Kind.CALL:
                self.executor.on_call(record)
            elif kind == Kind.REPLY:
                self.caller.on_reply(record)
            elif kind == Kind.RELEASE:
                self.executor.on_release(record)
            elif kind == Kind.STABLE:
                self.caller.on_stable(record)
            elif kind == Kind.CREATE:
                what, payload = records.parse_notice(record)
                mesh = MeshRecord.from_dict(what["record"])
                self._created.pop(mesh.id, None)
                self.breakpoints.stop(mesh.id)
                self.executor.create(mesh, what["rank"], payload, self._procs_of(mesh), again=what["again"])
            elif kind == Kind.STOP:
                self._stop(records.parse_notice(record)[0])
            elif kind == Kind.SUPERVISE:
                what, _ = records.parse_notice(record)
                self.executor.supervise(what["owner"][0], what["failure"])
            elif kind == Kind.LOG:
                set_level(records.parse_notice(record)[0]["level"])
            elif kind == Kind.RESPONSE:
                self._responded(record)
            elif kind == Kind.WAIT:
                self.watch.heard(record)
            elif kind == Kind.DEBUG:
                self.breakpoints.heard(records.parse_notice(record)[0])

    def _stop(self, what: dict[str, Any]) -> None:
        mesh = what["mesh"]
        if mesh == 0:
            self._end(what["reason"])
            return
        self._created.pop(mesh, None)
        self.breakpoints.stop(mesh)
        if mesh in self.executor.actors:
            self.executor.stop(mesh, what["reason"])
        else:  # gone by itself before
            self.executor.tell({"mesh": mesh, "rank": what["rank"], "state": "stopped"}, Kind.CREATED)

    def _end(self, reason: str) -> None:
        """This process is to end: its actors clean up, and it exits as a program does, so that finalizers run."""
        left = self.executor.stop_all(reason)

        def one_over() -> None:
            if all(over.done() for over in left):
                self.io.post(leave)

        def leave() -> None:
            self.link.flush()
            # A thread that goes on, or a library's own way of ending, must not keep it.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, EXIT_WITHIN)
            self.io.loop.call_later(0.01, self.io.loop.stop)

        self.io.loop.call_later(cleanup_within(), leave)
        for over in left:
            over._when_done(one_over)
        if not left:
            leave()

    def _responded(self, record: Record) -> None:
        number, ok, body = records.parse_response(record)
        found = self._requests.pop(number, None)
        if found is None:
            return
        _, _, future, answer = found
        if ok:
            reply = answer.FromString(bytes(body))
            future._resolve(lambda: reply)
        else:
            future._fail(error_from_json(body))

    # -- the link

    async def keep_linked(self) -> None:
        """Connect to the daemon, and again to the next one, for as long as this process lives."""
        loop = asyncio.get_running_loop()
        self.io.spawn(self._pulses())
        back_off = _BACK_OFF
        while True:
            self._lost.clear()
            try:
                _, pipe = await loop.create_unix_connection(
                    lambda: SocketPipe(self._greeted, self._pipe_lost), self.me["socket"]
                )
                pipe.greet(self._greeting())
                await self._lost.wait()
                back_off = _BACK_OFF
            except OSError:
                pass
            await asyncio.sleep(back_off)
            back_off = min(2 * back_off, TIMES.back_off_most)

    def _greeting(self) -> dict[str, Any]:
        return {
            "proc": f"{self.me['mesh']:x}.{self.me['rank']}",
            "sender": self.sender,
            "link": self.link.id,
            "received": self.link.state.got,
            "actors": list(self.executor.actors),
            "created": list(self._created.copy().values()),
            "cleanup_within": cleanup_within(),
        }

    def _greeted(self, pipe: SocketPipe, words: dict[str, Any]) -> Take | None:
        if "error" in words:
            os._exit(0)  # the daemon knows this process no more: it was restarted elsewhere, or its mesh was stopped
        self._data_plane = bytes.fromhex(words["data_key"]), words["data_address"]
        fresh = not words["resumed"] and self._carried
        if fresh:
            self.link.close()
            self.link = ResumableLink(self.io.loop, self._take, self.link.id)
        self._carried = True
        self.link.up(pipe, 0 if fresh else words["received"])
        if fresh:
            self._tell_again()
        return self.link.feed

    def _tell_again(self) -> None:
        """A daemon that was restarted knows nothing: calls under way, answers not confirmed, requests not answered."""
        under_way = self.executor.under_way()
        if under_way:
            self.link.send(*records.notice(Kind.PULSE, {"under_way": under_way}))
        for _, chunks in self.executor.unreleased():
            self.link.send(*chunks)
        for what in self.breakpoints.standing():
            self.link.send(*records.notice(Kind.DEBUG, what))
        self.caller.resend(self.host)
        for number, (method, data, _, _) in self._requests.items():
            self.link.send(records.request(number, method), data)

    def _pipe_lost(self, pipe: SocketPipe) -> None:
        self.link.down(pipe)
        self._lost.set()

    async def _pulses(self) -> None:
        while True:
            await asyncio.sleep(TIMES.heartbeat)
            self.link.pulse()


def main() -> None:
    """Entry point."""
    tie_to_keeper()
    me = json.loads(os.environ.pop("MONARCH_PROC"))
    watch_keeper()
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a log that lacks the last lines is none
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for path in me["sys_path"]:
        if path not in sys.path:
            sys.path.append(path)
    io = IOThread("proc")
    runtime = ProcRuntime(io, me)
    set_runtime(runtime)
    runtime.breakpoints.install()
    prefix_records()
    if (level := runtime.record.spec.get("log_level")) is not None:
        set_level(level)
    name = f"{runtime.record.name}[{me['rank']}]"
    extent = Region.row_major(runtime.record.labels, runtime.record.sizes)
    proc = Uid.instance_from_value((me["mesh"] + me["rank"]) % 2**64, as_label(f"{runtime.record.name}-{me['rank']}"))
    agent = ActorAddr.of(Uid.from_string("agent"), proc, f"inproc://{runtime.host}")
    set_client(Instance(extent.point(me["rank"]), name, "Proc", agent))
    io.loop.create_task(runtime.keep_linked())
    gc.freeze()  # what is loaded by now stays; the collector need not look at it again
    io.serve()


if __name__ == "__main__":
    main()
