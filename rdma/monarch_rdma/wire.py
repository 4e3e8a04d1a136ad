"""What is said on a connection of the TCP transport, and the proof of the session's key that comes before it.

::

    owner  → asker   MAGIC, the owner's node number, 32 random bytes
    asker  → owner   32 random bytes, HMAC(key, "asker" + all of these)
    owner  → asker   OK, HMAC(key, "owner" + all of these)         or REFUSED and the end

    asker  → owner   request: operation, number, generation, token, length
    owner  → asker   status; unless it is OK, that is all
       READ          owner → asker: `length` bytes, then the status once more
       WRITE         asker → owner: `length` bytes; owner → asker: the status once more
       DROP          nothing more

A connection carries one request after the other. The second status says whether the memory was still registered when
the last byte was copied. Each end proves the key, so that neither a stranger nor whoever took the port of a process
that ended learns or changes a byte. What follows the proof is neither encrypted nor sealed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import struct
from concurrent.futures import Executor
from typing import Any

MAGIC = b"MKD1"
HELLO = struct.Struct("!4s16s32s")
PROOF = struct.Struct("!32s32s")
REQUEST = struct.Struct("!BQQ16sQ")

READ, WRITE, DROP = 1, 2, 3
OK, NOT_FOUND, NOT_ALLOWED, OUT_OF_BOUNDS = 0, 1, 2, 3

SMALL = 256 * 1024
"""Bytes up to which a body is moved by the loop itself; more is moved by a thread in one system call, which neither
keeps the loop from other work nor waits for the interpreter once for each piece."""


class Closed(ConnectionError):
    """The other end closed the connection."""


class Refusal(PermissionError):
    """The other end does not hold the key that we do."""


class Stranger(ConnectionError):
    """Another process than the one that is meant has the port."""


def _proof(key: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, role + b"".join(parts), hashlib.sha256)


class Connection:
    """A connected socket, for one user at a time. Cancelling a transfer breaks the connection."""

    def __init__(self, sock: socket.socket, threads: Executor) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.sock = sock
        self._threads = threads
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Close it."""
        self.sock.close()

    async def send(self, data: bytes) -> None:
        """Send something short."""
        await self._loop.sock_sendall(self.sock, data)

    async def receive(self, size: int) -> bytes:
        """Receive so many bytes."""
        data = bytearray(size)
        await self._receive_here(memoryview(data))
        return bytes(data)

    async def _receive_here(self, view: memoryview) -> None:
        while view:
            got = await self._loop.sock_recv_into(self.sock, view)
            if not got:
                raise Closed("the other end closed the connection")
            view = view[got:]

    async def send_body(self, view: memoryview) -> None:
        """Send memory from where it is."""
        if view.nbytes <= SMALL:
            await self._loop.sock_sendall(self.sock, view)
        else:
            await self._in_thread(lambda: self.sock.sendall(view))

    async def receive_body(self, view: memoryview) -> None:
        """Fill memory."""
        if view.nbytes <= SMALL:
            await self._receive_here(view)
        else:
            await self._in_thread(lambda: _fill(self.sock, view))

    async def _in_thread(self, work: Any) -> None:
        self.sock.setblocking(True)
        job = self._loop.run_in_executor(self._threads, work)
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            # It wakes the thread. Only when that has let go of the memory may anybody else have it.
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end was faster
                pass
            await asyncio.wait([job])
            if not job.cancelled():
                job.exception()
            raise
        except BlockingIOError:  # SO_SNDTIMEO or SO_RCVTIMEO is over, see `server`
            raise Closed("the other end took or sent nothing for too long") from None
        self.sock.setblocking(False)

    # -- the proof

    async def prove_as_owner(self, key: bytes, node: bytes) -> None:
        """The owner's part; raises Refusal."""
        mine = secrets.token_bytes(32)
        await self.send(HELLO.pack(MAGIC, node, mine))
        theirs, proof = PROOF.unpack(await self.receive(PROOF.size))
        if not hmac.compare_digest(proof, _proof(key, b"asker", node, mine, theirs)):
            await self.send(bytes([NOT_ALLOWED]))
            raise Refusal("a caller without the session's key")
        await self.send(bytes([OK]) + _proof(key, b"owner", node, mine, theirs))

    async def prove_as_asker(self, key: bytes, node: bytes) -> None:
        """The asker's part; raises Refusal, or Stranger when another process than `node` answers."""
        magic, found, theirs = HELLO.unpack(await self.receive(HELLO.size))
        if magic != MAGIC or found != node:
            raise Stranger("another process has its port now")
        mine = secrets.token_bytes(32)
        await self.send(PROOF.pack(mine, _proof(key, b"asker", node, theirs, mine)))
        if (await self.receive(1))[0] != OK:
            raise Refusal("the owner says that this process does not hold its session's key")
        if not hmac.compare_digest(await self.receive(32), _proof(key, b"owner", node, theirs, mine)):
            raise Refusal("who answers at the owner's address does not hold the session's key")


def _fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        got = sock.recv_into(view, 0, socket.MSG_WAITALL)
        if not got:
            raise Closed("the other end closed the connection")
        view = view[got:]
