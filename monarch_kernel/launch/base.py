"""What every launcher does, and what a child's environment holds."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_kernel.protocol.statefile import SessionFile

__all__ = ["LaunchSpec", "Launcher", "ReleaseReport", "filtered_environment"]


@dataclass(frozen=True)
class LaunchSpec:
    """What is asked of a launcher.

    Attributes
    ----------
    name
        The session's name.
    hosts
        How many hosts.
    gpus
        Slots a host; None: what there is, divided evenly over hosts that share a machine.
    lease, max_detached
        Seconds: how long an idle, detached session is kept, and how long a detached one is kept at all.
    private
        Whether it is the lazily started session of one script or kernel.
    sid
        The id of the session, by which who asks knows that it was started for it; made when left out.
    """

    name: str
    hosts: int = 1
    gpus: int | None = None
    lease: float = 600.0
    max_detached: float = 7 * 86400.0
    private: bool = False
    sid: str = ""


@dataclass(frozen=True)
class ReleaseReport:
    """What a release did.

    Attributes
    ----------
    ended
        How many processes were there and are gone.
    left
        Pids that could not be ended in time.
    forced
        Indices of hosts whose keeper did not answer and was ended through its pidfd.
    seconds
        How long it took.
    """

    ended: int = 0
    left: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def gone(self) -> bool:
        """Whether nothing is left."""
        return not self.left


class Launcher(ABC):
    """Obtains hosts, starts a keeper on each, and gives everything back.

    A launcher object holds no state of a session: whatever `release` needs is in the session's state file, because
    another process, days later, may be the one that calls it.
    """

    name: str  # what the state file's `launcher` says

    @abstractmethod
    def launch(self, spec: LaunchSpec) -> SessionFile:
        """Start the session's hosts.

        Called by ``up`` when no live session of that name was found, from any thread; blocks. When it returns, every
        keeper runs, every daemon's address accepts connections, and the state file is written. When it raises,
        KeyboardInterrupt included, nothing of the attempt is left.

        If another process was quicker and a live session of that name is there by now, its file is returned: the
        caller compares what it asked for with what the file says, as for any session it finds.

        Raises
        ------
        LaunchError
            A host could not be started; carries the end of its log.
        NotEnoughSlots
            More was asked for than there is.
        """

    @abstractmethod
    def release(self, file: SessionFile, reason: str, timeout: float = 30.0) -> ReleaseReport:
        """End the session's hosts and remove its state file.

        Called by ``down``, by ``up --fresh``, and when a private session ends. Waits until the whole process tree of
        every host is gone, also when daemons or keepers are dead or stopped; a session that is gone already is no
        error. The tombstone with `reason` stays for the next kernel.

        Raises
        ------
        LaunchError
            The file was written on another machine, boot or pid namespace; nothing was touched.
        """


# Of the caller's environment everything goes to a child, because user code expects its own variables (tokens, caches,
# CUDA_*, OMP_*, PYTHONPATH, VIRTUAL_ENV), except four kinds:
_DROPPED = re.compile(
    "|".join(
        (
            # the notebook's machinery: descriptors, pids and tokens of the Jupyter server and the hub
            r"JPY_.*|IPYKERNEL.*|JUPYTER_TOKEN|JUPYTERHUB_.*|JUPYTER_SERVER_.*|KERNEL_.*|PYDEVD_.*|VSCODE_.*",
            # what the service manager meant for the process it started
            r"NOTIFY_SOCKET|LISTEN_(FDS|PID|FDNAMES)|WATCHDOG_(PID|USEC)|INVOCATION_ID|JOURNAL_STREAM",
            # what our own keeper meant for the process that is calling
            r"MONARCH_KEEPER|MONARCH_HOST",
            # the shell's own bookkeeping
            r"_|SHLVL|OLDPWD|PWD|BASH_FUNC_.*",
        )
    )
)
_PROXIES = re.compile(r"(https?|grpc|all|no)_proxy", re.IGNORECASE)


def filtered_environment(environ: Mapping[str, str] | None = None, *, proxies: bool = False) -> dict[str, str]:
    """The environment for a child of ours, made from the caller's.

    Parameters
    ----------
    environ
        The caller's environment; ``os.environ`` when left out.
    proxies
        Whether proxy variables stay. User code may need them to fetch data; our own daemons must not have them, because
        gRPC would send the cluster's traffic through the proxy.

    Examples
    --------
    >>> filtered_environment({"HOME": "/h", "JPY_SESSION_NAME": "x", "http_proxy": "p", "OMP_NUM_THREADS": "2"})
    {'HOME': '/h', 'OMP_NUM_THREADS': '2'}
    """
    out = {}
    for key, value in (os.environ if environ is None else environ).items():
        if _DROPPED.fullmatch(key) or (not proxies and _PROXIES.fullmatch(key)):
            continue
        if key == "MPLBACKEND" and value.startswith("module://"):
            continue  # the kernel's inline backend: there is no front end where the child runs
        out[key] = value
    return out
