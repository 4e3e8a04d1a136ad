"""Has the actors of one process, and keeps a book of what became of each message.

The book is what makes a call happen at most once: a message that was had before is not run again, its answer is
repeated. An answer is kept until the caller says that it has it, within a bound.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ActorStopped, MonarchError, OutcomeUnknown, SupervisionError
from ..protocol import records
from ..protocol.faults import error_to_json
from ..protocol.frames import Record
from ..protocol.loop import IOThread
from ..protocol.records import CallHead, Status
from ..state.records import MeshRecord
from ._actors import Addressee, Item, RunningActor
from ._async_actor import AsyncActor
from ._future import Future, resolved
from ._sync_actor import SyncActor

if TYPE_CHECKING:
    from ._debugger import Breakpoints
    from ._waits import Watch

KEPT_BYTES = 256 << 20
"""What a process keeps of large answers whose caller has not said that it has them."""

LARGE = 1 << 16

Send = Callable[..., None]


@dataclass(slots=True)
class _Book:
    """Of the messages of one sender to one mesh: the highest number had, and what is under way or not yet released."""

    seen: int = 0
    calls: dict[int, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """What became of one message."""

    endpoint: str
    started: float
    actor: Addressee
    answer: tuple[Record, ...] | None = None
    size: int = 0  # of a large answer
    begun: bool = False
    port: bool = False  # whether it answers through a port


class Executor:
    """The actors of one process.

    Parameters
    ----------
    send
        ``send(sender, at_once, *chunks)``: takes a record to the daemon (or, in a controller, to who asked). From any
        thread; `at_once` says that nothing more is to come soon.
    host
        The index of the host, for messages.
    """

    def __init__(self, io: IOThread, send: Send, host: int) -> None:
        self.io = io
        self.send = send
        self.host = host
        self.actors: dict[int, Addressee] = {}  # by mesh; and the process's mailbox, see `_mailbox`
        self._books: dict[tuple[int, int], _Book] = {}
        self._large: dict[tuple[int, int, int], Outcome] = {}  # large answers that are kept, oldest first
        self._large_bytes = 0
        self._large_lock = threading.Lock()
        self._stopped: dict[int, str] = {}
        self.set_up = threading.Event()  # not set while what was given as `bootstrap` runs here
        self.set_up.set()
        self.watch: Watch | None = None
        self.breakpoints: Breakpoints | None = None  # in a proc; a controller's actors stop at pdb's own prompt

    # -- on the I/O thread

    def create(self, record: MeshRecord, rank: int, payload: Record, procs: Any, *, again: bool = False) -> None:
        """Start one actor; its constructor runs on its own thread. A second time for the same mesh replaces it.

        With `again` it was made before, in this process or an earlier one, and waits for a `bootstrap` that runs now.
        """
        old = self.actors.pop(record.id, None)
        if old is not None:
            old.end("replaced by a restart")
        sync = any(endpoint.kind == "sync" for endpoint in record.endpoints)
        running: RunningActor = (SyncActor if sync else AsyncActor)(self, record, rank, payload, procs)
        self.actors[record.id] = running
        if running.sets_up:
            self.set_up.clear()
        elif again:  # at first whoever spawned the processes saw to it; what the bootstrap itself spawns waits for none
            running.after = self.set_up
        running.start()
        if self.watch is not None and not self.watch.on:
            self.watch.start()

    def stop(self, mesh: int, reason: str, *, now: bool = False) -> Future[None]:
        """Stop the actor of this mesh, after the messages that it has; with `now`, after the one in progress.

        The future is done when the actor has cleaned up, or has had its time to.
        """
        self._stopped[mesh] = reason
        while len(self._stopped) > 1024:
            del self._stopped[next(iter(self._stopped))]
        running = self.actors.pop(mesh, None)
        over = running.end(reason, now=now) if running is not None else resolved(None)
        if running is not None:
            rank = running.rank
            over._when_done(lambda: self.tell({"mesh": mesh, "rank": rank, "state": "stopped"}, records.Kind.CREATED))
        for key in [key for key in self._books if key[1] == mesh]:
            if not self._books[key].calls:
                del self._books[key]
        return over

    def stop_all(self, reason: str) -> list[Future[None]]:
        """The process is about to end: stop every actor after the message in progress."""
        actors = [mesh for mesh, running in self.actors.items() if isinstance(running, RunningActor)]
        return [self.stop(mesh, reason, now=True) for mesh in actors]

    def supervise(self, mesh: int, failure: dict[str, Any]) -> None:
        """A mesh that the local actor of `mesh` owns has failed; `failure` is a `MeshFailure` as plain data."""
        running = self.actors.get(mesh)
        if isinstance(running, RunningActor):
            running.supervise(failure)

    def undelivered(self, mesh: int, where: str, why: str) -> None:
        """A message that the local actor of `mesh` has sent, and waits for no answer of, did not get there."""
        running = self.actors.get(mesh)
        if isinstance(running, RunningActor):
            running.undelivered(where, why)

    def on_call(self, record: Record) -> None:
        """A CALL record came."""
        head = records.parse_call(record)
        book = self._books.get((head.sender, head.mesh))
        if book is None:
            book = self._books[(head.sender, head.mesh)] = _Book()
        number = head.number
        running = self.actors.get(head.mesh)
        if number <= book.seen:
            outcome = book.calls.get(number)
            if outcome is not None and outcome.answer is not None:
                self.send(head.sender, False, *outcome.answer)
            elif outcome is None:
                unknown = OutcomeUnknown("its answer is not kept any more, if there was one")
                self._refuse(head, running, unknown if running is not None else self.missing(head.mesh))
            return
        if head.flags & records.ASK:
            if head.flags & records.UNKNOWN_IS_LOST:
                book.seen = number  # what was said to be lost is not run later
                self._refuse(head, running, OutcomeUnknown("the call never reached the rank; it was not run"))
            return
        book.seen = number
        if running is None:
            self._refuse(head, None, self.missing(head.mesh))
            return
        outcome = book.calls[number] = Outcome(head.endpoint, time.time(), running)
        if self.watch is not None and not self.watch.on:
            self.watch.start()
        running.put((head, record, outcome))

    def handled(self, sender: int, mesh: int, number: int) -> bool:
        """Whether a message came here and was answered. From any thread."""
        book = self._books.get((sender, mesh))
        if book is None or book.seen < number:
            return False
        outcome = book.calls.get(number)
        return outcome is None or outcome.answer is not None

    def unanswered(self, sender: int, mesh: int, number: int) -> Outcome | None:
        """A message that came here and has no answer yet."""
        book = self._books.get((sender, mesh))
        outcome = book.calls.get(number) if book is not None else None
        return outcome if outcome is not None and outcome.answer is None else None

    def missing(self, mesh: int) -> MonarchError:
        """Why there is no actor of this mesh here."""
        reason = self._stopped.get(mesh)
        if reason is None:
            return SupervisionError("there is no such actor in this process any more")
        return ActorStopped(f"the mesh was stopped: {reason}")

    def _refuse(self, head: CallHead, running: Addressee | None, error: MonarchError) -> None:
        rank = running.rank if running is not None else 0xFFFFFFFF
        self.send(head.sender, False, records.reply(Status.FAULT, rank, head.key), error_to_json(error))

    def on_release(self, record: Record) -> None:
        """A RELEASE record came: the caller has these answers."""
        sender, mesh, numbers = records.parse_release(record)
        book = self._books.get((sender, mesh))
        if book is not None:
            pop = book.calls.pop
            for number in numbers:
                outcome = pop(number, None)
                if outcome is not None and outcome.size:
                    with self._large_lock:
                        if self._large.pop((sender, mesh, number), None) is not None:
                            self._large_bytes -= outcome.size

    def under_way(self) -> list[list[Any]]:
        """``[sender, mesh, number, endpoint, started, rank]`` of each message that has not been answered."""
        return [
            [sender, mesh, number, outcome.endpoint, outcome.started, self.actors[mesh].rank]
            for (sender, mesh), book in list(self._books.items())
            if mesh in self.actors
            for number, outcome in list(book.calls.items())
            if outcome.answer is None
        ]

    def unreleased(self) -> list[tuple[int, tuple[Record, ...]]]:
        """The answers that no caller has confirmed, with their senders."""
        return [
            (sender, outcome.answer)
            for (sender, _), book in list(self._books.items())
            for outcome in list(book.calls.values())
            if outcome.answer is not None
        ]

    # -- on an actor's thread

    def answer(self, item: Item, rank: int, status: Status, body: list[Record], at_once: bool) -> None:
        """Keep an answer and send it."""
        head, _, outcome = item
        outcome.answer = chunks = (records.reply(status, rank, head.key), *body)
        if len(body) > 1 or (body and len(body[0]) > LARGE):
            self._keep(head.key, outcome, sum(map(len, body)))
        self.send(head.sender, at_once, *chunks)

    def settle(self, actor: RunningActor, fault: bytes) -> None:
        """Answer all that an actor has not answered and will not: it is at its end."""
        for (sender, mesh), book in list(self._books.items()):
            if mesh != actor.record.id:
                continue
            for number, outcome in list(book.calls.items()):
                if outcome.answer is None and outcome.actor is actor:
                    head = records.reply(Status.FAULT, actor.rank, (sender, mesh, number))
                    outcome.answer = (head, fault)
                    self.send(sender, False, head, fault)

    def _keep(self, key: records.Key, outcome: Outcome, size: int) -> None:
        """Bound what is kept: the oldest large answers go first; who asks later is told so."""
        with self._large_lock:
            outcome.size = size
            self._large[key] = outcome
            self._large_bytes += size
            while self._large_bytes > KEPT_BYTES and len(self._large) > 1:
                old = next(iter(self._large))
                self._large_bytes -= self._large.pop(old).size
                book = self._books.get(old[:2])
                if book is not None:
                    book.calls.pop(old[2], None)

    def tell(self, what: dict[str, Any], kind: records.Kind = records.Kind.EVENT) -> None:
        """Send a notice to the daemon."""
        self.send(0, False, *records.notice(kind, what))
