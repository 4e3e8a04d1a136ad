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


def mention(handle: Handle) -> None:
    """A mesh that is still being spawned is being pickled: the message that holds it has to wait for it."""
    found: list[Handle] | None = getattr(_mentioned, "handles", None)
    if found is None:
        found = _mentioned.handles = []
    found.append(handle)


def mentioned_pending() -> Sequence[Future[Any]]:
    """What the message that this thread has just pickled must wait for."""
    found: list[Handle] | None = getattr(_mentioned, "handles", None)
    if not found:
        return ()
    _mentioned.handles = []
    return [wait for handle in found for wait in handle.waits()]
