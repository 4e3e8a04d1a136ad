"""The transport over TCP: the asking side, and the server of this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from . import wire
from .errors import NotAllowed, OwnerGone
from .memory import Memory
from .registry import Registry, not_found
from .server import Server
from .transport import Buffer, Transport
from .wire import Connection

_AT_ONCE = 8
"""Transfers at once; others wait. Each has its thread here before it takes one of the owner's, so that two processes
which read much from each other never wait for each other's threads."""
_IDLE_EACH, _IDLE = 4, 64
"""Open connections that are kept for the next transfer: to one owner, to all."""
_TRIES = 4
"""Connections tried before an owner that closes each of them counts as gone: one that was kept may be stale, one may
have been cut off because the buffer was dropped meanwhile, and a process that is being killed still accepts for a
moment."""


class Tcp(Transport):
    """Streams from memory to memory over TCP, on the same host or another."""

    name = "tcp"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: bytes,
        key: bytes,
        address: str,
        registry: Registry,
        asking: Executor,
        serving: Executor,
    ) -> None:
        self._loop = loop
        self._node = node
        self._key = key
        self._address = address
        self._registry = registry
        self._asking = asking
        self._serving = serving
        self._server: Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._idle: dict[Connection, bytes] = {}  # with the node at the other end; the longest idle first

    # -- for others

    def way(self) -> str:
        """Listen, and say where."""
        server = self._server = Server(self._node, self._key, self._address, self._registry, self._serving)

        def accept() -> None:
            self._accepting = self._loop.create_task(server.accept())

        self._loop.call_soon_threadsafe(accept)
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"{host}:{server.port}"

    async def close(self) -> None:
        """Close everything."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._server is not None:
            await self._server.close()
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    # -- from others

    def reaches(self, there: Buffer) -> bool:
        """Whoever has a TCP address."""
        return any(name == self.name for name, _ in there.ways)

    async def read(self, source: Buffer, into: Memory) -> None:
        """Ask for the bytes and have them written where they belong."""
        body = into.view[: source.size]

        async def talk(connection: Connection) -> int:
            if status := await _request(connection, wire.READ, source, source.size):
                return status
            await connection.receive_body(body)
            return (await connection.receive(1))[0]

        await self._ask(source, talk)

    async def write(self, target: Buffer, source: Memory) -> None:
        """Ask for leave and send the bytes from where they are."""

        async def talk(connection: Connection) -> int:
            if status := await _request(connection, wire.WRITE, target, source.size):
                return status
            await connection.send_body(source.view)
            return (await connection.receive(1))[0]

        await self._ask(target, talk)

    async def drop(self, target: Buffer) -> None:
        """Ask the owner to forget it; one that is gone has forgotten."""
        try:
            await self._ask(target, lambda connection: _request(connection, wire.DROP, target, 0))
        except OwnerGone:
            pass

    async def _ask(self, there: Buffer, talk: Callable[[Connection], Awaitable[int]]) -> None:
        """Have `talk` with the owner. A connection that breaks is replaced, and the next one says why it broke.

        Copying the same bytes a second time changes nothing, so a transfer may be repeated.
        """
        async with self._slots:
            for left in reversed(range(_TRIES)):
                connection = None
                try:
                    connection = self._kept(there) or await self._connect(there)
                    status = await talk(connection)
                except OSError as error:
                    if connection is not None:
                        connection.close()
                    if isinstance(error, wire.Refusal):
                        raise NotAllowed(str(error), there.number) from None
                    if not left or isinstance(error, ConnectionRefusedError | wire.Stranger):
                        raise OwnerGone(f"the owner of buffer {there.number} is gone: {error}", there.number) from error
                except BaseException:
                    if connection is not None:
                        connection.close()
                    raise
                else:
                    self._keep(there, connection)
                    _judge(status, there)
                    return

    async def _connect(self, there: Buffer) -> Connection:
        host, _, port = dict(there.ways)[self.name].rpartition(":")
        host = host.strip("[]")
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await self._loop.sock_connect(sock, (host, int(port)))
            connection = Connection(sock, self._asking)
            await connection.prove_as_asker(self._key, there.node)
        except BaseException:
            sock.close()
            raise
        return connection

    def _kept(self, there: Buffer) -> Connection | None:
        for connection, node in reversed(self._idle.items()):
            if node == there.node:
                del self._idle[connection]
                return connection
        return None

    def _keep(self, there: Buffer, connection: Connection) -> None:
        if list(self._idle.values()).count(there.node) >= _IDLE_EACH:
            connection.close()
            return
        self._idle[connection] = there.node
        if len(self._idle) > _IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.close()


async def _request(connection: Connection, operation: int, there: Buffer, length: int) -> int:
    await connection.send(wire.REQUEST.pack(operation, there.number, there.generation, there.token, length))
    return (await connection.receive(1))[0]


def _judge(status: int, there: Buffer) -> None:
    if status == wire.NOT_FOUND:
        raise not_found(there.number)
    if status == wire.NOT_ALLOWED:
        raise NotAllowed(f"the memory of buffer {there.number} is read-only", there.number)
    if status != wire.OK:
        raise NotAllowed(f"the owner of buffer {there.number} has less memory there than it said", there.number)
