"""What a keeper leaves on disk: pids for the next keeper of the host, a tombstone for the next kernel.

Standard library only: the keeper imports it. ``monarch_kernel/protocol/statefile.py`` reads the tombstone.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any

from monarch_worker.ptree import family, pin, signal_family, this_boot


def write_private(path: str, doc: dict[str, Any]) -> None:
    """Replace a 0600 file atomically; a full disk is reported in the log and leaves the old file."""
    temp = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as f:
            json.dump(doc, f)
        os.replace(temp, path)
    except OSError as e:
        print(f"keeper: cannot write {path}: {e}", file=sys.stderr, flush=True)
        discard(temp)


def read_json(path: str) -> dict[str, Any]:
    """A JSON object from a file, or an empty one."""
    try:
        with open(path) as f:
            doc = json.load(f)
        return doc if isinstance(doc, dict) else {}
    except (OSError, ValueError):
        return {}


def discard(path: str) -> None:
    """Remove a file that may not be there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def remove_tree(path: str) -> None:
    """Remove a directory of ours with what is in it (shutil would triple what the keeper imports)."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            discard(os.path.join(folder, name))
        try:
            os.rmdir(folder)
        except OSError:
            pass


class Papers:
    """What the keeper and its guardian leave on disk: pids for the next keeper, a tombstone for the next kernel."""

    def __init__(self, doc: dict[str, Any]) -> None:
        self.name, self.sid, self.host = doc["session"], doc["sid"], int(doc["host"])
        self.socket, self.rundir = doc["socket"], doc.get("rundir")
        self.folder = os.path.join(doc["state_dir"], "keepers")
        self.record = os.path.join(self.folder, f"{self.name}.{self.host}.json")
        self.tombstone = os.path.join(doc["state_dir"], "sessions", f"{self.name}.ended.json")
        self.hosts = int(doc.get("hosts", self.host + 1))

    def settle(self) -> int:
        """End what earlier keepers of this host left; returns the highest incarnation they had.

        Host 0 also looks after hosts that the session of this name no longer has.
        """
        paths = [self.record]
        if self.host == 0 and os.path.isdir(self.folder):
            for entry in os.listdir(self.folder):
                name, _, rest = entry.rpartition(".json")[0].rpartition(".")
                if name == self.name and rest.isdigit() and int(rest) >= self.hosts:
                    paths.append(os.path.join(self.folder, entry))
        highest = 0
        for path in paths:
            old = read_json(path)
            try:
                highest = max(highest, old.get("incarnation", 0))
                if all(old.get(k) == v for k, v in this_boot().items()):
                    self.end_leftovers(old)
            except (KeyError, TypeError, ValueError, OSError) as e:  # a damaged record proves nothing
                print(f"keeper: cannot use {path}: {e!r}", file=sys.stderr, flush=True)
            if path != self.record:
                discard(path)
        return highest

    def end_leftovers(self, old: dict[str, Any]) -> None:
        """Kill what a dead keeper recorded: each pid proven by its start time, then held by a pidfd."""
        end = time.monotonic() + 5.0
        if (fd := pin(*old["keeper"])) is not None:
            os.close(fd)
            raise RuntimeError(
                f"host {old['host']} of session {self.name!r} has a keeper already, pid {old['keeper'][0]}"
            )
        if (fd := pin(*old["guardian"])) is not None:  # ending it all at this very moment
            select.select([fd], [], [], 5.0)
            os.close(fd)
        for pid, start, _ in old["kids"]:
            if (fd := pin(pid, start)) is not None:
                signal_family(list(family(pid)), signal.SIGKILL, pid)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], max(0.0, end - time.monotonic()))
                os.close(fd)

    def bury(self, reason: str, lost: list[str]) -> None:
        """Write the tombstone; the hosts of one session on one machine share it, so their losses are joined."""
        try:
            os.makedirs(os.path.dirname(self.tombstone), 0o700, exist_ok=True)
            folder = os.open(os.path.dirname(self.tombstone), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        for _ in range(100):  # a lock that cannot be had (a dead file server) must not hold up the end
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        old = read_json(self.tombstone)
        if old.get("sid") == self.sid:
            reason, earlier = old.get("reason") or reason, old.get("lost") or []
            lost = earlier + [x for x in lost if x not in earlier]
        doc = {"name": self.name, "sid": self.sid, "reason": reason, "ended": time.time(), "lost": lost}
        write_private(self.tombstone, doc)
        os.close(folder)

    def clear(self) -> None:
        """Remove the host's sockets, its part of the run directory, and the record that nobody needs any more."""
        discard(self.socket)
        discard(self.record)
        if self.rundir and os.path.dirname(self.socket) == self.rundir:
            remove_tree(self.rundir)
            try:
                os.rmdir(os.path.dirname(self.rundir))  # the session's, once its last host is gone
            except OSError:
                pass
