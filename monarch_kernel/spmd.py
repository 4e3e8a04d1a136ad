"""Programs written for ``torchrun``, on the processes of a mesh: what `monarch.spmd` is in PyTorch Monarch.

>>> from monarch_kernel.actor import this_host
>>> from monarch_kernel.spmd import setup_torch_elastic_env
>>> procs = this_host().spawn_procs(per_host={"gpus": 2})       # doctest: +SKIP
>>> setup_torch_elastic_env(procs)                              # doctest: +SKIP

From there on every process has ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and the others that `torchrun` sets
(https://docs.pytorch.org/docs/stable/elastic/run.html), so that ``torch.distributed.init_process_group()`` works in its
actors. A whole script runs with `SPMDActor.main`. torch itself is imported only by what runs there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import runpy
import socket
import sys
from collections.abc import Iterator
from typing import Any

from .actor import Actor, ActorMesh, ProcMesh, current_rank, endpoint

__all__ = ["SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]

_NAME = "_SPMDActor"
_DEVICES = "MONARCH_KERNEL_DEVICES"
_FAMILIES = {
    "Default": (socket.AF_INET6, socket.AF_INET),
    "IPv4": (socket.AF_INET,),
    "IPv6": (socket.AF_INET6,),
}


class SPMDActor(Actor):
    """One rank of a `torchrun` program, spawned on every process of a mesh.

    Its place follows from the mesh: the last dimension (``gpus``, as a rule) counts the ranks of one node, unless that
    is ``hosts``: then each host has one.

    Examples
    --------
    >>> ranks = procs.spawn("train", SPMDActor)                                              # doctest: +SKIP
    >>> first = ranks.slice(**dict.fromkeys(procs.extent.labels, 0))                         # doctest: +SKIP
    >>> address, port = first.get_host_port.call_one(None).get()                             # doctest: +SKIP
    >>> ranks.main.call(address, port, ["-m", "train", "--lr", "0.001"]).get()               # doctest: +SKIP
    """

    def __init__(self) -> None:
        point = current_rank()
        labels, sizes = point.extent.labels, point.extent.sizes
        counted = bool(labels) and labels[-1] != "hosts"
        self.rank = point.rank
        self.world_size = point.extent.nelements
        self.local_rank = point[labels[-1]] if counted else 0
        self.local_world_size = sizes[-1] if counted else 1
        self.group_rank = self.rank // self.local_world_size
        self.group_world_size = self.world_size // self.local_world_size
        self._devices = labels[-1] == "gpus" if labels else False

    @endpoint
    def get_host_port(self, use_ipaddr: Any = None) -> tuple[str, int]:
        """An address of this rank's host, and a port that is free on it now.

        Parameters
        ----------
        use_ipaddr
            None or False: the host's name. True, or ``"IPv4"`` or ``"IPv6"``: an IP address of it.

        Raises
        ------
        ValueError
            `use_ipaddr` is none of these.
        RuntimeError
            The host's name has no such address that other hosts reach.
        """
        port = _free_port()
        return (_address(use_ipaddr) if use_ipaddr else _host_name()), port

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Set the variables of this process.

        Parameters
        ----------
        master_addr, master_port
            Where rank 0 listens.
        """
        self._setup_env(master_addr, master_port)

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: list[str]) -> bool:
        """Set the variables and run a script to its end, as the main program of this process.

        Parameters
        ----------
        script_args
            The path of a script, or ``-m`` and a module, and the arguments for it.

        Returns
        -------
        bool
            True.

        Raises
        ------
        ValueError
            `script_args` names nothing to run.
        RuntimeError
            The script ended with an exit code other than 0.
        """
        if not script_args or script_args == ["-m"]:
            raise ValueError("script_args names nothing to run: give a script's path, or '-m' and a module")
        self._setup_env(master_addr, master_port)
        try:
            if script_args[0] == "-m":
                with _arguments(script_args[1:], os.getcwd()):
                    runpy.run_module(script_args[1], run_name="__main__", alter_sys=True)
            else:
                with _arguments(script_args, os.path.dirname(os.path.abspath(script_args[0]))):
                    runpy.run_path(script_args[0], run_name="__main__")
        except SystemExit as ended:
            # A script's own way to end; of an actor it would be the end.
            if ended.code not in (None, 0):
                raise RuntimeError(f"{' '.join(script_args[:2])} ended with exit code {ended.code}") from None
        return True

    def _setup_env(self, master_addr: str, master_port: int) -> None:
        os.environ.update(
            MASTER_ADDR=master_addr,
            MASTER_PORT=str(master_port),
            RANK=str(self.rank),
            LOCAL_RANK=str(self.local_rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_WORLD_SIZE=str(self.local_world_size),
            GROUP_RANK=str(self.group_rank),
            GROUP_WORLD_SIZE=str(self.group_world_size),
            ROLE_RANK=str(self.rank),
            ROLE_WORLD_SIZE=str(self.world_size),
            ROLE_NAME="rank",
        )
        if self._devices:
            self._show_devices()

    def _show_devices(self) -> None:
        """A process of ours sees its own device as the first; a program for torchrun counts by LOCAL_RANK among all
        of the node. What has used its device before keeps it, since CUDA looks at this once.
        """
        own, devices = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get(_DEVICES, "").split(",")
        if own not in devices:
            return
        first = devices.index(own) - self.local_rank  # of a slice, not the first of the host
        if first >= 0 and first + self.local_world_size <= len(devices):
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices[first : first + self.local_world_size])


