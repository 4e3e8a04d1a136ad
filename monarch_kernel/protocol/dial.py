"""The dialling end of a link to a host: it connects, greets, and comes back by itself after a cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ..errors import ConnectionLost, HostLost, MonarchError
from ..state.times import TIMES, Times
from .frames import Record
from .links import ResumableLink, new_id
from .rpc import Stream
from .sockets import SocketStream


def lost_host(session: str, host: int, cut_for: float, error: MonarchError) -> HostLost:
    """What is said of a host that was cut off so many seconds ago and will not, or did not in time, come back."""
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - cut_for))
    return HostLost(
        f"no word from host {host} of session {session!r} since {since} ({error}). Slices without it work; to have it "
        "back, release the session and start it anew",
        host=host,
    )


class DialledLink:
    """A link to one host that outlives its streams and, by telling anew, the host's daemon.

    Parameters
    ----------
    stream
        Makes a stream to try next: gRPC's, or a unix socket's where the host is this machine.
    greeting
        Makes what to say first on each stream, besides the link's own words.
    deliver
        Takes the records that come.
    renewed
        Called when the other end knows nothing of what was said before (a restarted daemon): say it again.
    lost
        Called once when the host was not reached for the reconnect window; and `back` when it is again.
    ended
        Tells whether the host has ended for good, so that nobody need wait for the window to close.
    refused
        Called with the error when the host says no; the link is over then.
    """

    def __init__(
        self,
        stream: Callable[[], Stream | SocketStream],
        greeting: Callable[[], dict[str, Any]],
        deliver: Callable[[list[Record]], None],
        *,
        renewed: Callable[[], None],
        lost: Callable[[MonarchError], None],
        back: Callable[[], None],
        refused: Callable[[MonarchError], None],
        ended: Callable[[], bool] = lambda: False,
        times: Times | None = None,
    ) -> None:
        self._stream = stream
        self.times = times or TIMES
        self.words: dict[str, Any] = {}
        self.ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._greeting = greeting
        self._deliver = deliver
        self._renewed = renewed
        self._lost = lost
        self._back = back
        self._refused = refused
        self._ended = ended
        self.link = ResumableLink(self._loop, deliver, new_id())
        self._carried = False
        self.gone = False
        self._tasks = [self._loop.create_task(self._run()), self._loop.create_task(self._pulses())]

    def send(self, *chunks: Record) -> None:
        """Queue a record."""
        self.link.send(*chunks)

    def send_from(self, *chunks: Record) -> None:
        """Send a record from another thread, on that thread if the stream allows."""
        self.link.send_from(*chunks, at_once=True)

    @property
    def connected(self) -> bool:
        """Whether a stream carries the link now."""
        return self.link.connected

    async def _run(self) -> None:
        back_off = self.times.back_off
        while not self.link.closed:
            stream = self._stream()
            try:
                words = {**self._greeting(), "link": self.link.id, "received": self.link.state.got}
                answer = await stream.greet(words, self.times.greeting)
                if self.link.closed:
                    stream.pipe.close()
                    return
                self._joined(stream, answer)
                back_off = self.times.back_off
                await stream.read_into(self.link.feed)
            except ConnectionLost as error:
                self._missed(error)
            except MonarchError as error:
                self.link.close()
                self._refused(error)
                self.ready.set()  # whoever waits for the first stream waits no longer
                return
            except Exception as error:
                # What came is not of this link, or could not be handled. On a new link all is told anew.
                self._loop.call_exception_handler({"message": "a link to a host broke", "exception": error})
                self.link.down(stream.pipe)
                stream.pipe.close()
                if not self.link.closed:
                    self._renew(new_id())
            self.link.down(stream.pipe)
            if self.link.closed:
                return
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, self.times.back_off_most)

    def _joined(self, stream: Stream | SocketStream, answer: dict[str, Any]) -> None:
        self.words = answer
        fresh = not answer["resumed"] and self._carried
        if fresh:
            self._renew(self.link.id)
        self._carried = True
        if self.gone:
            self.gone = False
            self._back()
        self.link.up(stream.pipe, 0 if fresh else answer["received"])
        if fresh:
            self._renewed()
        self.ready.set()

    def _renew(self, link_id: int) -> None:
        cut_at = self.link.cut_at
        self.link.close()
        self.link = ResumableLink(self._loop, self._deliver, link_id)
        self.link.cut_at = cut_at

    def _missed(self, error: ConnectionLost) -> None:
        since = self.link.cut_at
        if self.gone or since is None:
            return
        if self._loop.time() - since > self.times.reconnect_window or self._ended():
            self.gone = True
            self._lost(error)

    async def _pulses(self) -> None:
        while not self.link.closed:
            await asyncio.sleep(self.times.heartbeat)
            link = self.link
            if link.connected:
                if self._loop.time() - link.heard > self.times.silent:
                    link.drop()  # the stream stands but nobody speaks: dial anew
                else:
                    link.pulse()

    async def close(self) -> None:
        """The link is over."""
        self.link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
