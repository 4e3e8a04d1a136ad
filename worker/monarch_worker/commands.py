"""The command line and the environment of a process, from what its mesh was spawned with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from monarch_kernel.actor._bootstrap import PROC_MAIN
from monarch_kernel.errors import SpawnError

NUMACTL = ("cpunodebind", "membind", "physcpubind")


def command_of(
    spec: Mapping[str, Any], rank: int, index: int, env: Mapping[str, str]
) -> tuple[list[str], str | None, dict[str, str]]:
    """What to execute for a rank.

    Parameters
    ----------
    spec
        Of the mesh.
    rank, index
        The rank in the mesh, and its place among those of this host.
    env
        What a process of the mesh gets on this host.

    Returns
    -------
    tuple
        The arguments, of which the first is what the program is told it is called; the program, None where it is that
        one; the environment.

    Raises
    ------
    SpawnError
        What binds it to its cores is not installed.
    """
    argv, program, env = [spec["executable"], *PROC_MAIN], None, dict(env)
    commands = spec.get("commands")
    if commands:
        command = commands[rank % len(commands)]  # one for all, or one each
        argv = [command["arg0"] or command["program"], *command["args"]]
        program = command["program"]
        env = env if command["inherit_env"] else {}
        env.update({name: value for name, value in command["env"].items() if value is not None})
        for name, value in command["env"].items():
            if value is None:
                env.pop(name, None)
    binding = bound(spec["bind"][index]) if spec.get("bind") else []
    if binding:  # it execs what follows, which cannot be told another name then
        argv, program = [*binding, program or argv[0], *argv[1:]], None
    return argv, program, env


def bound(binding: Mapping[str, str]) -> list[str]:
    """The command in front of a process's own that binds it.

    >>> bound({"cpus": "0-3"})      # doctest: +SKIP
    ['taskset', '-c', '0-3']
    """
    found: list[str] = []
    if binding.get("cpus"):
        found += ["taskset", "-c", binding["cpus"]]
    options = [f"--{name}={binding[name]}" for name in NUMACTL if name in binding]
    if options:
        found += ["numactl", *options]
    for tool in ("taskset", "numactl"):
        if tool in found and shutil.which(tool) is None:
            raise SpawnError(f"proc_bind needs {tool} on the host, and it is not there: install it, or leave it out")
    return found


__all__ = ["command_of"]
