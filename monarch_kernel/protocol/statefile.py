"""The session's files: the state file that `attach` reads, the tombstone, and the directories beside them.

A state file names processes by boot id, pid namespace, pid and start time, and carries the session's secret; so it is
0600 in a 0700 directory under any umask, replaced atomically, and never acted on where it was not written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import select
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from .keeper import KeeperClient, KeeperGone, KeeperRefused

__all__ = [
    "Member",
    "SessionFile",
    "Standing",
    "Tombstone",
    "boot_id",
    "bury",
    "clear_tombstone",
    "ended",
    "here",
    "load",
    "load_all",
    "locked",
    "logs_dir",
    "machine_id",
    "pid_namespace",
    "prove",
    "remove",
    "runtime_dir",
    "save",
    "start_time",
    "state_dir",
    "tombstone",
    "tombstones",
    "valid_name",
    "written_here",
]

ALLOW_LOOSE_MODES = "MONARCH_KERNEL_ALLOW_LOOSE_MODES"
SOCKET_PATH_LIMIT = 100  # sun_path holds 108 bytes; some servers want room for a suffix
HELLO_TIMEOUT = 2.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_log = logging.getLogger("monarch_kernel")


# -- what is on disk


@dataclass
class Member:
    """One host of a session: its daemon's address and its keeper, named for ever by pid, start time and incarnation.

    Attributes
    ----------
    address
        ``unix:PATH``, or ``HOST:PORT`` of a host that a worker loop lends.
    keeper_pid
        0 where the keeper is on another machine.
    worker
        The address of the worker loop that lends the host; empty for one that the session was started with.
    """

    index: int
    address: str
    keeper_socket: str
    keeper_pid: int
    keeper_start: int
    incarnation: int
    worker: str = ""


@dataclass
class SessionFile:
    """What another kernel needs to find a session and to prove that it is the same one.

    Only durable facts: no handle of a process, nothing that another environment would read differently. `hosts` is how
    many it was started with; worker loops may lend it more, whose indices begin there, and `next_host` is the first
    that no host has had.
    """

    name: str
    sid: str
    secret: str = field(repr=False)
    launcher: str
    created: float
    wire: int
    python: str
    hosts: int
    gpus: int | None
    lease: float
    max_detached: float
    machine_id: str
    boot_id: str
    pid_ns: str
    uid: int
    hostname: str
    members: list[Member] = field(default_factory=list)
    next_host: int = 0
    version: int = 1


@dataclass(frozen=True)
class Tombstone:
    """How a session ended: reason in words, wall time, and the names of what went with it."""

    name: str
    sid: str
    reason: str
    ended: float
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """Where a state file stands, seen from here.

    Attributes
    ----------
    state
        "live": at least one keeper is there, proven by boot id, pid and start time. "dead": written on this machine,
        and no keeper is left. "elsewhere": another machine, boot or pid namespace, or another user's; never acted on.
    hostname
        The machine that wrote it.
    alive
        Indices of hosts whose keeper is proven and answers with the incarnation on file.
    silent
        Indices of hosts whose keeper is proven but does not answer: stopped, swamped, or its socket was removed. They
        count as live, because taking a slow host for a dead one would end somebody's work.
    """

    state: Literal["live", "dead", "elsewhere"]
    hostname: str
    alive: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


# -- who and where we are


def machine_id() -> str:
    """The machine's id, or an empty string where it has none (many containers)."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            return Path(path).read_text().strip()
    return ""


def boot_id() -> str:
    """An id of this boot of the kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """The namespace in which pids mean anything to us."""
    return os.readlink("/proc/self/ns/pid")


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, or None when there is none: with its pid, its name for ever."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


def prove(pid: int, start: int) -> int | None:
    """A pidfd of the running process with this pid *and* start time, or None. The caller closes it.

    The look-up comes after the pidfd has pinned the process, so a recycled pid is never taken for the old one.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    poll = select.poll()
    poll.register(fd, select.POLLIN)  # readable once it has ended: a zombie that nobody reaps is gone, too
    if start_time(pid) == start and not poll.poll(0):
        return fd
    os.close(fd)
    return None


def written_here(file: SessionFile) -> bool:
    """Whether the pids of `file` mean anything here: the same machine, boot, pid namespace and user."""
    mine = (machine_id(), boot_id(), pid_namespace(), os.getuid())
    return (file.machine_id, file.boot_id, file.pid_ns, file.uid) == mine


