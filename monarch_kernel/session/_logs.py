"""What ranks print, on its way from the hosts to the screen of this process.

One thread writes, so that a terminal or a pipe that takes no more holds up neither calls nor hosts: a host sends on
only what has been written (see `monarch_worker.logs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..actor._future import Future
from ..protocol import records
from ..protocol.dial import DialledLink
from ..protocol.frames import Record
from ..protocol.loop import IOThread
from ..protocol.records import Kind
from ..state.logs import Display, Mode, Shown, Source, Stream

_log = logging.getLogger(__name__)

SETTLES = 3.0
"""Seconds that waiting for lines takes at most: it is for the screen only, and no reason to hang."""

NOTEBOOK = {"default": Mode("ranks"), "rate": 500.0, "burst": 2000}
"""In a notebook each line says its rank, and a rank shows at most 2000 lines at once and 500 a second."""


def write(stream: Stream, text: str) -> None:
    """Write to this process's own output, whatever stands for it now."""
    out = sys.stdout if stream == "out" else sys.stderr
    if out is not None:
        out.write(text)
        out.flush()


class LogView:
    """Shows the lines of all ranks of a session.

    Parameters
    ----------
    links
        The links to the hosts, by index.

    Attributes
    ----------
    display
        Says how; used on the writing thread only.
    write
        Takes what is shown.
    """

    def __init__(self, io: IOThread, links: dict[int, DialledLink], *, notebook: bool) -> None:
        self.display = Display(**NOTEBOOK) if notebook else Display()  # type: ignore[arg-type]  # a table of keywords
        self.notebook = notebook
        self.write: Callable[[Stream, str], None] = write
        self._io = io
        self._links = links
        self._positions: dict[int, dict[str, int]] = {}
        self._hidden: set[int] = set()
        self._tokens = itertools.count(1)
        self._late = False
        self._asked: dict[int, Future[None]] = {}
        self._jobs: deque[Callable[[], Iterable[Shown]]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def restore(self) -> None:
        """Write to this process's own output again."""
        self.write = write

    # -- on the I/O thread

    def greet(self, host: int) -> None:
        """A link to a host begins: tell it how far its files were seen, if it should not know."""
        self._tell(host, {"positions": self._positions.get(host, {}), "quiet": sorted(self._hidden)})

    def take(self, host: int, what: dict[str, Any], payload: Record) -> None:
        """A host sends lines, or answers."""
        if "lines" in what:
            seen = self._positions.setdefault(host, {})
            seen.pop(what["log"], None)
            seen[what["log"]] = what["position"]
            while len(seen) > 4096:
                del seen[next(iter(seen))]
        data = bytes(payload)
        self._do(lambda: self._shown(host, what, data))

    def _tell(self, host: int, what: dict[str, Any]) -> None:
        link = self._links.get(host)
        if link is not None:
            link.send(*records.notice(Kind.LOG, {**what, "link": link.link.id}))

    def _ask(self, answered: Future[None]) -> None:
        """Have every host send what it has, and wait until that is written."""
        waiting = set()

        def done(host: int) -> None:
            waiting.discard(host)
            if not waiting and not answered.done():
                answered._resolve(lambda: None)

        for host, link in self._links.items():
            if not link.connected or link.gone:
                continue
            token = next(self._tokens)
            waiting.add(host)
            asked = self._asked[token] = Future()
            asked._when_done(lambda host=host: self._io.post(done, host))  # type: ignore[misc]
            self._tell(host, {"flush": token})
            self._io.loop.call_later(SETTLES, self._answered, token, True)
        if not waiting:
            self._do(lambda: self._resolve(answered))

    def _answered(self, token: int, late: bool = False) -> None:
        asked = self._asked.pop(token, None)
        if asked is not None:
            self._late = late
            asked._resolve(lambda: None)

    # -- from any thread

    def settle(self) -> Future[None]:
        """Done when all that ranks have printed until now is written, or after `SETTLES`."""
        answered = self._promise()
        self._io.post(self._ask, answered)
        return answered

    def _promise(self) -> Future[None]:
        """Done by what holds it, or after a while: whoever waits for a screen must not hang with it."""
        promise: Future[None] = Future()
        self._io.post(lambda: self._io.loop.call_later(2 * SETTLES, promise._resolve, lambda: None))
        return promise

    def flush(self, mesh: int | None = None) -> Future[None]:
        """The same, and what windows of one mesh or of all still hold is written too."""
        flushed = self._promise()

        def show() -> Iterable[Shown]:
            yield from self.display.flush(mesh)
            flushed._resolve(lambda: None)

        self.settle()._when_done(lambda: self._do(show))
        return flushed

    def set(self, mesh: int, mode: Mode) -> Future[None]:
        """Show a mesh in another way, from what is printed after this on."""
        changed = self._promise()

        def change() -> Iterable[Shown]:
            yield from self.display.set(mesh, mode)
            changed._resolve(lambda: None)

        (self._hidden.add if mode.how == "quiet" else self._hidden.discard)(mesh)
        self.settle()._when_done(lambda: self._do(change))
        return changed

    async def close(self) -> None:
        """Show the last lines, as far as the screen takes them in time, and say so if those were not all."""
        self._late = False
        try:
            await asyncio.wait_for(self.flush().as_asyncio(), SETTLES + 0.5)
        except TimeoutError:
            return  # it would not take that word either
        if self._late:
            said = self._promise()
            self._do(lambda: self._last(said))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(said.as_asyncio(), 0.5)

    # -- on the writing thread

    @staticmethod
    def _last(said: Future[None]) -> Iterable[Shown]:
        yield "err", "monarch: more was printed than could be shown before the end; the logs of the ranks have it all\n"
        said._resolve(lambda: None)

    def _do(self, job: Callable[[], Iterable[Shown]]) -> None:
        with self._wake:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="monarch-logs", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                due = self.display.due()
                if not self._jobs:
                    self._wake.wait(None if due is None else max(0.0, due - time.monotonic()))
                job = self._jobs.popleft() if self._jobs else None
            self._show(job if job is not None else lambda: self.display.tick(time.monotonic()))
            if job is not None and due is not None and due <= time.monotonic():
                self._show(lambda: self.display.tick(time.monotonic()))

    def _show(self, job: Callable[[], Iterable[Shown]]) -> None:
        for stream, text in job():
            try:
                self.write(stream, text)
            except Exception:  # nobody reads any more, or what stands for the output is broken: the files have it all
                _log.debug("lines of ranks could not be shown", exc_info=True)

    def _shown(self, host: int, what: dict[str, Any], data: bytes) -> Iterable[Shown]:
        if "missed" in what:
            for name, count in what["missed"].items():
                were = "line was" if count == 1 else "lines were"
                yield "err", f"monarch: {count} {were} printed by {name} while nobody was attached, see its logs\n"
        elif "flushed" in what:
            self._io.post(self._answered, what["flushed"])
        elif "lines" in what:
            source = Source(what["mesh"], what["name"], what["rank"], host, what["stream"], what["log"])
            lines = data.decode().split("\n") if what["lines"] else []
            yield from self.display.take(source, lines, what["left_out"], time.monotonic())
            self._io.post(self._tell, host, {"shown": what["cost"]})

    @staticmethod
    def _resolve(future: Future[None]) -> Iterable[Shown]:
        future._resolve(lambda: None)
        return ()


__all__ = ["LogView", "write"]
