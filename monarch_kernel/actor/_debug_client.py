"""The driving side of the debugger: lists the ranks at a breakpoint, and talks to the pdb of each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import SessionError
from ..state.debug import Ranks, selects

WAIT = 5.0
"""Seconds that one request waits for the next prompt at most; a longer wait is made of several."""

Ask = Callable[..., Any]


@dataclass(frozen=True)
class Breakpoint:
    """A rank that stands at a breakpoint, or runs on from one under its debugger.

    Attributes
    ----------
    mesh, name, rank, coordinates
        Whose actor it is.
    endpoint, function, file, line
        Where it stands: the outermost and the current function of the user's code.
    host, hostname, pid
        Where it runs.
    prompt
        The number of the prompt that it waits at; 0 while it runs.
    since
        When it stopped first, wall time.
    """

    mesh: int
    name: str
    rank: int
    coordinates: dict[str, int]
    endpoint: str
    function: str
    file: str
    line: int
    host: int
    pid: int
    prompt: int
    since: float
    hostname: str = ""

    @classmethod
    def from_dict(cls, what: dict[str, Any]) -> Breakpoint:
        """Of what a host says."""
        known = {"coordinates": {}, "endpoint": "", "function": "", "file": "", "line": 0, "pid": 0, "since": 0.0,
                 "hostname": ""}  # fmt: skip
        return cls(**{name: what.get(name, known.get(name)) for name in cls.__dataclass_fields__})

    @property
    def where(self) -> str:
        """File, line and function in a few words."""
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Said:
    """What a debugger printed.

    Attributes
    ----------
    output
        Since the last line that it got.
    prompt
        It waits for a line; else the rank runs.
    ended
        The rank goes on, and there is nothing to talk to any more.
    """

    output: str
    prompt: bool
    ended: bool
    at: Breakpoint


class Debugger:
    """Talks to the debuggers of a session.

    Parameters
    ----------
    ask
        ``ask(seconds, **fields)`` makes a ``DebugRequest`` of its fields, has the head answer it, and returns the
        ``DebugReply``; `seconds` is how long the answer may take.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def standing(self) -> list[Breakpoint]:
        """The ranks that stand at a breakpoint, by mesh and rank."""
        reply = self._ask(15.0)
        return [Breakpoint.from_dict(what) for what in json.loads(reply.sessions)]

    def find(self, name: str, rank: int) -> Breakpoint:
        """The one of this rank of this mesh.

        Raises
        ------
        SessionError
            It stands at no breakpoint; names those that do.
        """
        there = self.standing()
        found = [one for one in there if one.name == name and one.rank == rank]
        if not found:
            raise SessionError(f"rank {rank} of {name} stands at no breakpoint; {_these(there)}")
        return found[0]

    def read(self, one: Breakpoint, wait: float = WAIT) -> Said:
        """What it printed since the last line; waits up to `wait` seconds for a prompt."""
        until = time.monotonic() + wait
        while True:
            said = self._say(one, "", min(WAIT, max(0.0, until - time.monotonic())))
            if said.prompt or said.ended or time.monotonic() >= until:
                return said

    def send(self, one: Breakpoint, line: str, wait: float = WAIT) -> Said:
        """A line for the prompt that it waits at, and what it prints up to the next one."""
        said = self._say(one, line if line.endswith("\n") else line + "\n", min(WAIT, wait))
        return said if said.prompt or said.ended or wait <= WAIT else self.read(said.at, wait - WAIT)

    def _say(self, one: Breakpoint, line: str, wait: float) -> Said:
        fields = {"line": line, "prompt": one.prompt} if line else {}
        reply = self._ask(wait + 15.0, mesh=one.mesh, rank=one.rank, wait=wait, **fields)
        (what,) = json.loads(reply.sessions)
        return Said(reply.output, reply.prompt, reply.ended, Breakpoint.from_dict({**what, "name": one.name}))

    def cast(self, name: str, ranks: Ranks, line: str, wait: float = WAIT) -> list[Said]:
        """One line for all of these ranks that stand at a prompt; they run at the same time.

        Raises
        ------
        SessionError
            None of them does.
        """
        there = self.standing()
        mine = [one for one in there if one.name == name and selects(ranks, one.rank, one.coordinates)]
        if not mine:
            raise SessionError(f"none of these ranks of {name} stands at a breakpoint; {_these(there)}")
        return self._all(mine, line, wait)

    def resume(self, wait: float = WAIT) -> list[Said]:
        """Clear the breakpoints that were set by hand, and let every rank go on."""
        there = [one for one in self.standing() if one.prompt]
        cleared = self._all(there, "clear", wait)
        return self._all([said.at for said in cleared if said.prompt], "c", wait)

    def _all(self, those: Iterable[Breakpoint], line: str, wait: float) -> list[Said]:
        until = time.monotonic() + wait
        sent = [self.send(one, line, 0.0) for one in those if one.prompt]
        return [
            said if said.prompt or said.ended else self.read(said.at, max(0.0, until - time.monotonic()))
            for said in sent
        ]


def breakpoint_text(event: dict[str, Any]) -> str:
    """What a host's notice of a rank that stopped says, in a line."""
    one = Breakpoint.from_dict(event["breakpoint"])
    return f"rank {one.rank} of {one.name} stands at a breakpoint, {one.where}"


def _these(there: Iterable[Breakpoint]) -> str:
    return f"these do: {', '.join(f'{one.name} {one.rank}' for one in there) or 'none'}"
