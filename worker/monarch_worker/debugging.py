"""The ranks of this host that stand at a ``breakpoint()``, and the lines that somebody sends to their debuggers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from monarch_kernel.errors import MonarchError, SessionError
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol import records
from monarch_kernel.protocol.records import Kind
from monarch_worker.host import Host
from monarch_worker.peers import Peers
from monarch_worker.procs import Proc

MOST = 30.0
"""Seconds that one request may wait; who wants to wait longer asks again."""
ENDED_KEPT = 64
ANSWERS = 5.0


class Standing:
    """One rank at a breakpoint.

    Attributes
    ----------
    what
        What its process said last, in its own words.
    prompt
        The number of the prompt that it waits at; 0 while it runs.
    """

    def __init__(self, proc: Proc) -> None:
        self.proc = proc
        self.what: dict[str, Any] = {}
        self.output = ""
        self.prompt = 0
        self.ended = False
        self.changed = asyncio.Event()

    def told(self, what: dict[str, Any]) -> None:
        """Its process says how it is."""
        self.ended = bool(what.get("ended"))
        self.output = what.pop("output", "")
        self.prompt = what.pop("prompt", 0)
        if not self.ended:
            self.what = what
        self._wake()

    def over(self, why: str) -> None:
        """It will not say anything more."""
        self.ended, self.prompt, self.output = True, 0, why
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Debugging:
    """All of them, here and (at the head) on the other hosts.

    Parameters
    ----------
    tell
        Takes a notice for the controller.
    """

    def __init__(self, host: Host, peers: Peers, tell: Callable[[dict[str, Any]], None]) -> None:
        self._host = host
        self._peers = peers
        self._tell = tell
        self._standing: dict[tuple[int, int], Standing] = {}

    # -- what procs say

    def heard(self, proc: Proc, what: dict[str, Any]) -> None:
        """A DEBUG record of a proc."""
        key = (what["mesh"], what["rank"])
        found = self._standing.get(key)
        new = not what.get("ended") and (found is None or found.ended or found.proc is not proc)
        if new:
            self._standing.pop(key, None)  # to the end of the line
            found = self._standing[key] = Standing(proc)
        if found is None:
            return
        found.told(what)
        if new:
            self._tell({"breakpoint": self._described(key, found)})
        self._forget()

    def proc_gone(self, proc: Proc) -> None:
        """A process ended, at a breakpoint or not."""
        for one in self._standing.values():
            if one.proc is proc and not one.ended:
                one.over("its process has ended\n")

    def _forget(self) -> None:
        ended = [key for key, one in self._standing.items() if one.ended]
        for key in ended[:-ENDED_KEPT]:
            del self._standing[key]

    # -- what people ask

    async def here(self, request: pb.DebugRequest) -> pb.DebugReply:
        """The ranks of this host, or one of them."""
        if not request.mesh:
            standing = [self._described(key, one) for key, one in self._standing.items() if not one.ended]
            return pb.DebugReply(sessions=json.dumps(standing).encode())
        key = (request.mesh, request.rank)
        one = self._standing.get(key)
        if one is None:
            raise SessionError(f"rank {request.rank} of {self._name(request.mesh)} stands at no breakpoint")
        if request.line and not one.ended:
            self._send(key, one, request)
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(request.wait, 0.0), MOST)
        while not one.ended and not one.prompt and (left := until - loop.time()) > 0:
            try:
                await asyncio.wait_for(one.changed.wait(), left)
            except TimeoutError:
                break
        return pb.DebugReply(
            sessions=json.dumps([self._described(key, one)]).encode(),
            output=one.output if one.ended or one.prompt else "",
            prompt=bool(one.prompt),
            ended=one.ended,
        )

    def _send(self, key: tuple[int, int], one: Standing, request: pb.DebugRequest) -> None:
        if request.prompt and request.prompt != one.prompt:
            return  # it has been answered: the line came twice, or somebody else was quicker
        if not one.prompt:
            raise SessionError(f"rank {key[1]} of {self._name(key[0])} runs; it takes a line at its next prompt")
        what = {"mesh": key[0], "rank": key[1], "line": request.line, "prompt": one.prompt}
        one.prompt, one.output = 0, ""
        one.proc.send(*records.notice(Kind.DEBUG, what))

    async def everywhere(self, request: pb.DebugRequest) -> pb.DebugReply:
        """At the head: the ranks of all hosts, or one, wherever it is."""
        if request.mesh:
            host = self._host_of(request.mesh, request.rank)
            if host == self._host.index:
                return await self.here(request)
            return await self._ask(host, request, min(request.wait, MOST) + ANSWERS)
        found = json.loads((await self.here(request)).sessions)

        async def ask(host: int) -> None:
            try:
                answer = await self._ask(host, pb.DebugRequest(), ANSWERS)
            except MonarchError:
                return  # what is lost shows as such in the status
            found.extend(json.loads(answer.sessions))

        await asyncio.gather(*map(ask, self._peers.others))
        for one in found:
            one["name"] = self._name(one["mesh"])
        found.sort(key=lambda one: (one["name"], one["rank"]))
        return pb.DebugReply(sessions=json.dumps(found).encode())

    async def _ask(self, host: int, request: pb.DebugRequest, timeout: float) -> pb.DebugReply:
        other = self._peers.others.get(host)
        if other is None:
            raise SessionError(f"there is no host {host} in this session")
        there = pb.DebugRequest()
        there.CopyFrom(request)
        there.here = True
        return await other.dialer.call("Debug", there, timeout)  # type: ignore[no-any-return]

    def _host_of(self, mesh: int, rank: int) -> int:
        if (mesh, rank) in self._standing:
            return self._host.index
        record = self._host.registry.get(mesh)
        if record is None or rank >= len(record.hosts):
            raise SessionError("there is no such mesh in this session, or it has no such rank")
        return record.hosts[rank]

    def _name(self, mesh: int) -> str:
        registry = self._host.registry
        return registry.name_of(mesh) if registry.get(mesh) is not None else "a mesh that is gone"

    def _described(self, key: tuple[int, int], one: Standing) -> dict[str, Any]:
        return {
            **one.what,
            "mesh": key[0],
            "rank": key[1],
            "name": self._name(key[0]),
            "host": self._host.index,
            "prompt": one.prompt,
        }
