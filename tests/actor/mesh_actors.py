"""Actors of the tests beside this file, in a module that the processes of a mesh can import."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from monarch_kernel.actor import Actor, Point, context, current_rank, current_size, endpoint, this_host, this_proc


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.n = start

    @endpoint
    def add(self, by: int = 1) -> int:
        self.n += by
        return self.n

    @endpoint
    def add_when(self, by: int, path: str) -> int:
        """Waits until there is such a file."""
        while not os.path.exists(path):
            time.sleep(0.002)
        self.n += by
        return self.n

    @endpoint
    def value(self) -> int:
        return self.n

    @endpoint
    def fail(self, text: str, on: int | None = None) -> str:
        """Raises on one rank, or on all."""
        if on is None or context().actor_instance.rank.rank == on:
            raise ValueError(text)
        return "fine"

    @endpoint
    def where(self) -> tuple[dict[str, int], int, dict[str, int], dict[str, int]]:
        rank = current_rank()
        return dict(rank), rank.rank, current_size(), dict(context().actor_instance.rank)

    def hidden(self) -> None:
        """No endpoint."""


class Runner(Actor):
    """Runs functions that a test sends along."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    @endpoint
    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    @endpoint
    def on_rank(self, rank: int, function: Any) -> Any:
        """Only on this rank of the mesh that it was spawned in."""
        return function() if context().actor_instance.rank.rank == rank else None

    @endpoint
    def with_self(self, function: Any, *args: Any) -> Any:
        return function(self, *args)

    @endpoint
    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return args if not kwargs else (args, kwargs)

    @endpoint
    def keep(self, name: str, value: Any) -> None:
        self.kept[name] = value

    @endpoint
    def kept_value(self, name: str) -> Any:
        return self.kept[name]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncRunner(Actor):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.in_constructor = asyncio.get_running_loop()

    @endpoint
    async def run(self, function: Any, *args: Any) -> Any:
        """Awaits what the function returns, if that can be awaited."""
        made = function(*args)
        return await made if hasattr(made, "__await__") else made

    @endpoint
    async def with_self(self, function: Any, *args: Any) -> Any:
        return await function(self, *args)

    @endpoint
    async def slow(self, name: str) -> None:
        """Gives other tasks of the loop every chance to run in between."""
        self.events.append(f"{name} begins")
        for _ in range(5):
            await asyncio.sleep(0.001)
        self.events.append(f"{name} ends")

    @endpoint
    async def seen(self) -> list[str]:
        return self.events

    @endpoint
    async def loops(self) -> tuple[bool, int, bool]:
        """Whether the constructor had this loop, the thread's number, and whether that is the main thread."""
        main = threading.current_thread() is threading.main_thread()
        return asyncio.get_running_loop() is self.in_constructor, threading.get_ident(), main


class Log(Actor):
    """Keeps what it was told, in order, and notices when two messages overlap."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.busy = False
        self.overlaps = 0

    @endpoint
    def tell(self, what: Any, seconds: float = 0.0) -> None:
        self.overlaps += self.busy
        self.busy = True
        if seconds:
            time.sleep(seconds)
        self.told.append(what)
        self.busy = False

    @endpoint
    def all(self) -> list[Any]:
        return self.told

    @endpoint
    def overlapped(self) -> int:
        return self.overlaps


class Relay(Actor):
    """Calls other actors from inside."""

    def __init__(self, target: Any = None) -> None:
        self.target = target

    @endpoint
    def set(self, target: Any) -> None:
        self.target = target

    @endpoint
    def get(self) -> Any:
        return self.target

    @endpoint
    def add(self, by: int) -> list[int]:
        return list(self.target.add.call(by).get(timeout=20).values())

    @endpoint
    def tell_many(self, who: str, count: int) -> None:
        for number in range(count):
            self.target.tell.broadcast((who, number))


class AsyncRelay(Actor):
    @endpoint
    async def add(self, target: Any, by: int) -> list[int]:
        return list((await target.add.call(by)).values())

    @endpoint
    async def add_twice(self, target: Any, by: int) -> list[list[int]]:
        both = await asyncio.gather(target.add.call(by), target.add.call(by))
        return [list(mesh.values()) for mesh in both]

    @endpoint
    async def add_blocking(self, target: Any, by: int) -> list[int]:
        """A blocking wait holds the actor's own loop and nothing else."""
        return list(target.add.call(by).get(timeout=20).values())


class Spawner(Actor):
    @endpoint
    def spawn(self, count: int, start: int) -> tuple[Any, Any]:
        procs = this_host().spawn_procs(per_host={"workers": count})
        return procs, procs.spawn("grandchildren", Counter, start)

    @endpoint
    def spawn_here(self, start: int) -> tuple[Any, int]:
        return this_proc().spawn("beside", Runner), os.getpid()

    @endpoint
    def spawn_and_use(self, count: int) -> list[int]:
        procs = this_host().spawn_procs(per_host={"workers": count})
        return list(procs.spawn("used", Counter, 5).add.call(1).get(timeout=30).values())


class BadConstructor(Actor):
    def __init__(self, on: int | None = None) -> None:
        if on is None or context().actor_instance.rank.rank == on:
            raise RuntimeError("no such weights file")

    @endpoint
    def ping(self) -> str:
        return "pong"


class Environment(Actor):
    """The module is imported, and with it numpy, before any code of the actor runs."""

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy.__version__

    @endpoint
    def of(self, name: str) -> str | None:
        return os.environ.get(name)


class Prepared(Actor):
    """Knows what its process was set up with when it was made."""

    def __init__(self) -> None:
        self.found = os.environ.get("PREPARED")

    @endpoint
    def when_made(self) -> str | None:
        return self.found


class Cleaner(Actor):
    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def ping(self) -> None:
        pass

    def __cleanup__(self, error: Exception | None) -> None:
        with open(self.path, "a") as file:
            file.write(f"cleaned up: {error}\n")


class Quiet(Actor):
    """An actor without endpoints is allowed."""


class Sender(Actor):
    """Sends to a `Log` in whatever way it is told to."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.answers: list[Any] = []

    @staticmethod
    def deliver(log: Any, part: dict[str, Any], adverb: str, message: Any) -> list[Any]:
        mesh = log.slice(**part)
        if adverb == "broadcast":
            mesh.tell.broadcast(message)
            return []
        if adverb == "call":
            return [mesh.tell.call(message)]
        if adverb == "stream":
            return list(mesh.tell.stream(message))
        if adverb == "choose":
            return [mesh.tell.choose(message)]
        labels = mesh.extent.labels
        return [
            mesh.slice(**{label: point[label] for label in labels}).tell.call_one(message) for point in _points(mesh)
        ]

    @endpoint
    def send(self, part: dict[str, Any], adverb: str, message: Any) -> None:
        self.answers += self.deliver(self.log, part, adverb, message)

    @endpoint
    def settle(self) -> None:
        for answer in self.answers:
            answer.get(timeout=60)
        self.answers = []


def _points(mesh: Any) -> list[Point]:
    return [Point(rank, mesh.extent) for rank in range(len(mesh))]
