"""Handle: what all slices of one mesh share in this process, and which meshes a message mentions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..protocol import records
from ..state.records import MeshRecord
from ._future import Future
from ._region import Region

if TYPE_CHECKING:
    from ._runtime import Runtime

_mentioned = threading.local()


class Handle:
    """What all slices of one mesh share.

    Attributes
    ----------
    region
        The whole mesh.
    hosts
        The host of each rank; `hosts_used` each once.
    ready
        Done once the mesh is spawned; fails when that fails. None for a mesh that was found, not spawned here.
    spawned_here
        This process spawned it.
    stopped
        Why, once it is known here that it was stopped.
    """

    def __init__(self, runtime: Runtime, record: MeshRecord, ready: Future[Any] | None = None) -> None:
        self.runtime = runtime
        self.record = record
        self.id = record.id
        self.region = Region.row_major(record.labels, record.sizes)
        self.hosts = record.hosts
        self.hosts_used = tuple(sorted(set(record.hosts)))
        self.hosts_packed = records.pack_hosts(self.hosts_used)
        self.endpoints = {endpoint.name: endpoint for endpoint in record.endpoints}
        self.ready = ready
        self.cls: type | None = None
        self.used = False
        self.asked = False  # whether the hosts have been asked to spawn it
        self.spawned_here = False
        self.stopped: str | None = None
        self.options: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Its name, as given."""
        return self.record.name or "procs"

    def waits(self) -> list[Future[Any]]:
        """What must be there before a message to it may leave."""
        if self.ready is None:
            return []
        if self.ready.done():
            self.ready.get(0)  # a failed spawn raises here, at the caller
            self.ready = None
            return []
        return [self.ready]

    def pending(self) -> list[Future[Any]]:
        """The same, but a failed spawn is left for whoever waits to find."""
        return [self.ready] if self.ready is not None else []


class Carried:
    """Keeps something that is being pickled, until whoever gets it has had the time to say so.

    A call that takes it along (`Call.carried`) keeps it until it is over and a little longer. Of other messages it is
    not known when they are read: it expires.
    """

    __slots__ = ("__weakref__", "for_one", "taken_along", "what")

    def __init__(self, what: object) -> None:
        self.what: object = what
        self.taken_along = False
        self.for_one = False  # whether only one can get it

    def waits(self) -> Sequence[Future[Any]]:
        """Nothing."""
        return ()

    def let_go(self) -> None:
        """It is there."""
        self.what = None

    def expire(self) -> None:
        """Nobody has said that it took it along."""
        if not self.taken_along:
            self.what = None


class Awaited:
    """Something else that is pickled and may not be there yet."""

    def __init__(self, ready: Future[Any]) -> None:
        self._ready = ready

    def waits(self) -> Sequence[Future[Any]]:
        """What must be there first."""
        return (self._ready,)


Mentioned = Handle | Carried | Awaited


def mention(what: Mentioned) -> None:
    """What is being pickled concerns the message that holds it: a mesh still being spawned has to be there first."""
    found: list[Mentioned] | None = getattr(_mentioned, "found", None)
    if found is None:
        found = _mentioned.found = []
    found.append(what)


def mentioned() -> Sequence[Mentioned]:
    """What the message that this thread has just pickled mentions."""
    found: list[Mentioned] | None = getattr(_mentioned, "found", None)
    if not found:
        return ()
    _mentioned.found = []
    return found


def mentioned_pending() -> Sequence[Future[Any]]:
    """What the message that this thread has just pickled must wait for."""
    return [wait for what in mentioned() for wait in what.waits()]
