"""Process trees: who descends from whom, and signals that reach only them.

Standard library only, and nothing of ours: the keeper imports it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections import deque

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
LIBC = ctypes.CDLL(None, use_errno=True)


def stat_of(pid: int) -> tuple[int, int, int] | None:
    """Parent, session and start time (clock ticks since boot) of a process, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[3]), int(fields[19])
    except (OSError, IndexError):
        return None


def start_of(pid: int) -> int | None:
    """Start time of a process, which together with its pid and the boot id names it for ever."""
    found = stat_of(pid)
    return found and found[2]


def family(root: int) -> dict[int, tuple[int, int]]:
    """Every descendant of `root` as ``{pid: (parent, session)}``, parents before their children."""
    below: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat_of(int(name))):
            below.setdefault(found[0], []).append((int(name), found[1]))
    out: dict[int, tuple[int, int]] = {}
    todo = deque([root])
    while todo:
        parent = todo.popleft()
        for pid, session in below.get(parent, ()):
            if pid not in out:
                out[pid] = (parent, session)
                todo.append(pid)
    return out


def signal_family(pids: list[int], sig: int, root: int) -> None:
    """Signal those of `pids` that are descendants of `root`, through pidfds.

    A pid is looked up again after its pidfd pinned it: a number given to somebody else meanwhile is left alone.
    """
    pinned = {}
    try:
        for pid in pids:
            try:
                pinned[pid] = os.pidfd_open(pid)
            except OSError:  # gone, or out of descriptors: the caller's next pass sees what is left
                continue
        ours = family(root)
        for pid, fd in pinned.items():
            if pid in ours:
                try:
                    signal.pidfd_send_signal(fd, sig)
                except OSError:
                    pass
    finally:
        for fd in pinned.values():
            os.close(fd)


def end_family(root: int, limit: float) -> list[int]:
    """Kill and reap all below this process (`root`) until nothing is left; returns what outlived `limit` seconds."""
    end = time.monotonic() + limit
    pause = 0.001
    while pids := list(family(root)):
        signal_family(pids, signal.SIGKILL, root)
        try:
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass
        except ChildProcessError:
            pass
        if time.monotonic() > end:
            return list(family(root))
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return []


def pin(pid: int, start: int) -> int | None:
    """A pidfd of the running process that has this pid and this start time, or None."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    poll = select.poll()
    poll.register(fd, select.POLLIN)  # readable once it has ended: a zombie that nobody reaps is gone, too
    if start_of(pid) == start and not poll.poll(0):
        return fd
    os.close(fd)
    return None


def this_boot() -> dict[str, str]:
    """What has to be equal for a recorded pid to mean anything here."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        return {"boot_id": f.read().strip(), "pid_ns": os.readlink("/proc/self/ns/pid")}
