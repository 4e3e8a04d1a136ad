"""How a process comes up: the command that starts it, the cores it is bound to, what runs in it before any actor."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import ActorError
from ._endpoint import Actor, endpoint
from ._extent import Extent, Point

PROC_MAIN = ("-m", "monarch_worker.proc")
"""What a Python has to run to be a process of a mesh."""

BINDINGS = ("cpunodebind", "membind", "physcpubind", "cpus")
"""What ``proc_bind`` knows: the first three are options of numactl, the last is a list of CPUs for taskset."""


class BootstrapCommand:
    """The command that starts a process of a mesh.

    It must end in our own main program, as that of `default_bootstrap_cmd` does: a wrapper execs what it is given. With
    no arguments at all, `program` is taken for a Python, and gets ours.

    Parameters
    ----------
    program
        The program, a path or a name to be found in ``PATH``.
    arg0
        What the program is told it is called; None for `program`.
    args
        Its arguments.
    env
        Variables on top of the environment that it inherits; None removes one.
    inherit_env
        Whether it inherits the environment that processes of its host get. Ours are always set.

    Raises
    ------
    TypeError
        A name or value of `env` is no text, or an argument is none.

    Examples
    --------
    >>> command = BootstrapCommand("/usr/bin/python3", None, [], {"OMP_NUM_THREADS": "1"})
    >>> command.with_env({"OMP_NUM_THREADS": None, "LANG": "C"}).env
    {'OMP_NUM_THREADS': None, 'LANG': 'C'}
    >>> command.env
    {'OMP_NUM_THREADS': '1'}
    """

    def __init__(
        self,
        program: str,
        arg0: str | None,
        args: Sequence[str],
        env: Mapping[str, str | None],
        inherit_env: bool = True,
    ) -> None:
        if not isinstance(program, str) or not program:
            raise TypeError(f"the program is a path or a name; got {program!r}")
        if arg0 is not None and not isinstance(arg0, str):
            raise TypeError(f"arg0 is a text or None; got {arg0!r}")
        if isinstance(args, str) or not all(isinstance(arg, str) for arg in args):
            raise TypeError(f"args is a list of texts; got {args!r}")
        self.program = program
        self.arg0 = arg0
        self.args = list(args)
        self.inherit_env = bool(inherit_env)
        self.env = env  # the setter keeps a dict of its own

    @property
    def env(self) -> dict[str, str | None]:
        """Variables on top of what is inherited; None removes one."""
        return dict(self._env)

    @env.setter
    def env(self, env: Mapping[str, str | None]) -> None:
        if not isinstance(env, Mapping):
            raise TypeError(f"env is a mapping of names to texts or None; got {env!r}")
        for name, value in env.items():
            if not isinstance(name, str) or not (value is None or isinstance(value, str)):
                raise TypeError(f"env maps names to texts, or to None to remove one; got {name!r}: {value!r}")
        self._env = dict(env)

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with these variables on top of its own; None removes one from what is inherited."""
        merged = BootstrapCommand(self.program, self.arg0, self.args, self._env, self.inherit_env)
        merged.env = {**self._env, **BootstrapCommand(self.program, None, [], env).env}
        return merged

    def _spec(self) -> dict[str, Any]:
        """Plain data for a mesh's record."""
        return {
            "program": self.program,
            "arg0": self.arg0,
            "args": self.args or list(PROC_MAIN),
            "env": self._env,
            "inherit_env": self.inherit_env,
        }

    def __eq__(self, other: object) -> bool:
        return self._spec() == other._spec() if isinstance(other, BootstrapCommand) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return (
            f"BootstrapCommand({self.program!r}, {self.arg0!r}, {self.args!r}, {self._env!r}, "
            f"inherit_env={self.inherit_env})"
        )


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that starts processes where none is given: this Python, and our main program.

    Examples
    --------
    >>> command = default_bootstrap_cmd().with_env({"CUDA_VISIBLE_DEVICES": "3"})
    >>> procs = this_host().spawn_procs(bootstrap_command=command)      # doctest: +SKIP
    """
    return BootstrapCommand(sys.executable, None, PROC_MAIN, {})


def commands_for(command: Any, extent: Extent) -> list[dict[str, Any]]:
    """The command of each rank (or one for all) as plain data, from what ``bootstrap_command=`` was given."""
    if isinstance(command, BootstrapCommand):
        return [command._spec()]
    if not callable(command):
        raise TypeError(f"bootstrap_command is a BootstrapCommand, or a function from a Point to one; got {command!r}")
    found = []
    for rank in range(math.prod(extent.sizes)):
        made = command(Point(rank, extent))
        if not isinstance(made, BootstrapCommand):
            raise TypeError(f"bootstrap_command returned {made!r} for {Point(rank, extent)!r}, no BootstrapCommand")
        found.append(made._spec())
    return found


def bindings_for(proc_bind: Any, procs_per_host: int) -> list[dict[str, str]]:
    """What ``proc_bind=`` was given, checked: one mapping for each process of a host."""
    if isinstance(proc_bind, str | Mapping) or not isinstance(proc_bind, Sequence):
        raise TypeError(f"proc_bind is a list with a mapping for each process of a host; got {proc_bind!r}")
    if len(proc_bind) != procs_per_host:
        raise ValueError(f"proc_bind length ({len(proc_bind)}) must equal procs_per_host ({procs_per_host})")
    found = []
    for binding in proc_bind:
        if not isinstance(binding, Mapping):
            raise TypeError(f"proc_bind holds mappings, as {{'cpus': '0-3'}}; got {binding!r}")
        if unknown := sorted(map(str, set(binding) - set(BINDINGS))):
            raise ValueError(f"proc_bind knows {', '.join(BINDINGS)}; got {', '.join(unknown)}")
        for key, value in binding.items():
            if not isinstance(value, str) or not value:
                raise TypeError(f"proc_bind[{key!r}] is a text, as '0-3'; got {value!r}")
        found.append(dict(binding))
    return found


class Setup(Actor):
    """Runs ``bootstrap=`` in its process: in the constructor, so that a process that is started anew runs it again."""

    def __init__(self, bootstrap: Callable[[], Awaitable[None] | None]) -> None:
        self._error: Exception | None = None
        try:
            made = bootstrap()
            if inspect.isawaitable(made):
                asyncio.run(_awaited(made))
        except Exception as error:  # it goes to who spawned the processes, as itself
            self._error = error
            self.logger.exception("bootstrap failed")

    @endpoint
    def setup(self) -> None:
        """Raise what it raised."""
        if self._error is not None:
            raise self._error


async def _awaited(made: Awaitable[None]) -> None:
    await made


def setup_error(error: BaseException) -> BaseException:
    """The error that whoever uses the processes gets, made from that of the call of `Setup.setup`."""
    if isinstance(error, ActorError):
        text = f"Actor call setup.setup failed.\n{error.message}"
        return ActorError(error.exception, text, mesh=error.mesh, rank=error.rank, host=error.host)
    return error


__all__ = [
    "PROC_MAIN",
    "BootstrapCommand",
    "Setup",
    "bindings_for",
    "commands_for",
    "default_bootstrap_cmd",
    "setup_error",
]
