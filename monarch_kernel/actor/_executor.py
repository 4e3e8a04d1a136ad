"""Runs the actors of one process: a thread each, one message at a time, and a book of what became of each message.

The book is what makes a call happen at most once: a message that was had before is not run again, its answer is
repeated. An answer is kept until the caller says that it has it, within a bound.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ActorStopped, ConstructorFailed, MonarchError, OutcomeUnknown, SupervisionError
from ..protocol import pickling, records
from ..protocol.faults import error_to_json
from ..protocol.frames import Record
from ..protocol.loop import IOThread
from ..protocol.records import CallHead, Status
from ..state.records import MeshRecord
from ._calls import unpack_region
from ._context import Context, Instance, _current, run_actor
from ._extent import Extent, Point
from ._future import Future
from ._handle import mentioned_pending

if TYPE_CHECKING:
    from ._debugger import Breakpoints

KEPT_BYTES = 256 << 20
"""What a process keeps of large answers whose caller has not said that it has them."""

LARGE = 1 << 16

Send = Callable[..., None]


@dataclass(slots=True)
class _Book:
    """Of the messages of one sender to one mesh: the highest number had, and what is under way or not yet released."""

    seen: int = 0
    calls: dict[int, _Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class _Outcome:
    endpoint: str
    started: float
    answer: tuple[Record, ...] | None = None
    size: int = 0  # of a large answer


_Item = tuple[CallHead, Record, _Outcome]


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
        self.actors: dict[int, _Running] = {}
        self._books: dict[tuple[int, int], _Book] = {}
        self._large: dict[tuple[int, int, int], _Outcome] = {}  # large answers that are kept, oldest first
        self._large_bytes = 0
        self._large_lock = threading.Lock()
        self._stopped: dict[int, str] = {}
        self.breakpoints: Breakpoints | None = None  # in a proc; a controller's actors stop at pdb's own prompt

    # -- on the I/O thread

    def create(self, record: MeshRecord, rank: int, payload: Record, procs: Any) -> None:
        """Start one actor; its constructor runs on its own thread. A second time for the same mesh replaces it."""
        old = self.actors.pop(record.id, None)
        if old is not None:
            old.end("replaced by a restart")
        kinds = {endpoint.kind for endpoint in record.endpoints}
        running = (_AsyncActor if kinds == {"async"} else _SyncActor)(self, record, rank, payload, procs)
        self.actors[record.id] = running
        running.start()

    def stop(self, mesh: int, reason: str) -> None:
        """Stop the actor of this mesh, after the messages that it has."""
        self._stopped[mesh] = reason
        while len(self._stopped) > 1024:
            del self._stopped[next(iter(self._stopped))]
        running = self.actors.pop(mesh, None)
        if running is not None:
            running.end(reason)
        for key in [key for key in self._books if key[1] == mesh]:
            if not self._books[key].calls:
                del self._books[key]

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
        outcome = book.calls[number] = _Outcome(head.endpoint, time.time())
        running.put((head, record, outcome))

    def handled(self, sender: int, mesh: int, number: int) -> bool:
        """Whether a message came here and was answered. From any thread."""
        book = self._books.get((sender, mesh))
        if book is None or book.seen < number:
            return False
        outcome = book.calls.get(number)
        return outcome is None or outcome.answer is not None

    def missing(self, mesh: int) -> MonarchError:
        """Why there is no actor of this mesh here."""
        reason = self._stopped.get(mesh)
        if reason is None:
            return SupervisionError("there is no such actor in this process any more")
        return ActorStopped(f"the mesh was stopped: {reason}")

    def _refuse(self, head: CallHead, running: _Running | None, error: MonarchError) -> None:
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

    def answer(self, item: _Item, rank: int, status: Status, body: list[Record], at_once: bool) -> None:
        """Keep an answer and send it."""
        head, _, outcome = item
        outcome.answer = chunks = (records.reply(status, rank, head.key), *body)
        if len(body) > 1 or (body and len(body[0]) > LARGE):
            self._keep(head.key, outcome, sum(map(len, body)))
        self.send(head.sender, at_once, *chunks)

    def _keep(self, key: records.Key, outcome: _Outcome, size: int) -> None:
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


class _Running:
    """One actor on its thread."""

    def __init__(self, executor: Executor, record: MeshRecord, rank: int, payload: Record, procs: Any) -> None:
        self.executor = executor
        self.record = record
        self.rank = rank
        self.name = record.name
        self.extent = Extent(record.labels, record.sizes)
        self.error: MonarchError | None = None
        self._payload: Record | None = payload
        point = Point(rank, self.extent)
        self._here = Context(
            Instance(
                point, record.name, record.qualname, f"{record.name}[{rank}]", f"{record.procs or 0:x}", record.owner,
                record.id, procs,
            ),
            point,
        )  # fmt: skip
        self._last: tuple[tuple[int, ...], bytes, Context] | None = None
        self._object: Any = None
        self._thread = threading.Thread(target=self._run, name=f"monarch-actor-{record.name}-{rank}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: _Item) -> None:
        """A message. On the I/O thread."""
        raise NotImplementedError

    def end(self, reason: str) -> None:
        """Stop after the messages that are there. On the I/O thread."""
        raise NotImplementedError

    def _run(self) -> None:
        raise NotImplementedError

    # -- on the actor's thread

    def _where(self) -> str:
        return f"{self.name}, rank {self.rank} of {self.extent!r} on host {self.executor.host}"

    def _about(self) -> dict[str, Any]:
        return {"mesh": self.name, "rank": self.rank, "host": self.executor.host}

    def _load(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        payload, self._payload = self._payload, None
        assert payload is not None
        (cls, *args), kwargs = pickling.loads(*pickling.decode(payload))
        return cls, tuple(args), kwargs

    def _construct(self) -> None:
        try:
            cls, args, kwargs = self._load()
            self._object = cls(*args, **kwargs)
        except BaseException as error:
            self._constructed(error)
        else:
            self._constructed(None)

    def _over(self, error: BaseException | None) -> None:
        """The user's code is through; one that stood at a breakpoint looks at what it failed with."""
        if self.executor.breakpoints is not None:
            self.executor.breakpoints.message_ended(self.record.id, self.rank, error)

    def _constructed(self, failure: BaseException | None) -> None:
        self._over(failure)
        what: dict[str, Any] = {"mesh": self.record.id, "rank": self.rank, "state": "ok"}
        if failure is not None:
            _without_ours(failure)
            trace = "".join(traceback.format_exception(failure)).rstrip()
            said = traceback.format_exception_only(failure)[-1].strip()  # `str(failure)` may raise
            self.error = ConstructorFailed(
                f"{self.record.qualname}(...) of {self._where()} raised {said}\n{trace}",
                **self._about(),
            )
            what.update(state="failed", fault=json.loads(error_to_json(self.error)))
        self.executor.tell(what, records.Kind.CREATED)

    def _message_rank(self, head: CallHead) -> Context:
        if not head.ranks:
            return self._here
        # Heads of one slice share their tuple of ranks, see `records`.
        if self._last is not None and self._last[0] is head.ranks and self._last[1] is head.region:
            return self._last[2]
        extent = unpack_region(head.region).extent
        made = Context(self._here.actor_instance, Point(head.ranks.index(self.rank), extent))
        self._last = (head.ranks, head.region, made)
        return made

    def _enter(self, item: _Item) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        """Context, method and arguments of a message; None when it has been answered already."""
        head, record, _ = item
        if self.error is not None:
            self._reply(item, Status.FAULT, [error_to_json(self.error)])
            return None
        _current.set(self._message_rank(head))
        try:
            args, kwargs = pickling.loads(*pickling.decode(memoryview(record)[head.body :]))
            return getattr(self._object, head.endpoint), args, kwargs
        except BaseException as error:
            self._raised(item, error, "its arguments could not be loaded there")
            return None

    def _returned(self, item: _Item, value: Any) -> None:
        self._over(None)
        if item[0].flags & records.QUIET:
            self._reply(item, Status.DONE, [])
            return
        if value is None:
            self._reply(item, Status.RESULT, [_NONE])
            return
        try:
            data, buffers = pickling.dumps(value)
            body = pickling.encode([data, *buffers])
            waits = mentioned_pending()
        except BaseException as error:
            self._raised(item, error, "its result could not be sent back")
            return
        self._reply_after(item, body, waits)

    def _reply_after(self, item: _Item, body: list[Record], waits: Sequence[Future[Any]]) -> None:
        """Send a result, once the meshes in it are there: who gets it may call them through another host."""
        for wait in waits:
            if not wait.done():
                wait._when_done(lambda: self.executor.io.post(self._reply_after, item, body, waits))
                return
            error = wait.exception()
            if error is not None:
                self._raised(item, error.with_traceback(None))
                return
        self._reply(item, Status.RESULT, body)

    def _raised(self, item: _Item, error: BaseException, note: str | None = None) -> None:
        self._over(error)
        head = item[0]
        if note is not None:
            error.add_note(f"({note})")
        else:
            _without_ours(error)
        fatal = not isinstance(error, Exception | asyncio.CancelledError)
        if fatal or head.flags & records.QUIET:
            why = " ended the actor" if fatal else ": nobody waited for the answer, so the actor is stopped"
            trace = "".join(traceback.format_exception(error)).rstrip()
            self.error = SupervisionError(
                f"{self._where()}: {type(error).__name__} in {head.endpoint}{why}. "
                f"Bring it back with: %monarch restart {self.name}[{self.rank}]\n{trace}",
                **self._about(),
            )
            fault = error_to_json(self.error)
            self.executor.tell(
                {"mesh": self.record.id, "rank": self.rank, "state": "failed", "fault": json.loads(fault)},
                records.Kind.CREATED,
            )
            self._reply(item, Status.FAULT, [fault])
            return
        self._reply(item, Status.RAISED, [pickling.dumps_exception(error)])

    def _reply(self, item: _Item, status: Status, body: list[Record]) -> None:
        self.executor.answer(item, self.rank, status, body, self._idle())

    def _idle(self) -> bool:
        """Whether no other message waits."""
        raise NotImplementedError


