"""Memory that other processes of the session read and write: what `monarch.rdma` is in PyTorch Monarch.

>>> from monarch_kernel.rdma import RDMABuffer
>>> class Server(Actor):                                                    # doctest: +SKIP
...     def __init__(self):
...         self.weights = torch.zeros(1 << 20)
...     @endpoint
...     def buffer(self) -> RDMABuffer:
...         return RDMABuffer(self.weights)
>>> buffer = server.buffer.call_one().get()                                 # doctest: +SKIP
>>> buffer.read_into(mine).get()                                            # doctest: +SKIP

An `RDMABuffer` is a small handle that any process of the session may be sent. Whoever has it copies from it into memory
of its own (`RDMABuffer.read_into`) or the other way (`RDMABuffer.write_from`); the actor that owns the memory takes no
part in that. Several copies are bundled by `RDMAAction`. In this version bytes travel over TCP.
"""

from ._action import RDMAAction, RDMABuffer
from ._backend import (
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)

__all__ = [
    "RDMAAction",
    "RDMABuffer",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMAWriteTransferWarning",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
]
