"""Session: one cluster by name, as its controller sees it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..actor._controllers import keeper_of_names
from ..actor._debug_client import Debugger, breakpoint_text
from ..actor._future import Future
from ..actor._hosts import HostMesh, all_hosts
from ..actor._meshes import ActorMesh, ProcMesh, mesh_for
from ..actor._notation import parse_ranks, split_target
from ..actor._provider import set_runtime
from ..errors import MonarchError, SessionEnded, SessionError
from ..launch import ReleaseReport
from ..protocol import host_pb2 as pb
from ..protocol import statefile
from ..protocol.statefile import SessionFile
from ..state.merge import merge
from ..state.records import Kind, MeshRecord, RankRecord
from ..state.registry import NoSuchMesh, Registry
from ._controller import Attached, Controller, detached, io_thread
from ._growth import Growth
from ._left import LeftCall

STOPPING = 60.0
"""Seconds that stopping everything may take."""
LEAVING = 120.0
"""Seconds that giving hosts back may take, beside the bounds of its steps."""


class Named(dict[str, Any]):
    """Meshes by name. One that is not there is an error that says which are, and where."""

    def __init__(self, session: str, what: str, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        self._session, self._what = session, what

    def __missing__(self, name: object) -> Any:
        there = ", ".join(self) or "none"
        raise KeyError(f"no mesh {name!r} among the {self._what} of session {self._session!r}; it has: {there}")


class Session:
    """A live session that this process controls. Made by `up` and `attach`, never by hand.

    Leaving it (`detach`, the end of the process, by whatever cause) ends nothing; `release` does. As a context it is
    detached from at the end of the block. After `detach` or `release`, or once another controller has taken it over,
    its meshes raise an error that says so.

    Attributes
    ----------
    file
        What its state file says.
    private
        It was started by `this_host` without `up`, and ends with a script, or soon after a kernel.
    over
        Why this process controls it no more, as the error that its meshes raise; None while it does.
    before
        The controller before this one in words, and when it went (wall time); None for the first.
    faults
        What failed while nobody was attached, as the hosts kept it.

    Examples
    --------
    >>> session = mk.up("lab", hosts=2)         # doctest: +SKIP
    >>> session.actors["trainers"].step.call()  # doctest: +SKIP
    """

    def __init__(self, file: SessionFile, *, private: bool = False) -> None:
        self.file = file
        self.private = private
        self.bind = True
        self.ending = False
        self.over: MonarchError | None = None
        self.faults: list[dict[str, Any]] = []
        self.before: tuple[str, float] | None = None
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.bindings: dict[str, dict[str, Any]] = {}
        self._registry = Registry()
        self._views: dict[int, bytes] = {}
        self._left: dict[tuple[int, int, int], LeftCall] = {}
        self._lease = ""
        self._lock = threading.RLock()
        self.controller = Controller(io_thread(), file, self._event, self._ended)
        self.controller.on_spawned = self._spawned
        self.growth = Growth(self.controller)
        self.controller.on_lent_ended = self.growth.ended
        self.controller.end_hosts = self._end_hosts

    # -- life

    def _attach(self, takeover: bool) -> None:
        controller = self.controller
        try:
            found = controller.io.run(controller.attach(takeover), 60.0)
        except BaseException:
            controller.io.run(controller.leave(say=False), 10.0)
            raise
        self._found(found)
        set_runtime(controller)

    def _found(self, found: Attached) -> None:
        self._registry = found.merged.registry
        self._views = {index: reply.registry for index, reply in found.replies.items()}
        self.bindings = self._registry.live_bindings()
        self.controller.controllers_survive |= any(
            record.spec.get("controllers_survive") for record in self._registry.live("procs")
        )
        head = found.replies[0]
        self._lease = head.lease
        if head.before.title:
            self.before = (head.before.title, head.before_gone)
        for reply in found.replies.values():
            self.faults.extend(json.loads(fault) for fault in reply.faults)
        for host, info in found.calls:
            self._remember(host, info)

    def _remember(self, host: int, info: pb.CallInfo) -> None:
        if info.endpoint.startswith("!"):  # between processes, see the mailbox
            return
        key = (info.sender, info.mesh, info.number)
        known = self._left.get(key)
        if known is not None:
            if host == known.host:  # the others answer for their own ranks only
                known.update(info)
            return
        record = self._registry.get(info.mesh)
        handle = self.controller.handle(record) if record is not None and record.state == "live" else None
        name = self._registry.name_of(info.mesh) if record is not None else "a mesh that is gone"
        self._left[key] = LeftCall(self.controller, host, info, handle, name)

    def check(self) -> None:
        """Raise when this process does not control the session any more."""
        if self.over is not None:
            raise self.over.with_traceback(None)

    def detach(self) -> None:
        """Leave the session: everything goes on, and its lease counts once nothing runs. May be said twice."""
        self._leave(detached(self.name))

    def _leave(self, error: MonarchError) -> None:
        from . import forget

        with self._lock:
            first = self.over is None
            self.over = self.over or error
        # Without the lock: the I/O thread, which does this, wants it for each event that comes meanwhile.
        self.controller.io.run(self.controller.leave(say=first), 15.0)
        self.controller.io.post(self.controller.close_calls, self.over)
        forget(self)

    def release(self, timeout: float = 30.0) -> ReleaseReport:
        """End the session: all processes, device memory and shared memory of it are freed before this returns.

        Parameters
        ----------
        timeout
            Seconds that they have to end by themselves.

        Raises
        ------
        SessionError
            Something of it could not be ended; names what is left.
        """
        from . import end

        if self.over is None:
            self.controller.io.run(self.growth.release(), 30.0)
        self._leave(SessionEnded(f"session {self.name!r} was released"))
        return end(self.file, "released by its controller", timeout)

    def _end_hosts(self, release: bool) -> None:
        """`HostMesh.stop`, and `shutdown` with `release`."""
        if release:
            if not self.private:
                raise SessionError(
                    f"the hosts belong to session {self.name!r}, which others may come back to: to end it, "
                    f"%monarch down {self.name} (or monarch_kernel.down({self.name!r})); HostMesh.stop() ends what "
                    "runs there and keeps them"
                )
            self.release()
            return
        controller = self.controller
        keeper = self._registry.get(keeper_of_names(controller, survives=True))
        kept = keeper.procs if keeper is not None else None
        handles = [controller.handle(record) for record in self.refresh().live("procs") if record.id != kept]
        handles += [handle for handle in controller.on_their_way("procs") if handle not in handles]
        handles = [handle for handle in handles if min(handle.hosts) < self.file.hosts]  # not those of lent hosts
        stopped = [controller.stop(handle, "HostMesh.stop()") for handle in handles]
        for each in stopped:
            each.get(STOPPING)

    def _spawned(self, record: MeshRecord) -> None:
        with self._lock:
            self._registry.add(record.copy())

    def snapshot(self) -> Registry:
        """What is known of the meshes without asking anybody."""
        return self._registry

    def tell_hosts(self, words: dict[str, Any], orphaned: Iterable[int] = ()) -> None:
        """Send what the notebook knows of its meshes (variables, re-run keys) to every host; waits for nothing."""
        request = pb.BindRequest(bindings=json.dumps(words).encode(), orphaned=list(orphaned))

        async def tell(index: int) -> None:
            try:
                await self.controller.ask("Bind", request, 10.0, index)
            except MonarchError:
                pass  # a host that is lost hears it with the next cell

        for member in self.file.members:
            self.controller.io.post(lambda index=member.index: self.controller.io.spawn(tell(index)))

    def _ended(self, error: MonarchError) -> None:
        self.over = error
        self._tell({"over": str(error), "error": type(error).__name__, "at": time.time()})

    def _event(self, event: dict[str, Any]) -> None:
        with self._lock:
            if "record" in event and "rank" in event:
                record = self._registry.get(event["mesh"])
                if record is not None:
                    record.ranks[event["rank"]] = RankRecord.from_dict(event["record"])
            elif "stopped" in event:
                self._registry.stop(event["stopped"], event["reason"])
        self._tell(event)

        if "breakpoint" in event and not self.listeners:  # a script may wait for the rank, and say nothing
            print(f"{breakpoint_text(event)}: monarch-kernel debug {self.name}", file=sys.stderr, flush=True)

    def _tell(self, event: dict[str, Any]) -> None:
        for listener in list(self.listeners):
            listener(event)

    # -- what there is

    @property
    def name(self) -> str:
        """The session's name."""
        return self.file.name

    @property
    def hosts(self) -> HostMesh:
        """The hosts that it was started with, dimension ``hosts``."""
        self.check()
        return all_hosts(self.controller, self.file.hosts)

    def give_back(self, hosts: Collection[int], *, shut_down: bool) -> None:
        """Stop what runs on hosts that worker loops lend, and give them back; with `shut_down` end the loops, too."""
        handles = [self.controller.handle(record) for record in self.refresh().live("procs")]
        handles += [handle for handle in self.controller.on_their_way("procs") if handle not in handles]
        there = [handle for handle in handles if not set(hosts).isdisjoint(handle.hosts)]
        stopped = [self.controller.stop(handle, "its hosts leave") for handle in there]
        for each in stopped:
            each.get(STOPPING)
        self.controller.io.run(self.growth.leave(hosts, shut_down=shut_down), LEAVING)

    @property
    def epoch(self) -> tuple[int, int]:
        """Our place in the line of controllers: (term, count)."""
        term, count = self.controller.epoch
        return term, count

    def revise(self, lease: float | None = None, max_detached: float | None = None) -> None:
        """Set other times for the lease, in seconds, on every host and in the state file."""
        request = pb.ReviseRequest(lease=lease or 0.0, max_detached=max_detached or 0.0)

        async def everywhere() -> None:
            await asyncio.gather(*(self.controller.ask("Revise", request, 10.0, m.index) for m in self.file.members))

        self.check()
        self.controller.io.run(everywhere(), 60.0)
        self.file.lease = lease or self.file.lease
        self.file.max_detached = max_detached or self.file.max_detached
        statefile.save(self.file)

    @property
    def lease(self) -> str:
        """How long the session lives without a controller, in words."""
        self.refresh()
        return self._lease

    def refresh(self) -> Registry:
        """Ask every host how it is; returns what all of them know together."""
        self.check()
        answers = self.controller.io.run(self._statuses(), 20.0)
        with self._lock:
            self._views.update({host: answer.registry for host, answer in answers.items()})
            # A host whose daemon is being restarted stands by what it said last; one that is lost has nothing to say.
            silent = self.controller.lost - answers.keys()
            views = {m.index: None if m.index in silent else self._views.get(m.index) for m in self.file.members}
            self._registry = merge(views).registry
            self._lease = answers[0].lease if 0 in answers else self._lease
            for host, answer in answers.items():
                for info in answer.calls:
                    if (info.sender, info.mesh, info.number) in self._left:
                        self._remember(host, info)
            return self._registry

    async def _statuses(self) -> dict[int, pb.StatusReply]:
        answers: dict[int, pb.StatusReply] = {}

        async def ask(index: int) -> None:
            dialer = self.controller._dialers.get(index)
            if dialer is None:  # it has just left
                return
            try:
                answers[index] = await dialer.call("Status", pb.StatusRequest(), 5.0)
            except MonarchError:
                pass  # a host that does not answer shows as lost

        await asyncio.gather(*(ask(member.index) for member in self.file.members))
        return answers

    def statuses(self) -> dict[int, pb.StatusReply]:
        """The answer of each host that answers to how it is."""
        self.check()
        return self.controller.io.run(self._statuses(), 20.0)

    @property
    def debugger(self) -> Debugger:
        """Lists the ranks that stand at a ``breakpoint()``, and talks to the debugger of each."""
        self.check()
        controller = self.controller

        def ask(seconds: float, **fields: Any) -> pb.DebugReply:
            asking = controller.ask("Debug", pb.DebugRequest(**fields), seconds)
            return controller.io.run(asking, seconds + controller.times.reconnect_window)  # type: ignore[no-any-return]

        return Debugger(ask)

    @property
    def procs(self) -> Mapping[str, ProcMesh]:
        """The live process meshes by name."""
        return self._named("procs")

    @property
    def actors(self) -> Mapping[str, ActorMesh[Any]]:
        """The live actor meshes by name."""
        return self._named("actors")

    def _named(self, kind: Kind) -> Named:
        found = {name: self._mesh(record) for name, record in self.refresh().names(kind).items()}
        return Named(self.name, "processes" if kind == "procs" else "actors", found)

    def _mesh(self, record: MeshRecord) -> ActorMesh[Any] | ProcMesh:
        return mesh_for(self.controller.handle(record))

    def mesh(self, mesh_id: int) -> ActorMesh[Any] | ProcMesh | None:
        """The mesh of this id, None when it is not live."""
        record = self._registry.get(mesh_id)
        return self._mesh(record) if record is not None and record.state == "live" else None

    @property
    def calls(self) -> list[LeftCall]:
        """Calls that an earlier controller left behind, oldest first; `LeftCall.result` brings what they brought."""
        if self._left:
            self.refresh()
        return sorted(self._left.values(), key=lambda call: call.started)

    def find(self, target: str) -> tuple[MeshRecord, list[int]]:
        """The mesh and the ranks that a text like ``trainers[2]`` names; all ranks without brackets.

        Raises
        ------
        SessionError
            No such mesh; the text names those that there are.
        ValueError, IndexError
            The brackets name no ranks of it.
        """
        name, _ = split_target(target)
        registry = self.refresh()
        try:
            record = registry.lookup(name)
        except NoSuchMesh as error:
            raise SessionError(str(error)) from None
        _, ranks = parse_ranks(target, record.labels, record.sizes)
        return record, ranks

    def restart(self, target: str, level: str = "") -> dict[int, dict[str, Any]]:
        """Restart ranks, and wait until they are ready or have failed.

        Parameters
        ----------
        target
            ``trainers``, ``trainers[2]``, ``trainers[0,3]``, ``trainers{gpus: 0-1}``.
        level
            ``actor`` (the object anew, in its process), ``proc`` (the process too), or empty: the least that works.

        Returns
        -------
        dict
            By rank, what it is now.
        """
        if level not in ("", "actor", "proc"):
            raise ValueError(f"the level is 'actor', 'proc' or '' (the least that works); got {level!r}")
        record, ranks = self.find(target)
        return self.restart_ranks(record.id, ranks, level)

    def restart_ranks(self, mesh: int, ranks: list[int], level: str = "") -> dict[int, dict[str, Any]]:
        """The same by the mesh's id."""
        answer: Future[Any] = self.controller.request(
            "Restart", lambda p: p.RestartRequest(mesh=mesh, ranks=ranks, level=level)
        )
        return {int(rank): held for rank, held in json.loads(answer.get().ranks).items()}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "attached" if self.over is None else type(self.over).__name__
        return f"<session {self.name!r}: {len(self.file.members)} hosts, {state}, epoch {tuple(self.epoch)}>"


__all__ = ["Session", "statefile"]
