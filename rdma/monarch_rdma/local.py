"""The transport within one process: a copy."""

from __future__ import annotations

import asyncio
import ctypes
from concurrent.futures import Executor

from .memory import Memory
from .registry import Registry, Slot, not_found
from .transport import Buffer, Transport

_AT_ONCE = 128 * 1024
"""Bytes copied on the loop itself: some 10 µs, which is less than a thread costs."""
_PIECE = 32 * 1024 * 1024
"""Bytes between two looks at whether the copy is still wanted."""


class Local(Transport):
    """Copies within this process; both ends are at hand."""

    name = "local"

    def __init__(self, node: bytes, registry: Registry, threads: Executor) -> None:
        self._node = node
        self._registry = registry
        self._threads = threads

    def reaches(self, there: Buffer) -> bool:
        """Only what is registered here."""
        return there.node == self._node

    def _find(self, there: Buffer) -> Slot:
        slot = self._registry.find(there.number, there.generation, there.token)
        if slot is None:
            raise not_found(there.number)
        return slot

    async def read(self, source: Buffer, into: Memory) -> None:
        """A copy."""
        slot = self._find(source)
        await slot.use(self._copy(into, slot.memory, source.size))

    async def write(self, target: Buffer, source: Memory) -> None:
        """A copy."""
        slot = self._find(target)
        await slot.use(self._copy(slot.memory, source, source.size))

    async def drop(self, target: Buffer) -> None:
        """Forget it here."""
        slot = self._registry.remove(target.number, target.generation, target.token)
        if slot is not None:
            await slot.idle()

    async def close(self) -> None:
        """There is nothing to close."""

    async def _copy(self, to: Memory, source: Memory, size: int) -> None:
        start, end = to.address(), source.address()
        if size <= _AT_ONCE:
            ctypes.memmove(start, end, size)
            return
        wanted = True

        def work() -> None:  # ctypes lets other threads run meanwhile; an assignment to a slice would not
            for at in range(0, size, _PIECE):
                if not wanted:
                    return
                ctypes.memmove(start + at, end + at, min(_PIECE, size - at))

        job = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            wanted = False
            await asyncio.wait([job])
            raise
