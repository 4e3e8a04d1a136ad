"""What the ranks of a host print: files that do not grow without end, and their new lines to the attached controller.

The files are the buffer. Nothing is read ahead of what the controller has confirmed to have shown (`CREDIT`), so a rank
that floods costs no memory and delays no call; what it is ahead by more than `BEHIND` is counted and left out. All of
it happens on a thread of its own: a file system that hangs holds up nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from monarch_kernel.state.logs import Splitter

LIMIT = 64 << 20
"""Bytes of one file; at more, its last `KEPT` go to ``….1`` beside it and it begins anew.

So a rank has at most 2 * (`LIMIT` + `KEPT`) on disk, for its output and its errors. What it writes between the end of
the copy and the cut, microseconds later, is lost.
"""
KEPT = 8 << 20

BEHIND = 16 << 20
"""Bytes of one file that the controller may be behind; then only the last `CHUNK` are sent, and the rest is counted."""

CREDIT = 1 << 20
"""Bytes on their way to the controller that it has not confirmed."""

CHUNK = 1 << 15
"""Bytes of one file in one record: calls share the link, and get in between."""

RESTS = 6
"""Times as long as it has worked does the thread rest; when somebody waits for lines, once as long."""

LOOKS = 0.05
"""Seconds between two looks at the files while a controller is there, 1 otherwise."""


def err_of(log: str) -> str:
    """Where a rank's standard error goes, beside its output."""
    return log.removesuffix(".log") + ".err"


class _File:
    """One stream of one rank; `known` says whether it is known how much of it was sent."""

    def __init__(self, mesh: int, name: str, rank: int, stream: str, path: str, position: int) -> None:
        self.mesh = mesh
        self.name = name
        self.rank = rank
        self.stream = stream
        self.path = path
        self.position = position
        self.splitter = Splitter()
        self.left_out = 0
        self.alive = True
        self.known = True

    def size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:  # not there yet, or somebody removed it
            return 0

    def read(self, most: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.position)
            data = file.read(most)
        self.position += len(data)
        return data

    def skip(self, to: int) -> None:
        """Count the lines up to a position instead of reading them."""
        if self.splitter.waiting:
            self.splitter = Splitter()
        with open(self.path, "rb") as file:
            file.seek(self.position)
            while self.position < to and (data := file.read(min(1 << 20, to - self.position))):
                self.left_out += data.count(b"\n")
                self.position += len(data)

    def cut(self) -> None:
        """Begin the file anew; whoever writes appends, so it goes on from there. What was not read is counted."""
        with open(self.path, "r+b") as file, open(self.path + ".1", "wb") as kept:
            os.fchmod(kept.fileno(), 0o600)
            file.seek(-KEPT, os.SEEK_END)
            while data := file.read(1 << 20):
                kept.write(data)
            if (end := file.tell()) > self.position:
                self.skip(end)
            file.truncate(0)
        self.position = 0


