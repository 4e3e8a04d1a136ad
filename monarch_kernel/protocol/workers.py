"""What a client and a worker loop say to each other: addresses, proof of a shared secret, and short JSON messages.

A worker loop waits at an address for a client that wants its host in a session. Whoever joins may run code as the
worker's user, so both ends prove that they know the same secret before anything is asked. With Monarch's
``trust_all_connections`` the secret is empty and the proof proves nothing. Nothing is encrypted in either case.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import AccessRefused

__all__ = [
    "LONGEST",
    "SIZE",
    "TRUST_ALL",
    "WorkerAddress",
    "check_proof",
    "decoded",
    "encoded",
    "parse_worker_address",
    "proof",
    "secret_of",
]

TRUST_ALL = "trust_all_connections"
SIZE = struct.Struct("<I")
LONGEST = 1 << 20
"""Bytes of the longest message."""
_SHORTEST_SECRET = 16
_SOCKET_PATH = 107

_URL = re.compile(r"([a-z]+)://(.*)", re.DOTALL)
_NOT_HERE = {"metatls", "metatls-hostname", "tls", "quic", "metaquic", "inproc", "local"}


@dataclass(frozen=True)
class WorkerAddress:
    """Where a worker loop is.

    Attributes
    ----------
    kind
        ``tcp`` or ``ipc`` (a unix socket).
    host
        How others reach it; for ``ipc`` the path of the socket, or a name beginning with a zero byte (an abstract one).
    port
        0 for ``ipc``.
    bind_host, bind_port
        Where it listens, where that is another place.
    fd
        A socket that is bound already, for it to listen on.
    """

    kind: Literal["tcp", "ipc"]
    host: str
    port: int = 0
    bind_host: str = ""
    bind_port: int = 0
    fd: int | None = None

    def __str__(self) -> str:
        if self.kind == "ipc":
            return f"ipc://{self.host.removeprefix(chr(0))}"
        return f"tcp://{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """A host as a URL has it.

    >>> bracketed("::1")
    '[::1]'
    """
    return f"[{host}]" if ":" in host else host


def parse_worker_address(text: str) -> WorkerAddress:
    """Read an address as Monarch writes it.

    Parameters
    ----------
    text
        ``tcp://HOST:PORT``, ``tcp://HOST:fdN`` (a bound socket that was inherited as descriptor N), ``ipc://PATH``,
        ``ipc://NAME``; with ``@ADDRESS`` behind it where it listens elsewhere than it is reached, and with ``ID@`` in
        front of it, which is Monarch's name for the worker's service and means nothing here.

    Raises
    ------
    ValueError
        It is none of these.
    NotImplementedError
        A transport that is not offered.

    Examples
    --------
    >>> parse_worker_address("tcp://gpu-7.example:4444@tcp://0.0.0.0:4444").bind_host
    '0.0.0.0'
    >>> str(parse_worker_address("service<2MuAHeDj>@tcp://gpu-7.example:4444"))
    'tcp://gpu-7.example:4444'
    """
    if not isinstance(text, str):
        raise TypeError(f"the address of a worker is a text, as 'tcp://HOST:PORT'; got {text!r}")
    parts = re.split(r"@(?=[a-z]+://)", text)
    if "://" not in parts[0]:
        parts = parts[1:]
    if not 1 <= len(parts) <= 2:
        raise ValueError(f"{text!r} is no address of a worker: 'tcp://HOST:PORT' or 'ipc://PATH' is expected")
    dial = _one(parts[0], text)
    if len(parts) == 1:
        return dial
    bind = _one(parts[1], text)
    if bind.kind != dial.kind:
        raise ValueError(f"{text!r} is reached as {dial.kind} and listens as {bind.kind}: they must be the same")
    return WorkerAddress(dial.kind, dial.host, dial.port, bind.host, bind.port, bind.fd)


def _one(url: str, text: str) -> WorkerAddress:
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{text!r} is no address of a worker: 'tcp://HOST:PORT' or 'ipc://PATH' is expected")
    scheme, rest = match[1], match[2]
    if scheme in _NOT_HERE:
        raise NotImplementedError(f"{text!r}: this version has no {scheme}; use tcp:// or ipc://")
    if scheme == "ipc":
        if not rest:
            raise ValueError(f"{text!r} names no socket")
        path = rest if rest.startswith("/") else f"\0{rest.removeprefix('@')}"
        if len(os.fsencode(path)) > _SOCKET_PATH:
            raise ValueError(f"the path of a socket has at most {_SOCKET_PATH} bytes; {path!r} has more")
        return WorkerAddress("ipc", path)
    if scheme != "tcp":
        raise ValueError(f"{text!r}: there is no transport {scheme}; use tcp:// or ipc://")
    host, _, port = rest.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if host == "*":
        raise NotImplementedError(
            f"{text!r} does not say how others reach the worker: name it, as 'tcp://HOST:PORT@tcp://0.0.0.0:PORT'"
        )
    if host and (inherited := re.fullmatch(r"fd(\d+)", port)):
        return WorkerAddress("tcp", host, fd=int(inherited[1]))
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} names no host and port: 'tcp://HOST:PORT' is expected")
    return WorkerAddress("tcp", host, int(port))


def secret_of(ca: Any) -> bytes:
    """The secret that an argument ``ca`` stands for; empty for ``trust_all_connections``.

    Raises
    ------
    NotImplementedError
        It is a certificate, or nothing that this version knows.
    AccessRefused, OSError
        The file can be read by others, or not at all.
    ValueError
        The secret is short enough to be guessed.
    """
    if isinstance(ca, str) and ca == TRUST_ALL:
        return b""
    if isinstance(ca, Path):
        found = ca.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise AccessRefused(f"{ca} can be read by others; make it 0600, since it lets others run code as you")
        ca = ca.read_bytes().strip()
    if not isinstance(ca, bytes) or ca.lstrip().startswith(b"-----BEGIN"):
        raise NotImplementedError(
            "TLS is not offered: ca is 'trust_all_connections', or a secret that both sides know, as bytes or as the "
            "path of a file with mode 0600"
        )
    if len(ca) < _SHORTEST_SECRET:
        raise ValueError(f"the shared secret has {len(ca)} bytes; use {_SHORTEST_SECRET} or more")
    return ca


def proof(secret: bytes, who: str, client: str, worker: str) -> str:
    """That `who` knows the secret: no other can make it, and it holds for these two random numbers only."""
    return hmac.new(secret, f"{who}|{client}|{worker}".encode(), hashlib.sha256).hexdigest()


def check_proof(given: Any, secret: bytes, who: str, client: str, worker: str) -> bool:
    """Whether it is that proof; takes the same time for any wrong one."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), proof(secret, who, client, worker).encode())


def encoded(words: dict[str, Any]) -> bytes:
    """A message: ``u32`` length and JSON."""
    data = json.dumps(words).encode()
    return SIZE.pack(len(data)) + data


def decoded(data: bytes) -> dict[str, Any]:
    """And back; raises ValueError for what is no message."""
    words = json.loads(data)
    if not isinstance(words, dict):
        raise ValueError("a message is a JSON object")
    return words
