"""What every job does: it is applied, found again from a file, connected to, and killed."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..actor import HostMesh

logger = logging.getLogger("monarch_kernel.job")

DEFAULT_JOB_PATH = ".monarch/job_state.pkl"
"""Where a job is kept between the runs of a program, in its working directory."""

_SPEC = "spec"
_STATE = "state.pkl"


class JobState:
    """The hosts of a job, each mesh as an attribute of its name.

    Examples
    --------
    >>> state = job.state()         # doctest: +SKIP
    >>> state.trainers.extent       # doctest: +SKIP
    """

    def __init__(
        self,
        hosts: Mapping[str, HostMesh],
        query_engine: Any = None,
        query_engine_client: Any = None,
        telemetry_url: str | None = None,
        dashboard_url: str | None = None,
        admin_url: str | None = None,
    ) -> None:
        self._hosts = dict(hosts)
        self.query_engine = query_engine
        self.query_engine_client = query_engine_client
        self.telemetry_url = telemetry_url
        self.dashboard_url = dashboard_url
        self.admin_url = admin_url

    def __getattr__(self, name: str) -> HostMesh:
        if name.startswith("__") or name == "_hosts":  # asked for while it is being unpickled
            raise AttributeError(name)
        try:
            return self._hosts[name]
        except KeyError:
            there = ", ".join(sorted(self._hosts))
            raise AttributeError(f"'{name}' is not a valid host mesh name. Available names: {there}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._hosts]

    def __repr__(self) -> str:
        return f"JobState(hosts={self._hosts})"


class _Found(NamedTuple):
    """A job that a file had, in place of this one."""

    job: JobTrait


class JobTrait(ABC):
    """What describes hosts, and obtains them.

    A subclass says how: `_create` starts the workers, `_state` attaches to them, `_kill` ends them, and `can_run` tells
    whether this job, found in a file, serves for another description. Its instances are pickled.
    """

    def __init__(self) -> None:
        super().__init__()
        self._status: Literal["running", "not_running"] | _Found = "not_running"
        self._apply_id: str | None = None

    # -- what a kind of job decides

    @abstractmethod
    def _state(self) -> JobState:
        """Connect to the hosts. A RuntimeError says that they are gone."""

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Start the workers; with `client_script`, arrange for that program to run as their client."""

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job, which runs already, has what `spec` asks for."""

    @abstractmethod
    def _kill(self) -> None:
        """End the workers. Of those that are gone there is nothing to say."""

    def _cleanup_log_context(self) -> dict[str, Any]:
        """What somebody has to know who ends by hand what could not be ended; no secrets."""
        return {"job_type": type(self).__name__}

    # -- for everybody

    @property
    def _running(self) -> JobTrait | None:
        if isinstance(self._status, _Found):
            return self._status.job
        return self if self._status == "running" else None

    @property
    def active(self) -> bool:
        """Whether it was applied, here or in an earlier run, and not killed."""
        return self._running is not None

    @property
    def apply_id(self) -> str | None:
        """A number that each start of the job has for itself; None before."""
        running = self._running
        return running._apply_id if running is not None else None

    def apply(self, client_script: str | None = None) -> None:
        """Start the job where it does not run yet.

        Parameters
        ----------
        client_script
            A program that is to run as its client, where the kind of job has that.
        """
        if self._running is None:
            self._create(client_script)
            self._apply_id = str(uuid.uuid4())
            self._status = "running"

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Connect to the hosts, and start the job first where it does not run.

        Parameters
        ----------
        cached_path
            A file with the job of an earlier run. If that still runs and has what this one asks for, it is taken; else
            this one is started, and kept there. None looks at no file. The file is a pickle: it must be your own.

        Raises
        ------
        RuntimeError
            The workers are gone.
        """
        running = self._running
        if running is None and (cached := self._load_cached(cached_path)) is not None:
            self._status = _Found(cached)
            running = cached
        if running is not None:
            return running._state()
        self.apply()
        found = self._state()
        if cached_path is not None:
            self.dump(cached_path)
        return found

    def kill(self) -> None:
        """End the job: its workers, and what runs on their hosts. It may be applied again."""
        if (running := self._running) is not None:
            running._kill()
        self._status = "not_running"

    def dumps(self) -> bytes:
        """The job as bytes, for `job_loads`."""
        return pickle.dumps(self)

    def dump(self, filename: str) -> None:
        """Write the job to a file, for `job_load`; through a symbolic link, which stays."""
        path = Path(os.path.realpath(filename))
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(self.dumps())
        os.replace(temp, path)

    def _load_cached(self, path: str | None) -> JobTrait | None:
        if path is None:
            return None
        try:
            cached = job_load(path)
        except FileNotFoundError:
            return None
        running = cached._running
        if running is None:
            return None
        if running.can_run(self):
            return cached
        words: dict[str, Any] = {"job_type": type(running).__name__}
        try:
            words = running._cleanup_log_context()
            running._kill()
        except Exception:  # what is old must not keep the new from starting
            logger.warning("the job of an earlier run could not be ended: %s", words, exc_info=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.realpath(path))
        return None


def job_loads(data: bytes) -> JobTrait:
    """A job from what `JobTrait.dumps` made. It is a pickle: load only your own."""
    job = pickle.loads(data)
    if not isinstance(job, JobTrait):
        raise TypeError(f"this is no job but {type(job).__name__}")
    return job


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """A job from a file that `JobTrait.dump` wrote. It is a pickle: load only your own.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    """
    return job_loads(Path(filename).read_bytes())


def _spec_file() -> Path:
    link = Path(DEFAULT_JOB_PATH)
    context = Path(os.readlink(link)).parent if link.is_symlink() else Path("default")
    return link.parent / context / _SPEC


def set_current_job(module_path: str) -> None:
    """Say which job commands without one mean, as ``module.attribute``; kept in ``.monarch`` of this directory."""
    link = Path(DEFAULT_JOB_PATH)
    if not link.is_symlink():
        default = link.parent / "default"
        default.mkdir(parents=True, exist_ok=True)
        if link.exists():
            link.rename(default / _STATE)
        link.symlink_to(Path("default") / _STATE)
    spec = _spec_file()
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(module_path)


def load_current_job() -> JobTrait:
    """The job that `set_current_job` named, as its module has it.

    Raises
    ------
    FileNotFoundError
        None was named in this directory.
    ValueError, AttributeError, TypeError
        The name is no ``module.attribute``, there is no such one, or it is no job.
    """
    spec = _spec_file()
    try:
        path = spec.read_text().strip()
    except FileNotFoundError:
        raise FileNotFoundError(f"No spec found at {spec}: name a job with set_current_job('module.job')") from None
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"module_path must be 'module.attr', got {path!r}")
    job = getattr(importlib.import_module(module), name, None)
    if job is None:
        raise AttributeError(f"Module '{module}' has no '{name}' attribute")
    if not isinstance(job, JobTrait):
        raise TypeError(f"'{path}' must be a JobTrait, got {type(job).__name__}")
    return job
