"""Hosts on this machine: one keeper and one daemon each, so that every multi-host path runs on a laptop."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from monarch_kernel.errors import LaunchError, MonarchError
from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.statefile import SessionFile

from .base import Launcher, LaunchSpec, ReleaseReport
from .ending import end_hosts, remove_rundir
from .slots import DeviceProbe, NvidiaProbe, divide
from .starting import DAEMON, Start, accepts

__all__ = ["LocalLauncher", "accepts"]


class LocalLauncher(Launcher):
    """Starts hosts as processes of this machine, in parallel.

    Parameters
    ----------
    daemon
        Command of the worker daemon. ``-P`` keeps the directory it is started in off its module path.
    ready
        Tells whether a daemon at an address is up.
    probe
        Finds the machine's devices.
    environ
        The environment that the daemons' is made from; ``os.environ`` when left out.
    start_timeout
        Seconds for everything between the first process and the last daemon that answers.
    wire
        The wire version that goes into the state file.
    """

    name = "local"

    def __init__(
        self,
        *,
        daemon: Sequence[str] | None = None,
        ready: Callable[[str], bool] = accepts,
        probe: DeviceProbe | None = None,
        environ: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
        wire: int = 1,
    ) -> None:
        self._daemon = list(daemon or DAEMON)
        self._ready = ready
        self._environ = environ
        self._probe = probe or NvidiaProbe(environ=environ)
        self._timeout = start_timeout
        self._wire = wire

    # -- launch

    def launch(self, spec: LaunchSpec) -> SessionFile:
        """Start keepers and daemons on this machine; see `Launcher.launch`."""
        statefile.valid_name(spec.name)
        try:
            with statefile.locked(spec.name, self._timeout + 30.0):
                old = statefile.load(spec.name)
                if old is not None:
                    standing = statefile.here(old)
                    if standing.state == "live":
                        return old
                    if standing.state == "elsewhere":
                        raise LaunchError(
                            f"session {spec.name!r} was started on host {standing.hostname} and cannot be looked after "
                            f"from here; take another name, or release it there"
                        )
                    remove_rundir(old)
                return self._launch(spec)
        except MonarchError:  # some of them are ValueErrors too
            raise
        except (OSError, ValueError) as e:
            raise LaunchError(f"session {spec.name!r} could not be started: {e}") from e

    def _launch(self, spec: LaunchSpec) -> SessionFile:
        slots = divide(self._probe.devices(), spec.hosts, spec.gpus)
        sid = spec.sid or secrets.token_hex(8)
        file = SessionFile(
            name=spec.name,
            sid=sid,
            secret=secrets.token_hex(32),
            launcher=self.name,
            created=time.time(),
            wire=self._wire,
            python=".".join(platform.python_version_tuple()[:2]),
            hosts=spec.hosts,
            gpus=spec.gpus,
            lease=spec.lease,
            max_detached=spec.max_detached,
            machine_id=statefile.machine_id(),
            boot_id=statefile.boot_id(),
            pid_ns=statefile.pid_namespace(),
            uid=os.getuid(),
            hostname=socket.gethostname(),
        )
        start = Start(file, statefile.runtime_dir(sid), statefile.logs_dir(spec.name), time.monotonic() + self._timeout)
        try:
            addresses = [start.address(i) for i in range(spec.hosts)]
            documents = [
                start.document(
                    host,
                    addresses,
                    slots[host],
                    daemon=self._daemon,
                    environ=self._environ,
                    private=spec.private,
                    # Until the daemon takes it over: a short lease must not run out before, and a host whose start was
                    # cut short, so that no daemon ever comes up, must not stay for a long one.
                    lease=2 * self._timeout,
                )
                for host in range(spec.hosts)
            ]
            start.keepers(documents)
            start.daemons(self._ready)
            statefile.clear_tombstone(spec.name)
            statefile.save(file)
        except BaseException:  # an interrupt too: nothing of the attempt may stay
            start.undo()
            raise
        return file

    # -- release

    def release(self, file: SessionFile, reason: str, timeout: float = 30.0) -> ReleaseReport:
        """Ask every keeper, force those that do not answer, prove that all is gone; see `Launcher.release`."""
        if not statefile.written_here(file):
            raise LaunchError(f"session {file.name!r} is on host {file.hostname}, not here; release it there")
        try:
            with statefile.locked(file.name):
                report = end_hosts(file, reason, timeout)
                if report.gone:
                    remove_rundir(file)
                    now = statefile.load(file.name)
                    if now is not None and now.sid == file.sid:  # a newer session may have the name by now
                        statefile.remove(file.name)
                return report
        except (OSError, ValueError) as e:
            raise LaunchError(f"session {file.name!r} could not be released: {e}") from e
