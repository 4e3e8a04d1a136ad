"""Node: the data plane of one process in one session."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from .errors import OwnerGone, TransferError
from .local import Local
from .memory import Memory
from .registry import Registry
from .tcp import Tcp
from .threads import DaemonThreads
from .transport import Buffer, Transport


class Op(NamedTuple):
    """One transfer: `write` says whether from `memory` to `buffer`, or back."""

    write: bool
    buffer: Buffer
    memory: Memory


class Node:
    """What this process has registered, and how it reaches what others have.

    Parameters
    ----------
    loop
        The event loop that all runs on.
    key
        Shared by the processes of the session and by nobody else.
    address
        Where others reach this process, and where it therefore listens once it registers something.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, key: bytes, address: str) -> None:
        self.id = secrets.token_bytes(16)
        self.registry = Registry()
        self._lock = threading.Lock()
        self._ways: tuple[tuple[str, str], ...] | None = None
        asking = DaemonThreads("monarch-data-ask", 8)
        serving = DaemonThreads("monarch-data-serve", 32)
        self._transports: list[Transport] = [
            Local(self.id, self.registry, asking),
            Tcp(loop, self.id, key, address, self.registry, asking, serving),
        ]

    def register(self, memory: Memory) -> Buffer:
        """Register memory, from any thread; it is kept alive until the buffer is dropped."""
        with self._lock:
            if self._ways is None:
                found = [(transport.name, transport.way()) for transport in self._transports]
                self._ways = tuple((name, way) for name, way in found if way is not None)
        slot = self.registry.add(memory)
        return Buffer(self.id, slot.number, slot.generation, slot.token, memory.size, memory.writable, self._ways)

    def release(self, buffer: Buffer) -> Callable[[], Awaitable[None]]:
        """Forget a buffer. If it is of this process, no transfer with it begins from here on, on any thread.

        What is returned does the rest, on the loop: when it is done, nobody touches the memory any more.
        """
        if buffer.node != self.id:
            return lambda: self._by(buffer).drop(buffer)
        slot = self.registry.remove(buffer.number, buffer.generation, buffer.token)

        async def idle() -> None:
            if slot is not None:
                await slot.idle()

        return idle

    async def perform(self, ops: Sequence[Op]) -> None:
        """Do all of them: those with one owner in their order, those with several owners at once.

        The first error ends the others and is raised; then, as after a cancellation, nothing touches the memory.
        """
        owners: dict[bytes, list[Op]] = {}
        for op in ops:
            owners.setdefault(op.buffer.node, []).append(op)
        try:
            async with asyncio.TaskGroup() as group:
                for of_one in owners.values():
                    group.create_task(self._in_order(of_one))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _in_order(self, ops: Sequence[Op]) -> None:
        for op in ops:
            try:
                transport = self._by(op.buffer)
                if op.write:
                    await transport.write(op.buffer, op.memory)
                else:
                    await transport.read(op.buffer, op.memory)
            except TransferError as error:
                error.node = op.buffer.node
                raise

    def _by(self, buffer: Buffer) -> Transport:
        for transport in self._transports:
            if transport.reaches(buffer):
                return transport
        raise OwnerGone(f"no transport of this process reaches the owner of buffer {buffer.number}", buffer.number)

    async def close(self) -> None:
        """Stop serving; what is registered stays alive with the node."""
        for transport in self._transports:
            await transport.close()
