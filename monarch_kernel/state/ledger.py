"""A daemon's book of calls: who called what, who has answered, what is kept for a caller that went.

A call is known by its key ``(sender, mesh, number)``. The daemon that a caller hands a call to (its *root*) answers for
all its ranks; a daemon that got it from a root answers for the ranks on its own host. Answers are kept until the caller
says that it has them; what a caller that is gone left behind is bounded and counted. The book does no I/O and knows the
other ends only as opaque *origins*.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[int, int, int]

KEPT_CALLS = 10_000
KEPT_BYTES = 256 << 20
"""What is kept for callers that are gone: the answers of so many finished calls, of so many bytes."""


@dataclass(slots=True, eq=False)
class Entry:
    """One call.

    Attributes
    ----------
    origin
        Where answers go; None when its caller is gone.
    waiting
        Ranks that have not answered.
    answers
        The answer of each rank that has, as the record that carries it.
    record
        The call's own bytes, kept until every host is known to have them.
    hosts
        The hosts that it goes to.
    relayed
        Whether a root handed it on to here. Its bytes are kept until the caller has all answers: if root and caller are
        lost, this host may be the only one that has them.
    """

    key: Key
    endpoint: str
    region: bytes
    quiet: bool
    started: float
    origin: Hashable | None
    ranks: Sequence[int]
    hosts: Sequence[int]
    waiting: set[int]
    record: Any = None
    answers: dict[int, Any] = field(default_factory=dict)
    failed: set[int] | None = None
    relayed: bool = False
    kept_bytes: int = 0
    dropped: bool = False

    @property
    def done(self) -> bool:
        """Whether all ranks have answered."""
        return not self.waiting

    @property
    def held_bytes(self) -> int:
        """What it takes: its answers, and its own bytes."""
        return self.kept_bytes + (len(self.record) if self.record is not None else 0)


class Ledger:
    """The book.

    Attributes
    ----------
    running
        How many calls wait for an answer: the lease does not run out while this is above 0.
    dropped_calls
        How many calls of gone callers lost their answers to the bound.
    forgotten
        Calls whose answers went that way and that the ranks need not keep either; the driver empties it.
    """

    def __init__(self, kept_calls: int = KEPT_CALLS, kept_bytes: int = KEPT_BYTES) -> None:
        self.entries: dict[Key, Entry] = {}
        self.running = 0
        self.dropped_calls = 0
        self.forgotten: list[Entry] = []
        self._kept_calls = kept_calls
        self._kept_bytes = kept_bytes

    def open(
        self,
        key: Key,
        endpoint: str,
        region: bytes,
        origin: Hashable | None,
        ranks: Sequence[int],
        hosts: Sequence[int],
        now: float,
        *,
        quiet: bool = False,
        record: Any = None,
        relayed: bool = False,
    ) -> Entry:
        """Write a call in. Whether it is there already, ask `entries`."""
        entry = Entry(key, endpoint, region, quiet, now, origin, ranks, hosts, set(ranks), record, relayed=relayed)
        self.entries[key] = entry
        if ranks:
            self.running += 1
        return entry

    def widen(self, entry: Entry, ranks: Iterable[int]) -> None:
        """More ranks belong to a call that was first heard of from some of its ranks (after a daemon's restart)."""
        more = [rank for rank in ranks if rank not in entry.ranks]
        if not more:
            return
        if entry.done:
            self.running += 1
        entry.ranks = sorted({*entry.ranks, *more})
        entry.waiting.update(more)

    def answer(self, key: Key, rank: int, record: Any, size: int, *, failed: bool) -> Entry | None:
        """A rank answered. None when the call is not in the book or has that answer already."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        waiting = entry.waiting
        if rank not in waiting:
            return None
        waiting.remove(rank)
        entry.answers[rank] = record
        entry.kept_bytes += size
        if failed:
            entry.failed = {*(entry.failed or ()), rank}
        if not waiting:
            self.running -= 1
            if not entry.relayed:
                entry.record = None
            if entry.origin is None:
                self._bound()
        return entry

    def release(self, sender: int, mesh: int, numbers: Iterable[int]) -> set[int]:
        """The caller has all answers of these calls. Returns the hosts that they went to."""
        hosts: set[int] = set()
        pop = self.entries.pop
        for number in numbers:
            entry = pop((sender, mesh, number), None)
            if entry is not None:
                hosts.update(entry.hosts)
                if entry.waiting:
                    self.running -= 1
        return hosts

    def stable(self, key: Key) -> Entry | None:
        """Every host has the call: its bytes need not be kept. Returns the entry, None when it is not there."""
        entry = self.entries.get(key)
        if entry is not None:
            entry.record = None
        return entry

    def origin_gone(self, origin: Hashable) -> list[Entry]:
        """An origin will not come back. Its calls stay in the book; returns them."""
        found = [entry for entry in self.entries.values() if entry.origin == origin]
        for entry in found:
            entry.origin = None
        if found:
            self._bound()
        return found

    def waiting_on(self, mesh: int, rank: int) -> list[Entry]:
        """The calls that wait for this rank, oldest first."""
        return [e for e in self.entries.values() if e.key[1] == mesh and rank in e.waiting]

    def kept(self) -> list[Entry]:
        """The calls whose caller is gone, oldest first."""
        return [entry for entry in self.entries.values() if entry.origin is None]

    def _bound(self) -> None:
        finished = [e for e in self.entries.values() if e.origin is None and e.done]
        size = sum(entry.held_bytes for entry in finished)
        over = len(finished) - self._kept_calls
        for index, entry in enumerate(finished):
            if index >= over and size <= self._kept_bytes:
                break
            size -= entry.held_bytes
            if index < over:
                del self.entries[entry.key]
                self.dropped_calls += 1
                self.forgotten.append(entry)
            elif not entry.dropped:
                self.forgotten.append(entry)
                entry.answers.clear()
                entry.record = None
                entry.kept_bytes = 0
                entry.dropped = True
                self.dropped_calls += 1
