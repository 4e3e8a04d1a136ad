"""RDMABuffer and RDMAAction: memory that others may use, and transfers to and from it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from monarch_rdma.memory import Memory
from monarch_rdma.node import Op
from monarch_rdma.transport import Buffer

from ..actor._future import Future
from ..errors import RdmaInitError
from ._backend import check_settings, get_rdma_backend, warn_of_fallback
from ._plane import check_session, plane

if TYPE_CHECKING:
    import numpy
    import torch

    LocalMemory: TypeAlias = torch.Tensor | numpy.ndarray[Any, Any] | memoryview | bytearray

_DROP_TIMEOUT = 60.0


class RDMABuffer:
    """Memory of this process that other processes of the session may read and write.

    It is a handle, to be sent to any actor or controller of the session. The memory is kept alive until `drop`, or
    until the process ends, whatever becomes of the handles. Nothing orders transfers with what the owner itself does to
    the memory: that is the program's part, for instance by calls.

    Parameters
    ----------
    data
        A 1-D contiguous torch tensor on the CPU (also a view of one), NumPy array, memoryview or bytearray. Other
        tensors are registered as ``tensor.view(torch.uint8).flatten()`` if that is a view.

    Raises
    ------
    ValueError
        It is not 1-D and contiguous, or has no bytes.
    RuntimeError
        ``rdma_allow_tcp_fallback`` is off, and there is no other way.

    Examples
    --------
    >>> weights = bytearray(b"0123456789")
    >>> buffer = RDMABuffer(weights)                     # doctest: +SKIP
    >>> buffer.size()                                    # doctest: +SKIP
    10
    """

    __slots__ = ("__weakref__", "_buffer", "_owner", "_sid")

    def __init__(self, data: LocalMemory) -> None:
        backend = get_rdma_backend()
        if backend == "none":
            raise RuntimeError(
                "RDMA is not available: there is no verbs device, and TCP is off. To transfer over TCP: "
                "monarch_kernel.config.configure(rdma_allow_tcp_fallback=True)"
            )
        memory = Memory(data)
        if memory.size == 0:
            raise ValueError("Cannot create RDMABuffer with size 0.")
        check_settings()
        if backend == "tcp":
            warn_of_fallback(stacklevel=2)
        here = plane()
        here.io.check_process()
        self._buffer: Buffer = here.node.register(memory)
        self._owner = here.owner
        self._sid = here.sid

    def __reduce__(self) -> tuple[object, ...]:
        return (_arrived, (self._buffer, self._owner, self._sid))

    def __repr__(self) -> str:
        return f"<RDMABuffer of {self.size()} bytes of {self._owner}>"

    @property
    def backend(self) -> str:
        """What `get_rdma_backend` says here."""
        return get_rdma_backend()

    @property
    def owner(self) -> str:
        """A text that names the process that owns the memory."""
        return self._owner

    def size(self) -> int:
        """Bytes."""
        return self._buffer.size

    def read_into(self, dst: LocalMemory, *, timeout: float = 60) -> Future[None]:
        """Copy the whole buffer to the start of `dst`; what `dst` has more stays as it is.

        The transfer begins now, whether or not anybody waits for the answer.

        Parameters
        ----------
        dst
            Memory of this process, of the same kinds as `RDMABuffer` takes, and not smaller than the buffer.
        timeout
            Seconds.

        Raises
        ------
        ValueError
            At once: `dst` is too small, read-only, or not 1-D and contiguous.
        BufferOwnerGone
            By the future: the owner has ended.
        Exception
            By the future, with a text that begins with ``RdmaAction.submit failed:`` and one of `BufferNotFound`
            (the buffer was dropped) and `TransferTimeout` as its cause, as programs for Monarch expect it.
        """
        return RDMAAction().read_remote(dst, self).submit(timeout=timeout)

    def write_from(self, src: LocalMemory, *, timeout: float = 60) -> Future[None]:
        """Copy all of `src` to the start of the buffer; what the buffer has more stays as it is.

        As `read_into`, in the other direction: `src` may not be larger than the buffer.
        """
        return RDMAAction().write_remote(self, src).submit(timeout=timeout)

    def drop(self) -> Future[None]:
        """Have the owner let go of the memory; any process may say so, and more than once.

        In the owner's process no transfer begins from here on. When the future is done, nobody touches the memory any
        more: transfers that were under way have failed as those do that begin later, "buffer not found".
        """
        try:
            check_settings()
        except RdmaInitError as error:
            return _failed(error)
        check_session(self._sid, self._owner)
        here = plane()
        rest = here.node.release(self._buffer)
        return here.start(rest, "RDMABuffer.drop", lambda node: self._owner, _DROP_TIMEOUT)


def _arrived(buffer: Buffer, owner: str, sid: str) -> RDMABuffer:
    made = RDMABuffer.__new__(RDMABuffer)
    made._buffer, made._owner, made._sid = buffer, owner, sid
    return made


class RDMAAction:
    """Several transfers that are submitted as one.

    Examples
    --------
    >>> action = RDMAAction().read_remote(weights, theirs).write_remote(gradients, mine)     # doctest: +SKIP
    >>> action.submit().get()                                                              # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._owners: dict[bytes, str] = {}
        self._running: asyncio.Task[Any] | None = None

    def read_remote(self, dst: LocalMemory, src: RDMABuffer) -> RDMAAction:
        """Add a copy of the whole buffer `src` to the start of `dst`; see `RDMABuffer.read_into`."""
        memory = Memory(dst)
        if memory.size < src.size():
            raise ValueError(
                f"destination local memory size ({memory.size}) must be >= remote buffer size ({src.size()})"
            )
        if not memory.writable:
            raise ValueError("the destination is read-only memory")
        return self._add(False, src, memory)

    def write_remote(self, dst: RDMABuffer, src: LocalMemory) -> RDMAAction:
        """Add a copy of all of `src` to the start of the buffer `dst`; see `RDMABuffer.write_from`."""
        memory = Memory(src)
        if memory.size > dst.size():
            raise ValueError(f"source local memory size ({memory.size}) must be <= remote buffer size ({dst.size()})")
        if not dst._buffer.writable:
            raise ValueError(f"the memory of this buffer is read-only in its owner, {dst.owner}")
        return self._add(True, dst, memory)

    def _add(self, write: bool, remote: RDMABuffer, memory: Memory) -> RDMAAction:
        check_session(remote._sid, remote._owner)
        self._ops.append(Op(write, remote._buffer, memory))
        self._owners[remote._buffer.node] = remote._owner
        return self

    def fetch_add(self, src: RDMABuffer, dst: LocalMemory, add: int) -> RDMAAction:
        """Not supported, as in Monarch."""
        raise NotImplementedError("RDMAAction.fetch_add is not supported")

    def compare_and_swap(self, src: RDMABuffer, dst: LocalMemory, compare: int, swap: int) -> RDMAAction:
        """Not supported, as in Monarch."""
        raise NotImplementedError("RDMAAction.compare_and_swap is not supported")

    def submit(self, *, timeout: float = 60) -> Future[None]:
        """Begin all transfers now; may be called again, and then does them again.

        Transfers with one owner are done in the order in which they were added, those with several owners at once. A
        second `submit` begins when the first is over. The first error ends the other transfers. When the future is
        done, nothing touches the memory any more.

        Parameters
        ----------
        timeout
            Seconds for all of it; 0 fails unless there is nothing to do.
        """
        timeout = _checked(timeout)
        try:
            check_settings()
        except RdmaInitError as error:
            return _failed(error)
        here = plane()
        ops, owners = list(self._ops), dict(self._owners)

        async def work() -> None:
            if not ops:
                return
            if timeout == 0:
                raise TimeoutError
            before, self._running = self._running, asyncio.current_task()
            if before is not None and not before.done():
                await asyncio.wait([before])
            await here.node.perform(ops)

        return here.start(work, "RdmaAction.submit", lambda node: owners[node], timeout)


def _checked(timeout: float) -> float:
    if timeout < 0 or timeout > 2**64 - 1:
        raise OverflowError(f"timeout must be a number of seconds, 0 or more; got {timeout!r}")
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds; got nan")
    return float(timeout)


def _failed(error: Exception) -> Future[None]:
    future: Future[None] = Future()
    future._fail(error)
    return future
