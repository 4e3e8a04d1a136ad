"""Resumable links over real streams: the driver of `state.link`, and the two kinds of stream that carry it.

A stream begins with one greeting in each direction, JSON: who dials, which link it is, how far it got. If the other end
still has that link, both go on from there; else it is a new link and whoever dialled tells anew what matters (`resumed`
in the answer says which). A stream that ends without `bye` is a cut; a clean leave is always said.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..state.link import Link
from . import frames
from .frames import Record
from .loop import Batch


def new_id() -> int:
    """A random positive number of 63 bits: for clients, daemons, meshes and links."""
    return random.SystemRandom().getrandbits(62) + 1


class Pipe(Protocol):
    """A stream that carries messages in order until it breaks."""

    on_room: Callable[[], None] | None
    """What it calls when it takes more again."""

    def write(self, data: bytes) -> None:
        """Send one message; never blocks."""

    def room(self) -> bool:
        """Whether the stream takes more now."""

    def quiet(self) -> bool:
        """Whether another thread may write now, under the link's lock."""

    def write_from(self, data: bytes) -> bool:
        """Send one message from another thread, only while `quiet`; False when the stream takes no more for now."""

    def close(self) -> None:
        """End the stream."""


class ResumableLink:
    """One end of a link. Everything runs on the I/O thread, but for `send_from`, which any thread may call.

    Parameters
    ----------
    deliver
        Called with the records of each frame that brought some.
    link_id
        The link's name; both ends know it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[Record]], None], link_id: int) -> None:
        self.id = link_id
        self.state = Link()
        self.heard = loop.time()
        self.cut_at: float | None = loop.time()
        self.closed = False
        self._loop = loop
        self._batch = Batch.of(loop)
        self._deliver = deliver
        self._assembler = frames.Assembler()
        self._pipe: Pipe | None = None
        self._due = False
        self._lock = threading.Lock()

    @property
    def connected(self) -> bool:
        """Whether a stream carries it now."""
        return self._pipe is not None

    def send(self, *chunks: Record) -> None:
        """Queue one record, given in chunks."""
        units = frames.to_units(chunks)
        with self._lock:
            for unit in units:
                self.state.send(unit)
        if not self._due and self._pipe is not None:
            self._due = True
            self._batch.add(self.flush)

    def send_from(self, *chunks: Record, at_once: bool) -> None:
        """Queue one record from any thread.

        Parameters
        ----------
        at_once
            Write it from this very thread if the stream takes it; the I/O thread is then not woken at all. For somebody
            who has nothing more to say: a burst is better left to the I/O thread, which writes it as one frame.
        """
        units = frames.to_units(chunks)
        with self._lock:
            for unit in units:
                self.state.send(unit)
            pipe = self._pipe
            if at_once and pipe is not None and pipe.quiet():
                while (frame := self.state.frame()) is not None:
                    if not pipe.write_from(frames.encode(frame)):
                        break
                return
            if self._due:
                return
            self._due = True
        try:
            self._loop.call_soon_threadsafe(self.flush)
        except RuntimeError:  # the loop is closed: the process is ending
            pass

    def flush(self) -> None:
        """Write what is queued, as far as the window and the stream allow."""
        with self._lock:
            self._due = False
            pipe = self._pipe
            while pipe is not None and pipe.room():
                frame = self.state.frame()
                if frame is None:
                    return
                pipe.write(frames.encode(frame))

    def pulse(self) -> None:
        """Write an empty frame: a heartbeat, and an acknowledgement of all that came in."""
        with self._lock:
            if self._pipe is not None and self._pipe.room() and (frame := self.state.frame(empty=True)) is not None:
                self._pipe.write(frames.encode(frame))

    def feed(self, data: bytes | memoryview) -> None:
        """Take one message that the stream read."""
        self.heard = self._loop.time()
        first, ack, units = frames.decode(data)
        state = self.state
        with self._batch:
            with self._lock:
                new = state.received(first, ack, units)
                news = not self._due and (state.can_write() or state.ack_due())
            if new:
                records = self._assembler.records(new)
                if records:
                    self._deliver(records)
            if news and not self._due:
                self._due = True
                self._batch.add(self.flush)

    def up(self, pipe: Pipe, peer_got: int) -> None:
        """A stream carries the link from now on; the peer has `peer_got` units."""
        self.drop()
        with self._lock:
            self.state.resume(peer_got)
            self._pipe = pipe
        pipe.on_room = self.flush
        self.cut_at = None
        self.heard = self._loop.time()
        self.flush()

    def down(self, pipe: Pipe) -> bool:
        """`pipe` broke. False when another stream carries the link by now."""
        with self._lock:
            if self._pipe is not pipe:
                return False
            self._pipe = None
        self.cut_at = self._loop.time()
        return True

    def drop(self) -> None:
        """Close the stream that carries the link now, if any; the link stays."""
        with self._lock:
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self.cut_at = self._loop.time()
            pipe.close()

    def close(self) -> None:
        """The link is over."""
        self.closed = True
        self.drop()


class QueuePipe:
    """A stream whose writes are awaited one at a time (gRPC): one task of its own awaits them.

    Parameters
    ----------
    write
        Awaited with each message.
    end
        Ends the stream.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        write: Callable[[bytes], Awaitable[None]],
        end: Callable[[], object],
    ) -> None:
        self._write = write
        self._end = end
        self._loop = loop
        self._open = True
        self._next: bytes | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.on_room: Callable[[], None] | None = None
        self._task = loop.create_task(self._run())

    def write(self, data: bytes) -> None:
        """Send one message."""
        self._next = data
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self) -> None:
        while self._open:
            if self._next is None:
                self._waiter = self._loop.create_future()
                await self._waiter
                self._waiter = None
                continue
            try:
                await self._write(self._next)
            except Exception:  # the reader of the same stream sees its end and says so; here there is nothing to add
                self._open = False
                return
            self._next = None
            if self.on_room is not None:
                self.on_room()

    def quiet(self) -> bool:
        """Never: its writes belong to the loop."""
        return False

    def write_from(self, data: bytes) -> bool:
        """Not to be called, see `quiet`."""
        raise NotImplementedError

    def room(self) -> bool:
        """Whether no write is under way."""
        return self._open and self._next is None

    def close(self) -> None:
        """End the stream."""
        self._open = False
        self._task.cancel()
        self._end()
