"""The worker loop: it waits at an address for clients, and lends this machine to the sessions of those it trusts.

Each session that joins gets a host of its own here, a keeper and a daemon as any host has; they end with the loop.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import select
import shutil
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from monarch_kernel.errors import AccessRefused, LaunchError, MonarchError
from monarch_kernel.protocol import WIRE, statefile
from monarch_kernel.protocol.handshake import versions
from monarch_kernel.protocol.keeper import KeeperClient
from monarch_kernel.protocol.statefile import SessionFile
from monarch_kernel.protocol.workers import (
    LONGEST,
    SIZE,
    WorkerAddress,
    check_proof,
    decoded,
    encoded,
    proof,
)

from .base import filtered_environment
from .ending import end_hosts
from .slots import NvidiaProbe, divide
from .starting import Start, accepts

__all__ = ["WorkerLoop"]

GREETING = 10.0
"""Seconds that a caller has for each of its words: one that says nothing must not hold a place for ever."""
STARTS = 60.0
"""Seconds that a keeper and a daemon have to come up."""
ENDS = 20.0
"""Seconds that a host has to end."""
_SHORT = 4096
_MOST_CALLERS = 64
_PEER = struct.Struct("3i")


class WorkerLoop:
    """Waits at an address. `bind`, then `serve` until a client shuts the loop down or `stop` is called.

    Parameters
    ----------
    address
        Where, see `parse_worker_address`.
    secret
        What a client has to know; empty: whoever reaches the address may run code as this user.

    Raises
    ------
    OSError
        From `bind`: there is something at that address already, or it is none of this machine.
    """

    def __init__(self, address: WorkerAddress, secret: bytes) -> None:
        self.address = address
        self._secret = secret
        self._hosts: dict[tuple[str, int], tuple[SessionFile, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._callers = threading.BoundedSemaphore(_MOST_CALLERS)
        self._listener: socket.socket | None = None
        self._kept: set[socket.socket] = set()
        self._wake, self._woken = socket.socketpair()

    def bind(self) -> None:
        """Listen; from then on clients may connect."""
        self._listener = _listen(self.address)

    def serve(self) -> None:
        """Answer clients until the loop is shut down; all that it lends has ended then."""
        if self._listener is None:
            raise RuntimeError("bind() first")
        listener = self._listener
        try:
            while True:
                ready, _, _ = select.select([listener, self._woken], [], [])
                if self._woken in ready:
                    return
                try:
                    caller, _ = listener.accept()
                except OSError:  # it hung up before we could answer
                    continue
                if not self._callers.acquire(blocking=False):
                    caller.close()
                    continue
                threading.Thread(target=self._talk, args=(caller,), name="monarch-worker-loop", daemon=True).start()
        finally:
            self._close(listener)

    def stop(self) -> None:
        """Let `serve` return. From any thread, and from a signal handler."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def _close(self, listener: socket.socket) -> None:
        listener.close()
        if self.address.kind == "ipc" and not self.address.host.startswith("\0"):
            with contextlib.suppress(OSError):
                os.unlink(self.address.host)
        for caller in list(self._kept):
            with contextlib.suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for file, _ in self._hosts.values():
                _end(file)
            self._hosts.clear()

    # -- one caller

    def _talk(self, caller: socket.socket) -> None:
        self._kept.add(caller)
        try:
            with caller:
                caller.settimeout(GREETING)
                if caller.family == socket.AF_UNIX:
                    _, uid, _ = _PEER.unpack(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                    if uid != os.getuid():
                        return
                theirs = str(_read(caller, _SHORT).get("nonce"))
                mine = secrets.token_hex(16)
                caller.sendall(
                    encoded({**versions(), "nonce": mine, "proof": proof(self._secret, "worker", theirs, mine)})
                )
                if not check_proof(_read(caller, _SHORT).get("proof"), self._secret, "client", theirs, mine):
                    caller.sendall(encoded(_refusal(AccessRefused("the caller does not know the worker's secret"))))
                    return
                while True:  # a client may keep the connection, and say nothing for long
                    caller.settimeout(None)
                    asked = _read(caller, LONGEST)
                    answer = self._answer(asked)
                    caller.settimeout(GREETING)
                    caller.sendall(encoded(answer))
                    if asked.get("do") == "shutdown":
                        self.stop()
        except (OSError, ValueError):  # it is none of us, or it went away
            pass
        finally:
            self._callers.release()
            self._kept.discard(caller)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._lock:
                if asked.get("do") == "join":
                    return self._join(asked)
                if asked.get("do") == "leave":
                    return self._leave(str(asked["sid"]), int(asked["host"]))
                if asked.get("do") == "shutdown":
                    for file, _ in self._hosts.values():
                        _end(file)
                    self._hosts.clear()
                    return {}
            raise LaunchError(f"the worker does not know how to {asked.get('do')!r}")
        except MonarchError as error:
            return _refusal(error)
        except Exception as error:
            return _refusal(LaunchError(f"{type(error).__name__}: {error}"))

    def _join(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Start a host for a session. One that was started and not heard of is asked for again."""
        sid, index, name = str(asked["sid"]), int(asked["host"]), statefile.valid_name(str(asked["name"]))
        if not sid.isalnum() or not 0 < index < 1 << 16:
            raise LaunchError("what the client asks to join is no session")
        known = self._hosts.get((sid, index))
        if known is not None and not statefile.ended(known[0], known[0].members[0]):
            return dict(known[1])
        file = SessionFile(
            name=name,
            sid=sid,
            secret=str(asked["secret"]),
            launcher="worker loop",
            created=time.time(),
            wire=WIRE,
            python=".".join(platform.python_version_tuple()[:2]),
            hosts=1,
            gpus=None,
            lease=float(asked["lease"]),
            max_detached=float(asked["max_detached"]),
            machine_id=statefile.machine_id(),
            boot_id=statefile.boot_id(),
            pid_ns=statefile.pid_namespace(),
            uid=os.getuid(),
            hostname=socket.gethostname(),
        )
        start = Start(file, statefile.runtime_dir(sid), statefile.logs_dir(name), time.monotonic() + STARTS)
        tcp = self.address.kind == "tcp"
        document = start.document(
            index,
            ["" for _ in range(index)] + [start.address(index)],
            divide(NvidiaProbe().devices(), 1, None)[0],
            lease=2 * STARTS,
            more={
                "private": bool(asked.get("private")),
                "lender": [os.getpid(), statefile.start_time(os.getpid())],
                "reached": self.address.host if tcp else "",
                "listen": (self.address.bind_host or self.address.host) if tcp else "",
                "own": {
                    "instead_of": str(asked["executable"]),
                    "executable": sys.executable,
                    "cwd": os.getcwd(),
                    "sys_path": [os.path.abspath(entry) for entry in sys.path],
                    "env": filtered_environment(proxies=True),
                },
            },
        )
        # The session is another machine's, and so is its tombstone: what the keeper writes goes with the host.
        document["state_dir"] = document["rundir"]
        try:
            start.keepers([document])
            start.daemons(accepts)
            member = file.members[0]
            port = 0
            if tcp:
                with KeeperClient(member.keeper_socket) as keeper:
                    port = int(keeper.get("listen") or 0)
        except BaseException:
            _end(file)
            _tidy(start.rundir(index))
            raise
        answer = {
            "address": member.address,
            "port": port,
            "keeper_socket": member.keeper_socket,
            "keeper_pid": member.keeper_pid,
            "keeper_start": member.keeper_start,
            "incarnation": member.incarnation,
            "machine": [file.machine_id, file.boot_id, file.pid_ns, file.uid],
            "hostname": file.hostname,
        }
        self._hosts[(sid, index)] = (file, answer)
        return dict(answer)

    def _leave(self, sid: str, index: int) -> dict[str, Any]:
        found = self._hosts.pop((sid, index), None)
        if found is not None:
            _end(found[0])
        return {}


def _end(file: SessionFile) -> None:
    report = end_hosts(file, None, ENDS)
    if not report.gone:
        print(f"processes {', '.join(map(str, report.left))} could not be ended", file=sys.stderr, flush=True)
    for member in file.members:
        _tidy(Path(member.keeper_socket).parent)


def _tidy(rundir: Path) -> None:
    """The host's part of the run directory, and the session's where this was the last of it."""
    shutil.rmtree(rundir, ignore_errors=True)
    with contextlib.suppress(OSError):
        rundir.parent.rmdir()


def _listen(address: WorkerAddress) -> socket.socket:
    if address.fd is not None:
        listener = socket.socket(fileno=address.fd)
        listener.listen()
        return listener
    if address.kind == "tcp":
        where = (address.bind_host or address.host, address.bind_port or address.port)
        family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(where, family=family)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not address.host.startswith("\0") and os.path.exists(address.host) and not accepts(f"unix:{address.host}"):
            os.unlink(address.host)  # of a loop that was killed
        old = os.umask(0o177)
        try:
            listener.bind(address.host)
        finally:
            os.umask(old)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _read(caller: socket.socket, most: int) -> dict[str, Any]:
    """One message. Raises ValueError for what is none, OSError when it does not come."""
    (size,) = SIZE.unpack(_exactly(caller, SIZE.size))
    if size > most:
        raise ValueError("longer than any message")
    return decoded(_exactly(caller, size))


def _exactly(caller: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        got = caller.recv(size - len(data))
        if not got:
            raise ConnectionResetError("the caller hung up")
        data += got
    return bytes(data)


def _refusal(error: MonarchError) -> dict[str, Any]:
    return {"error": type(error).__name__, "text": str(error)}