def here(file: SessionFile) -> Standing:
    """Whether the session of `file` is live on this machine, dead, or elsewhere. Takes up to two seconds a host."""
    if not written_here(file):
        same_machine = (file.machine_id, file.hostname, file.uid) == (machine_id(), socket.gethostname(), os.getuid())
        # A clone of this machine, up now, may have our id and name; its sessions were made after our boot.
        if same_machine and file.machine_id and file.boot_id != boot_id() and file.created < _booted_at():
            return Standing("dead", file.hostname)
        return Standing("elsewhere", file.hostname)
    alive, silent = [], []
    for m in file.members:
        if (fd := prove(m.keeper_pid, m.keeper_start)) is None:
            continue
        os.close(fd)
        try:
            with KeeperClient(m.keeper_socket, HELLO_TIMEOUT) as keeper:
                if keeper.hello()["incarnation"] == m.incarnation:
                    alive.append(m.index)
        except (KeeperGone, KeeperRefused):
            if (fd := prove(m.keeper_pid, m.keeper_start)) is not None:  # else it ended while we asked
                os.close(fd)
                silent.append(m.index)
    return Standing("live" if alive or silent else "dead", file.hostname, tuple(alive), tuple(silent))


def ended(file: SessionFile, member: Member) -> bool:
    """Whether the keeper of a host is known to have ended, and all of the host with it."""
    if not written_here(file) or member.keeper_pid == 0:
        return False
    if (fd := prove(member.keeper_pid, member.keeper_start)) is not None:
        os.close(fd)
    return fd is None


def _booted_at() -> float:
    """Wall time of this boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


# -- directories


def state_dir() -> Path:
    """Where state is kept: ``$XDG_STATE_HOME/monarch-kernel``, else ``~/.local/state/monarch-kernel``."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return _private_dir(root / "monarch-kernel", "set XDG_STATE_HOME to a directory of your own")


def logs_dir(name: str) -> Path:
    """Where the logs of a session's processes are."""
    _private_dir(state_dir() / "logs")
    return _private_dir(state_dir() / "logs" / valid_name(name))


def runtime_dir(sid: str) -> Path:
    """The session's private directory for sockets, made on demand.

    ``$XDG_RUNTIME_DIR/monarch-kernel/<sid8>``, else ``/tmp/monarch-kernel-<uid>/<sid8>``: short, because a socket's
    path is limited, and checked to be ours, because anybody can make a directory in ``/tmp``.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or ""
    if os.path.isabs(base) and os.path.isdir(base) and os.access(base, os.W_OK) and os.stat(base).st_uid == os.getuid():
        root = Path(base) / "monarch-kernel"
        if len(os.fsencode(root / sid[:8] / "host999" / "daemon.sock")) < SOCKET_PATH_LIMIT:
            return _private_dir(_private_dir(root) / sid[:8])
    root = Path(f"/tmp/monarch-kernel-{os.getuid()}")  # noqa: S108  # _private_dir refuses one that is not ours
    return _private_dir(_private_dir(root, "set XDG_RUNTIME_DIR to a directory of your own") / sid[:8])


def _private_dir(path: Path, advice: str = "") -> Path:
    """Make `path` a directory of ours with mode 0700, or refuse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    hint = f"; {advice}" if advice else ""
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is not a directory{hint}")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to uid {found.st_uid}, not to us{hint}")
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)
        _check_mode(path, os.lstat(path).st_mode)
    return path


def _check_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077 and not os.environ.get(ALLOW_LOOSE_MODES):
        raise PermissionError(
            f"{path} would be readable by others (mode {stat.S_IMODE(mode):o}), and a session's secret lets others "
            f"run code as you. If its filesystem cannot set modes, put the state elsewhere with XDG_STATE_HOME, or set "
            f"{ALLOW_LOOSE_MODES}=1 to accept it"
        )


def _sessions() -> Path:
    return _private_dir(state_dir() / "sessions")


