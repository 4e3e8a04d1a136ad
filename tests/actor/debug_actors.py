"""Actors that stop at breakpoints, imported by the processes of the tests."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from monarch_kernel.actor import Actor, current_rank, debug_controller, endpoint


def helper(number: int) -> int:
    if number < 0:
        raise ValueError("bad number")
    return number * 10


class Stops(Actor):
    def __init__(self, at_once: bool = False) -> None:
        self.seen = 0
        if at_once:
            breakpoint()
            self.seen = -1

    @endpoint
    def work(self, number: int) -> int:
        rank = current_rank().rank
        breakpoint()
        number += rank
        number = helper(number)
        return number  # noqa: RET504  # a line to stop at

    @endpoint
    def set_trace(self) -> str:
        import pdb

        pdb.set_trace()
        return "went on"

    @endpoint
    def twice(self) -> list[int]:
        found = []
        for index in range(2):
            breakpoint()
            found.append(index)
        return found

    @endpoint
    def last(self) -> None:
        breakpoint()

    @endpoint
    def from_thread(self) -> list[str]:
        found: list[str] = []

        def run() -> None:
            breakpoint()
            found.append("thread")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found

    @endpoint
    def fails(self) -> int:
        return helper(-1)

    @endpoint
    def ping(self) -> int:
        return os.getpid()


class StopsAsync(Actor):
    @endpoint
    async def work(self, number: int) -> int:
        breakpoint()
        await asyncio.sleep(0.01)
        number += 1
        return number

    @endpoint
    async def in_task(self) -> str:
        async def inner() -> str:
            breakpoint()
            await asyncio.sleep(0)
            return "inner"

        return await asyncio.create_task(inner())

    @endpoint
    async def ping(self) -> Any:
        return os.getpid()


class Asks(Actor):
    @endpoint
    async def standing(self) -> list[Any]:
        return await debug_controller().list.call_one(print_output=False)
