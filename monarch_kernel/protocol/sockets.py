"""Streams on unix sockets: between the processes of one host, where gRPC's cost buys nothing.

The socket stands in a private directory, and whoever accepts looks at the peer's uid before anything else. Messages are
``u32`` length and bytes; the first in each direction is a greeting, see `links`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from ..errors import ConnectionLost
from .faults import error_from_json

_SIZE = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")

Take = Callable[[bytes | memoryview], None]

_LARGE = 1 << 16
_BUFFER = 2 * _LARGE
_GREETING = 1 << 24
"""A greeting is at most this long (a proc tells of all its constructors in it): a stranger can ask for no more."""


def message_socket(address: str) -> str | None:
    """Where a daemon on this machine takes links beside its gRPC address; None for one that is elsewhere."""
    if not address.startswith("unix:"):
        return None
    return os.path.join(os.path.dirname(address.removeprefix("unix:")), "messages.sock")


class SocketPipe(asyncio.BufferedProtocol):
    """A stream on a unix socket; messages are ``u32`` length and bytes.

    Parameters
    ----------
    greeted
        Called with the peer's greeting; it returns what takes the messages after it.
    lost
        Called once when the stream is over.
    """

    def __init__(
        self,
        greeted: Callable[[SocketPipe, dict[str, Any]], Take | None],
        lost: Callable[[SocketPipe], None],
    ) -> None:
        self._greeted = greeted
        self._lost = lost
        self._take: Take | None = None
        self._view = memoryview(bytearray(_BUFFER))
        self._got = 0  # bytes in it (or in the large message under way) that are not handled yet
        self._large: memoryview | None = None
        self._open = True
        self._handing = False  # the rest of a message of another thread is on its way to the loop
        self._writing = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.on_room: Callable[[], None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # asyncio moves the whole of its buffer with each partial send: it must not hold more than about a frame.
        transport.set_write_buffer_limits(high=1 << 18)

    def pause_writing(self) -> None:
        """Called by asyncio when the socket takes no more."""
        self._open = False

    def resume_writing(self) -> None:
        """Called by asyncio when it does again."""
        self._open = True
        if self.on_room is not None:
            self.on_room()

    # The socket is read into a buffer that is used again (a fresh one for each read costs more than the read), and a
    # large message straight into its own place.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio: where to read to."""
        if self._large is not None:
            return self._large[self._got :]
        return self._view[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio: so much was read."""
        self._got += nbytes
        if self._large is not None:
            if self._got == len(self._large):
                whole, self._large, self._got = self._large, None, 0
                self._message(whole)
            return
        view, got, at = self._view, self._got, 0
        while got - at >= 4:
            (size,) = _SIZE.unpack_from(view, at)
            at += 4
            if size <= got - at:
                self._message(bytes(view[at : at + size]))
                at += size
            elif self._take is None and size > _GREETING:
                self.close()  # not one of us: a web page, say
                return
            elif size > _LARGE:
                self._large = memoryview(bytearray(size))
                self._got = got - at
                self._large[: self._got] = view[at:got]
                return
            else:
                at -= 4
                break
        self._got = got - at
        if at and self._got:
            view[: self._got] = bytes(view[at:got])

    def _message(self, data: bytes | memoryview) -> None:
        if self._take is not None:
            self._take(data)
        elif (take := self._greet(data)) is not None:
            self._take = take
        else:
            self.close()

    def _greet(self, data: bytes | memoryview) -> Take | None:
        try:
            words = json.loads(bytes(data))
        except ValueError:
            return None
        return self._greeted(self, words) if isinstance(words, dict) else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio, which closes the socket after it."""
        with self._writing:  # its descriptor may be another file's the next moment
            self.transport = None
        self._lost(self)

    def greet(self, words: dict[str, Any]) -> None:
        """Send our greeting."""
        self.write(json.dumps(words).encode())

    def write(self, data: bytes) -> None:
        """Send one message."""
        if self.transport is not None:
            if len(data) < 65536:
                self.transport.write(_SIZE.pack(len(data)) + data)
            else:
                self.transport.writelines((_SIZE.pack(len(data)), data))

    def quiet(self) -> bool:
        """Whether nothing waits to be written, so that another thread may write. Under the link's lock."""
        transport = self.transport
        return self._open and not self._handing and transport is not None and not transport.get_write_buffer_size()

    def write_from(self, data: bytes) -> bool:
        """Write one message from another thread. Under the link's lock, and only while `quiet`.

        Returns
        -------
        bool
            Whether it was written whole; if not, the loop writes the rest and says when there is room again.
        """
        message = _SIZE.pack(len(data)) + data
        with self._writing:
            if self.transport is None:  # the stream is over; the link keeps what was not acknowledged
                return False
            try:
                written = os.write(self.transport.get_extra_info("socket").fileno(), message)
            except BlockingIOError:
                written = 0
            except OSError:  # the same, and the loop hears of it
                written = len(message)
        if written == len(message):
            return True
        self._handing = True
        self._loop.call_soon_threadsafe(self._write_rest, message[written:])
        return False

    def _write_rest(self, rest: bytes) -> None:
        # The rest goes first: until it is in the loop's buffer or written, nobody else may write.
        if self.transport is not None:
            self.transport.write(rest)
        self._handing = False
        if self._open and self.on_room is not None:
            self.on_room()

    def room(self) -> bool:
        """Whether the socket takes more now."""
        return self._open and not self._handing

    def close(self) -> None:
        """End the stream. What the peer did not take is not waited for: it may be stopped, and the link keeps it."""
        if self.transport is not None:
            self.transport.abort()

    def peer(self) -> tuple[int, int]:
        """``(pid, uid)`` of the process at the other end, from the kernel."""
        assert self.transport is not None
        raw = self.transport.get_extra_info("socket")
        pid, uid, _ = _CREDENTIALS.unpack(raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return pid, uid


class SocketStream:
    """The dialling side: greeting out, greeting in, then messages until it ends."""

    def __init__(self, path: str, secret: str) -> None:
        self._path = path
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._early: list[bytes | memoryview] = []  # what came together with the greeting
        self._feed: Take = self._early.append
        self.pipe = SocketPipe(self._greeted, self._lost)

    async def greet(self, words: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Greet and return the host's greeting; raises errors of ours."""
        try:
            async with asyncio.timeout(timeout):
                await self._loop.create_unix_connection(lambda: self.pipe, self._path)
                self.pipe.greet({**words, "secret": self._secret})
                answer = await self._answer
        except (OSError, TimeoutError):
            self.pipe.close()
            raise ConnectionLost("its daemon does not answer") from None
        if "error" in answer:
            self.pipe.close()
            raise error_from_json(json.dumps(answer))
        return answer

    def _greeted(self, pipe: SocketPipe, words: dict[str, Any]) -> Take:
        if not self._answer.done():
            self._answer.set_result(words)
        return self._came

    def _came(self, data: bytes | memoryview) -> None:
        try:
            self._feed(data)
        except Exception as error:
            if not self._over.done():
                self._over.set_exception(error)
            self.pipe.close()

    def _lost(self, pipe: SocketPipe) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the host hung up"))
        if not self._over.done():
            self._over.set_result(None)

    async def read_into(self, feed: Take) -> None:
        """Hand each message to `feed`; returns when the stream is over, and raises what `feed` raised."""
        self._feed = feed
        for data in self._early:
            feed(data)
        self._early.clear()
        await self._over