def valid_name(name: str) -> str:
    """The name itself, if it can name a session.

    >>> valid_name("lab-2")
    'lab-2'
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a session: use up to 64 letters, digits, '-' and '_', the first a letter or digit"
        )
    return name


# -- reading and writing


def _write(path: Path, doc: dict[str, Any], what: str) -> None:
    """Replace `path` atomically with a 0600 file; on any failure the old one is untouched."""
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as f:
            os.fchmod(fd, 0o600)
            _check_mode(temp, os.fstat(fd).st_mode)
            json.dump(doc, f, indent=1)
            f.flush()
            os.fsync(fd)
        os.replace(temp, path)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        if isinstance(e, OSError) and e.errno is not None:
            raise OSError(e.errno, f"cannot write {what}: {os.strerror(e.errno)}", str(path)) from e
        raise


def _read(path: Path) -> dict[str, Any] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, encoding="utf-8") as f:
        found = os.fstat(fd)
        if found.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to uid {found.st_uid}, not to us")
        _check_mode(path, found.st_mode)
        try:
            doc = json.load(f)
        except ValueError as e:
            raise ValueError(f"{path} is damaged ({e}); remove it if its session is gone") from e
    if not isinstance(doc, dict):
        raise ValueError(f"{path} is damaged (not an object); remove it if its session is gone")
    return doc


def _known(cls: type[Any], doc: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that a later version added."""
    return {f.name: doc[f.name] for f in fields(cls) if f.name in doc}


def load(name: str) -> SessionFile | None:
    """The state file of a session, or None when there is none.

    Raises
    ------
    ValueError
        The name is no name, or the file is damaged or from a later version; names the path.
    PermissionError
        The file is readable by others, or not ours.
    """
    path = _sessions() / f"{valid_name(name)}.json"
    doc = _read(path)
    if doc is None:
        return None
    try:
        if doc.get("version", 0) > 1:
            raise ValueError(f"{path} was written by a later version of monarch-kernel; use that one")
        members = [Member(**_known(Member, m)) for m in doc.get("members", ())]
        return SessionFile(**{**_known(SessionFile, doc), "members": members})
    except TypeError as e:
        raise ValueError(f"{path} is damaged ({e}); remove it if its session is gone") from e


def load_all() -> list[SessionFile]:
    """Every readable state file, by name; what cannot be read is logged with its reason."""
    out = []
    for path in sorted(_sessions().glob("*.json")):
        if _NAME.fullmatch(path.stem):
            try:
                found = load(path.stem)
            except (ValueError, OSError) as e:
                _log.warning("skipping a state file: %s", e)
                continue
            if found is not None:
                out.append(found)
    return out


def save(file: SessionFile) -> None:
    """Write the state file atomically.

    Raises
    ------
    OSError
        It could not be written (a full disk, say); names the path, and the old file is intact.
    """
    path = _sessions() / f"{valid_name(file.name)}.json"
    _write(path, asdict(file), f"the state file of session {file.name!r}")


def remove(name: str) -> None:
    """Remove the state file, if there is one. The tombstone stays."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_sessions() / f"{valid_name(name)}.json")


def bury(grave: Tombstone) -> None:
    """Write a tombstone. Keepers write their own; this is for ends that no keeper could record."""
    _write(_sessions() / f"{valid_name(grave.name)}.ended.json", asdict(grave), f"the tombstone of {grave.name!r}")


def tombstone(name: str) -> Tombstone | None:
    """How the last session of this name ended, or None if none did or the record is damaged."""
    try:
        doc = _read(_sessions() / f"{valid_name(name)}.ended.json")
        if doc is None:
            return None
        return Tombstone(doc["name"], doc["sid"], doc["reason"], float(doc["ended"]), tuple(map(str, doc["lost"])))
    except (KeyError, TypeError, ValueError, OSError) as e:
        _log.warning("skipping a tombstone of session %s: %r", name, e)
        return None


def tombstones() -> list[Tombstone]:
    """All tombstones, the latest end first."""
    names = [p.name.removesuffix(".ended.json") for p in _sessions().glob("*.ended.json")]
    found = [t for n in names if _NAME.fullmatch(n) and (t := tombstone(n)) is not None]
    return sorted(found, key=lambda t: -t.ended)


def clear_tombstone(name: str) -> None:
    """Remove a tombstone, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_sessions() / f"{valid_name(name)}.ended.json")


@contextlib.contextmanager
def locked(name: str, timeout: float = 60.0) -> Iterator[None]:
    """Hold the session's name against every other process that would launch or release it.

    Raises
    ------
    TimeoutError
        Somebody else held it for longer than `timeout` seconds.
    """
    path = _sessions() / f"{valid_name(name)}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"another process has been starting or releasing session {name!r} for {timeout:.0f} s"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)  # the lock goes with it, also when we are killed; the file stays, or two could hold "it"
