"""Processes of a session as the kernel of the operating system sees them, and waiting for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.keeper import KeeperClient

T = TypeVar("T")

#: Tests give this many times what is promised: the machine may be busy.
SLACK = 5


def until(condition: Callable[[], T], timeout: float = 20.0, what: str = "") -> T:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or condition}"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Whether there is such a process, not counting one that has ended and was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def gone(pid: int) -> bool:
    return not alive(pid)


def procs(name: str) -> dict[str, tuple[int, int]]:
    """Pid and start time of every proc that runs in a session, as its keepers have them."""
    return {
        f"host{member.index} {child}": (held["pid"], held["start"])
        for member, children in _children(name)
        for child, held in children.items()
        if child != "daemon" and held["alive"]
    }


def daemons(name: str) -> list[int]:
    """Pids of the daemons, by host."""
    return [children["daemon"]["pid"] for _, children in _children(name)]


def keepers(name: str) -> list[int]:
    """Pids of the keepers, by host."""
    return [member.keeper_pid for member in file_of(name).members]


def tree(name: str) -> list[int]:
    """Every process of a session."""
    found = keepers(name)
    for member in file_of(name).members:
        with KeeperClient(member.keeper_socket) as keeper:
            found += keeper.tree()
    return found


def file_of(name: str) -> statefile.SessionFile:
    file = statefile.load(name)
    assert file is not None, f"no state file of {name}"
    return file


def _children(name: str):
    for member in file_of(name).members:
        with KeeperClient(member.keeper_socket) as keeper:
            yield member, keeper.list()


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is gone (its parent has to wait for it)."""
    os.kill(pid, 9)
    until(lambda: gone(pid), what=f"end of {pid}")


def kill_daemons(name: str) -> list[int]:
    """SIGKILL every daemon of a session; returns at once. The keepers start others."""
    killed = daemons(name)
    for pid in killed:
        os.kill(pid, 9)
    return killed


def inodes(pid: int) -> set[str]:
    """The sockets and pipes that a process holds."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(entry))
        except OSError:
            continue
    return {name for name in found if name.startswith(("socket:", "pipe:"))}
