"""Start keepers and daemons on this machine: for a session of its own, and for one that is led from elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch_kernel.errors import LaunchError
from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.keeper import KeeperClient, KeeperGone, KeeperRefused
from monarch_kernel.protocol.statefile import Member, SessionFile

from .base import filtered_environment
from .ending import end_hosts, remove_rundir
from .slots import Slots

__all__ = ["DAEMON", "Start", "accepts"]

DAEMON = (sys.executable, "-P", "-m", "monarch_worker.daemon")
"""The worker daemon. ``-P`` keeps the directory it is started in off its module path."""

_CRASHES_SHOWN = 3  # a daemon that ended this often while we wait will not come up by itself


def accepts(address: str) -> bool:
    """Whether something accepts connections at ``unix:<path>``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(1.0)
        try:
            s.connect(address.removeprefix("unix:"))
        except OSError:
            return False
        return True


class Start:
    """One attempt to start a session's hosts: where everything is, and what to undo."""

    def __init__(self, file: SessionFile, rundir: Path, logs: Path, end: float) -> None:
        self.file, self.logs, self._rundir, self._end = file, logs, rundir, end
        self._seen: dict[Path, int] = {}

    def rundir(self, host: int) -> Path:
        """The host's part of the run directory, made on demand."""
        path = self._rundir / f"host{host}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def socket(self, host: int) -> Path:
        """Of the host's keeper."""
        return self._rundir / f"host{host}" / "keeper.sock"

    def address(self, host: int) -> str:
        """Of the host's daemon."""
        return f"unix:{self._rundir / f'host{host}' / 'daemon.sock'}"

    def log(self, who: str, host: int) -> Path:
        """The log of a process; what earlier sessions of this name wrote there is not quoted."""
        path = self.logs / f"{who}-{host}.log"
        if path not in self._seen:
            self._seen[path] = path.stat().st_size if path.exists() else 0
        return path

    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _quote(self, *paths: Path) -> str:
        """The last lines of logs, for an error."""
        out = ""
        for path in paths:
            with contextlib.suppress(OSError), path.open("rb") as f:
                size = f.seek(0, os.SEEK_END)
                f.seek(max(self._seen.get(path, 0), size - 3000))
                text = f.read().decode(errors="replace").strip()
                out += f"\n--- {path}\n" + "\n".join(text.splitlines()[-20:]) if text else ""
        return out or "\n(its logs are empty)"

    def document(
        self,
        host: int,
        addresses: Sequence[str],
        slots: Slots,
        *,
        daemon: Sequence[str] = DAEMON,
        environ: Mapping[str, str] | None = None,
        private: bool = False,
        lease: float,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What the keeper of one host reads on its stdin.

        Parameters
        ----------
        addresses
            Of the daemons of all hosts; an empty one is no host.
        lease
            Seconds that the keeper waits for its daemon to say how long the host lives.
        more
            What else the daemon is told.
        """
        file = self.file
        config = {
            "session": file.sid,
            "name": file.name,
            "sid": file.sid,
            "secret": file.secret,
            "host": host,
            "hosts": list(addresses),
            "slots": {"gpus": list(slots.gpus), "kind": slots.kind, "count": slots.count},
            "lease": file.lease,
            "max_detached": file.max_detached,
            "wire": file.wire,
            "python": file.python,
            "rundir": str(self.rundir(host)),
            "logs": str(self.logs),
            "private": private,
            **(more or {}),
        }
        env = filtered_environment(environ)
        if "PYTHONPATH" in env:  # the daemon runs elsewhere than the kernel
            env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, env["PYTHONPATH"].split(os.pathsep)))
        if slots.kind == "cuda":
            env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # or CUDA counts devices in another order than the driver
        spawn = {
            "id": "daemon",
            "argv": list(daemon),
            "env": env,
            "cwd": "/",
            "restart": True,
            "log": str(self.log("daemon", host)),
            "oom": 0,
        }
        return {
            "socket": str(self.socket(host)),
            "session": file.name,
            "sid": file.sid,
            "host": host,
            "hosts": len(addresses),
            "state_dir": str(statefile.state_dir()),
            "rundir": str(self.rundir(host)),
            "blobs": {"config": json.dumps(config)},
            "spawn": [spawn],
            "lease": lease,
        }

    def keepers(self, documents: list[dict[str, Any]]) -> None:
        """Start all keepers at once, then collect what each says."""
        spec = importlib.util.find_spec("monarch_worker")
        if spec is None or not spec.submodule_search_locations:
            raise LaunchError(
                "the worker package (monarch_worker) is not installed beside monarch_kernel; reinstall it"
            )
        program = os.path.join(next(iter(spec.submodule_search_locations)), "keeper.py")
        # It needs nothing from us but to find its interpreter's libraries.
        env = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH")} | {"LC_ALL": "C.UTF-8"}
        starters: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as stack:
            for doc in documents:
                # A memfd, because the document holds the secret and may be larger than a pipe.
                stdin = stack.enter_context(open(os.memfd_create("keeper", os.MFD_CLOEXEC), "w+b"))
                stdin.write(json.dumps(doc).encode())
                stdin.seek(0)
                log = os.open(self.log("keeper", doc["host"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                stderr = stack.enter_context(open(log, "ab"))
                argv = [sys.executable, "-I", "-S", program]
                starter = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, cwd="/", env=env)
                stack.callback(_put_down, starter)
                starters.append(starter)
            said: dict[int, dict[str, Any]] = {}
            try:
                for doc, starter in zip(documents, starters, strict=True):
                    said[doc["host"]] = self._answer(starter)
            finally:  # interrupted or not, all of them: those that came up must be undone
                for doc, starter in zip(documents, starters, strict=False):
                    host = doc["host"]
                    answer = said.get(host) or self._answer(starter)
                    if "error" not in answer:
                        self._came_up(host, answer)
            for host, answer in said.items():
                if "error" in answer:
                    quote = self._quote(self.log("keeper", host))
                    raise LaunchError(f"the keeper of host {host} did not start: {answer['error']}{quote}", host=host)

    def _came_up(self, host: int, answer: dict[str, Any]) -> None:
        self.file.members.append(
            Member(
                index=host,
                address=self.address(host),
                keeper_socket=str(self.socket(host)),
                keeper_pid=answer["pid"],
                keeper_start=answer["start"],
                incarnation=answer["incarnation"],
            )
        )

    def _answer(self, starter: subprocess.Popen[bytes]) -> dict[str, Any]:
        """The one line that a keeper says once it is up, or why there is none."""
        try:
            out, _ = starter.communicate(timeout=self._left())
            answer: dict[str, Any] = json.loads(out)
            return answer
        except subprocess.TimeoutExpired:
            return {"error": f"it was not up after {self._waited():.0f} s"}
        except ValueError:
            return {"error": "it ended without a word"}

    def _waited(self) -> float:
        return time.time() - self.file.created

    def daemons(self, ready: Callable[[str], bool]) -> None:
        """Wait until every daemon accepts; one that keeps ending, or never accepts, fails the start with its log."""
        for m in self.file.members:
            pause = 0.002
            with KeeperClient(m.keeper_socket) as keeper:
                while not ready(m.address):
                    daemon = keeper.list()["daemon"]
                    why = ""
                    if daemon["runs"] >= _CRASHES_SHOWN and not daemon["alive"]:
                        why = f"ended {daemon['runs']} times, the last time with code {daemon['code']}"
                    elif self._left() == 0.0:
                        why = f"did not answer within {self._waited():.0f} s"
                    if why:
                        logs = self._quote(self.log("daemon", m.index), self.log("keeper", m.index))
                        raise LaunchError(f"the daemon of host {m.index} {why}{logs}", host=m.index)
                    time.sleep(pause)
                    pause = min(pause * 1.5, 0.05)

    def undo(self) -> None:
        """Leave nothing of this attempt."""
        with contextlib.suppress(KeeperGone, KeeperRefused, OSError):
            end_hosts(self.file, None, 15.0)
        remove_rundir(self.file)
        shutil.rmtree(self._rundir, ignore_errors=True)


def _put_down(starter: subprocess.Popen[bytes]) -> None:
    """The starter is gone by then; if not, ending it and closing its pipe makes the keeper behind it give up."""
    if starter.poll() is None:
        starter.kill()
    if starter.stdout is not None:
        starter.stdout.close()
    starter.wait()
