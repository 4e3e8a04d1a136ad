"""Actors that own memory and actors that read it, for the tests of transfers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any

from monarch_kernel.actor import Actor, endpoint
from monarch_kernel.rdma import RDMAAction, RDMABuffer

WAIT = 30.0


class Owner(Actor):
    """Owns memory that is filled with one byte value."""

    def __init__(self) -> None:
        self.data: dict[str, bytearray] = {}
        self.children: list[Any] = []

    @endpoint
    def make(self, name: str, size: int, value: int = 0) -> RDMABuffer:
        self.data[name] = bytearray([value]) * size
        return RDMABuffer(memoryview(self.data[name]))

    @endpoint
    def constant(self, data: bytes) -> RDMABuffer:
        return RDMABuffer(memoryview(data))

    @endpoint
    def holds(self, name: str) -> bytes:
        return bytes(self.data[name])

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fork(self) -> int:
        """A child that has all descriptors of this process, and lives on when it dies."""
        child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=False)
        child.start()
        self.children.append(child)
        return child.pid or 0

    @endpoint
    def torch_is_loaded(self) -> bool:
        return "torch" in sys.modules


class Reader(Actor):
    """Reads and writes what others own."""

    @endpoint
    async def read(self, buffer: RDMABuffer, timeout: float = WAIT) -> bytes:
        into = bytearray(buffer.size())
        await buffer.read_into(memoryview(into), timeout=timeout)
        return bytes(into)

    @endpoint
    async def first_and_last(self, buffer: RDMABuffer) -> tuple[int, int]:
        into = bytearray(buffer.size())
        await buffer.read_into(into, timeout=WAIT)
        return into[0], into[-1]

    @endpoint
    async def write(self, buffer: RDMABuffer, data: bytes) -> None:
        await buffer.write_from(memoryview(data), timeout=WAIT)

    @endpoint
    async def fill(self, buffer: RDMABuffer, value: int) -> None:
        await buffer.write_from(bytearray([value]) * buffer.size(), timeout=WAIT)

    @endpoint
    async def read_all(self, buffers: list[RDMABuffer]) -> list[bytes]:
        into = [bytearray(buffer.size()) for buffer in buffers]
        action = RDMAAction()
        for mine, buffer in zip(into, buffers, strict=True):
            action.read_remote(mine, buffer)
        await action.submit(timeout=WAIT)
        return [bytes(mine) for mine in into]

    @endpoint
    async def drop(self, buffer: RDMABuffer) -> None:
        await buffer.drop()

    @endpoint
    async def make(self, data: bytes) -> RDMABuffer:
        return RDMABuffer(bytearray(data))

    @endpoint
    async def torch_is_loaded(self) -> bool:
        return "torch" in sys.modules
