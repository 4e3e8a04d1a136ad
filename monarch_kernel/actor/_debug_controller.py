"""Monarch's way to the debugger: one actor of the session that knows the ranks at a breakpoint."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from ._controllers import get_or_spawn_controller
from ._debug_client import Breakpoint
from ._endpoint import Actor, concurrent_endpoint, endpoint
from ._provider import current_runtime

_LOOKS = 0.2  # seconds between two looks of who waits for the first rank to stop
_HEADERS = ("Actor Name", "Rank", "Coords", "Hostname", "Function", "Line No.")


@dataclass(frozen=True)
class DebugSessionInfo:
    """A rank at a breakpoint.

    Attributes
    ----------
    actor_name, rank, coords
        Whose actor it is: the name of its mesh, and its place there.
    hostname
        Where it runs.
    function, lineno
        Where it stands.
    """

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str | None
    lineno: int | None


class DebugController(Actor):
    """Knows the ranks of its session that stand at a breakpoint. What `debug_controller` returns is a mesh of it."""

    @endpoint
    async def list(self, print_output: bool = True) -> list[DebugSessionInfo]:
        """The ranks at a breakpoint, by name and rank; printed as a table where this actor lives, too."""
        found = [_info(one) for one in await _standing()]
        if print_output:
            print(_table(found))
        return found

    @concurrent_endpoint
    async def wait_pending_session(self) -> None:
        """Return once a rank stands at a breakpoint."""
        while not await _standing():  # noqa: ASYNC110  # what happens in other processes sets no event here
            await asyncio.sleep(_LOOKS)


async def _standing() -> list[Breakpoint]:
    reply = await current_runtime().request("Debug", lambda pb: pb.DebugRequest())
    return [Breakpoint.from_dict(what) for what in json.loads(reply.sessions)]


def _info(one: Breakpoint) -> DebugSessionInfo:
    return DebugSessionInfo(
        one.name, one.rank, one.coordinates, one.hostname, one.function or None, one.line or None
    )  # fmt: skip


def _table(found: list[DebugSessionInfo]) -> str:
    rows: list[tuple[Any, ...]] = [_HEADERS]
    rows += [(one.actor_name, one.rank, one.coords, one.hostname, one.function, one.lineno) for one in found]
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(_HEADERS))]
    return "\n".join("  ".join(f"{cell!s:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def debug_controller() -> DebugController:
    """The one actor of the session that knows the ranks at a ``breakpoint()``, as in Monarch.

    Its endpoints are ``list(print_output=True)``, which returns a `DebugSessionInfo` of each, and
    ``wait_pending_session()``, which returns once there is one. To talk to a rank there are ``%monarch debug`` in a
    notebook, ``monarch-kernel debug NAME`` in a shell, and `Session.debugger` in code.

    Returns
    -------
    ActorMesh
        Of the one actor, typed as its class; see `get_or_spawn_controller` for where it lives.

    Examples
    --------
    >>> debug_controller().wait_pending_session.call_one().get()                # doctest: +SKIP
    >>> debug_controller().list.call_one(print_output=False).get()[0].lineno    # doctest: +SKIP
    12
    """
    return get_or_spawn_controller("debug_controller", DebugController).get()


__all__ = ["DebugController", "DebugSessionInfo", "debug_controller"]
