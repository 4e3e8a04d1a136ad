"""The client of a keeper: blocking, bounded by timeouts, usable from any thread.

The other end is ``monarch_worker/keeper.py``, which documents the wire.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

__all__ = ["KeeperClient", "KeeperGone", "KeeperRefused", "KeeperWatch"]

_PACKET = 65536
_INLINE = 60000  # leaves room for the kernel's own overhead in a packet


class KeeperGone(ConnectionError):
    """The keeper cannot be reached: it ended, or it did not answer in time."""


class KeeperRefused(RuntimeError):
    """The keeper answered that it will not or cannot do what was asked."""


def _memory(name: str, data: bytes | memoryview) -> int:
    """A memfd that holds `data`, sealed against any change."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _contents(fd: int) -> bytes:
    """All of a memfd, by pread: descriptors that crossed a socket share one file position."""
    size = os.fstat(fd).st_size
    out = bytearray(size)
    done = 0
    while done < size and (got := os.preadv(fd, [memoryview(out)[done:]], done)):
        done += got
    return bytes(out[:done])


def _connect(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except OSError as e:
        sock.close()
        raise KeeperGone(f"no keeper answers at {path}: {e}") from e
    return sock


def _exchange(
    sock: socket.socket, path: str, message: Mapping[str, Any], fd: int | None
) -> tuple[dict[str, Any], int | None]:
    """Send one request, read its reply; the descriptor that came with it is the caller's to close."""
    body = json.dumps(message).encode()
    made = None
    try:
        if len(body) > _INLINE:
            if fd is not None:
                raise ValueError("a request with a descriptor has to fit into one packet")
            made = _memory("request", body)
            fd, body = made, json.dumps({"op": message["op"], "fd": True}).encode()
        socket.send_fds(sock, [body], [] if fd is None else [fd])
        data, fds, _, _ = socket.recv_fds(sock, _PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as e:
        what = "did not answer in time" if isinstance(e, TimeoutError) else f"cannot be reached: {e}"
        raise KeeperGone(f"the keeper at {path} {what}") from e
    finally:
        if made is not None:
            os.close(made)
    if not data:
        raise KeeperGone(f"the keeper at {path} hung up")
    reply = json.loads(data)
    if reply.get("fd") is True and fds:
        try:
            reply = json.loads(_contents(fds[0]))
        finally:
            os.close(fds.pop())
    if "error" in reply:
        for extra in fds:
            os.close(extra)
        raise KeeperRefused(reply["error"])
    return reply, fds[0] if fds else None


class KeeperClient:
    """Speaks to the keeper of one host.

    Every call blocks for at most `timeout` seconds and raises `KeeperGone` when the keeper is not there or does not
    answer, `KeeperRefused` with its words when it says no. The connection is made by the first call and made again
    after a failure.

    Parameters
    ----------
    path
        The keeper's socket.
    timeout
        Seconds for one call.
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float = 5.0) -> None:
        self.path = os.fspath(path)
        self.timeout = timeout
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._owner = os.getpid()

    def _call(self, op: str, fd: int | None = None, **fields: Any) -> tuple[dict[str, Any], int | None]:
        with self._lock:
            if self._sock is not None and self._owner != os.getpid():  # forked: two on one connection mix up replies
                self._sock.close()
                self._sock = None
            if self._sock is None:
                self._sock = _connect(self.path, self.timeout)
                self._owner = os.getpid()
            try:
                return _exchange(self._sock, self.path, {"op": op, **fields}, fd)
            except KeeperRefused:
                raise
            except BaseException:  # an interrupted exchange would leave its reply to the next one
                self._sock.close()
                self._sock = None
                raise

    def hello(self) -> dict[str, Any]:
        """Who this is: pid, start, incarnation, boot_id, pid_ns, session, sid, host, guardian, lease (left), n."""
        return self._call("hello")[0]

    def spawn(self, spec: Mapping[str, Any]) -> int:
        """Start a child; its pid. `spec`: id, argv, env (complete), cwd, restart, log, oom (above the keeper's own)."""
        return int(self._call("spawn", spec=dict(spec))[0]["pid"])

    def end(self, id: str, sig: int = 9, tree: bool = True) -> None:  # noqa: A002  # the wire's word
        """Signal a child, and all below it with `tree`. TERM and KILL end it for good, even with ``restart``."""
        self._call("end", id=id, sig=int(sig), tree=tree)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Keep a copy of `data` under `name`, in place of what was there."""
        fd = _memory(name, data)
        try:
            self.put_fd(name, fd)
        finally:
            os.close(fd)

    def put_fd(self, name: str, fd: int) -> None:
        """Hand over a memfd of final size (the keeper seals its size, not its contents); the caller keeps its own."""
        self._call("put", fd, name=name)

    def get(self, name: str) -> bytes | None:
        """What is kept under `name`, or None."""
        fd = self.get_fd(name)
        if fd is None:
            return None
        try:
            return _contents(fd)
        finally:
            os.close(fd)

    def get_fd(self, name: str) -> int | None:
        """A descriptor of the memfd under `name`, for mapping; the caller closes it. None when there is none."""
        return self._call("get", name=name)[1]

    def drop(self, name: str) -> None:
        """Forget a name; the memory is freed when its last mapping goes."""
        self._call("drop", name=name)

    def names(self) -> dict[str, int]:
        """Names kept, with sizes in bytes."""
        return dict(self._call("names")[0]["names"])

    def lease(self, left: float | None) -> None:
        """Release the host in `left` seconds from now; None: never."""
        self._call("lease", left=left)

    def list(self) -> dict[str, dict[str, Any]]:
        """Children by id: pid, start, runs, alive, code (of the last exit; negative: the signal)."""
        return dict(self._call("list")[0]["kids"])

    def watch(self, since: int = 0) -> KeeperWatch:
        """Exit events with a number above `since`, on a connection of their own."""
        return KeeperWatch(self.path, since, self.timeout)

    def tree(self) -> Sequence[int]:
        """Pids of all that descends from the keeper."""
        return tuple(self._call("tree")[0]["pids"])

    def release(self, reason: str | None) -> None:
        """End the whole tree and the keeper; returns as soon as it has begun. None: leave no tombstone."""
        self._call("release", reason=reason)

    def close(self) -> None:
        """Hang up; a later call connects again."""
        with self._lock:
            if self._sock is not None:
                self._sock.close()
                self._sock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class KeeperWatch:
    """A stream of exit events. Not for several threads at once.

    Each event has ``n`` (counting from 1 without gaps; a gap means that events fell out of the keeper's bounded list),
    ``ev`` ("exit"), ``id``, ``pid``, ``code``, ``t`` (the keeper's monotonic clock), ``log``, and for a child that is
    to be restarted ``restart``: the seconds until then, None when the keeper gave up on it.
    """

    def __init__(self, path: str, since: int, timeout: float) -> None:
        self._path = path
        self._sock = _connect(path, timeout)
        try:
            self.last: int = _exchange(self._sock, path, {"op": "watch", "since": since}, None)[0]["n"]
        except BaseException:
            self._sock.close()
            raise
        self._sock.settimeout(None)

    def fileno(self) -> int:
        """Readable when `read` has something to return or to raise."""
        return self._sock.fileno()

    def read(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """The next events; blocks until there is one, or `timeout` seconds (then an empty list).

        Raises
        ------
        KeeperGone
            The keeper ended.
        """
        self._sock.settimeout(timeout)
        try:
            data = self._sock.recv(_PACKET)
        except (TimeoutError, BlockingIOError):
            return []
        except OSError as e:
            raise KeeperGone(f"the keeper at {self._path} is gone: {e}") from e
        if not data:
            raise KeeperGone(f"the keeper at {self._path} hung up")
        events: list[dict[str, Any]] = json.loads(data)["events"]
        return events

    def close(self) -> None:
        """Stop watching."""
        self._sock.close()
