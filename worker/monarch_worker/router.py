"""Where records go: from callers to ranks and back, opened by nobody on the way.

The daemon that a caller hands a call to is its *root*: it passes the call to its own ranks and to every other host that
has some, and answers for all. A caller that repeats a call (after a cut that lost this daemon's memory, or because its
root was lost) is answered from what is there; nothing is run again, since the receivers know what they have had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from monarch_kernel.errors import HostLost, MonarchError, NotAttached, OutcomeUnknown, SupervisionError
from monarch_kernel.protocol import records
from monarch_kernel.protocol.faults import error_to_json
from monarch_kernel.protocol.frames import Record
from monarch_kernel.protocol.records import ASK, CONTROLLER, QUIET, RELAYED, SPREAD, CallHead, Kind, Status
from monarch_kernel.state.ledger import Entry
from monarch_worker.host import Host

if TYPE_CHECKING:
    from monarch_worker.debugging import Debugging
    from monarch_worker.peers import Peers
    from monarch_worker.procs import Proc, Procs

_ALL = 0xFFFFFFFF


class Router:
    """Passes records on.

    Parameters
    ----------
    request
        Takes a proc's REQUEST record.
    """

    def __init__(self, host: Host, request: Callable[[Proc, Record], None]) -> None:
        self.host = host
        self.ledger = host.ledger
        self._request = request
        self.procs: Procs
        self.peers: Peers
        self.supervise: Callable[[dict[str, Any]], None] = lambda what: None
        self.debugging: Debugging
        self._layouts: dict[int, dict[int, tuple[int, ...]]] = {}
        self._gone: dict[int, None] = {}  # controllers that will not come back, the latest of them

    # -- what came

    def take(self, origin: Any, batch: Iterable[Record]) -> None:
        """Records that came from a caller, a proc or another host."""
        for record in batch:
            kind = record[0]
            if kind == Kind.CALL:
                self._call(origin, record)
            elif kind == Kind.REPLY:
                self._reply(record)
            elif kind == Kind.RELEASE:
                self._release(origin, record)
            elif kind == Kind.CREATED:
                self.procs.created(origin, records.parse_notice(record)[0])
            elif kind == Kind.REQUEST:
                self._request(origin, record)
            elif kind == Kind.RESPONSE:
                self.peers.asking.answered(record)
            elif kind == Kind.STABLE:
                self._stable(records.parse_keyed(record))
            elif kind == Kind.WAIT:
                self._probe(record)
            elif kind == Kind.SUPERVISE:
                self.supervise(records.parse_notice(record)[0])
            elif kind == Kind.DEBUG:
                self.debugging.heard(origin, records.parse_notice(record)[0])
            elif kind == Kind.LOG:
                self.procs.logs.heard(records.parse_notice(record)[0])
            elif kind == Kind.PULSE:
                what = records.parse_notice(record)[0]
                if origin.kind == "proc":
                    for sender, mesh, number, endpoint, started, rank in what["under_way"]:
                        self.adopt((sender, mesh, number), endpoint, rank, started)
                else:
                    self.peers.heard(origin, what)

    # -- calls

    def _call(self, origin: Any, record: Record) -> None:
        head = records.parse_call(record)
        key = head.key
        entry = self.ledger.entries.get(key)
        if entry is not None:
            self._again(origin, head, record, entry)
            return
        relayed = head.flags & RELAYED
        local, remote = self._targets(head)
        ranks: list[int] = list(local)
        if not relayed:
            for theirs in remote.values():
                ranks.extend(theirs)
        entry = self.ledger.open(
            key,
            head.endpoint,
            head.region,
            origin if not head.flags & SPREAD else None,
            ranks,
            head.hosts,
            time.time(),
            quiet=bool(head.flags & QUIET),
            record=None if head.flags & ASK else record,
            relayed=bool(relayed),
        )
        if not ranks:
            self._fail_whole(entry, self.procs.why_not(self.host.registry.get(head.mesh), _ALL))
            return
        self._deliver(head, entry, record, local)
        if remote and not relayed:
            self._pass_on(head, entry, record, remote)

    def _targets(self, head: CallHead) -> tuple[Iterable[int], dict[int, list[int]]]:
        """Ranks on this host, and the ranks on others by host."""
        here = self.host.index
        if not head.ranks:
            layout = self._layout(head.mesh)
            if layout is None:
                if head.hosts == (CONTROLLER,):
                    return (), {CONTROLLER: [0]}
                return (), {}
            return layout.get(here, ()), {h: list(r) for h, r in layout.items() if h != here}
        if len(head.hosts) == 1:
            return (head.ranks, {}) if head.hosts[0] == here else ((), {head.hosts[0]: list(head.ranks)})
        local: list[int] = []
        remote: dict[int, list[int]] = {}
        for rank, host in zip(head.ranks, head.hosts, strict=True):
            (local if host == here else remote.setdefault(host, [])).append(rank)
        return local, remote

    def _layout(self, mesh: int) -> dict[int, tuple[int, ...]] | None:
        layout = self._layouts.get(mesh)
        if layout is None:
            record = self.host.registry.get(mesh)
            if record is None or record.state == "stopped":
                return None
            layout = self._layouts[mesh] = {host: record.ranks_on(host) for host in set(record.hosts)}
        return layout

    def forget(self, mesh: int) -> None:
        """The mesh was stopped."""
        self._layouts.pop(mesh, None)

    def _deliver(self, head: CallHead, entry: Entry, record: Record, ranks: Iterable[int]) -> None:
        if not ranks:
            return
        placed = self.procs.actors.get(head.mesh)
        if placed is None and self.host.registry.get(head.mesh) is None and self.procs.keep(head.mesh, record):
            return
        for rank in ranks:
            proc = placed.get(rank) if placed is not None else None
            if proc is not None and proc.dead is None and proc.ending is None:
                proc.link.send(record)
            else:
                self.fail(entry, rank, self.procs.why_not(self.host.registry.get(head.mesh), rank))

    def nobody(self, kept: Iterable[Record]) -> None:
        """Messages that were kept for a mailbox are for none of the processes here."""
        for record in kept:
            entry = self.ledger.entries.get(records.parse_call(record).key)
            if entry is not None:
                for rank in list(entry.waiting):
                    self.fail(entry, rank, self.procs.why_not(None, rank))

    def _pass_on(self, head: CallHead, entry: Entry, record: Record, remote: dict[int, list[int]]) -> None:
        for host, ranks in remote.items():
            target = self.peers.to(host)
            if target is None:
                error: MonarchError = (
                    NotAttached("the actor lives in a controller, and none is attached")
                    if host == CONTROLLER
                    else HostLost(f"host {host} is lost", host=host)
                )
                for rank in ranks:
                    self.fail(entry, rank, error)
            elif host == CONTROLLER:
                target.send(record)
            else:
                target.send(*records.with_flags(record, head.flags | RELAYED))

    def _again(self, origin: Any, head: CallHead, record: Record, entry: Entry) -> None:
        """A call that is in the book: its caller is back, or another root passes it on."""
        if not head.flags & SPREAD:
            entry.origin = origin
        local, remote = self._targets(head)
        ranks = list(local)
        if not head.flags & RELAYED:
            entry.relayed = False
            for theirs in remote.values():
                ranks.extend(theirs)
        if not entry.hosts:  # known from its ranks only, since this daemon was restarted
            entry.hosts, entry.relayed = head.hosts, bool(head.flags & RELAYED)
        entry.region = entry.region or head.region
        self.ledger.widen(entry, ranks)
        if entry.record is None and not head.flags & ASK and entry.waiting:
            entry.record = record
        for answer in list(entry.answers.values()):
            self._forward(entry, answer)
        if entry.dropped:
            lost = OutcomeUnknown("its answers went over the bound of what is kept for a controller that is gone")
            for rank in [rank for rank in entry.ranks if rank not in entry.answers]:
                self._forward(entry, records.reply(Status.FAULT, rank, entry.key) + error_to_json(lost))
            return
        self._deliver(head, entry, record, [rank for rank in local if rank in entry.waiting])
        if not head.flags & RELAYED:
            waiting = {h: [r for r in theirs if r in entry.waiting] for h, theirs in remote.items()}
            self._pass_on(head, entry, record, {h: theirs for h, theirs in waiting.items() if theirs})

    def _probe(self, record: Record) -> None:
        """A question to ranks that keep somebody waiting. What cannot be delivered is answered for already."""
        what = records.parse_notice(record)[0]
        if what["host"] != self.host.index:
            target = self.peers.to(what["host"])
            if target is not None:
                target.send(record)
            return
        placed = self.procs.actors.get(what["key"][1], {})
        for rank in what["ranks"]:
            proc = placed.get(rank)
            if proc is not None and proc.dead is None:
                proc.link.send(record)

    # -- answers

    def _reply(self, record: Record) -> None:
        status, rank, key = records.parse_reply(record)
        if rank == _ALL:
            entry = self.ledger.entries.get(key)
            if entry is not None:
                self._forward(entry, record)
                for waiting in list(entry.waiting):
                    self.ledger.answer(key, waiting, record, 0, failed=True)
            return
        failed = status not in (Status.RESULT, Status.DONE)
        entry = self.ledger.answer(key, rank, record, len(record), failed=failed)
        if entry is None:
            if key in self.ledger.entries:
                return
            # A process repeats an answer that this daemon, restarted, knows nothing of.
            self.adopt(key, "", rank, time.time())
            entry = self.ledger.answer(key, rank, record, len(record), failed=failed)
            assert entry is not None
        self._forward(entry, record)
        if self.ledger.forgotten:
            self._forget()

    def _forget(self) -> None:
        """Answers of callers that are gone went over the bound: the ranks need not keep them either."""
        forgotten, self.ledger.forgotten = self.ledger.forgotten, []
        for entry in forgotten:
            sender, mesh, number = entry.key
            self._pass_release(mesh, entry.hosts, records.release(sender, mesh, [number]))

    def adopt(self, key: records.Key, endpoint: str, rank: int, started: float) -> None:
        """A call that is known only from one of its ranks, after a restart of this daemon."""
        entry = self.ledger.entries.get(key)
        if entry is None:
            self.ledger.open(key, endpoint, b"", self.peers.caller(key[0]), [rank], (), started)
        else:
            self.ledger.widen(entry, [rank])

    def _forward(self, entry: Entry, record: Record) -> None:
        origin: Any = entry.origin
        if origin is None:
            return
        if entry.quiet and origin.kind != "host":
            if records.parse_reply(record)[0] == Status.FAULT:  # it did not get there
                origin.send(record)
            if entry.done:
                origin.send(records.keyed(Kind.STABLE, entry.key))
            return
        origin.send(record)

    def fail(self, entry: Entry, rank: int, error: MonarchError) -> None:
        """Answer for a rank that cannot."""
        record = records.reply(Status.FAULT, rank, entry.key) + error_to_json(error)
        if self.ledger.answer(entry.key, rank, record, len(record), failed=True) is not None:
            self._forward(entry, record)

    def _fail_whole(self, entry: Entry, error: MonarchError) -> None:
        origin: Any = entry.origin
        if origin is not None:
            origin.send(records.reply(Status.FAULT, _ALL, entry.key), error_to_json(error))
        self.ledger.release(*entry.key[:2], [entry.key[2]])

    def proc_gone(self, proc: Proc) -> None:
        """A process ended: every call that waits for one of its actors is answered with why."""
        registry = self.host.registry
        for mesh, placed in list(self.procs.actors.items()):
            record = registry.get(mesh)
            for rank, held in placed.items():
                if held is proc:
                    why = self.procs.why_not(record, rank) if record is not None else self.procs.death(proc)
                    for entry in self.ledger.waiting_on(mesh, rank):
                        self.fail(entry, rank, why)
        # What was still under way in actors that were stopped before it, or together with it.
        for entry in list(self.ledger.entries.values()):
            record = registry.get(entry.key[1]) if entry.waiting else None
            if record is not None and record.state == "stopped" and record.procs == proc.mesh:
                for rank in [r for r in entry.waiting if record.proc_ranks[r] == proc.rank]:
                    self.fail(entry, rank, proc.ending or self.procs.why_not(record, rank))
        self.origin_gone(proc)

    def actor_failed(self, mesh: int, rank: int, error: MonarchError) -> None:
        """An actor cannot answer any more though its process lives."""
        for entry in self.ledger.waiting_on(mesh, rank):
            self.fail(entry, rank, error)

    def host_lost(self, host: int, error: MonarchError) -> None:
        """No word from another host: answer for its ranks, and bring others up to date where it was the root."""
        for entry in list(self.ledger.entries.values()):
            origin: Any = entry.origin
            if origin is not None and origin.kind == "host" and origin.id == host:
                entry.origin = None
                self._rootless(entry, lost=True)
            if origin is None or origin.kind != "host":
                for rank in self._waiting_at(entry, host):
                    self.fail(entry, rank, error)

    def origin_renewed(self, origin: Any) -> None:
        """A host or controller begins a new link: what was on its way on an earlier one is lost."""
        for entry in list(self.ledger.entries.values()):
            if origin.kind == "host" and entry.origin is origin:
                # Its daemon was restarted and knows nothing of the calls that it handed on to here.
                entry.origin = None
                self._rootless(entry, lost=False)
            elif origin.kind == "controller" and entry.key[0] == origin.id and not entry.relayed:
                entry.origin = origin
                for answer in list(entry.answers.values()):
                    self._forward(entry, answer)

    def _rootless(self, entry: Entry, *, lost: bool, only: int | None = None) -> None:
        """A cast's root has forgotten it, or is `lost`. Its caller sends it again, in order, if it can."""
        sender = entry.key[0]
        # A process of a lost host is lost with it; one of another daemon's that was restarted is there.
        if self.peers.caller(sender) is None and (lost or sender in self._gone):
            self._spread(entry, only)

    def _spread(self, entry: Entry, only: int | None = None) -> None:
        """Hand a cast without root and caller on to the other hosts, so that all have it or none."""
        if entry.record is None or not entry.relayed:
            return
        head = records.parse_call(entry.record)
        for host in self._targets(head)[1]:
            target = self.peers.to(host) if host != CONTROLLER and only in (None, host) else None
            if target is not None:
                target.send(*records.with_flags(entry.record, head.flags | RELAYED | SPREAD))

    def whole(self, entry: Entry) -> list[int]:
        """All ranks of a call, as far as that is known here."""
        if entry.record is None or not entry.relayed:
            return list(entry.ranks)
        local, remote = self._targets(records.parse_call(entry.record))
        return sorted({*entry.ranks, *local, *(rank for ranks in remote.values() for rank in ranks)})

    def peer_renewed(self, host: int) -> None:
        """Another host's daemon was restarted: tell it again what waits for its ranks, in order."""
        for entry in list(self.ledger.entries.values()):
            if entry.relayed:
                if entry.origin is None:
                    self._rootless(entry, lost=False, only=host)
                continue
            if not entry.waiting:
                continue
            waiting = self._waiting_at(entry, host)
            if not waiting:
                continue
            target = self.peers.to(host)
            if target is None:
                continue
            if entry.record is not None:
                head = records.parse_call(entry.record)
                target.send(*records.with_flags(entry.record, head.flags | RELAYED))
            else:
                target.send(self._question(entry, host, waiting))

    def _waiting_at(self, entry: Entry, host: int) -> list[int]:
        """The ranks on a host that a call still waits for."""
        record = self.host.registry.get(entry.key[1])
        if record is None:  # a mailbox, which is on the one host that its messages name
            return list(entry.waiting) if entry.hosts == (host,) else []
        return [rank for rank in entry.waiting if rank < len(record.hosts) and record.hosts[rank] == host]

    def _question(self, entry: Entry, host: int, ranks: list[int]) -> bytes:
        """Asks a host for the outcome of a call whose bytes are not here."""
        sender, mesh, number = entry.key
        ends = records.call_ends(
            flags=ASK | RELAYED | records.UNKNOWN_IS_LOST | (QUIET if entry.quiet else 0),
            sender=sender,
            mesh=mesh,
            hosts=records.pack_hosts([host]),
            ranks=records.pack_ranks(ranks),
            endpoint=entry.endpoint.encode(),
            region=entry.region,
        )
        return records.call_head(ends, number)

    # -- the book

    def _release(self, origin: Any, record: Record) -> None:
        sender, mesh, numbers = records.parse_release(record)
        known = all((sender, mesh, number) in self.ledger.entries for number in numbers)
        hosts = self.ledger.release(sender, mesh, numbers)
        if not known:  # this daemon was restarted; the others were not
            hosts.update(self._layout(mesh) or ())
        self._pass_release(mesh, hosts if origin.kind != "host" else (), record)

    def _pass_release(self, mesh: int, hosts: Iterable[int], record: Record) -> None:
        placed = self.procs.actors.get(mesh)
        if placed:
            for proc in set(placed.values()):
                proc.link.send(record)
        for host in set(hosts):
            if host not in (self.host.index, CONTROLLER) and (target := self.peers.to(host)) is not None:
                target.send(record)

    def _stable(self, key: records.Key) -> None:
        self.ledger.stable(key)

    def origin_gone(self, origin: Any) -> None:
        """A caller will not come back. What a controller called is kept for the next one; a proc's calls go with it."""
        if origin.kind == "controller":
            error = SupervisionError("the actor lived in a controller's own process, and that controller is gone")
            for entry in [e for e in self.ledger.entries.values() if CONTROLLER in e.hosts]:
                for rank in list(entry.waiting):
                    self.fail(entry, rank, error)
            self._gone[origin.id] = None
            while len(self._gone) > 1024:
                del self._gone[next(iter(self._gone))]
            for entry in [e for e in self.ledger.entries.values() if e.key[0] == origin.id and e.origin is None]:
                self._spread(entry)
        entries = self.ledger.origin_gone(origin)
        if origin.kind == "host":
            for entry in entries:
                self._rootless(entry, lost=True)
        self._forget()
        if origin.kind == "proc":
            for entry in entries:
                self.ledger.release(*entry.key[:2], [entry.key[2]])
