"""Carries out what `state.supervision` decides on this host: faults go to owners, and what a failed owner has ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from monarch_kernel.errors import MonarchError
from monarch_kernel.protocol import records
from monarch_kernel.protocol.faults import error_to_json
from monarch_kernel.protocol.records import Kind
from monarch_kernel.state.records import MeshRecord, Owner, RankRecord
from monarch_kernel.state.registry import Decision, RankChanged
from monarch_kernel.state.supervision import Supervision, Told, failed_text
from monarch_worker.host import Host
from monarch_worker.peers import Peers
from monarch_worker.procs import Procs


class Supervisor:
    """This host's part of the tree.

    Parameters
    ----------
    tell
        Takes an event for whoever is attached.
    end_owned
        Ends the meshes that an actor owns, on all hosts; returns at once.
    """

    def __init__(
        self,
        host: Host,
        procs: Procs,
        peers: Peers,
        tell: Callable[[dict[str, Any]], None],
        end_owned: Callable[[Owner, str], None],
    ) -> None:
        self.host = host
        self.procs = procs
        self.peers = peers
        self._tell = tell
        self._end_owned = end_owned
        self._core = Supervision(host.registry, host.index)

    def words(self, record: MeshRecord, rank: int, fault: dict[str, Any]) -> dict[str, Any]:
        """A fault of an actor in the words of the actor's mesh: of a death, that of its process."""
        death = self.procs.death_of(record, rank)
        about: dict[str, Any] = json.loads(error_to_json(death)) if death is not None else {}
        text = failed_text(record, rank, str(about.get("text") or fault.get("text") or fault.get("why") or ""))
        return {**fault, **about, "mesh": record.name, "rank": rank, "text": text}

    def given_up(self, mesh: int) -> None:
        """A spawn is about to be undone; ranks whose constructors run on may still fail, and are told of."""
        self._core.record(mesh)

    def changed(self, decisions: Iterable[Decision]) -> dict[tuple[int, int], dict[str, Any]]:
        """Ranks changed: tell the owners. Returns, by mesh and rank, the failures that the controller is to be told."""
        worded = []
        for decision in decisions:
            if isinstance(decision, RankChanged) and decision.record.fault is not None:
                record = self._core.record(decision.mesh)
                if record is not None and record.kind == "actors":
                    held = decision.record
                    fault = self.words(record, decision.rank, held.fault or {})
                    changed = RankRecord.from_dict({**held.to_dict(), "fault": fault})
                    decision = RankChanged(decision.mesh, decision.generation, decision.rank, changed)
            worded.append(decision)
        unowned = {}
        for step in self._core.changed(worded):
            if not isinstance(step, Told):
                self._end_owned(step.owner, step.reason)
            elif step.owner is None:
                unowned[(step.mesh, step.rank)] = step.failure
            else:
                self.deliver({"owner": [*step.owner], "failure": step.failure})
        return unowned

    def host_lost(self, host: int, error: MonarchError) -> None:
        """Another host gives no word: the head, which knows all meshes, tells those who own some there."""
        if self.host.head:
            for step in self._core.host_lost(host, json.loads(error_to_json(error))):
                assert step.owner is not None
                self.deliver({"owner": [*step.owner], "failure": step.failure})

    def deliver(self, what: dict[str, Any]) -> None:
        """Pass a failure on to the process of the actor that is to be told; it came from here or from another host."""
        owner = Owner(*what["owner"])
        record = records.notice(Kind.SUPERVISE, what)
        if owner.host == self.host.index:
            proc = self.procs.actors.get(owner.mesh, {}).get(owner.rank)
            if proc is not None and proc.dead is None:
                proc.send(*record)
            return  # an owner that is gone has failed itself, or was stopped: what it owned ends with it
        target = self.peers.to(owner.host)
        if target is not None:
            target.send(*record)
        elif owner.host != records.CONTROLLER:
            # The host of the owner is lost, so nobody can say whether it would have been handled: a person should know.
            self._tell({"mesh": 0, "rank": what["failure"]["ranks"][0], "failure": what["failure"], "kind": "actors"})


__all__ = ["Supervisor"]
