"""Spawning, stopping and restarting: this host's part, and on the head the lead of all hosts.

`state.spawn` decides; here its decisions are carried out.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from monarch_kernel.errors import (
    ActorRestarted,
    ActorStopped,
    ConnectionLost,
    HostLost,
    MonarchError,
    NotEnoughSlots,
    SpawnError,
    StaleHandle,
)
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol import records
from monarch_kernel.protocol.faults import error_from_dict, error_to_json
from monarch_kernel.state.records import MeshRecord, Owner, RankRecord
from monarch_kernel.state.registry import Already, Decision, EndRanks, RankChanged, Refused, StartRanks, Stopped
from monarch_kernel.state.spawn import Done, Failed, Fault, Record, Reply, Send, SpawnCoordinator
from monarch_kernel.state.times import TIMES
from monarch_worker.host import Host
from monarch_worker.peers import Peers
from monarch_worker.procs import Proc, Procs
from monarch_worker.router import Router
from monarch_worker.supervision import Supervisor

PROCS_UP = 120.0
"""Seconds that new processes have to come up. Constructors have no limit: they are user code."""

MOST_PROCS = 512
"""Processes of one mesh on one host: more is a slip of the pen, and would only end in no memory."""

Tell = Callable[[dict[str, Any]], None]


class Spawning:
    """Both parts.

    Parameters
    ----------
    tell
        Takes an event for whoever is attached.
    """

    def __init__(self, host: Host, procs: Procs, router: Router, peers: Peers, tell: Tell) -> None:
        self.host = host
        self.procs = procs
        self.router = router
        self.peers = peers
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(host, procs, peers, tell, self._lost)
        self._ending: set[asyncio.Task[None]] = set()
        self._waiting: dict[tuple[int, int], list[asyncio.Future[Reply]]] = {}
        self._payloads: dict[int, bytes] = {}
        self._leading: dict[int, asyncio.Task[MeshRecord]] = {}
        self._events: dict[int, asyncio.Queue[Callable[[SpawnCoordinator], list[Any]]]] = {}
        self._rank_events: dict[tuple[int, int], list[asyncio.Future[RankRecord]]] = {}

    @property
    def running(self) -> int:
        """How many spawns are under way here: the lease does not run out meanwhile."""
        return len(self.host.registry.pending()) + len(self._leading)

    # -- this host's part

    def changed(self, decisions: Iterable[Decision]) -> None:
        """Ranks changed: answer spawns that this settles, and tell whoever is attached."""
        decisions = list(decisions)
        if not decisions:
            return
        self.host.save()
        for reply in self.host.participant.after(decisions, self._loop.time()):
            for future in self._waiting.pop((reply.mesh, reply.generation), []):
                if not future.done():
                    future.set_result(reply)
        registry = self.host.registry
        unowned = self.supervisor.changed(decisions)
        for decision in decisions:
            if not isinstance(decision, RankChanged):
                continue
            held = decision.record
            record = registry.get(decision.mesh)
            failure = unowned.get((decision.mesh, decision.rank))
            if held.state != "starting":
                for settled in self._rank_events.pop((decision.mesh, decision.rank), []):
                    if not settled.done():
                        settled.set_result(held)
            if record is None or record.state == "stopped":
                if failure is not None and record is None:
                    self._tell({"rank": decision.rank, "mesh": decision.mesh, "name": failure["mesh_name"],
                                "kind": "actors", "failure": failure})  # fmt: skip
                continue
            told = held.to_dict()
            if held.state in ("failed", "dead") and held.fault is not None and record.kind == "actors":
                told["fault"] = fault = self.supervisor.words(record, decision.rank, held.fault)
                self.router.actor_failed(record.id, decision.rank, error_from_dict(fault))
            event = {"rank": decision.rank, "mesh": record.id, "name": record.name, "record": told,
                     "kind": record.kind}  # fmt: skip
            self._tell(event if failure is None else {**event, "failure": failure})

    async def prepare(self, record: MeshRecord, payload: bytes) -> Reply:
        """The head asks to prepare; returns when this host's ranks are up, or are not."""
        if payload and record.kind == "actors":
            record.payload = f"actor.{record.id:x}"
            self.host.keeper.put(record.payload, payload)
            self._payloads[record.id] = payload
        items = self.host.participant.prepare(record, self._loop.time())
        self.host.save()
        reply = next((item for item in items if isinstance(item, Reply)), None)
        key = (record.id, record.generation)
        future: asyncio.Future[Reply] = self._loop.create_future()
        if reply is None:
            self._waiting.setdefault(key, []).append(future)
        await self._act(items)
        self._payloads.pop(record.id, None)
        return reply if reply is not None else await future

    async def decide(self, mesh: int, commit: bool, generation: int = 1) -> Reply:
        """The head asks to commit, or to undo."""
        now = self._loop.time()
        participant = self.host.participant
        if not commit:
            self.supervisor.given_up(mesh)
        items = participant.commit(mesh, generation, now) if commit else participant.abort(mesh, generation, now)
        self.host.save()
        reply = next(item for item in items if isinstance(item, Reply))
        await self._act(items)
        for future in self._waiting.pop((mesh, generation), []) if not commit else []:
            if not future.done():
                future.set_result(reply)
        return reply

    async def _act(self, items: Iterable[Any], *, wait: bool = False) -> None:
        """Carry decisions out.

        Parameters
        ----------
        wait
            Whether to wait until actors that are to stop have cleaned up.
        """
        registry = self.host.registry
        items = list(items)
        ending = {item.mesh for item in items if isinstance(item, EndRanks)}
        for item in items:
            if isinstance(item, StartRanks):
                record = next(r for r in registry.pending() if r.id == item.mesh)
                if record.kind == "procs":
                    await self.procs.start(record, item.ranks)
                else:
                    await self.procs.create(record, item.ranks, self._payloads.get(record.id, b""))
            elif isinstance(item, EndRanks):
                await self._end(item, ending if wait else None)
            elif isinstance(item, Stopped):
                stopped = registry.get(item.mesh)
                self.router.forget(item.mesh)
                self.procs.stopped[item.mesh] = item.reason
                while len(self.procs.stopped) > 1024:
                    del self.procs.stopped[next(iter(self.procs.stopped))]
                self._tell({"stopped": item.mesh, "reason": item.reason, "name": stopped.name if stopped else ""})
            elif isinstance(item, RankChanged):
                self.changed([item])
            elif isinstance(item, Already | Refused):
                pass  # the reply that comes with it says so

    async def _end(self, item: EndRanks, ending: set[int] | None) -> None:
        record = self.host.registry.get(item.mesh)
        name = record.name if record is not None else "the mesh"
        why = ActorStopped(f"{name} was stopped: {item.reason}", mesh=name)
        placed = self.procs.actors.pop(item.mesh, None)
        if placed is not None:
            self.host.keeper.drop(f"actor.{item.mesh:x}")
            if record is not None and record.procs in (ending or ()):
                return  # its processes end next, and it with them: it finishes no more than the message in progress
            waits = []
            for rank, proc in placed.items():
                self.procs.tell_stop(proc, item.mesh, rank, item.reason)
                if ending is not None and rank in item.ranks and proc.dead is None:
                    waits.append(self.procs.stopped_actor(proc, item.mesh, rank))
            await asyncio.gather(*waits)
            return
        ending_procs = [
            self.procs.by_id[key] for rank in item.ranks if (key := f"{item.mesh:x}.{rank}") in self.procs.by_id
        ]
        gently = item.reason if ending is not None else None
        await asyncio.gather(*(self.procs.end(proc, why, gently=gently) for proc in ending_procs))
        for proc in ending_procs:
            self.procs.by_id.pop(proc.id, None)

    async def stop_here(self, mesh: int, reason: str, *, wait: bool = True) -> int:
        """Stop this host's ranks of a mesh; with `wait`, returns when its actors have cleaned up."""
        record = self.host.registry.get(mesh)
        live = record is not None and record.state == "live"
        decisions = self.host.registry.stop(mesh, reason)
        if live:  # who calls meanwhile is told, too
            self.procs.stopped[mesh] = reason
        self.host.save()
        await self._act(decisions, wait=wait)
        return len(record.ranks) if live and record is not None else 0

    async def restart_here(self, mesh: int, ranks: Iterable[int], level: str) -> dict[int, dict[str, Any]]:
        """Restart these ranks of this host, and wait until they are ready or have failed."""
        record = self.host.registry.get(mesh)
        if record is None or record.state != "live":
            raise StaleHandle("there is no such live mesh on this host")
        waits: dict[int, asyncio.Future[RankRecord]] = {}
        for rank in ranks:
            waits[rank] = self._loop.create_future()
            proc = self.procs.actors.get(mesh, {}).get(rank)
            dead = proc is None or proc.dead is not None
            if record.kind == "procs":
                await self.procs.restart(record, rank)
            elif level == "proc" or (level == "" and dead):
                await self._restart_below(record, rank)
            elif dead:
                raise SpawnError(
                    f"rank {rank} of {record.name} has no process any more: restart it at level 'proc'",
                    mesh=record.name,
                )
            else:
                error = ActorRestarted(
                    f"rank {rank} of {record.name} was restarted while the call was in flight",
                    mesh=record.name,
                    rank=rank,
                )
                self.router.actor_failed(mesh, rank, error)
                if level == "" and self._silent(proc):  # stopped, or in a C call that holds the GIL
                    await self._restart_below(record, rank)
                else:
                    await self.procs.recreate(record, rank)
            if record.ranks[rank].state != "starting":
                waits[rank].set_result(record.ranks[rank])
            else:
                self._rank_events.setdefault((mesh, rank), []).append(waits[rank])
        self.host.save()
        for rank, wait in waits.items():
            while not wait.done():
                await asyncio.wait([wait], timeout=TIMES.heartbeat)
                proc = self.procs.actors.get(mesh, {}).get(rank)
                if level == "" and not wait.done() and proc is not None and proc.up.done() and self._silent(proc):
                    # It became silent before it could construct the actor anew: the process has to go, too.
                    self._rank_events.setdefault((mesh, rank), []).append(wait)
                    await self._restart_below(record, rank)
        return {rank: wait.result().to_dict() for rank, wait in waits.items()}

    def _silent(self, proc: Proc | None) -> bool:
        return proc is not None and self._loop.time() - proc.link.heard > TIMES.suspect

    async def _restart_below(self, record: MeshRecord, rank: int) -> None:
        below = self.host.registry.get(record.procs or 0)
        if below is None:
            raise StaleHandle(
                f"the processes of {record.name} are not here any more: run the cell that spawns them again"
            )
        await self.procs.restart(below, record.proc_ranks[rank])

    # -- the head's part

    async def spawn(self, request: pb.SpawnRequest) -> MeshRecord:
        """Spawn a mesh on all its hosts, or on none. Asked again with the same id it is the same spawn."""
        record = MeshRecord.from_dict(json.loads(request.record))
        registry = self.host.registry
        known = registry.get(record.id)
        if known is not None and known.state == "live":
            return known
        task = self._leading.get(record.id)
        if task is None:
            self._check(record)
            if not record.name:
                record.name = registry.auto_name()
            record.created = time.time()
            for index in {*record.hosts, self.host.index}:
                if index != self.host.index and index not in self.peers.others:
                    raise SpawnError(f"there is no host {index}: the session has {1 + len(self.peers.others)}")
            coordinator = SpawnCoordinator(
                record.id,
                {*record.hosts, self.host.index},
                self._loop.time(),
                timeout=PROCS_UP if record.kind == "procs" else None,
            )
            task = self._loop.create_task(self._lead(coordinator, record, request.payload, list(request.stop)))
            self._leading[record.id] = task
            task.add_done_callback(lambda done: (self._leading.pop(record.id, None), done.exception()))
        # Shielded: a controller that goes away does not undo what it has asked for.
        return await asyncio.shield(task)

    def _check(self, record: MeshRecord) -> None:
        """Refuse more GPUs than a host has left; choose the devices."""
        if record.kind == "actors":
            below = self.host.registry.get(record.procs or 0)
            if below is None or below.state == "stopped":
                raise StaleHandle(
                    f"`ProcMesh` has already been stopped: the processes that {record.name} is to run on are gone; "
                    "spawn them again first",
                    mesh=record.name,
                )
            return
        gpus = record.spec.get("per_host", {}).get("gpus")
        slots = self.host.config["slots"]
        there = len(slots["gpus"]) if slots.get("kind") == "cuda" else slots.get("count")
        size = len(record.hosts) // max(1, len(set(record.hosts)))
        if size > MOST_PROCS:
            raise NotEnoughSlots(f"{size} processes a host were asked for; at most {MOST_PROCS} are started on one")
        if gpus is None or there is None:
            return
        taken: set[int] = set()
        shared: set[int] = set()
        for other in self.host.registry.live("procs"):
            if set(other.hosts) & set(record.hosts):
                (taken if other.spec.get("exclusive") else shared).update(other.spec.get("slots", []))
        blocked = taken | shared if record.spec.get("exclusive") else taken
        free = [slot for slot in range(there) if slot not in blocked]
        if gpus > len(free):
            kind = "GPUs" if slots.get("kind") == "cuda" else "CPU slots"
            raise NotEnoughSlots(
                f"{gpus} {kind} a host were asked for; there are {there}, of which {len(free)} are free"
                + (" (the others belong to exclusive meshes: stop one, or share)" if len(free) < there else "")
            )
        record.spec["slots"] = free[:gpus]

    async def _lead(
        self, coordinator: SpawnCoordinator, record: MeshRecord, payload: bytes, stop: list[int]
    ) -> MeshRecord:
        events = self._events.setdefault(record.id, asyncio.Queue())
        blob = f"spawn.{record.id:x}"
        tasks: set[asyncio.Task[None]] = set()

        async def send(host: int, phase: str) -> None:
            try:
                reply = await self._phase(host, phase, record, payload, coordinator.generation)
            except (ConnectionLost, HostLost):
                lost = self._loop.time()
                events.put_nowait(lambda c: c.host_lost(host, lost))
                return
            except Exception as error:
                if phase == "abort":  # a host that cannot even undo is as good as lost; it gives up by itself in time
                    traceback.print_exception(error)
                    lost = self._loop.time()
                    events.put_nowait(lambda c: c.host_lost(host, lost))
                    return
                data = {"error": type(error).__name__, "text": str(error)}
                fault = Fault(str(error), self._loop.time(), host, None, data)
                reply = Reply(record.id, coordinator.generation, "failed", fault)
            events.put_nowait(lambda c: c.answered(host, reply, self._loop.time()))

        try:
            steps: list[Any] = coordinator.start(self._loop.time())
            while True:
                for step in steps:
                    if isinstance(step, Send):
                        task = self._loop.create_task(send(step.host, step.phase))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    elif isinstance(step, Record):
                        if step.blob is None:
                            self.host.keeper.drop(blob)
                        else:
                            state = {"coordinator": step.blob.decode(), "record": record.to_dict(), "stop": stop}
                            self.host.keeper.put(blob, json.dumps(state).encode())
                    elif isinstance(step, Done):
                        for mesh in stop:
                            await self.stop(mesh, f"replaced by {record.name}", wait=False)
                        return self._everywhere(self.host.registry.get(record.id) or record)
                    elif isinstance(step, Failed):
                        raise self._error(record, step.fault)
                try:
                    event = await asyncio.wait_for(events.get(), 1.0)
                    steps = event(coordinator)
                except TimeoutError:
                    steps = coordinator.tick(self._loop.time())
        finally:
            self._events.pop(record.id, None)
            for task in tasks:
                task.cancel()

    def _everywhere(self, record: MeshRecord) -> MeshRecord:
        """The record with the ranks of all hosts: done means that every rank is ready."""
        whole = record.copy()
        for rank in range(whole.size):
            whole.ranks.setdefault(rank, RankRecord("ok"))
        return whole

    def _error(self, record: MeshRecord, fault: Fault) -> MonarchError:
        if fault.data is not None and "text" in fault.data:
            error = error_from_dict(fault.data)
            error.mesh = record.name
            return error
        where = f" on host {fault.host}" if fault.host is not None else ""
        return SpawnError(f"{record.name} could not be spawned{where}: {fault.why}", mesh=record.name, host=fault.host)

    async def _phase(self, host: int, phase: str, record: MeshRecord, payload: bytes, generation: int) -> Reply:
        if host == self.host.index:
            if phase == "prepare":
                return await self.prepare(record, payload)
            return await self.decide(record.id, phase == "commit", generation)
        dialer = self.peers.others[host].dialer
        if phase == "prepare":
            request = pb.PrepareRequest(record=json.dumps(record.to_dict()).encode(), payload=payload)
            answer = await dialer.call("Prepare", request, None)
        else:
            answer = await dialer.call("Decide", pb.DecideRequest(mesh=record.id, commit=phase == "commit"), 60.0)
        data = json.loads(answer.record)
        fault = Fault(**data["fault"]) if data["fault"] is not None else None
        return Reply(data["mesh"], data["generation"], data["answer"], fault)

    def host_lost(self, host: int) -> None:
        """No word from a host: spawns that need it fail."""
        now = self._loop.time()
        for events in self._events.values():
            events.put_nowait(lambda coordinator: coordinator.host_lost(host, now))

    def resume(self) -> None:
        """After a restart of the head's daemon: go on with the spawns that were under way."""
        if not self.host.head:
            return
        for name in self.host.keeper.names():
            if name.startswith("spawn."):
                state = json.loads(self.host.keeper.get(name) or b"{}")
                if not state:
                    continue
                record = MeshRecord.from_dict(state["record"])
                payload = self.host.keeper.get(f"actor.{record.id:x}") or b""
                coordinator = SpawnCoordinator.resume(state["coordinator"].encode(), self._loop.time())
                task = self._loop.create_task(self._lead(coordinator, record, payload, state["stop"]))
                self._leading[record.id] = task
                task.add_done_callback(lambda done, mesh=record.id: (self._leading.pop(mesh, None), done.exception()))  # type: ignore[misc]

    async def stop(self, mesh: int, reason: str, *, wait: bool = True) -> int:
        """Stop a mesh on all hosts, what its actors own first; a host that is lost stops its part when it is back."""
        leading = self._leading.get(mesh)
        if leading is not None:  # its constructors may never end
            why = error_to_json(ActorStopped(f"it was stopped while it was spawned: {reason}"))
            now, data = self._loop.time(), json.loads(why)
            self._events.setdefault(mesh, asyncio.Queue()).put_nowait(lambda c: c.cancel(reason, now, data))
            await asyncio.wait([leading])
        for owned in self.host.registry.owned(mesh):
            await self.stop(owned.id, reason, wait=wait)
        record = self.host.registry.get(mesh)
        hosts = set(record.hosts) if record is not None else {self.host.index, *self.peers.others}
        request = pb.StopRequest(mesh=mesh, reason=reason, here=True)
        calls: list[Awaitable[Any]] = [
            self.peers.others[host].dialer.call("Stop", request, None)
            for host in hosts
            if host != self.host.index and self.peers.others[host].lost is None
        ]
        here = self.stop_here(mesh, reason, wait=wait)
        answers = await asyncio.gather(here, *calls, return_exceptions=True)
        return sum(a if isinstance(a, int) else a.stopped for a in answers if not isinstance(a, BaseException))

    async def stop_owned(self, owner: Owner, reason: str) -> int:
        """Stop what an actor owns, wherever it is: it has ended, or is about to."""
        if not self.host.head:
            answer = await self.peers.at_head("Stop", pb.StopRequest(owner=str(owner), reason=reason))
            return int(answer.stopped)
        registry = self.host.registry
        owned = [r.id for r in (*registry.pending(), *registry.live()) if r.owner == str(owner)]
        return sum([await self.stop(mesh, reason) for mesh in owned])

    def controller_gone(self) -> None:
        """The actors that lived in the controller's own process are gone with it. The next one has not begun yet."""
        owners = {Owner.parse(record.owner) for record in self.host.registry.live()}
        for owner in owners:
            if owner is not None and owner.host == records.CONTROLLER:
                self._lost(owner, "the actor that owned it lived in a controller that is gone")

    def _lost(self, owner: Owner, reason: str) -> None:
        async def end() -> None:
            try:
                await self.stop_owned(owner, reason)
            except MonarchError as error:  # the head is lost, and with it who could know
                traceback.print_exception(error)

        task = self._loop.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def restart(self, mesh: int, ranks: list[int], level: str) -> dict[int, dict[str, Any]]:
        """Restart ranks wherever they are."""
        record = self.host.registry.get(mesh)
        if record is None or record.state != "live":
            raise StaleHandle("there is no such live mesh in this session")
        chosen = ranks or list(range(record.size))
        if wrong := [rank for rank in chosen if not 0 <= rank < record.size]:
            raise SpawnError(f"{record.name} has ranks 0 to {record.size - 1}; asked for {wrong}", mesh=record.name)
        by_host: dict[int, list[int]] = {}
        for rank in chosen:
            by_host.setdefault(record.hosts[rank], []).append(rank)

        async def there(host: int, theirs: list[int]) -> dict[int, dict[str, Any]]:
            if host == self.host.index:
                return await self.restart_here(mesh, theirs, level)
            if (lost := self.peers.others[host].lost) is not None:
                raise lost
            request = pb.RestartRequest(mesh=mesh, ranks=theirs, level=level, here=True)
            answer = await self.peers.others[host].dialer.call("Restart", request, None)
            return {int(rank): held for rank, held in json.loads(answer.ranks).items()}

        found: dict[int, dict[str, Any]] = {}
        for part in await asyncio.gather(*(there(host, theirs) for host, theirs in by_host.items())):
            found.update(part)
        return found
