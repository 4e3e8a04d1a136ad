"""The actor that benchmarks/rdma.py reads from."""

from __future__ import annotations

from monarch_kernel.actor import Actor, endpoint
from monarch_kernel.rdma import RDMABuffer


class Owner(Actor):
    @endpoint
    def make(self, size: int) -> RDMABuffer:
        self.data = bytearray(b"\1" * size)
        return RDMABuffer(self.data)
