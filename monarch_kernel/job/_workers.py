"""Jobs that start worker loops as processes of this machine, or reach them by way of some."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..actor import attach_to_workers
from ..protocol.statefile import prove, start_time
from ._identity import new_service_proc_id, service_proc_addr
from ._state import JobState, JobTrait

ENDS = 5.0
"""Seconds that worker loops have to end what they lend, before they are killed."""

_LOOP = (
    "import sys; from monarch_kernel.actor import run_worker_loop_forever; "
    "run_worker_loop_forever(address=sys.argv[1], ca='trust_all_connections')"
)


class ProcessState(NamedTuple):
    """A worker: the process that runs it, or that reaches it, and its address."""

    pid: int
    channel: str


class _WorkersJob(JobTrait):
    """What jobs of processes share: which they are, whether they live, and their end.

    A process is known by its start time besides its pid, so that another one, later, is never taken for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._host_to_pid: dict[str, ProcessState] = {}
        self._started: dict[int, int] = {}

    def _add(self, host: str, worker: ProcessState) -> None:
        self._host_to_pid[host] = worker
        self._started[worker.pid] = start_time(worker.pid) or 0

    def _pidfd(self, pid: int) -> int | None:
        return prove(pid, self._started.get(pid, start_time(pid) or 0))

    def _pids_active(self) -> bool:
        if not self.active:
            return False
        for worker in self._host_to_pid.values():
            if (fd := self._pidfd(worker.pid)) is None:
                return False
            os.close(fd)
        return True

    def _attached(self, meshes: Mapping[str, Sequence[str]]) -> JobState:
        """The hosts of each mesh, by the names of its workers."""
        if not self._pids_active():
            raise RuntimeError("lost connection: the worker processes of the job have ended; apply it again")
        return JobState(
            {
                name: attach_to_workers(
                    name=name,
                    ca="trust_all_connections",
                    workers=[self._host_to_pid[worker].channel for worker in workers],
                )
                for name, workers in meshes.items()
            }
        )

    def _end(self, *, sessions: bool) -> None:
        """End the workers; with `sessions`, all that is in a session of processes that one of them leads."""
        pids = [worker.pid for worker in self._host_to_pid.values()]
        held = {pid: fd for pid in pids if (fd := self._pidfd(pid)) is not None}
        if sessions:
            for pid in _in_sessions(set(held)) - held.keys():
                if (fd := prove(pid, start_time(pid) or 0)) is not None:
                    held[pid] = fd
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                for fd in held.values():
                    with contextlib.suppress(OSError):
                        signal.pidfd_send_signal(fd, number)
                if _all_ended(held.values(), ENDS):
                    break
        finally:
            for fd in held.values():
                os.close(fd)
        self._host_to_pid.clear()
        self._started.clear()


class LoginJob(_WorkersJob):
    """Hosts by name, each reached by a process of this machine, as ssh is one. A subclass says how, in `_start_host`.

    Examples
    --------
    >>> class ByRemoteShell(LoginJob):
    ...     def _start_host(self, host: str) -> ProcessState:
    ...         address = f"tcp://{host}:22222"
    ...         code = "from monarch_kernel.actor import run_worker_loop_forever as run; "
    ...         code += f"run(address={address!r}, ca='trust_all_connections')"
    ...         return ProcessState(subprocess.Popen(["ssh", host, "python", "-c", repr(code)]).pid, address)
    >>> job = ByRemoteShell()
    >>> job.add_mesh("trainers", ["gpu-7", "gpu-8"])
    """

    def __init__(self) -> None:
        super().__init__()
        self._meshes: dict[str, list[str]] = {}

    def add_mesh(self, name: str, hosts: list[str]) -> None:
        """Ask for a mesh of these hosts."""
        self._meshes[name] = hosts

    @abstractmethod
    def _start_host(self, host: str) -> ProcessState:
        """Start a worker loop on a host; the process is killed at the end of the job."""

    def can_run(self, spec: JobTrait) -> bool:
        """Whether it has these meshes of these hosts, and all processes live."""
        return isinstance(spec, LoginJob) and spec._meshes == self._meshes and self._pids_active()

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("LoginJob cannot run batch-mode scripts")
        try:
            for hosts in self._meshes.values():
                for host in hosts:
                    self._add(host, self._start_host(host))
        except BaseException:
            self._kill()
            raise

    def _state(self) -> JobState:
        return self._attached(self._meshes)

    def _kill(self) -> None:
        self._end(sessions=False)


class ProcessJob(_WorkersJob):
    """Each host is a worker loop on this machine, for trying out what is meant for many.

    Parameters
    ----------
    meshes
        How many hosts each mesh has.
    env
        More variables for the workers, and for all that runs on their hosts.

    Examples
    --------
    >>> job = ProcessJob({"trainers": 2, "loaders": 1})
    >>> state = job.state(cached_path=None)     # doctest: +SKIP
    >>> state.trainers.sizes                    # doctest: +SKIP
    {'hosts': 2}
    """

    def __init__(self, meshes: dict[str, int], env: dict[str, str] | None = None) -> None:
        super().__init__()
        self._meshes = meshes
        self._env = env
        self._tmpdir: str | None = None

    def can_run(self, spec: JobTrait) -> bool:
        """Whether it has these meshes, and all workers live."""
        return isinstance(spec, ProcessJob) and spec._meshes == self._meshes and self._pids_active()

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("ProcessJob cannot run batch-mode scripts")
        self._tmpdir = tempfile.mkdtemp(prefix="monarch_process_job_")
        try:
            for mesh, count in self._meshes.items():
                for rank in range(count):
                    name = f"{mesh}_{rank}"
                    address = service_proc_addr(f"ipc://{self._tmpdir}/{name}", new_service_proc_id())
                    self._add(name, ProcessState(self._worker(address), address))
        except BaseException:  # an interrupt too: nothing of the attempt may stay
            self._kill()
            raise

    def _worker(self, address: str) -> int:
        worker = subprocess.Popen(
            [sys.executable, "-c", _LOOP, address],
            env={**os.environ, **(self._env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=worker.wait, name=f"reap-{worker.pid}", daemon=True).start()
        return worker.pid

    def _state(self) -> JobState:
        return self._attached({mesh: [f"{mesh}_{rank}" for rank in range(n)] for mesh, n in self._meshes.items()})

    def _kill(self) -> None:
        self._end(sessions=True)
        if self._tmpdir is not None:
            shutil.rmtree(self._tmpdir, ignore_errors=True)
            self._tmpdir = None


def _in_sessions(leaders: set[int]) -> set[int]:
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) in leaders:
                    found.add(int(entry))
    return found


def _all_ended(pidfds: Iterable[int], timeout: float) -> bool:
    end = time.monotonic() + timeout
    poll = select.poll()
    left = set(pidfds)
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and (wait := end - time.monotonic()) > 0:
        for fd, _ in poll.poll(wait * 1000):
            poll.unregister(fd)
            left.discard(fd)
    return not left
