"""What a process needs to take part in its session's data plane: a key, and an address of its own.

The key is made from the session's secret, so that procs need not be told the secret itself: a daemon gives each proc
the key over its private socket.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"


def key(secret: str, sid: str) -> bytes:
    """The key that the processes of a session prove to each other."""
    return hmac.digest(secret.encode(), b"data plane of " + sid.encode(), hashlib.sha256)


def address_of(host: str) -> str:
    """Where the processes of a host are reached, given the address of its daemon: a unix socket means this machine."""
    if "unix:" in host or host.startswith("/"):
        return LOOPBACK
    return host.rpartition("://")[2].rpartition(":")[0].strip("[]") or LOOPBACK


def address_towards(hosts: Iterable[str]) -> str:
    """Where a controller is reached from its hosts: its own address on the way to the first that is elsewhere."""
    for host in hosts:
        there = address_of(host)
        if there in (LOOPBACK, "localhost", "::1"):
            continue
        try:
            family, _, _, _, where = socket.getaddrinfo(there, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting one sends nothing
                probe.connect(where)
                return str(probe.getsockname()[0])
        except OSError:  # that host is not reached at all; another may be
            continue
    return LOOPBACK
