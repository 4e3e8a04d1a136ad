"""How a session gets hosts that worker loops lend it, and gives them back."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..actor import _config
from ..actor._future import Future, from_concurrent
from ..errors import ConnectionLost, HostLost, MonarchError
from ..protocol import host_pb2 as pb
from ..protocol import statefile
from ..protocol.statefile import Member
from ..protocol.workers import WorkerAddress, bracketed, parse_worker_address
from ._lender import Line, ask

if TYPE_CHECKING:
    from ._controller import Controller

ANSWERS = 15.0
"""Seconds that a host has to take note of the others."""
DIALS = "-"
"""In place of the address of a host that is not to be dialled, and dials."""
THERE = 2.0
"""Seconds that a worker loop which was there has to answer: one that is not will not come."""


class Growth:
    """The hosts that are lent to the session of a controller.

    Attributes
    ----------
    through
        The address of the worker loop to which a connection is kept; empty: to none.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._file = controller.file
        self._secrets: dict[int, bytes] = {}
        self._changing = asyncio.Lock()  # of the addresses that all hosts have of each other
        self._reserving = threading.Lock()
        self._line: Line | None = None
        self.through = ""

    # -- from any thread

    def hold(self, worker: WorkerAddress) -> None:
        """Connect to a worker loop, and keep the connection for what is asked of it later."""
        patience = _config.seconds("mesh_attach_config_timeout")
        self._line = self._controller.io.run(Line.open(worker, b"", patience), patience + 5.0)
        self.through = str(worker)

    def reserve(self, count: int) -> range:
        """Indices for so many hosts; none is ever given twice."""
        with self._reserving:
            file = self._file
            first = max(file.next_host, file.hosts, *(member.index + 1 for member in file.members))
            file.next_host = first + count
            return range(first, first + count)

    def attach(self, hosts: range, workers: Sequence[str | Future[str]], secret: bytes) -> Future[bool]:
        """Begin to have the workers join; done once they all are hosts of the session."""
        patience = _config.seconds("mesh_attach_config_timeout")
        work = self._attach(hosts, workers, secret, patience)
        return from_concurrent(asyncio.run_coroutine_threadsafe(work, self._controller.io.loop))

    # -- on the I/O thread

    async def _attach(self, hosts: range, workers: Sequence[str | Future[str]], secret: bytes, patience: float) -> bool:
        async def join(index: int, worker: str | Future[str]) -> Member:
            address = parse_worker_address(worker if isinstance(worker, str) else await _brought(worker))
            try:
                return await self._join(index, address, secret, patience)
            except MonarchError as error:
                raise _NotThere(address, error) from None

        found = await asyncio.gather(*map(join, hosts, workers), return_exceptions=True)
        members = [member for member in found if isinstance(member, Member)]
        try:
            if failed := [error for error in found if isinstance(error, BaseException)]:
                raise failed[0]
            async with self._changing:
                await self._add(members)
        except BaseException as error:
            await self._withdraw({member.index for member in members} & {m.index for m in self._file.members})
            await self._back(members, shut_down=False)
            if isinstance(error, _NotThere):
                raise _failed([each for each in found if isinstance(each, _NotThere)]) from None
            if isinstance(error, MonarchError):
                raise RuntimeError(f"attach failed: {error}") from error
            raise
        return True

    async def _join(self, index: int, worker: WorkerAddress, secret: bytes, patience: float) -> Member:
        file = self._file
        words = {
            "do": "join",
            "sid": file.sid,
            "name": file.name,
            "secret": file.secret,
            "host": index,
            "lease": file.lease,
            "max_detached": file.max_detached,
            "private": file.name.startswith("local-"),
            "executable": sys.executable,
        }
        there = await self._ask(worker, secret, words, patience)
        self._secrets[index] = secret
        mine = [statefile.machine_id(), statefile.boot_id(), statefile.pid_namespace(), os.getuid()]
        here = there["machine"] == mine
        tcp = worker.kind == "tcp"
        return Member(
            index=index,
            address=f"{bracketed(worker.host)}:{there['port']}" if tcp else there["address"],
            keeper_socket=there["keeper_socket"] if here else "",
            keeper_pid=there["keeper_pid"] if here else 0,
            keeper_start=there["keeper_start"] if here else 0,
            incarnation=there["incarnation"],
            worker=str(worker),
        )

    async def _ask(
        self, worker: WorkerAddress, secret: bytes, words: dict[str, Any], patience: float
    ) -> dict[str, Any]:
        if self._line is not None and self.through == str(worker):
            try:
                return await self._line.say(words)
            except ConnectionLost:
                self._line = None  # it may answer anew
        return await ask(worker, secret, words, patience)

    async def _add(self, members: list[Member]) -> None:
        """Make them hosts of the session: for this controller, for the other hosts, and on file."""
        self._file.members.extend(members)
        await self._controller.greet(members)
        await self._tell()
        statefile.save(self._file)
        await self._controller.linked(member.index for member in members)

    async def _tell(self, *gone: int) -> None:
        """Tell every host which others it dials, and which are gone."""
        members = self._file.members

        async def tell(to: Member) -> None:
            addresses = dict.fromkeys(gone, "")
            for member in members:
                if member.index != to.index:
                    # The hosts of this machine listen on no network: those of others are dialled, and do not dial.
                    addresses[member.index] = DIALS if _near(member) and not _near(to) else member.address
            try:
                await self._controller.ask("Hosts", pb.HostsRequest(addresses=addresses), ANSWERS, to.index)
            except (ConnectionLost, HostLost):
                pass  # a host that is lost hears it with the next change

        await asyncio.gather(*map(tell, members))

    # -- giving back

    async def leave(self, hosts: Iterable[int], *, shut_down: bool) -> None:
        """Give hosts back; with `shut_down` end their worker loops, too. Nothing of the session runs there then."""
        leaving = set(hosts)
        members = [member for member in self._file.members if member.index in leaving]
        await self._withdraw(leaving)
        await self._back(members, shut_down=shut_down)

    def ended(self, index: int) -> None:
        """A host that was lent has ended with its loop, and will not come back."""
        self._controller.io.spawn(self._withdraw({index}))

    async def _withdraw(self, leaving: set[int]) -> None:
        if not leaving:
            return
        async with self._changing:
            self._file.members[:] = [member for member in self._file.members if member.index not in leaving]
            statefile.save(self._file)
            await self._controller.part(leaving)
            await self._tell(*leaving)

    async def _back(self, members: Iterable[Member], *, shut_down: bool) -> None:
        async def give(member: Member) -> None:
            do = "shutdown" if shut_down else "leave"
            words = {"do": do, "sid": self._file.sid, "host": member.index}
            secret = self._secrets.pop(member.index, b"")
            try:
                await self._ask(parse_worker_address(member.worker), secret, words, THERE)
            except MonarchError:
                pass  # a worker loop that is gone has taken its hosts with it

        await asyncio.gather(*map(give, members))

    async def release(self) -> None:
        """The session ends: end what it has on other machines. Those of this one are ended by their keepers."""

        async def end(member: Member) -> None:
            try:
                await self._controller.ask(
                    "Release", pb.ReleaseRequest(reason="released by its controller"), 10.0, member.index
                )
            except MonarchError:
                pass  # its lease, or the end of its worker loop, ends it

        await asyncio.gather(*(end(member) for member in self._file.members if member.keeper_pid == 0))


class _NotThere(Exception):
    def __init__(self, address: WorkerAddress, why: MonarchError) -> None:
        super().__init__(f"{address}: {why}")


def _failed(errors: list[_NotThere]) -> RuntimeError:
    # Monarch's words and Monarch's class: programs look at both.
    return RuntimeError(f"attach failed: config push failed during attach: {'; '.join(map(str, errors))}")


def _near(member: Member) -> bool:
    """Whether a host is reached over a unix socket: it is on the session's own machine."""
    return member.address.startswith("unix:")


async def _brought(address: Future[str]) -> Any:
    """What a future brings. In a thread of its own, because its work may begin only when somebody waits."""
    loop = asyncio.get_running_loop()
    here: asyncio.Future[Any] = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        if not here.done():
            here.set_exception(error) if error is not None else here.set_result(value)

    def wait() -> None:
        value, error = None, None
        try:
            value = address.get()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:  # the program ends
            pass

    threading.Thread(target=wait, name="monarch-worker-address", daemon=True).start()
    return await here


__all__ = ["Growth"]
