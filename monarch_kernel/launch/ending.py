"""End the hosts of this machine: by asking their keepers, else by what is proven to be theirs."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from pathlib import Path

from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.keeper import KeeperClient, KeeperGone, KeeperRefused
from monarch_kernel.protocol.statefile import Member, SessionFile

from .base import ReleaseReport

__all__ = ["end_hosts", "remove_rundir"]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and session of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[3])
    except (OSError, IndexError):
        return None


def _descendants(root: int) -> list[int]:
    """All below `root`, parents first. The keeper has the same few lines: it may import nothing of ours."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(int(entry))) is not None:
            below.setdefault(found[1], []).append(int(entry))
    out: list[int] = []
    todo = [root]
    while todo:
        found_here = below.get(todo.pop(0), [])
        out += found_here
        todo += found_here
    return out


class _Ending:
    """One host on its way out. Holds pidfds, so that what is waited for and signalled is what was proven."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.keeper = statefile.prove(member.keeper_pid, member.keeper_start)
        self.guardian: int | None = None
        self.tree: list[tuple[int, int]] = []
        self.forced = False
        if self.keeper is None:
            return
        found = _stat(member.keeper_pid)
        # The guardian leads the keeper's session; without it the parent is whoever takes in orphans here.
        if found is not None and found[1] == found[2] and (start := statefile.start_time(found[1])) is not None:
            self.guardian = statefile.prove(found[1], start)
        self.tree = [
            (pid, s) for pid in _descendants(member.keeper_pid) if (s := statefile.start_time(pid)) is not None
        ]

    def ask(self, reason: str | None) -> None:
        """Ask the keeper. One that does not answer may be slow rather than deaf: `wait` tells."""
        if self.keeper is None or self._stopped():
            return
        try:
            with KeeperClient(self.member.keeper_socket, 1.0) as keeper:
                keeper.release(reason)
        except KeeperGone:
            pass
        except KeeperRefused:
            self.force()

    def _stopped(self) -> bool:
        found = _stat(self.member.keeper_pid)
        return found is not None and found[0] in "Tt"

    def force(self) -> None:
        """End the keeper; its guardian, or else the parent-death signal, ends the rest."""
        assert self.keeper is not None
        self.forced = True
        self._signal(self.guardian, signal.SIGCONT)
        for pid in _descendants(self.member.keeper_pid) if self.guardian is None else ():
            start = statefile.start_time(pid)
            if start is not None and (fd := statefile.prove(pid, start)) is not None:
                self._signal(fd, signal.SIGKILL)
                os.close(fd)
        self._signal(self.keeper, signal.SIGKILL)

    def wait(self, patience: float, end: float) -> None:
        """Wait for the end of host; at `patience`, or at once where the keeper is stopped, force it."""
        if self.keeper is None:
            return
        while not _ended(self.keeper, time.monotonic() + 0.05):
            if self._stopped() or time.monotonic() > patience:
                self.force()
                _ended(self.keeper, end)
                break
        if self.guardian is not None:
            _ended(self.guardian, end)

    def left(self) -> list[int]:
        """What outlived everything so far; signalled once more on the way."""
        out = []
        for pid, start in self.tree:
            if (fd := statefile.prove(pid, start)) is not None:
                if not _ended(fd, 0.0):
                    self._signal(fd, signal.SIGKILL)
                    out.append(pid)
                os.close(fd)
        if self.keeper is not None and not _ended(self.keeper, 0.0):
            out.append(self.member.keeper_pid)
        return out

    def close(self) -> None:
        for fd in (self.keeper, self.guardian):
            if fd is not None:
                os.close(fd)

    @staticmethod
    def _signal(fd: int | None, sig: int) -> None:
        if fd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, sig)


def _ended(pidfd: int, end: float) -> bool:
    """Wait until a process has ended (a zombie counts) or the monotonic clock shows `end`."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, end - time.monotonic()) * 1000))


def end_hosts(file: SessionFile, reason: str | None, timeout: float) -> ReleaseReport:
    """End every host of a session that is proven to be ours. `reason` None: leave no tombstone."""
    began = time.monotonic()
    end = began + timeout
    hosts = [_Ending(m) for m in file.members]
    try:
        for host in hosts:
            host.ask(reason)
        for host in hosts:
            host.wait(began + timeout / 2, end)
        while left := [pid for host in hosts for pid in host.left()]:
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        forced = tuple(h.member.index for h in hosts if h.forced)
        if reason is None:
            grave = statefile.tombstone(file.name)
            if grave is not None and grave.sid == file.sid:
                statefile.clear_tombstone(file.name)
        elif forced or all(h.keeper is None for h in hosts):
            grave = statefile.tombstone(file.name)
            if grave is None or grave.sid != file.sid or forced:
                lost = () if grave is None or grave.sid != file.sid else grave.lost
                statefile.bury(statefile.Tombstone(file.name, file.sid, reason, time.time(), lost))
        ended = sum(len(h.tree) + (h.keeper is not None) for h in hosts) - len(left)
        return ReleaseReport(ended, tuple(left), forced, time.monotonic() - began)
    finally:
        for host in hosts:
            host.close()


def remove_rundir(file: SessionFile) -> None:
    """Remove the session's run directory: only one that is named after it, and ours."""
    for m in file.members:
        path = Path(m.keeper_socket).parent.parent
        with contextlib.suppress(OSError):
            if path.name == file.sid[:8] and os.lstat(path).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
