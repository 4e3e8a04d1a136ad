"""The other ends of this daemon's links: controllers that dialled in, hosts that did, and hosts that it dials."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from monarch_kernel.errors import AccessRefused, ConnectionLost, HostLost, MonarchError, SessionEnded, TakenOver
from monarch_kernel.protocol import records
from monarch_kernel.protocol.dial import DialledLink, lost_host
from monarch_kernel.protocol.faults import error_to_json
from monarch_kernel.protocol.frames import Record
from monarch_kernel.protocol.handshake import check_versions, versions
from monarch_kernel.protocol.links import Pipe, ResumableLink
from monarch_kernel.protocol.records import CONTROLLER, Kind
from monarch_kernel.protocol.rpc import Dialer, Stream
from monarch_kernel.protocol.sockets import SocketPipe, Take
from monarch_kernel.state.epoch import Epoch
from monarch_kernel.state.times import TIMES, Times
from monarch_worker.asking import Asking
from monarch_worker.host import Host

DIALS = "-"
"""In place of an address: that host is not dialled, and dials."""


class Caller:
    """A controller or another host that dialled in."""

    def __init__(self, kind: str, number: int, link: ResumableLink, title: str) -> None:
        self.kind = kind
        self.id = number
        self.link = link
        self.title = title
        self.timer: asyncio.TimerHandle | None = None

    def send(self, *chunks: Record) -> None:
        """Send it a record."""
        self.link.send(*chunks)


def keeper_gone(address: str) -> bool:
    """Whether the keeper beside a daemon's unix socket is gone for good; of a host elsewhere nothing is known."""
    if not address.startswith("unix:"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.path.join(os.path.dirname(address.removeprefix("unix:")), "keeper.sock"))
        except (FileNotFoundError, ConnectionRefusedError):
            return True
        except OSError:  # busy or stopped: it is there
            return False
    return False


class Other:
    """A host that this daemon dials."""

    kind = "host"

    def __init__(self, index: int, dialer: Dialer, link: DialledLink) -> None:
        self.id = index
        self.dialer = dialer
        self.link = link
        self.lost: MonarchError | None = None

    def send(self, *chunks: Record) -> None:
        """Send it a record."""
        self.link.send(*chunks)


