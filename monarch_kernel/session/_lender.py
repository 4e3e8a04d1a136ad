"""The client's end of a worker loop: ask it to lend its machine, or to have it back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import Any

from .. import errors
from ..errors import AccessRefused, ConnectionLost, LaunchError, MonarchError
from ..protocol.handshake import check_versions
from ..protocol.workers import LONGEST, SIZE, WorkerAddress, check_proof, decoded, encoded, proof

STARTS = 90.0
"""Seconds that a worker has to start or to end a host."""
_AGAIN = 0.05
_PEER = struct.Struct("3i")
_NOTHING = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError)


class Line:
    """A connection to a worker loop on which both have shown that they know the secret. Made by `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, worker: WorkerAddress, secret: bytes, patience: float) -> Line:
        """Connect.

        Parameters
        ----------
        secret
            That both ends know; empty for none.
        patience
            Seconds until it has to have answered the greeting; a loop that is about to start is waited for.

        Raises
        ------
        ConnectionLost
            Nothing answers there, or something that is no worker loop.
        AccessRefused
            The other end does not know the secret.
        VersionSkew
            It runs another version.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        try:
            async with asyncio.timeout_at(until):
                reader, writer = await _connected(worker)
        except TimeoutError:
            raise ConnectionLost(f"nothing answered there within {patience:g} s; is the worker loop running?") from None
        except OSError as error:
            raise ConnectionLost(f"it cannot be reached: {error}") from None
        try:
            async with asyncio.timeout_at(max(until, loop.time() + 0.5)):
                with _said():
                    await _greeted(reader, writer, secret)
        except TimeoutError:
            writer.close()
            raise ConnectionLost("something is there that says nothing") from None
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer)

    async def say(self, words: dict[str, Any]) -> dict[str, Any]:
        """Say something, under ``do``, and return the answer.

        Raises
        ------
        ConnectionLost
            It hung up.
        AccessRefused, LaunchError
            It does not do it, or cannot.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(STARTS):
                    with _said():
                        self._writer.write(encoded(words))
                        answer = await _read(self._reader)
            except TimeoutError:
                self.close()  # its answer would be taken for that of the next
                raise LaunchError(f"the worker did not do it within {STARTS:g} s") from None
        if "error" in answer:
            cls = getattr(errors, str(answer["error"]), LaunchError)
            known = isinstance(cls, type) and issubclass(cls, MonarchError)
            raise (cls if known else LaunchError)(str(answer.get("text")))
        return answer

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def ask(worker: WorkerAddress, secret: bytes, words: dict[str, Any], patience: float) -> dict[str, Any]:
    """Say one thing to a worker loop, and return its answer; raises what `Line.open` and `Line.say` do."""
    line = await Line.open(worker, secret, patience)
    try:
        return await line.say(words)
    finally:
        line.close()


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except (asyncio.IncompleteReadError, OSError) as error:
        if isinstance(error, (TimeoutError, MonarchError)):
            raise
        raise ConnectionLost(f"it hung up: {error}") from None
    except ValueError as error:
        raise ConnectionLost(f"something is there that is no worker loop ({error})") from None


async def _connected(worker: WorkerAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            if worker.kind == "tcp":
                return await asyncio.open_connection(worker.host, worker.port)
            return await asyncio.open_unix_connection(worker.host)
        except _NOTHING:
            await asyncio.sleep(_AGAIN)


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> None:
    """Show each other that both know the secret; the worker first, so that it is told nothing before."""
    sock = writer.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        # Whoever can make a socket at that path could otherwise collect secrets of sessions.
        _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid != os.getuid():
            raise AccessRefused("the worker loop is another user's")
    mine = secrets.token_hex(16)
    writer.write(encoded({"nonce": mine}))
    words = await _read(reader)
    theirs = str(words.get("nonce"))
    if "proof" not in words:
        raise ValueError("it does not greet as one")
    if not check_proof(words["proof"], secret, "worker", mine, theirs):
        raise AccessRefused("the worker does not know the secret that ca stands for")
    check_versions(words)
    writer.write(encoded({"proof": proof(secret, "client", mine, theirs)}))


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
    if size > LONGEST:
        raise ValueError("what it says is longer than any message")
    return decoded(await reader.readexactly(size))
