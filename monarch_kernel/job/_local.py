"""Jobs that need no workers: this machine, and what runs as the client of a job."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from ..actor import HostMesh, this_host
from ..session import sessions, up
from ._state import DEFAULT_JOB_PATH, JobState, JobTrait

BATCH = "MONARCH_BATCH_JOB"
"""Set for a program that runs as the client of a job."""
_LOGS = ".monarch/logs"


class LocalJob(JobTrait):
    """This machine stands in for every mesh of hosts, so that a program may run on it as on a cluster.

    Parameters
    ----------
    hosts
        Names of the meshes; each is `this_host`.

    Examples
    --------
    >>> job = LocalJob(["trainers", "loaders"])
    >>> job.state(cached_path=None).trainers.spawn_procs()      # doctest: +SKIP
    """

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self._host_names = hosts
        self._log_dir: str | None = None
        self._proc: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The client that `apply` started; raises ValueError where it started none."""
        if self._proc is None:
            raise ValueError("no local batch job")
        return self._proc

    def can_run(self, spec: JobTrait) -> bool:
        """Never: there is nothing of an earlier run that could be taken."""
        return False

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self._host_names})

    def _create(self, client_script: str | None) -> None:
        if client_script is None:
            return
        BatchJob(self).dump(DEFAULT_JOB_PATH)
        Path(_LOGS).mkdir(parents=True, exist_ok=True)
        self._log_dir = tempfile.mkdtemp(prefix="job_", dir=_LOGS)
        with open(f"{self._log_dir}/stdout.log", "wb") as out, open(f"{self._log_dir}/stderr.log", "wb") as err:
            self._proc = subprocess.Popen(
                [sys.executable, client_script],
                env={**os.environ, BATCH: "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _kill(self) -> None:
        pass  # this machine stays

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_proc": None}


class BatchJob(JobTrait):
    """The job that a program was started for, as that program finds it: its own description does not count then."""

    def __init__(self, job: JobTrait) -> None:
        super().__init__()
        self._job = job
        self._apply_id = job.apply_id or str(uuid.uuid4())

    @property
    def _running(self) -> JobTrait | None:
        return self

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this program was started for it; it is ended with the program."""
        if BATCH not in os.environ:
            return False
        atexit.register(self._kill)
        return True

    def _cleanup_log_context(self) -> dict[str, object]:
        return self._job._cleanup_log_context()

    def _state(self) -> JobState:
        return self._job._state()

    def _create(self, client_script: str | None) -> None:
        self._job._create(client_script)

    def _kill(self) -> None:
        self._job._kill()


def hosts_from_config(name: str) -> HostMesh:
    """The hosts of the session of this name; where there is none, one of two hosts of this machine is started.

    Parameters
    ----------
    name
        A session's, see `monarch_kernel.up`.
    """
    known = any(file.name == name and standing.state == "live" for file, standing in sessions())
    return up(name, hosts=None if known else 2).hosts