@contextlib.contextmanager
def _arguments(words: list[str], folder: str) -> Iterator[None]:
    """``sys.argv`` and the first entry of ``sys.path`` as a script has them."""
    argv, sys.argv = sys.argv, list(words)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _host_name() -> str:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"  # a name that not even its own host knows; on one host this reaches every rank
    return name


def _address(kind: Any) -> str:
    which = "Default" if kind is True else getattr(kind, "name", kind)
    if which not in _FAMILIES:
        raise ValueError(f"use_ipaddr is None, True, 'IPv4' or 'IPv6'; got {kind!r}")
    name = socket.gethostname()
    for family in _FAMILIES[which]:
        try:
            found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
        except OSError:
            continue
        for entry in found:
            address = str(entry[4][0])
            if not ipaddress.ip_address(address.partition("%")[0]).is_link_local:
                return address
    raise RuntimeError(
        f"host {name} has no {'IP' if which == 'Default' else which} address of its name; see /etc/hosts"
    )


# -- for actors of the user's own


def setup_torch_elastic_env(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None, use_ipaddr: Any = None
) -> None:
    """Set in every process of a mesh what `torchrun` sets, and wait until it is.

    Parameters
    ----------
    proc_mesh
        The processes; their row-major ranks become ``RANK``.
    master_addr, master_port
        Where rank 0 listens; left out, a name of its host and a port that is free there.
    use_ipaddr
        Without `master_addr`: see `SPMDActor.get_host_port`.

    Raises
    ------
    ValueError
        One of `master_addr` and `master_port` is given without the other.

    Examples
    --------
    >>> setup_torch_elastic_env(procs)           # doctest: +SKIP
    """
    given = _given(master_addr, master_port)
    ranks, first = _spawn(proc_mesh)
    address, port = given or first.get_host_port.call_one(use_ipaddr).get()
    ranks.setup_env.call(address, port).get()
    ranks.stop("the environment is set").get()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None, use_ipaddr: Any = None
) -> None:
    """The same as `setup_torch_elastic_env`, to be awaited."""
    given = _given(master_addr, master_port)
    ranks, first = _spawn(proc_mesh)
    address, port = given or await first.get_host_port.call_one(use_ipaddr)
    await ranks.setup_env.call(address, port)
    await ranks.stop("the environment is set")


def _given(master_addr: str | None, master_port: int | None) -> tuple[str, int] | None:
    if master_addr is None and master_port is None:
        return None
    if master_addr is None or master_port is None:
        raise ValueError("give both of master_addr and master_port, or neither")
    return master_addr, master_port


def _spawn(proc_mesh: ProcMesh) -> tuple[ActorMesh[Any], ActorMesh[Any]]:
    ranks: Any = proc_mesh.spawn(_NAME, SPMDActor)
    return ranks, ranks.slice(**dict.fromkeys(proc_mesh.extent.labels, 0)) if proc_mesh.extent.labels else ranks
