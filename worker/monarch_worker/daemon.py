"""The worker daemon of one host: ``python -m monarch_worker.daemon``, started and restarted by the keeper.

It holds nothing that its death would lose: registry, epoch and lease are blobs in the keeper, calls under way are
told again by the procs, and whoever dials it finds out by its number that it is a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import platform
import signal
import sys
import time
import traceback
from typing import Any

from monarch_kernel.errors import HostLost, MonarchError
from monarch_kernel.protocol import records
from monarch_kernel.protocol.frames import Record
from monarch_kernel.protocol.keeper import KeeperClient, KeeperGone, KeeperWatch
from monarch_kernel.protocol.records import CONTROLLER, Kind
from monarch_kernel.protocol.rpc import server
from monarch_kernel.protocol.sockets import SocketPipe, Take
from monarch_kernel.state.epoch import NONE
from monarch_kernel.state.times import TIMES
from monarch_worker.debugging import Debugging
from monarch_worker.health import Health
from monarch_worker.host import Host
from monarch_worker.lent import tie_to_lender
from monarch_worker.lifeline import tie_to_keeper, watch_keeper
from monarch_worker.listening import listen
from monarch_worker.peers import Caller, Other, Peers
from monarch_worker.procs import Proc, Procs
from monarch_worker.router import Router
from monarch_worker.service import HostService
from monarch_worker.spawning import Spawning

UNCLAIMED = 120.0
"""Seconds that a host waits for the first controller: whoever started it may have died before it could attach."""


class Daemon:
    """Puts the parts together and keeps time."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.router = Router(host, self._request)
        self.procs = Procs(host, self._from_proc, self._changed, self._proc_gone, self._send_log)
        self.peers = Peers(
            host,
            self.router.take,
            caller_gone=self._caller_gone,
            host_lost=self._host_lost,
            host_renewed=self.router.peer_renewed,
            caller_renewed=self.router.origin_renewed,
        )
        self.router.procs = self.procs
        self.procs.settled = self.router.nobody
        self.router.peers = self.peers
        self.peers.procs_by_sender = self._proc_by_sender
        self.peers.controller_changed = self._controller_changed
        self.spawning = Spawning(host, self.procs, self.router, self.peers, self.tell)
        self.router.supervise = self.spawning.supervisor.deliver
        self.health = Health(host, self.procs, self._changed)
        self.debugging = Debugging(host, self.peers, self.tell)
        self.router.debugging = self.debugging
        self.service = HostService(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watch: KeeperWatch | None = None
        self._lease_set: float | None = -1.0

    # -- wiring

    def _from_proc(self, proc: Proc, batch: list[Record]) -> None:
        self.router.take(proc, batch)

    def _proc_gone(self, proc: Proc) -> None:
        self.debugging.proc_gone(proc)
        self.router.proc_gone(proc)

    def _changed(self, decisions: Any) -> None:
        self.spawning.changed(decisions)

    def _request(self, proc: Proc | Other, record: Record) -> None:
        task = asyncio.get_running_loop().create_task(self.service.from_proc(proc, record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _proc_by_sender(self, sender: int) -> Proc | None:
        return next((proc for proc in self.procs.by_id.values() if proc.sender == sender), None)

    def _caller_gone(self, caller: Caller) -> None:
        self.router.origin_gone(caller)
        if caller.kind == "controller" and self.host.head:
            self.spawning.controller_gone()

    def _controller_changed(self) -> None:
        controller = self.peers.to(CONTROLLER)
        self.procs.logs.attach(controller.link.id if controller is not None else 0)

    def _send_log(self, what: dict[str, Any], payload: bytes) -> None:
        controller = self.peers.to(CONTROLLER)
        if controller is not None and controller.link.id == what["link"]:
            controller.send(*records.notice(Kind.LOG, {**what, "host": self.host.index}, payload))

    def _host_lost(self, host: int, error: MonarchError) -> None:
        lost = error if isinstance(error, HostLost) else HostLost(str(error), host=host)
        self.router.host_lost(host, lost)
        self.spawning.host_lost(host)
        self.spawning.supervisor.host_lost(host, lost)

    def tell(self, what: dict[str, Any]) -> None:
        """Tell the attached controller; what is a fault is kept for the next one when none is there."""
        what["host"] = self.host.index
        what["at"] = time.time()
        controller = self.peers.controller()
        if controller is not None:
            controller.send(*records.notice(Kind.EVENT, what))
        elif "failure" in what:
            self.host.fault(what)

    def log(self, error: BaseException) -> None:
        """Write an unexpected error to the daemon's log."""
        traceback.print_exception(error)
        sys.stderr.flush()

    # -- life

    async def run(self) -> None:
        """Serve until the keeper ends it."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._exception)
        self.procs.restore()
        await self.host.find_data_address()
        await self._listen()
        self._watch = self.host.keeper.watch(self.host.events_seen)
        loop.add_reader(self._watch.fileno(), self._keeper_events)
        self.spawning.resume()
        self.host.save()
        self.peers.dial()
        listening = await listen(self.host, self.service)
        tie_to_lender(self.host.config, self.release)
        grpc_server = server(self.host.secret, [self.service])
        address = self.host.addresses[self.host.index]
        path = address.removeprefix("unix:")
        forget_socket(path)
        old = os.umask(0o177)
        try:
            if grpc_server.add_insecure_port(address) == 0:
                raise RuntimeError(f"cannot listen on {address}")
            await grpc_server.start()
        finally:
            os.umask(old)
        await self._keep_time()
        del listening  # gRPC ends a server that nobody holds

    async def _listen(self) -> None:
        """Open the private socket, for procs and for controllers on this machine."""
        path = self.procs.socket
        if path is None:
            raise RuntimeError(f"{self.host.addresses[self.host.index]} is no address of a unix socket")
        forget_socket(path)
        old = os.umask(0o177)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_unix_server(lambda: SocketPipe(self._greeted, self._pipe_lost), path)
        finally:
            os.umask(old)

    def _greeted(self, pipe: SocketPipe, words: dict[str, Any]) -> Take | None:
        if pipe.peer()[1] != os.getuid():
            pipe.greet({"error": "AccessRefused", "text": "this is another user's session"})
            return None
        return self.procs.greeted(pipe, words) if "proc" in words else self.peers.greeted(pipe, words)

    def _pipe_lost(self, pipe: SocketPipe) -> None:
        if not self.peers.lost(pipe):
            self.procs.lost(pipe)

    def _exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        print(context.get("message"), file=sys.stderr)
        if error is not None:
            self.log(error)

    def _keeper_events(self) -> None:
        assert self._watch is not None
        try:
            events = self._watch.read(timeout=0)
        except KeeperGone:
            os._exit(1)
        for event in events:
            if event.get("ev") == "exit" and event.get("id") != "daemon":
                self.procs.exited(event)

    async def _keep_time(self) -> None:
        host, loop = self.host, asyncio.get_running_loop()
        started = time.monotonic()
        while True:
            now = time.monotonic()
            working = self.host.ledger.running + self.spawning.running
            host.lease.work(working, now)
            host.lease.peers(*self.peers.elsewhere(), now)
            self.peers.tell(self.peers.controller() is not None, working > 0)
            released = host.lease.tick(now, time.time())
            if released is None and host.gate.epoch == NONE and now - started > UNCLAIMED:
                released = host.lease.release("nobody attached to it after its start")
            if released is not None:
                self.release(released.reason)
                return
            host.keeper.lease(host.lease.deadline(now))
            host.save_lease()
            self.spawning.changed(host.participant.tick(loop.time()))
            self.health.tick()
            for caller in list(self.peers.callers.values()):
                self._pulse(caller)
            for proc in list(self.procs.by_id.values()):
                if proc.link.connected:
                    proc.link.pulse()
            await asyncio.sleep(TIMES.tick)

    def _pulse(self, caller: Caller) -> None:
        if caller.link.connected:
            caller.link.pulse()

    def release(self, reason: str) -> None:
        """End this host."""
        try:
            self.host.keeper.release(reason)
        except (ConnectionError, OSError) as error:
            self.log(error)


def forget_socket(path: str) -> None:
    """Remove the socket of the daemon before this one; the keeper sees to it that there is only one at a time."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


async def _main() -> None:
    keeper = KeeperClient(os.environ["MONARCH_KEEPER"])
    config = json.loads(keeper.get("config") or b"{}")
    if not config:
        raise SystemExit("the keeper has no configuration for a daemon")
    await Daemon(Host(keeper, config)).run()


def main() -> None:
    """Entry point."""
    tie_to_keeper()
    watch_keeper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the book of calls holds is no garbage, and a collector that looks through it every 700 objects costs a tenth.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    print(f"daemon {os.getpid()} starts, Python {platform.python_version()}", file=sys.stderr, flush=True)
    asyncio.run(_main())


if __name__ == "__main__":
    main()