class Peers:
    """All of them.

    Parameters
    ----------
    take
        Takes the records of any of them.
    """

    def __init__(
        self,
        host: Host,
        take: Callable[[Any, list[Record]], None],
        *,
        caller_gone: Callable[[Caller], None],
        host_lost: Callable[[int, MonarchError], None],
        host_renewed: Callable[[int], None],
        caller_renewed: Callable[[Caller], None],
        times: Times | None = None,
    ) -> None:
        self.host = host
        self.times = times or TIMES
        self.callers: dict[tuple[str, int], Caller] = {}
        self.others: dict[int, Other] = {}
        self._take = take
        self._caller_gone = caller_gone
        self._host_lost = host_lost
        self._host_renewed = host_renewed
        self._caller_renewed = caller_renewed
        self._loop = asyncio.get_running_loop()
        self.controller_gone_at = 0.0
        self.arrived = 0  # the controller that dialled its link last
        self._pipes: dict[SocketPipe, Caller] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.asking = Asking(self._to_head)
        self._heard: dict[int, tuple[bool, bool, float]] = {}
        self.procs_by_sender: Callable[[int], Any] = lambda sender: None
        self.controller_changed: Callable[[], None] = lambda: None  # one has come, or one will not come back

    # -- who is there

    def to(self, host: int) -> Any:
        """What takes a record to another host (or to the attached controller); None when it is lost."""
        if host == CONTROLLER:
            holder = self.host.gate.holder
            return self.callers.get(("controller", int(holder.client))) if holder is not None else None
        other = self.others.get(host)
        if other is None:  # one that this host does not dial, and that dials it
            return self.callers.get(("host", host))
        return other if other.lost is None else None

    async def at_head(self, method: str, request: Any) -> Any:
        """An RPC at the head, which bounds it."""
        if (head := self.others.get(0)) is not None:
            return await head.dialer.call(method, request, None)
        return await self.asking.ask(method, request)

    def _to_head(self, *chunks: Record) -> None:
        if (head := self.callers.get(("host", 0))) is None:
            raise HostLost(f"the head of session {self.host.session!r} is lost", host=0)
        head.send(*chunks)

    def caller(self, sender: int) -> Any:
        """Who a sender's number belongs to; None for one that is not here."""
        return self.callers.get(("controller", sender)) or self.procs_by_sender(sender)

    def controller(self) -> Caller | None:
        """The controller whose link stands, if any."""
        holder = self.host.gate.holder
        caller = self.callers.get(("controller", int(holder.client))) if holder is not None else None
        return caller if caller is not None and caller.link.connected else None

    # -- dialling

    def dial(self) -> None:
        """Dial the other hosts."""
        for index, address in enumerate(self.host.addresses):
            if index != self.host.index:
                self._reach(index, address)

    def _reach(self, index: int, address: str) -> None:
        if address == DIALS:
            if ("host", index) not in self.callers:
                # What is sent to it meanwhile is told again once it has: on a link of its own.
                caller = self.callers["host", index] = Caller("host", index, self._link(("host", index), 0), "")
                self.cut(caller)
        elif address:
            self._dial(index, address)

    def _dial(self, index: int, address: str) -> None:
        other: Other

        def lost(error: MonarchError) -> None:
            now = self._loop.time()
            gone = lost_host(self.host.session, index, now - (other.link.link.cut_at or now), error)
            other.lost = gone
            self._host_lost(index, gone)

        def back() -> None:
            other.lost = None
            self._host_renewed(index)  # what came up meanwhile did not go there

        def refused(error: MonarchError) -> None:
            other.lost = error

        dialer = Dialer(address, self.host.secret)
        other = self.others[index] = Other(
            index,
            dialer,
            DialledLink(
                lambda: Stream(dialer, self._loop),
                lambda: {"role": "host", "id": self.host.index, **versions(), "sid": self.host.sid},
                lambda batch: self._take(other, batch),
                renewed=lambda: self._host_renewed(index),
                lost=lost,
                back=back,
                refused=refused,
                ended=lambda: keeper_gone(address),
                times=self.times,
            ),
        )

    def grow(self, addresses: Mapping[int, str]) -> None:
        """The session has other hosts from now on; an empty address is of one that has left."""
        known = self.host.addresses
        for index, address in sorted(addresses.items()):
            if index == self.host.index:
                continue
            known.extend("" for _ in range(index + 1 - len(known)))
            if known[index] == address:
                continue
            known[index] = address
            self._left(index)
            self._reach(index, address)
        self.host.save_hosts()

    def _left(self, index: int) -> None:
        other = self.others.get(index)
        if other is not None and other.lost is None:
            other.lost = HostLost(f"host {index} has left session {self.host.session!r}", host=index)
            self._host_lost(index, other.lost)
        if (caller := self.callers.get(("host", index))) is not None:
            self.gone(caller)
        if other is None:
            return

        async def close() -> None:
            await other.link.close()
            await other.dialer.close()

        task = self._loop.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def tell(self, attached: bool, working: bool) -> None:
        """Tell the other hosts whether a controller is attached here and calls run here."""
        dialled_only = [c for (kind, n), c in self.callers.items() if kind == "host" and n not in self.others]
        there: list[Other | Caller] = [*self.others.values(), *dialled_only]
        for other in there:
            if other.link.connected:
                other.send(*records.notice(Kind.PULSE, {"attached": attached, "working": working}))

    def heard(self, origin: Any, what: dict[str, Any]) -> None:
        """Another host said how it is."""
        if origin.kind == "host":
            self._heard[origin.id] = (what["attached"], what["working"], self._loop.time())

    def elsewhere(self) -> tuple[bool, bool]:
        """Whether a controller is attached to another host, and calls run on one, as far as heard of late."""
        now = self._loop.time()
        fresh = [heard for heard in self._heard.values() if now - heard[2] < self.times.reconnect_window]
        return any(attached for attached, _, _ in fresh), any(working for _, working, _ in fresh)

    # -- dialled

    def greet(self, words: dict[str, Any]) -> tuple[Caller, dict[str, Any], bool]:
        """A stream begins: whose it is, what to answer, whether the link goes on. Raises errors of ours to refuse."""
        check_versions(words)
        if words.get("sid") != self.host.sid:
            raise SessionEnded("the session that the caller means is not here any more")
        try:
            role, number, link = str(words["role"]), int(words["id"]), int(words["link"])
            epoch = Epoch(*map(int, words["epoch"])) if role == "controller" else None
            received = int(words["received"])
        except (KeyError, TypeError, ValueError):
            role = ""
        if role not in ("controller", "host") or received < 0:
            raise AccessRefused("this is no greeting of a controller or a host")
        if epoch is not None:
            self.check(number)
            verdict = self.host.gate.admit(epoch)
            if type(verdict).__name__ == "Refused":
                raise self.taken_over()
        caller = self.callers.get((role, number))
        resumed = caller is not None and caller.link.id == link
        if caller is None:
            caller = Caller(role, number, self._link((role, number), link), str(words.get("title", "")))
            self.callers[(role, number)] = caller
        elif not resumed:
            caller.link.close()
            caller.link = self._link((role, number), link)
        if caller.timer is not None:
            caller.timer.cancel()
            caller.timer = None
        if not resumed:
            self._caller_renewed(caller)
            if role == "host" and number not in self.others:
                self._host_renewed(number)
                if number == 0:
                    self.asking.again()
        answer = {
            "resumed": resumed,
            "received": caller.link.state.got,
            "daemon": self.host.daemon,
            "incarnation": self.host.incarnation,
        }
        return caller, answer, resumed

    def greeted(self, pipe: SocketPipe, words: dict[str, Any]) -> Take | None:
        """A controller on this machine dialled the private socket."""
        if not hmac.compare_digest(str(words.get("secret", "")).encode(), self.host.secret.encode()):
            pipe.greet({"error": "AccessRefused", "text": "wrong session secret: the caller is not of this session"})
            return None
        try:
            caller, answer, resumed = self.greet(words)
        except MonarchError as error:
            pipe.greet(json.loads(error_to_json(error)))
            return None
        pipe.greet(answer)
        self.joined(caller, pipe, words["received"] if resumed else 0)
        self._pipes[pipe] = caller
        return caller.link.feed

    def lost(self, pipe: SocketPipe) -> bool:
        """A stream of the private socket ended; whether it was a controller's."""
        caller = self._pipes.pop(pipe, None)
        if caller is None:
            return False
        if caller.link.down(pipe):
            self.cut(caller)
        return True

    def joined(self, caller: Caller, pipe: Pipe, received: int) -> None:
        """A stream carries a caller's link from now on."""
        caller.link.up(pipe, received)
        if caller.kind == "controller":
            self.arrived = caller.id
            self.host.lease.controller_connected(str(caller.id), time.monotonic())
            self.controller_changed()

    def _link(self, key: tuple[str, int], number: int) -> ResumableLink:
        return ResumableLink(self._loop, lambda batch: self._take(self.callers[key], batch), number)

    def cut(self, caller: Caller) -> None:
        """A caller's stream ended. It may be back within the window."""
        if self.callers.get((caller.kind, caller.id)) is not caller:
            return
        if caller.kind == "controller":
            self.host.lease.controller_gone(str(caller.id), time.monotonic(), clean=False)
            self.controller_gone_at = time.time()
        if caller.timer is None:
            caller.timer = self._loop.call_later(self.times.reconnect_window, self.gone, caller)

    def gone(self, caller: Caller) -> None:
        """A caller will not come back."""
        if self.callers.get((caller.kind, caller.id)) is caller:
            del self.callers[(caller.kind, caller.id)]
        if caller.timer is not None:
            caller.timer.cancel()
        cut_at = caller.link.cut_at
        caller.link.close()
        self._caller_gone(caller)
        if caller.kind == "host" and caller.id not in self.others:
            cut_for = 0.0 if cut_at is None else self._loop.time() - cut_at
            lost = lost_host(self.host.session, caller.id, cut_for, ConnectionLost("it dials this host no more"))
            if caller.id == 0:
                self.asking.lost(lost)
            self._host_lost(caller.id, lost)
        if caller.kind == "controller":
            self.controller_changed()

    # -- one controller

    def check(self, client: int) -> None:
        """Refuse a controller that is not the one the session has."""
        holder = self.host.gate.holder
        if holder is not None and int(holder.client) != client:
            raise self.taken_over()

    def taken_over(self) -> TakenOver:
        """What a controller that is none any more is told."""
        holder = self.host.gate.holder
        if holder is None:
            return TakenOver("another controller has this session")
        when = time.strftime("%H:%M:%S", time.localtime(holder.since))
        return TakenOver(
            f"session {self.host.session!r} was taken over by {holder.label} at {when}; its meshes live on there. "
            "To take it back: %monarch attach --takeover"
        )

    def fence(self) -> None:
        """Another controller has the session: end the links of earlier ones."""
        holder = self.host.gate.holder
        for caller in [c for (kind, n), c in self.callers.items() if kind == "controller"]:
            if holder is None or caller.id != int(holder.client):
                self.gone(caller)
