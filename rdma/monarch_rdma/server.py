"""The side of the TCP transport that owns the memory."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import weakref
from concurrent.futures import Executor

from . import wire
from .errors import NotFound
from .registry import Registry, Slot
from .wire import Connection

_GREETING = 10.0
"""Seconds within which a caller has to prove the key."""
_STALL = 60
"""Seconds without a byte after which a transfer is given up: its other end has stopped or was cut off."""
_STRANGERS = 64
"""Connections at once that have not proved the key yet; further ones wait in the kernel's queue."""


class Server:
    """Listens, and serves what the registry holds.

    Parameters
    ----------
    address
        The address to listen on; the port is the kernel's choice.
    threads
        Move large bodies.
    """

    def __init__(self, node: bytes, key: bytes, address: str, registry: Registry, threads: Executor) -> None:
        self._node = node
        self._key = key
        self._registry = registry
        self._threads = threads
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=128)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        _servers.add(self)

    async def accept(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        strangers = asyncio.Semaphore(_STRANGERS)
        try:
            while True:
                await strangers.acquire()
                try:
                    sock, _ = await loop.sock_accept(self._listener)
                except OSError:  # no descriptor is free, or the caller has gone already
                    strangers.release()
                    await asyncio.sleep(0.05)
                    continue
                task = loop.create_task(self._serve(sock, strangers))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            self._listener.close()

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def forget(self) -> None:
        """In a forked child: close what it has inherited. Else its parent would seem to be alive for as long as it."""
        for sock in [self._listener, *(connection.sock for connection in self._connections)]:
            if sock.fileno() >= 0:
                os.close(sock.detach())

    async def _serve(self, sock: socket.socket, strangers: asyncio.Semaphore) -> None:
        connection = Connection(sock, self._threads)
        stall = struct.pack("@ll", _STALL, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
        self._connections.add(connection)
        try:
            try:
                async with asyncio.timeout(_GREETING):
                    await connection.prove_as_owner(self._key, self._node)
            finally:
                strangers.release()
            while True:
                await self._answer(connection)
        except (OSError, TimeoutError, NotFound):
            pass  # it left, it is a stranger, or it was cut off in the middle of a body and asks again for the reason
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _answer(self, connection: Connection) -> None:
        operation, number, generation, token, length = wire.REQUEST.unpack(await connection.receive(wire.REQUEST.size))
        if operation == wire.DROP:
            slot = self._registry.remove(number, generation, token)
            if slot is not None:
                await slot.idle()
            await connection.send(bytes([wire.OK]))
            return
        slot = self._registry.find(number, generation, token)
        status = _check(slot, operation, length)
        await connection.send(bytes([status]))
        if status != wire.OK or slot is None:
            return
        body = slot.memory.view[:length]
        # A thread that moves a large body is bounded by the socket's own time-outs.
        async with asyncio.timeout(_STALL if length <= wire.SMALL else None):
            await slot.use(connection.send_body(body) if operation == wire.READ else connection.receive_body(body))
        await connection.send(bytes([wire.OK]))


def _check(slot: Slot | None, operation: int, length: int) -> int:
    if slot is None:
        return wire.NOT_FOUND
    if operation == wire.WRITE and not slot.memory.writable:
        return wire.NOT_ALLOWED
    if operation not in (wire.READ, wire.WRITE) or length > slot.memory.size:
        return wire.OUT_OF_BOUNDS
    return wire.OK


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget() -> None:
    for server in list(_servers):
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget)
