"""The processes of one host: started and watched through the keeper, spoken to over a private unix socket.

A proc that has lost its daemon comes back to the next one and tells what it has: its actors, the calls under way, and
every answer that no caller has confirmed. So a daemon can be killed at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from monarch_kernel.actor._lifecycle import EXIT_WITHIN, STOP_WITHIN
from monarch_kernel.errors import ActorRestarted, ActorStopped, HostLost, MonarchError, ProcDied, SupervisionError
from monarch_kernel.protocol import dataplane, records
from monarch_kernel.protocol.faults import error_from_dict, error_to_json
from monarch_kernel.protocol.frames import Record
from monarch_kernel.protocol.links import ResumableLink
from monarch_kernel.protocol.records import Kind
from monarch_kernel.protocol.sockets import SocketPipe, Take, message_socket
from monarch_kernel.state.liveness import ProcLiveness
from monarch_kernel.state.records import MeshRecord, RankRecord
from monarch_kernel.state.registry import Decision, RankChanged
from monarch_kernel.state.supervision import died_text, failed_text, stopped_text
from monarch_kernel.state.times import TIMES
from monarch_worker.commands import command_of
from monarch_worker.host import Host, signal_name, start_time
from monarch_worker.lent import as_here
from monarch_worker.logs import Logs, err_of, tail

ANSWER_WITHIN = 2.0
"""Seconds in which a process says of itself what it has to say, whatever its actors do."""


class Proc:
    """One process of ours, as the daemon sees it; also an origin of calls."""

    kind = "proc"

    def __init__(self, mesh: int, rank: int, link: ResumableLink) -> None:
        self.mesh = mesh
        self.rank = rank
        self.id = f"{mesh:x}.{rank}"
        self.link = link
        self.pid = 0
        self.sender = 0
        self.liveness = ProcLiveness(asyncio.get_running_loop().time())
        self.cleanup_within = 0.0  # seconds that the actors' `__cleanup__` has there
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.dead: dict[str, Any] | None = None
        self.gone = asyncio.Event()
        self.ending: MonarchError | None = None

    def send(self, *chunks: Record) -> None:
        """Send it a record."""
        self.link.send(*chunks)


class Procs:
    """All of them.

    Parameters
    ----------
    deliver
        Takes the records that a proc sends.
    changed
        Takes decisions of the registry, when ranks changed.
    gone
        Called with a proc whose process ended.
    send_log
        Takes what ranks have printed, for the attached controller.
    """

    def __init__(
        self,
        host: Host,
        deliver: Callable[[Proc, list[Record]], None],
        changed: Callable[[Iterable[Decision]], None],
        gone: Callable[[Proc], None],
        send_log: Callable[[dict[str, Any], bytes], None],
    ) -> None:
        self.host = host
        self.by_id: dict[str, Proc] = {}
        self.actors: dict[int, dict[int, Proc]] = {}
        self._stopping: dict[tuple[int, int], asyncio.Future[None]] = {}
        self.settled: Callable[[list[Record]], None] = lambda kept: None
        self._early: dict[int, list[Record]] = {}
        self.stopped: dict[int, str] = {}  # why, of the meshes stopped last
        self.logs = Logs(send_log)
        self._deliver = deliver
        self._changed = changed
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[SocketPipe, Proc] = {}
        self.socket = message_socket(host.addresses[host.index])

    # -- starting

    def restore(self) -> None:
        """After a restart of the daemon: the processes that the registry and the keeper know of."""
        kids = self.host.keeper.list()
        registry = self.host.registry
        found = [*registry.live(), *registry.pending()]
        for record in found:
            if record.kind == "procs":
                for rank, held in record.ranks.items():
                    if held.state in ("starting", "ok"):
                        proc = self._make(record.id, rank)
                        proc.pid = held.pid or 0
                        self.logs.add(record.id, record.name, rank, self.log_of(record, rank), again=True)
                        kid = kids.get(proc.id)
                        if kid is None or not kid["alive"]:
                            code = kid["code"] if kid else -9
                            gone = {"id": proc.id, "pid": proc.pid, "code": code, "log": None}
                            self._loop.call_soon(self.exited, gone)
        for record in found:
            if record.kind == "actors" and record.procs is not None:
                self._place(record)

    def _make(self, mesh: int, rank: int) -> Proc:
        proc: Proc
        link = ResumableLink(self._loop, lambda got: self._deliver(proc, got), 0)
        proc = Proc(mesh, rank, link)
        self.by_id[proc.id] = proc
        return proc

    def _place(self, record: MeshRecord) -> dict[int, Proc]:
        placed = self.actors.setdefault(record.id, {})
        for rank in record.ranks:
            proc = self.by_id.get(f"{record.procs:x}.{record.proc_ranks[rank]}")
            if proc is not None:
                placed[rank] = proc
        return placed

    async def start(self, record: MeshRecord, ranks: Iterable[int], *, again: bool = False) -> None:
        """Start the processes of these ranks; returns once the keeper has them (they come up on their own)."""
        registry = self.host.registry
        for rank in ranks:
            proc = self._make(record.id, rank)
            try:
                spec = self._spec(record, rank, proc.id)
                self.logs.add(record.id, record.name, rank, spec["log"])
                proc.pid = await self._loop.run_in_executor(None, self.host.keeper.spawn, spec)
            except (ConnectionError, RuntimeError, OSError) as error:  # a SpawnError, too
                words = f"rank {rank} of {record.name} could not be started on host {self.host.index}: {error}"
                fault = {"error": "SpawnError", "text": words, "why": words, "at": self._loop.time()}
                self._changed(registry.rank_failed(record.id, rank, fault))
                continue
            event = registry.rank_restarted if again else registry.rank_started
            self._changed(event(record.id, rank, proc.pid, start_time(proc.pid)))
        self.host.save()

    def log_of(self, record: MeshRecord, rank: int) -> str:
        """Where the output of a rank goes."""
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in record.name or "procs")
        return os.path.join(self.host.logs, f"{safe}-{record.id & 0xFFFF:04x}-r{rank}.log")

    def logging(self, mesh: int, stream: bool, level: int) -> None:
        """Set what processes log and whether it is sent to the controller; of one mesh, or of all for 0."""
        self.logs.stream(mesh, stream)
        if not level:
            return
        for record in self.host.registry.live("procs"):
            if mesh in (0, record.id):
                self.host.registry.specify(record.id, log_level=level)  # for those that start later
        self.host.save()
        for proc in self.by_id.values():
            if mesh in (0, proc.mesh) and proc.dead is None:
                proc.send(*records.notice(Kind.LOG, {"level": level}))

    def _spec(self, record: MeshRecord, rank: int, kid: str) -> dict[str, Any]:
        spec = as_here(record.spec, self.host.config.get("own"))
        mine = record.ranks_on(self.host.index)
        me = {
            "socket": self.socket,
            "mesh": record.id,
            "rank": rank,
            "session": self.host.session,
            "sid": self.host.sid,
            "host": self.host.index,
            "incarnation": self.host.incarnation,
            "sys_path": spec.get("sys_path", []),
            "record": {**record.to_dict(), "ranks": {}, "spec": {**spec, "env": None, "commands": None}},
        }
        # As torchrun does, so that the processes of a host do not each start a thread for every core.
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(mine)))}
        env = {**threads, **spec.get("env", {}), **device_env(self.host.config["slots"], record, mine.index(rank))}
        argv, program, env = command_of(spec, rank, mine.index(rank), env)
        env["MONARCH_PROC"] = json.dumps(me)
        cwd = spec.get("cwd")
        return {
            "id": kid,
            "argv": argv,
            "program": program,
            "env": env,
            "cwd": cwd if cwd and os.path.isdir(cwd) else None,
            "restart": False,
            "log": self.log_of(record, rank),
            "err": err_of(self.log_of(record, rank)),
            "oom": 300,
        }

    async def create(self, record: MeshRecord, ranks: Iterable[int], payload: bytes) -> None:
        """Create the actors of these ranks in their processes."""
        placed = self._place(record)
        registry = self.host.registry
        for rank in ranks:
            proc = placed.get(rank)
            if proc is None or proc.dead is not None:
                below = registry.get(record.procs or 0)
                if below is not None and proc is not None and proc.dead is not None:
                    why: MonarchError = self._death(below, proc.rank, proc)  # there is no mesh of actors to name
                else:
                    why = self.why_not(record, rank)
                fault = {**json.loads(error_to_json(why)), "why": str(why), "at": self._loop.time()}
                self._changed(registry.rank_failed(record.id, rank, fault))
                continue
            self._send_create(proc, record, rank, payload)
            self._changed(registry.rank_started(record.id, rank, proc.pid, start_time(proc.pid)))

    def _send_create(self, proc: Proc, record: MeshRecord, rank: int, payload: bytes, *, again: bool = False) -> None:
        light = {**record.to_dict(), "ranks": {}, "key": None}
        proc.send(*records.notice(Kind.CREATE, {"record": light, "rank": rank, "again": again}, payload))

    # -- the socket

    def greeted(self, pipe: SocketPipe, words: dict[str, Any]) -> Take | None:
        """A proc dialled. It is known by its pid, which the kernel vouches for, so it needs no secret."""
        proc = self.by_id.get(str(words.get("proc")))
        pid, _ = pipe.peer()
        if proc is None or (proc.pid and pid != proc.pid):
            pipe.greet({"error": "StaleHandle", "text": "this process is not known here any more"})
            return None
        resumed = words["link"] == proc.link.id and words["link"] != 0
        if not resumed:
            fresh = not proc.link.state.got and not proc.link.state.acked and not proc.up.done()
            if not fresh:
                # A daemon that was restarted (or lost track): what was queued for the old link is told again below.
                proc.link.close()
                proc.link = ResumableLink(self._loop, lambda got: self._deliver(proc, got), 0)
            proc.link.id = words["link"]
        proc.sender = words["sender"]
        proc.cleanup_within = words["cleanup_within"]
        self.actors[proc.sender] = {0: proc}  # its mailbox is called like an actor, see `actor._mailbox`
        proc.pid = pid
        self._pipes[pipe] = proc
        pipe.greet(
            {
                "resumed": resumed,
                "received": proc.link.state.got,
                "epoch": list(self.host.gate.epoch),
                "data_key": dataplane.key(self.host.secret, self.host.sid).hex(),
                "data_address": self.host.data_address,
            }
        )
        if not resumed:
            self._told(proc, words)
        proc.link.up(pipe, words["received"] if resumed else 0)
        if not proc.up.done():
            proc.up.set_result(None)
        for record in self._early.pop(proc.sender, ()):
            proc.send(record)
        self._settle()
        self._changed(self.host.registry.rank_constructed(proc.mesh, proc.rank))
        return proc.link.feed

    def keep(self, mailbox: int, record: Record) -> bool:
        """Keep a message to a mailbox that is not known, if it may be of a process that is yet to come back here."""
        if not self._some_to_come():
            return False
        self._early.setdefault(mailbox, []).append(record)
        return True

    def _some_to_come(self) -> bool:
        return any(proc.pid and proc.dead is None and not proc.up.done() for proc in self.by_id.values())

    def _settle(self) -> None:
        """Once all processes are here or dead, what was kept for others is for nobody."""
        if self._early and not self._some_to_come():
            early, self._early = self._early, {}
            for kept in early.values():
                self.settled(kept)

    def _told(self, proc: Proc, words: dict[str, Any]) -> None:
        """What a proc says of itself to a daemon that it has not spoken to."""
        has = set(words["actors"])
        for notice in words["created"]:
            self.created(proc, notice)
        registry = self.host.registry
        for record in [*registry.live("actors"), *registry.pending()]:
            if record.kind != "actors" or record.procs != proc.mesh or record.id in has:
                continue
            for rank in record.ranks:
                if record.proc_ranks[rank] == proc.rank and record.ranks[rank].state == "starting":
                    payload = self.host.keeper.get(record.payload) if record.payload else None
                    if payload is not None and proc.up.done() is False:
                        continue  # its CREATE is queued on this very link
                    if payload is not None:
                        self._send_create(proc, record, rank, payload)

    def lost(self, pipe: SocketPipe) -> None:
        """A proc's stream ended."""
        proc = self._pipes.pop(pipe, None)
        if proc is not None:
            proc.link.down(pipe)

    def created(self, proc: Proc, what: dict[str, Any]) -> None:
        """A proc says that a constructor is through, or that an actor failed or ended."""
        registry = self.host.registry
        if what["state"] == "stopped":
            self.actor_over(what["mesh"], what["rank"])
            return
        if what["state"] == "ok":
            self._changed(registry.rank_constructed(what["mesh"], what["rank"]))
            return
        fault = {**what["fault"], "why": what["fault"]["text"], "at": self._loop.time()}
        record = registry.get(what["mesh"])
        held = record.ranks.get(what["rank"]) if record is not None else None
        event = registry.rank_died if held is not None and held.state == "ok" else registry.rank_failed
        changes = event(what["mesh"], what["rank"], fault)
        if record is None and not changes:
            # Another rank failed first, and the spawn was given up; whoever supervises is told of each.
            changes = [RankChanged(what["mesh"], 1, what["rank"], RankRecord("failed", fault=fault))]
        self._changed(changes)

    # -- ends

    def exited(self, event: dict[str, Any]) -> None:
        """The keeper saw a process end."""
        proc = self.by_id.get(event["id"])
        if proc is None or (proc.pid and proc.pid != event["pid"]):
            return
        record = self.host.registry.get(proc.mesh) or next(
            (r for r in self.host.registry.pending() if r.id == proc.mesh), None
        )
        log = self.log_of(record, proc.rank) if record is not None else event.get("log")
        code = event["code"]
        proc.dead = {"pid": proc.pid, "code": code, "how": signal_name(code), "tail": tail(log), "log": log}
        proc.gone.set()
        proc.link.close()
        self.logs.ended(proc.mesh, proc.rank)
        if not proc.up.done():
            proc.up.set_result(None)
        if record is not None and proc.ending is None:
            error = self._death(record, proc.rank, proc)
            fault = {**json.loads(error_to_json(error)), "why": str(error), "at": self._loop.time(),
                     "code": event["code"]}  # fmt: skip
            known = record.ranks.get(proc.rank)
            registry = self.host.registry
            dies = registry.rank_failed if known is not None and known.state == "starting" else registry.rank_died
            changes = dies(proc.mesh, proc.rank, fault)
            if dies is registry.rank_failed:
                changes += registry.rank_died(proc.mesh, proc.rank, fault)
            self._changed(changes)
        self._gone(proc)
        self.actors.pop(proc.sender, None)
        self._settle()

    def death_of(self, record: MeshRecord, rank: int) -> ProcDied | None:
        """How the process of an actor ended, if it ended by itself."""
        proc = self.actors.get(record.id, {}).get(rank)
        if proc is None or proc.dead is None or proc.ending is not None:
            return None
        return self._death(record, rank, proc)

    def _death(self, record: MeshRecord, rank: int, proc: Proc) -> ProcDied:
        mesh, dead = record.name, proc.dead or {}
        text = f"rank {rank} of {mesh} on host {self.host.index} (pid {dead.get('pid')}) {dead.get('how', 'died')}."
        if dead.get("tail"):
            text += "\nThe last lines of its output:\n" + "\n".join("  " + line for line in dead["tail"].splitlines())
        if dead.get("log"):
            text += f"\nIts log: {dead['log']}"
        text += f"\nBring it back with: %monarch restart {mesh}[{rank}]"
        if record.kind == "actors":
            text = died_text(record, rank, dead.get("code", 0), text)
        return ProcDied(text, mesh=mesh, rank=rank, host=self.host.index)

    def death(self, proc: Proc) -> MonarchError:
        """Why a process is gone."""
        if proc.ending is not None:
            return proc.ending
        record = self.host.registry.get(proc.mesh)
        if record is None:
            record = MeshRecord(id=proc.mesh, kind="procs", name="procs")
        return self._death(record, proc.rank, proc)

    def why_not(self, record: MeshRecord | None, rank: int) -> MonarchError:
        """Why a rank of an actor mesh cannot be called."""
        if record is None:
            return SupervisionError("there is no such mesh on this host any more")
        if record.state == "stopped":
            reason = self.stopped.get(record.id)
            return ActorStopped(stopped_text(record, rank, reason or ""), mesh=record.name, rank=rank)
        proc = self.actors.get(record.id, {}).get(rank)
        if proc is not None and proc.ending is not None:
            return proc.ending
        if proc is not None and proc.dead is not None:
            return self._death(record, rank, proc)
        held = record.ranks.get(rank)
        if held is not None and held.fault is not None:
            words = failed_text(record, rank, str(held.fault.get("text") or held.fault.get("why") or ""))
            return error_from_dict({**held.fault, "text": words})
        return HostLost(f"rank {rank} of {record.name} is not there", mesh=record.name, rank=rank)

    async def stopped_actor(self, proc: Proc, mesh: int, rank: int) -> None:
        """Wait until an actor that was told to stop has cleaned up, within a bound."""
        over = self._stopping.setdefault((mesh, rank), self._loop.create_future())
        gone: asyncio.Future[Any] = self._loop.create_task(proc.gone.wait())
        within = STOP_WITHIN + proc.cleanup_within + ANSWER_WITHIN
        await asyncio.wait({over, gone}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        self._stopping.pop((mesh, rank), None)

    def tell_stop(self, proc: Proc, mesh: int, rank: int, reason: str) -> None:
        """Tell an actor to stop."""
        proc.send(*records.notice(Kind.STOP, {"mesh": mesh, "rank": rank, "reason": reason}))

    def actor_over(self, mesh: int, rank: int) -> None:
        """An actor says that it has stopped."""
        over = self._stopping.get((mesh, rank))
        if over is not None and not over.done():
            over.set_result(None)

    async def end(self, proc: Proc, why: MonarchError, timeout: float = 5.0, *, gently: str | None = None) -> None:
        """End a process with all below it, and wait until it is gone.

        Parameters
        ----------
        gently
            Why: its actors are stopped first, and have the time that `__cleanup__` is given. None ends it at once.
        """
        if proc.dead is not None:
            return
        proc.ending = why
        if gently is not None and proc.up.done() and self._loop.time() - proc.link.heard < TIMES.suspect:
            proc.send(*records.notice(Kind.STOP, {"mesh": 0, "reason": gently}))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(proc.gone.wait(), proc.cleanup_within + EXIT_WITHIN)
        await self._loop.run_in_executor(None, self.host.keeper.end, proc.id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(proc.gone.wait(), timeout)

    async def restart(self, record: MeshRecord, rank: int) -> None:
        """End (if need be) and start one process again, with its actors."""
        old = self.by_id.get(f"{record.id:x}.{rank}")
        if old is not None and old.dead is None:
            why = ActorRestarted(f"rank {rank} of {record.name} was restarted", mesh=record.name, rank=rank)
            await self.end(old, why)
        await self.start(record, [rank], again=True)
        registry = self.host.registry
        for child in registry.live("actors"):
            if child.procs != record.id:
                continue
            for theirs in child.ranks:
                if child.proc_ranks[theirs] == rank:
                    await self.recreate(child, theirs)

    async def recreate(self, record: MeshRecord, rank: int) -> None:
        """Construct one actor anew, in the process that is there."""
        payload = self.host.keeper.get(record.payload) if record.payload else None
        proc = self._place(record).get(rank)
        if payload is None or proc is None:
            raise SupervisionError(f"what {record.name} was made from is not kept any more; spawn it again")
        self._changed(self.host.registry.rank_restarted(record.id, rank, proc.pid, start_time(proc.pid)))
        self._send_create(proc, record, rank, payload, again=True)


def device_env(slots: dict[str, Any], record: MeshRecord, index: int) -> dict[str, str]:
    """Which device the process at `index` on this host sees, and which the mesh has here. Only ``gpus`` maps to any."""
    gpus = record.spec.get("per_host", {}).get("gpus")
    if slots.get("kind") != "cuda" or not gpus:
        return {}
    chosen = record.spec.get("slots") or range(gpus)
    # Dimensions after gpus share its device: the index runs row-major over per_host.
    after = 1
    labels = list(record.spec["per_host"])
    for label in labels[labels.index("gpus") + 1 :]:
        after *= record.spec["per_host"][label]
    devices = [str(slots["gpus"][slot]) for slot in chosen]
    return {"CUDA_VISIBLE_DEVICES": devices[(index // after) % gpus], "MONARCH_KERNEL_DEVICES": ",".join(devices)}
