"""The accepting end of links, and a proxy between the ends that cuts streams where it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_kernel.protocol.dial import DialledLink
from monarch_kernel.protocol.links import ResumableLink
from monarch_kernel.protocol.sockets import SocketPipe, SocketStream
from monarch_kernel.state.times import Times

QUICK = Times(heartbeat=0.05, silent=5.0, greeting=1.0, reconnect_window=5.0, back_off=0.001, back_off_most=0.01)


class Acceptor:
    """What a daemon does with a link, and no more.

    Attributes
    ----------
    answer
        When set, the greeting that everybody gets.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.got: list[bytes] = []
        self.greetings: list[dict[str, Any]] = []
        self.link: ResumableLink | None = None
        self.answer: dict[str, Any] | None = None
        self.pipe: SocketPipe | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._server = await loop.create_unix_server(lambda: SocketPipe(self._greeted, self._lost), self.path)

    def stop(self) -> None:
        """Stop listening, and hang up."""
        assert self._server is not None
        self._server.close()
        if self.pipe is not None:
            self.pipe.close()

    def forget(self) -> None:
        """As a daemon that was restarted: the link is not known any more."""
        self.link = None
        if self.pipe is not None:
            self.pipe.close()

    def send(self, *chunks: bytes) -> None:
        if self.link is None:  # nobody is there yet
            self.link = ResumableLink(asyncio.get_running_loop(), self._deliver, -1)
        self.link.send(*chunks)

    def _deliver(self, batch: list[Any]) -> None:
        self.got += map(bytes, batch)

    def _greeted(self, pipe: SocketPipe, words: dict[str, Any]) -> Callable[[Any], None] | None:
        self.greetings.append(words)
        if self.answer is not None:
            pipe.greet(self.answer)
            return None
        resumed = self.link is not None and self.link.id in (words["link"], -1)
        if not resumed or self.link is None:
            self.link = ResumableLink(asyncio.get_running_loop(), self._deliver, words["link"])
        self.link.id = words["link"]
        pipe.greet({"resumed": resumed, "received": self.link.state.got})
        self.pipe = pipe
        self.link.up(pipe, words["received"] if resumed else 0)
        return self.link.feed

    def _lost(self, pipe: SocketPipe) -> None:
        if self.link is not None:
            self.link.down(pipe)


class Proxy:
    """Stands between: each connection in turn ends after so many bytes, in any direction; later ones last."""

    def __init__(self, path: str, target: str, cuts: list[int]) -> None:
        self.path, self._target = path, target
        self._cuts = iter(cuts)
        self.connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        left = [next(self._cuts, None)]
        try:
            their_reader, their_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, their_writer}
        try:
            ways = [self._pass(reader, their_writer, left), self._pass(their_reader, writer, left)]
            _, pending = await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
            for other in pending:
                other.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        finally:
            for one in (writer, their_writer):
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int | None]) -> None:
        try:
            while data := await reader.read(1 << 16):
                if left[0] is not None:
                    data, left[0] = data[: left[0]], left[0] - len(data[: left[0]])
                writer.write(data)
                await writer.drain()
                if left[0] == 0:
                    return
        except OSError:
            pass


class Dialled:
    """The dialling end, and what it was told."""

    def __init__(self, path: str, times: Times = QUICK, secret: str = "s", **more: Any) -> None:
        self.got: list[bytes] = []
        self.told: list[Any] = []
        self.link = DialledLink(
            lambda: SocketStream(path, secret),
            lambda: {"role": "test"},
            lambda batch: self.got.extend(map(bytes, batch)),
            renewed=lambda: self.told.append("renewed"),
            lost=lambda error: self.told.append(error),
            back=lambda: self.told.append("back"),
            refused=lambda error: self.told.append(error),
            times=times,
            **more,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


async def until(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    async with asyncio.timeout(timeout):
        while not (found := condition()):  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.002)
    return found


def run(test: Coroutine[Any, Any, Any]) -> None:
    """Run it on a loop of its own; what nobody caught on the loop fails the test."""
    failed: list[Any] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        async with asyncio.timeout(50):
            await test

    asyncio.run(watched())
    assert failed == []


@pytest.fixture(scope="module")
def wire() -> SimpleNamespace:
    """The parts above."""
    return SimpleNamespace(Acceptor=Acceptor, Proxy=Proxy, Dialled=Dialled, until=until, run=run, QUICK=QUICK)


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """Where sockets may be: pytest's own paths are too long for them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield made
