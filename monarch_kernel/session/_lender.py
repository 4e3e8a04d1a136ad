"""The client's end of a worker loop: ask it to lend its machine, or to have it back."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
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


async def ask(worker: WorkerAddress, secret: bytes, words: dict[str, Any], patience: float) -> dict[str, Any]:
    """Say something to a worker loop, and return its answer.

    Parameters
    ----------
    secret
        That both ends know; empty for none.
    words
        What to say, under ``do``.
    patience
        Seconds until it has to have answered the greeting; a loop that is about to start is waited for.

    Returns
    -------
    dict
        The answer; with ``local``, by which address of this machine it was asked, for one over TCP.

    Raises
    ------
    ConnectionLost
        Nothing answers there, or something that is no worker loop.
    AccessRefused
        One of both ends does not know the secret.
    VersionSkew
        It runs another version.
    LaunchError
        It cannot do it.
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
        try:
            async with asyncio.timeout_at(max(until, loop.time() + 0.5)):
                await _greeted(reader, writer, secret)
        except TimeoutError:
            raise ConnectionLost("something is there that says nothing") from None
        writer.write(encoded(words))
        try:
            async with asyncio.timeout(STARTS):
                answer = await _read(reader)
        except TimeoutError:
            raise LaunchError(f"the worker did not do it within {STARTS:g} s") from None
        if "error" in answer:
            cls = getattr(errors, str(answer["error"]), LaunchError)
            known = isinstance(cls, type) and issubclass(cls, MonarchError)
            raise (cls if known else LaunchError)(str(answer.get("text")))
        if worker.kind == "tcp":
            answer["local"] = writer.get_extra_info("sockname")[0]
        return answer
    except (asyncio.IncompleteReadError, OSError) as error:
        raise ConnectionLost(f"it hung up: {error}") from None
    except ValueError as error:
        raise ConnectionLost(f"something is there that is no worker loop ({error})") from None
    finally:
        writer.close()


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
