"""The keeper's children: started, reaped, restarted, and rid of what they leave.

Standard library only: the keeper imports it.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from monarch_worker.ptree import LIBC, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, family, signal_family, start_of

DEAD_KEPT = 1000  # finished children that `list` still shows
BACKOFF_FIRST, BACKOFF_LAST = 0.05, 10.0
HEALTHY_AFTER = 10.0  # a run of this many seconds starts the back-off anew
LOOP_LIMIT = 50  # quick failures in a row (about seven minutes) before a restart is given up


class Kid:
    """One child that was asked for by name."""

    def __init__(self, spec: dict[str, Any], runs: int) -> None:
        self.spec, self.runs = spec, runs
        self.pid, self.start, self.began = 0, 0, 0.0
        self.alive, self.failures = False, 0
        self.due: float | None = None  # when to start it again
        self.code: int | None = None

    def show(self) -> dict[str, Any]:
        """What `list` tells about it."""
        return {"pid": self.pid, "start": self.start, "runs": self.runs, "alive": self.alive, "code": self.code}


class Children:
    """All that was asked for by name, alive or not.

    Parameters
    ----------
    extra
        Variables added to every child's environment.
    umask, nofile
        The mask and the descriptor limits of before the keeper set its own: children get these.
    on_exit
        Called with the event of each exit.
    """

    def __init__(
        self, extra: dict[str, str], umask: int, nofile: tuple[int, int], on_exit: Callable[[dict[str, Any]], None]
    ) -> None:
        self.me, self.extra, self.umask, self.nofile, self.on_exit = os.getpid(), extra, umask, nofile, on_exit
        with open("/proc/self/oom_score_adj") as f:
            self.oom = int(f.read())
        self.kids: dict[str, Kid] = {}
        self.running: dict[int, str] = {}
        self.changed = True  # since the host's record was written

    def spawn(self, spec: dict[str, Any]) -> int:
        """Start what a spec describes, under a name that no living child has."""
        old = self.kids.get(spec["id"])
        if old and old.alive:
            raise ValueError(f"{spec['id']} is running, pid {old.pid}")
        kid = Kid(spec, old.runs if old else 0)
        self.start(kid)
        self.kids.pop(spec["id"], None)
        self.kids[spec["id"]] = kid
        return kid.pid

    def start(self, kid: Kid) -> None:
        """Start a child, for the first time or again."""
        spec = kid.spec
        env = {**spec["env"], **self.extra}
        log = self.open_log(spec.get("log"))
        err = self.open_log(spec["err"]) if spec.get("err") else log
        try:
            child = subprocess.Popen(
                spec["argv"],
                executable=spec.get("program"),
                env=env,
                cwd=spec.get("cwd") or "/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=err,
                start_new_session=True,
                umask=self.umask,
                preexec_fn=lambda: self.before_exec(int(spec.get("oom", 0))),
            )
        finally:
            for fd in {log, err}:
                os.close(fd)
        child.returncode = 0  # reaping is ours: Popen must never wait for it
        kid.pid, kid.start, kid.began = child.pid, start_of(child.pid) or 0, time.monotonic()
        kid.runs, kid.alive, kid.code, kid.due = kid.runs + 1, True, None, None
        self.running[child.pid] = spec["id"]
        self.changed = True

    def before_exec(self, oom: int) -> None:
        """In the child: both settings outlast exec, so that they hold before its first line of Python runs."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if os.getppid() != self.me:
            os._exit(1)  # the keeper died before the first prctl
        resource.setrlimit(resource.RLIMIT_NOFILE, self.nofile)
        try:
            with open("/proc/self/oom_score_adj", "w") as f:
                f.write(str(min(1000, self.oom + oom)))
        except OSError:
            pass  # lowering needs privileges

    def open_log(self, path: str | None) -> int:
        """Where a child writes to."""
        try:
            if path:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as e:  # a full disk must not keep a daemon from coming back
            print(f"keeper: cannot open {path}: {e}", file=sys.stderr, flush=True)
        return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    def reap(self) -> None:
        """Collect all that ended."""
        seen = False
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                break
            if info is None:
                break
            seen = True
            code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            if (kid_id := self.running.pop(info.si_pid, None)) is not None:
                self.exited(kid_id, self.kids[kid_id], code)
        if seen:
            self.sweep()

    def exited(self, kid_id: str, kid: Kid, code: int) -> None:
        """Note the end of a child: its event first, its restart if it has one."""
        kid.alive, kid.code, self.changed = False, code, True
        event = {"ev": "exit", "id": kid_id, "pid": kid.pid, "code": code, "log": kid.spec.get("log")}
        if kid.spec.get("restart"):
            event["restart"] = self.plan(kid)
        self.on_exit(event)
        if kid.due is None:
            kid.spec = {"id": kid_id}  # its environment may be large, and nobody starts it from here again
        dead = [i for i, k in self.kids.items() if not k.alive and k.due is None]
        for i in dead[:-DEAD_KEPT]:
            del self.kids[i]

    def plan(self, kid: Kid) -> float | None:
        """Set when a finished child starts again; returns the seconds until then, None when it is given up."""
        quick = time.monotonic() - kid.began < HEALTHY_AFTER
        kid.failures = kid.failures + 1 if quick else 1
        wait = min(BACKOFF_FIRST * 2 ** (kid.failures - 1), BACKOFF_LAST)
        kid.due = None if kid.failures > LOOP_LIMIT else time.monotonic() + wait
        return None if kid.due is None else wait

    def sweep(self) -> None:
        """End what a dead child left. Children are subreapers, so a stranger below us had a parent that is gone.

        A stranger in the session of a living child is spared: that one gave up being a subreaper and knows of it.
        """
        try:  # one small read instead of all of /proc; it can miss one only while another exits, which sweeps again
            with open(f"/proc/self/task/{self.me}/children") as f:
                if all(int(pid) in self.running for pid in f.read().split()):
                    return
        except OSError:  # a kernel without that file
            pass
        everyone = family(self.me)
        strangers = {
            pid for pid, (up, session) in everyone.items() if up == self.me and not {pid, session} & self.running.keys()
        }
        for pid, (up, _) in everyone.items():  # parents come first
            if up in strangers:
                strangers.add(pid)
        if strangers:
            signal_family(list(strangers), signal.SIGKILL, self.me)

    def restart_due(self, now: float) -> None:
        """Start what has waited out its back-off; a start that fails waits again."""
        for kid in [k for k in self.kids.values() if k.due is not None and k.due <= now]:
            try:
                self.start(kid)
            except Exception as e:  # a missing program or a full process table; none of them may end the host
                print(f"keeper: cannot start {kid.spec['id']}: {e}", file=sys.stderr, flush=True)
                kid.began = now
                self.plan(kid)

    def end(self, kid_id: str, sig: int, tree: bool) -> int:
        """Signal a child, and with `tree` all below it; TERM and KILL also take back its restart."""
        kid = self.kids.get(kid_id)
        if kid is None:
            raise ValueError(f"there is no {kid_id!r} here")
        if sig in (signal.SIGTERM, signal.SIGKILL):
            kid.spec["restart"], kid.due = False, None
        if not kid.alive:
            return 0
        pids = [kid.pid, *(family(kid.pid) if tree else ())]
        signal_family(pids, sig, self.me)
        return len(pids)
