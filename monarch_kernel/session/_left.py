"""Calls that an earlier controller left behind: they went on, and their results can be had."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..actor._calls import GatheredCall, unpack_region
from ..actor._handle import Handle
from ..actor._ndslice import NDSlice
from ..actor._region import Region
from ..errors import OutcomeUnknown
from ..protocol import host_pb2 as pb

if TYPE_CHECKING:
    from ..actor._valuemesh import ValueMesh
    from ._controller import Controller


class LeftCall:
    """One call of a controller that is gone.

    Attributes
    ----------
    mesh, endpoint
        What was called.
    started
        When, wall time.
    size, done, failed
        How many ranks were called, have answered, and answered with an error.
    """

    def __init__(self, controller: Controller, host: int, info: pb.CallInfo, handle: Handle | None, mesh: str) -> None:
        self._controller = controller
        self.host = host
        self._handle = handle
        self.key = (info.sender, info.mesh, info.number)
        self.mesh = mesh
        self.endpoint: str = info.endpoint
        self.started: float = info.started
        self.update(info)

    def update(self, info: pb.CallInfo) -> None:
        """Newer news of it."""
        self._info = info
        self.endpoint = self.endpoint or info.endpoint
        self.size = len(info.ranks)
        self.done = len(info.done)
        self.failed = len(info.failed)
        self.dropped = info.dropped
        self._call: GatheredCall | None = getattr(self, "_call", None)

    @property
    def status(self) -> str:
        """``running``, ``finished``, ``failed`` or ``not kept``."""
        if self.dropped:
            return "not kept"
        if self._call is not None and self._call.future.done():
            return "failed" if self._call.future.exception() is not None else "finished"
        if self.done < self.size:
            return "running"
        return "failed" if self.failed else "finished"

    def result(self, timeout: float | None = None) -> ValueMesh[Any]:
        """Wait for the call and return what it brought, as its own caller would have got it.

        Raises
        ------
        ActorError, SupervisionError
            The call failed.
        OutcomeUnknown
            Its answers were too many or too large to be kept.
        TimeoutError
            It still runs.
        """
        if self._handle is None:
            raise OutcomeUnknown("the mesh that was called is gone, and with it what was kept of the call")
        if self._call is None:
            region = _region(self._handle, self._info)
            hosts = sorted({self._handle.hosts[rank] for rank in region.ranks()})
            if region is not self._handle.region and len(hosts) > 1:
                hosts = [self._handle.hosts[rank] for rank in region.ranks()]
            self._call = GatheredCall(self._handle, region, self.endpoint, hosts)
            self._controller.io.post(self._controller.caller.adopt, self._call, self.key[0], self.key[2])
        return self._call.future.get(timeout)

    get = result

    def __repr__(self) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(self.started))
        return f"<call {self.mesh}.{self.endpoint} of {when}: {self.status}, {self.done} of {self.size} ranks answered>"


def _region(handle: Handle, info: pb.CallInfo) -> Region:
    ranks = sorted(info.ranks)
    if not info.region and len(ranks) == len(handle.region):
        return handle.region
    if not info.region:
        return Region((), NDSlice(offset=ranks[0], sizes=(), strides=()))
    shape = unpack_region(info.region)
    strides, step = [], len(ranks)
    for size in shape.sizes:
        step //= size
        strides.append(ranks[step] - ranks[0] if size > 1 else 1)
    return Region(shape.labels, NDSlice(offset=ranks[0], sizes=shape.sizes, strides=strides))