def _without_ours(error: BaseException) -> None:
    """Take the frame off that called the user's code: it tells a reader nothing."""
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if below is not None:
        error.__traceback__ = below


_NONE = b"".join(pickling.encode([pickling.dumps(None)[0]]))


class _SyncActor(_Running):
    """An actor of ``def`` endpoints: no event loop runs on its thread, so that it may block."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._inbox: queue.SimpleQueue[_Item | str] = queue.SimpleQueue()

    def put(self, item: _Item) -> None:
        """A message."""
        self._inbox.put(item)

    def end(self, reason: str) -> None:
        """Stop after what is there."""
        self._inbox.put(reason)

    def _idle(self) -> bool:
        return self._inbox.empty()

    def _run(self) -> None:
        run_actor(self.record.id)
        _current.set(self._here)
        self._construct()
        get = self._inbox.get
        while not isinstance(item := get(), str):
            entered = self._enter(item)
            if entered is None:
                continue
            method, args, kwargs = entered
            del entered
            try:
                value = method(*args, **kwargs)
            except BaseException as error:
                self._raised(item, error)
            else:
                self._returned(item, value)
                value = None
            # What a call was given and brought must not live until the next one comes.
            args, kwargs = (), {}
            del item
        cleanup = getattr(self._object, "__cleanup__", None)
        if cleanup is not None:
            try:
                cleanup(None)
            except Exception:
                traceback.print_exc()


class _AsyncActor(_Running):
    """An actor of ``async def`` endpoints: an event loop runs on its thread; each message is awaited to its end."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._items: deque[_Item | str] = deque()
        self._loop = asyncio.new_event_loop()
        self._some = asyncio.Event()
        self._awake = False

    def put(self, item: _Item) -> None:
        """A message."""
        self._add(item)

    def end(self, reason: str) -> None:
        """Stop after what is there."""
        self._add(reason)

    def _add(self, item: _Item | str) -> None:
        self._items.append(item)
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._some.set)

    def _idle(self) -> bool:
        return not self._items

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        run_actor(self.record.id, asyncio.current_task())
        _current.set(self._here)
        self._construct()
        while True:
            await self._some.wait()
            self._some.clear()
            self._awake = False
            while self._items:
                item = self._items.popleft()
                if isinstance(item, str):
                    await self._clean()
                    return
                await self._handle(item)

    async def _handle(self, item: _Item) -> None:
        entered = self._enter(item)
        if entered is None:
            return
        method, args, kwargs = entered
        try:
            made: Coroutine[Any, Any, Any] = method(*args, **kwargs)
            value = await made
        except BaseException as error:
            self._raised(item, error)
        else:
            self._returned(item, value)

    async def _clean(self) -> None:
        cleanup = getattr(self._object, "__cleanup__", None)
        if cleanup is not None:
            try:
                made = cleanup(None)
                if asyncio.iscoroutine(made):
                    await made
            except Exception:
                traceback.print_exc()