class Logs:
    """The files of all ranks of a host.

    Parameters
    ----------
    send
        Called on the loop with what is for the attached controller, and lines as one payload.
    """

    def __init__(self, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._files: dict[str, _File] = {}
        self._quiet: set[int] = set()
        self._jobs: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = threading.Event()
        self._link = 0  # of the controller that is there, 0 for none
        self._credit = CREDIT
        self._flushes: list[tuple[int, dict[str, int]]] = []
        self._turn = 0
        self._worked = 0.0
        threading.Thread(target=self._run, name="monarch-logs", daemon=True).start()

    # -- from the loop

    def _do(self, job: Callable[..., None], *args: Any) -> None:
        self._jobs.append((job, args))
        self._wake.set()

    def add(self, mesh: int, name: str, rank: int, log: str, *, again: bool = False) -> None:
        """A rank starts; `again`: it is there already, as this daemon is not the first."""
        self._do(self._add, mesh, name, rank, log, again)

    def ended(self, mesh: int, rank: int) -> None:
        """Its process ended: what it has printed is still read."""
        self._do(self._ended, mesh, rank)

    def attach(self, link: int) -> None:
        """A controller is there, by a link that no other had; 0: none is."""
        self._do(self._attach, link)

    def stream(self, mesh: int, wanted: bool) -> None:
        """Send the lines of a mesh, or do not; of all meshes for 0."""
        self._do(self._stream, mesh, wanted)

    def heard(self, what: dict[str, Any]) -> None:
        """The controller says what it has shown, or wants all that there is now."""
        self._do(self._heard, what)

    # -- on the thread

    def _run(self) -> None:
        while True:
            busy = False
            try:
                while self._jobs:
                    job, args = self._jobs.popleft()
                    job(*args)
                busy = self._look(time.monotonic())
            except Exception:  # a file that cannot be read must not end the reading of the others
                traceback.print_exc()
                sys.stderr.flush()
            if not busy:
                self._wake.wait(LOOKS * max(1.0, len(self._files) / 500) if self._link else 1.0)
            self._wake.clear()

    def _rest(self) -> None:
        """Leave the interpreter to the loop for most of the time: a thread that only counts holds up each call."""
        now = time.thread_time()
        time.sleep(min(0.1, (now - self._worked) * (1 if self._flushes else RESTS)))
        self._worked = now

    def _add(self, mesh: int, name: str, rank: int, log: str, again: bool) -> None:
        for stream, path in (("out", log), ("err", err_of(log))):
            known = self._files.get(path)
            if known is not None:
                known.alive = True
                continue
            file = self._files[path] = _File(mesh, name, rank, stream, path, 0)
            file.known = not again

    def _ended(self, mesh: int, rank: int) -> None:
        for file in self._files.values():
            if file.mesh == mesh and file.rank == rank:
                file.alive = False

    def _attach(self, link: int) -> None:
        if link == self._link:
            return
        self._link = link
        self._credit = CREDIT
        self._quiet.clear()
        self._flushes.clear()
        if link:
            self._tell_missed()

    def _tell_missed(self) -> None:
        """Nothing old is shown to a controller that comes, only how much there was."""
        missed: dict[str, int] = {}
        for file in self._files.values():
            missed[file.name] = missed.get(file.name, 0) + file.left_out
            file.left_out = 0
        if any(missed.values()):
            self._post({"missed": {name: count for name, count in missed.items() if count}})

    def _stream(self, mesh: int, wanted: bool) -> None:
        meshes = {file.mesh for file in self._files.values()} if mesh == 0 else {mesh}
        self._quiet = self._quiet - meshes if wanted else self._quiet | meshes

    def _heard(self, what: dict[str, Any]) -> None:
        if what.get("link") != self._link:
            return
        if "shown" in what:
            self._credit += what["shown"]
        if "positions" in what:
            self._found(what["positions"])
            self._quiet = set(what["quiet"])
        if "flush" in what:
            goals = {path: file.size() for path, file in self._files.items()}
            self._flushes.append((what["flush"], goals))

    def _found(self, positions: dict[str, int]) -> None:
        """A controller says how far it has seen the files that were there before this daemon."""
        for file in self._files.values():
            if not file.known:
                file.position, file.known = positions.get(file.path, file.size()), True

    def _post(self, what: dict[str, Any], payload: bytes = b"") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon is ending
            self._loop.call_soon_threadsafe(self._send, {**what, "link": self._link}, payload)

    def _look(self, now: float) -> bool:
        """Read what is new, as far as the controller has room; whether there is more to do at once."""
        busy = False
        files = list(self._files.values())
        self._turn += 1  # not always the same rank first
        start = self._turn % len(files) if files else 0
        for file in files[start:] + files[:start]:
            try:
                busy |= self._look_at(file, now)
            except OSError as error:
                print(f"the log {file.path} cannot be read: {error}", file=sys.stderr, flush=True)
                file.position = file.size()
        self._settle(now)
        return busy and self._credit > 0

    def _look_at(self, file: _File, now: float) -> bool:
        size = file.size()
        if not file.known:
            return False
        if size < file.position:  # somebody has emptied it
            file.position = 0
        unseen = not self._link or file.mesh in self._quiet
        if size - file.position > (0 if unseen else BEHIND):
            file.skip(size if unseen else size - CHUNK)
        if unseen and self._link:
            file.left_out = 0  # nobody asked for these
        if size > LIMIT:
            while not unseen and self._credit > 0 and file.size() > file.position:
                self._pass_on(file, CHUNK, now)
            file.cut()
            return True
        if not unseen and (size > file.position or file.splitter.waiting or file.left_out):
            self._pass_on(file, CHUNK, now)
        if not file.alive and file.position >= size:
            if not unseen:
                self._pass_on(file, 0, now, at_once=True)
            if not (file.splitter.waiting or file.left_out):
                del self._files[file.path]
        return file.position < size and not unseen

    def _pass_on(self, file: _File, most: int, now: float, *, at_once: bool = False) -> None:
        if self._credit <= 0:
            return
        data = file.read(most) if most and file.size() > file.position else b""
        lines = file.splitter.feed(data, now) if data else []
        lines += file.splitter.partial(now, at_once=at_once)
        if not lines and not file.left_out:
            return
        payload = "\n".join(lines).encode()
        self._credit -= (cost := len(payload) + 200)
        left_out, file.left_out = file.left_out, 0
        what = {
            "mesh": file.mesh, "name": file.name, "rank": file.rank, "stream": file.stream, "log": file.path,
            "lines": len(lines), "left_out": left_out, "cost": cost, "position": file.position,
        }  # fmt: skip
        self._post(what, payload)
        self._rest()

    def _settle(self, now: float) -> None:
        """Answer those who wait for all that was there when they asked."""
        open_flushes = []
        for token, goals in self._flushes:
            left = {}
            for path, goal in goals.items():
                file = self._files.get(path)
                if file is None or not file.known or file.mesh in self._quiet:
                    continue
                if file.position < goal <= file.size():
                    left[path] = goal
                elif self._link:
                    self._pass_on(file, 0, now, at_once=True)
            if left and self._link:
                open_flushes.append((token, left))
            else:
                self._post({"flushed": token})
        self._flushes = open_flushes


def tail(log: str | None, lines: int = 12) -> str:
    """The last lines of a rank's output and errors; of a crash in C, what was running then."""
    if not log:
        return ""
    out, err = _last(log), _last(err_of(log))
    crash = _crash(err, lines)
    if crash:
        return "\n".join(crash)
    err = err[-lines:]
    return "\n".join([*out[-max(lines - len(err), lines // 3) :], *err])


def _last(path: str, size: int = 16384) -> list[str]:
    found = b""
    for part in (path, path + ".1"):  # a file that has just begun anew has its end beside it
        try:
            with open(part, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - size))
                found = file.read() + found
        except OSError:
            pass
        if len(found) >= size:
            break
    return found[-size:].decode(errors="replace").splitlines()


def _crash(found: list[str], lines: int) -> list[str]:
    """The head of faulthandler's report and the thread that crashed, of which the newest frames come first."""
    fatal = max((i for i, line in enumerate(found) if line.startswith("Fatal Python error")), default=None)
    if fatal is None:
        return []
    current = next((i for i in range(fatal, len(found)) if found[i].startswith("Current thread")), fatal + 1)
    return [found[fatal], *found[current : current + lines - 1]]
