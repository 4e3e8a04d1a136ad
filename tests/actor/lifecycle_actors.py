"""Actors that write down how they end, for tests; importable in their processes."""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from typing import Any

from monarch_kernel.actor import (
    Actor,
    Channel,
    MeshFailure,
    UndeliverableMessageEnvelope,
    concurrent_endpoint,
    context,
    endpoint,
)


def note(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text + "\n")


class Cleaner(Actor):
    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def note(self, text: str) -> None:
        note(self.path, text)

    @endpoint
    def note_when(self, text: str, exists: str) -> None:
        while not os.path.exists(exists):
            time.sleep(0.002)
        note(self.path, text)

    @endpoint
    def note_at_exit(self) -> None:
        atexit.register(note, self.path, "exit")

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")

    @endpoint
    def end(self, how: str, reason: str | None = None) -> str:
        getattr(context().actor_instance, how)(reason)
        return "still here"

    def __cleanup__(self, error: Exception | None) -> None:
        note(self.path, f"cleanup {error}")


class AsyncCleaner(Actor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.freed = asyncio.Event()

    @endpoint
    async def note(self, text: str) -> None:
        note(self.path, text)

    @endpoint
    async def fail(self) -> None:
        raise ValueError("on purpose")

    @endpoint
    async def end(self, how: str, reason: str | None = None) -> str:
        getattr(context().actor_instance, how)(reason)
        return "still here"

    @endpoint
    async def free(self) -> None:
        self.freed.set()

    @concurrent_endpoint
    async def wait(self, text: str = "it") -> str:
        note(self.path, f"{text} waits")
        try:
            await self.freed.wait()
        except asyncio.CancelledError:
            note(self.path, f"{text} cancelled")
            raise
        return text

    @concurrent_endpoint
    async def raise_beside(self, kind: type[BaseException]) -> None:
        await asyncio.sleep(0)
        raise kind("on purpose")

    async def __cleanup__(self, error: Exception | None) -> None:
        await asyncio.sleep(0)
        note(self.path, f"cleanup {error}")


class Endless(Actor):
    """Its cleanup never ends."""

    @endpoint
    def ping(self) -> str:
        return "pong"

    def __cleanup__(self, error: Exception | None) -> None:
        while True:
            pass


class AsyncEndless(Actor):
    @endpoint
    async def ping(self) -> str:
        return "pong"

    async def __cleanup__(self, error: Exception | None) -> None:
        await asyncio.Event().wait()


class Owner(Actor):
    """Writes down what it is told of, and handles what it is told to handle."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def ping(self) -> str:
        return "pong"

    def __supervise__(self, failure: MeshFailure) -> Any:
        note(self.path, f"supervise {failure.mesh_name} {context().actor_instance.name}")
        if failure.mesh_name == "raises":
            raise LookupError("in the hook")
        return failure.mesh_name == "handled"


class AsyncOwner(Actor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.told = asyncio.Event()

    @endpoint
    async def ping(self) -> str:
        return "pong"

    @endpoint
    async def until_told(self) -> str:
        """Is awaited while the failure is handled."""
        await self.told.wait()
        return "told"

    async def __supervise__(self, failure: MeshFailure) -> Any:
        await asyncio.sleep(0)
        note(self.path, f"supervise {failure.mesh_name} {context().actor_instance.name}")
        self.told.set()
        if failure.mesh_name == "raises":
            raise LookupError("in the hook")
        return failure.mesh_name == "handled"


class Heir(Actor):
    """Has no hook."""

    @endpoint
    def ping(self) -> str:
        return "pong"


class NeverMade(Actor):
    def __init__(self) -> None:
        while True:
            time.sleep(0.05)

    @endpoint
    def ping(self) -> str:
        return "pong"


class NeverDone(Actor):
    @endpoint
    def ping(self) -> str:
        while True:
            time.sleep(0.05)


class AsyncNeverMade(Actor):
    def __init__(self) -> None:
        while True:
            time.sleep(0.05)

    @endpoint
    async def ping(self) -> str:
        return "pong"


class AsyncNeverDone(Actor):
    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    async def ping(self) -> str:
        await asyncio.Event().wait()
        return "never"

    async def __cleanup__(self, error: Exception | None) -> None:
        note(self.path, f"cleanup {error}")


class Postman(Actor):
    """Sends to others and notes what does not get there."""

    def __init__(self, path: str, handles: bool = True) -> None:
        self.path = path
        self.handles = handles

    @endpoint
    def post(self, mesh: Any) -> None:
        mesh.ping.broadcast()

    @endpoint
    def post_to_port(self, port: Any) -> None:
        port.send("hello")

    @endpoint
    def ask(self, mesh: Any) -> str:
        try:
            mesh.ping.call_one().get(30)
        except Exception as error:
            return type(error).__name__
        return "there"

    def _handle_undeliverable_message(self, message: UndeliverableMessageEnvelope) -> bool:
        note(self.path, " ".join(f"{message.sender()} to {message.dest()}: {message.error_msg()}".split()))
        return self.handles


class AsyncPostman(Postman):
    @concurrent_endpoint
    async def post(self, mesh: Any) -> None:
        mesh.ping.broadcast()

    @endpoint
    async def post_to_port(self, port: Any) -> None:
        port.send("hello")

    @endpoint
    async def ask(self, mesh: Any) -> str:
        try:
            await mesh.ping.call_one()
        except Exception as error:
            return type(error).__name__
        return "there"

    async def _handle_undeliverable_message(self, message: UndeliverableMessageEnvelope) -> bool:  # type: ignore[override]
        await asyncio.sleep(0)
        note(self.path, " ".join(f"{message.sender()} to {message.dest()}: {message.error_msg()}".split()))
        return self.handles


class Receiving(Actor):
    @endpoint
    def ping(self) -> None:
        pass

    @endpoint
    def open(self) -> Any:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    def die(self) -> None:
        os._exit(5)
