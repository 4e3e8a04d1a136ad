"""Actors of `test_waits`, which wait for each other in every way."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from monarch_kernel.actor import Accumulator, Actor, concurrent_endpoint, endpoint, this_proc


class Sync(Actor):
    """Waits by `get`."""

    @endpoint
    def ask(self, *way: Any) -> Any:
        """Ask the first on the way to ask the rest of it; the last is pinged."""
        return self.asked(way).get()

    def asked(self, way: Any) -> Any:
        first, *rest = way
        return first.ask.call(*rest) if rest else first.ping.call()

    @endpoint
    def ask_within(self, seconds: float, *way: Any) -> Any:
        return self.asked(way).get(timeout=seconds)

    @endpoint
    def stream(self, *way: Any) -> Any:
        first, *rest = way
        return [future.get() for future in (first.ask.stream(*rest) if rest else first.ping.stream())]

    @endpoint
    def meet(self, here: str, there: str, *way: Any) -> Any:
        """Ask once the other one is about to do the same."""
        with open(here, "w"):
            pass
        while not os.path.exists(there):
            time.sleep(0.002)
        return self.asked(way).get()

    @endpoint
    def ask_busy(self, other: Any) -> Any:
        return other.busy.call(60).get()

    @endpoint
    def construct(self, me: Any) -> Any:
        """Make an actor that asks this one, and wait for it."""
        return this_proc().spawn("made", Constructed, me).ping.call().get()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def run(self, *way: Any) -> Any:
        """In a loop of its own."""

        async def wait() -> Any:
            return await self.asked(way)

        return asyncio.run(wait())

    @endpoint
    def fold(self, *way: Any) -> Any:
        """In an operation that runs while somebody waits for it."""
        first, *rest = way
        return Accumulator(first.ask, 0, lambda total, _: total + 1).accumulate(*rest).get()

    @endpoint
    def busy(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"

    @endpoint
    def ping(self) -> str:
        return "pong"


class Constructed(Actor):
    """Asks somebody in its constructor."""

    def __init__(self, other: Any) -> None:
        other.ping.call().get()

    @endpoint
    def ping(self) -> str:
        return "pong"


class Async(Actor):
    """Waits by ``await``, and in what asyncio has around it."""

    @endpoint
    async def ask(self, *way: Any) -> Any:
        return await self.asked(way)

    def asked(self, way: Any) -> Any:
        first, *rest = way
        return first.ask.call(*rest) if rest else first.ping.call()

    async def awaited(self, way: Any) -> Any:
        return await self.asked(way)

    @endpoint
    async def blocked(self, *way: Any) -> Any:
        return self.asked(way).get()

    @endpoint
    async def gathered(self, *way: Any) -> Any:
        return await asyncio.gather(self.asked(way), asyncio.sleep(0.1))

    @endpoint
    async def in_task(self, *way: Any) -> Any:
        return await asyncio.create_task(self.awaited(way))

    @endpoint
    async def waited(self, *way: Any) -> Any:
        done, _ = await asyncio.wait([asyncio.create_task(self.awaited(way))])
        return done.pop().result()

    @endpoint
    async def grouped(self, *way: Any) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self.awaited(way))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return task.result()

    @endpoint
    async def as_future(self, *way: Any) -> Any:
        return await self.asked(way).as_asyncio()

    @endpoint
    async def without_limit(self, *way: Any) -> Any:
        return await asyncio.wait_for(self.asked(way), None)

    @endpoint
    async def within(self, seconds: float, *way: Any) -> str:
        try:
            async with asyncio.timeout(seconds):
                await self.asked(way)
        except TimeoutError:
            return "late"
        return "answered"

    @endpoint
    async def waits_within(self, seconds: float, *way: Any) -> str:
        try:
            await asyncio.wait_for(self.asked(way), seconds)
        except TimeoutError:
            return "late"
        return "answered"

    @endpoint
    async def started(self, *way: Any) -> str:
        """Does not wait for the task that waits."""
        self.task = asyncio.create_task(self.awaited(way))
        await asyncio.sleep(2)
        return "done"

    @endpoint
    async def result(self) -> Any:
        return await self.task

    @concurrent_endpoint
    async def beside(self, *way: Any) -> Any:
        return await self.asked(way)

    @endpoint
    async def ping(self) -> str:
        return "pong"
