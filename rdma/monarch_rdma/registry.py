"""Registry: the memory that a process has registered, and what uses it right now."""

from __future__ import annotations

import asyncio
import heapq
import hmac
import secrets
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from .errors import NotFound
from .memory import Memory

T = TypeVar("T")


class Slot:
    """One registration.

    Attributes
    ----------
    number
        Its place; used again once it is free, with the next `generation`.
    token
        What whoever names it must know: nobody finds a registration by counting.
    live
        Cleared when it is dropped. Whoever copies looks before and after: bytes that were copied in between may be of
        another time.
    users
        Tasks that touch the memory. On the loop only.
    """

    __slots__ = ("generation", "live", "memory", "number", "token", "users")

    def __init__(self, number: int, generation: int, memory: Memory) -> None:
        self.number = number
        self.generation = generation
        self.token = secrets.token_bytes(16)
        self.memory = memory
        self.live = True
        self.users: set[asyncio.Task[Any]] = set()

    async def use(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what touches the memory; a drop meanwhile cuts it off, and raises NotFound here."""
        task = asyncio.get_running_loop().create_task(work)
        self.users.add(task)
        try:
            result = await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.live or (caller is not None and caller.cancelling()):
                raise
            raise not_found(self.number) from None
        finally:
            self.users.discard(task)
        if not self.live:
            raise not_found(self.number)
        return result

    async def idle(self) -> None:
        """Cut off all that uses the memory and return when nothing does any more."""
        while self.users:
            for task in self.users:
                task.cancel()
            await asyncio.wait(self.users)


def not_found(number: int) -> NotFound:
    """The error about a buffer that is not there (any more)."""
    return NotFound(f"buffer {number} not found", number)


class Registry:
    """What this process has registered. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[int, Slot] = {}
        self._free: list[int] = []
        self._generations: list[int] = []

    def add(self, memory: Memory) -> Slot:
        """Register some memory; it is kept alive until `remove`."""
        with self._lock:
            if self._free:
                number = heapq.heappop(self._free)
                self._generations[number] += 1
            else:
                number = len(self._generations)
                self._generations.append(1)
            slot = self._slots[number] = Slot(number, self._generations[number], memory)
            return slot

    def find(self, number: int, generation: int, token: bytes) -> Slot | None:
        """The registration that is named so, if it is there."""
        slot = self._slots.get(number)
        if slot is None or slot.generation != generation or not hmac.compare_digest(slot.token, token):
            return None
        return slot

    def remove(self, number: int, generation: int, token: bytes) -> Slot | None:
        """Forget a registration, and return it for its `Slot.idle`; None if it is not there."""
        with self._lock:
            slot = self.find(number, generation, token)
            if slot is not None:
                slot.live = False
                del self._slots[number]
                heapq.heappush(self._free, number)
            return slot
