"""A running actor: a thread, which constructs it, handles its messages one at a time, and cleans up.

What concerns the actor itself (a fault of what it owns, its end) does not queue behind its messages: it is handled as
soon as the message in progress is through.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ActorStopped, ConstructorFailed, MonarchError, SupervisionError
from ..protocol import pickling, records
from ..protocol.faults import error_to_json
from ..protocol.frames import Record
from ..protocol.records import CallHead, Status
from ..state.records import MeshRecord
from . import _lifecycle
from ._calls import unpack_region
from ._context import Context, Instance, _current, address, creators
from ._extent import Extent, Point
from ._future import Future
from ._handle import mentioned_pending
from ._supervision import MeshFailure
from ._undeliverable import UndeliverableMessageEnvelope

if TYPE_CHECKING:
    from ._executor import Executor, Outcome

Item = tuple[CallHead, Record, "Outcome"]

NONE = b"".join(pickling.encode([pickling.dumps(None)[0]]))
"""The body of the answer None."""


STOP = "stop"
"""In the queue of an actor: no message comes after it."""


Told = MeshFailure | UndeliverableMessageEnvelope
_SUPERVISE, _UNDELIVERED = "__supervise__", "_handle_undeliverable_message"


class Addressee(Protocol):
    """What messages are for. Both methods are called on the I/O thread."""

    rank: int

    def put(self, item: Item) -> None:
        """A message."""

    def end(self, reason: str, *, now: bool = False) -> Future[None]:
        """Stop; the future is done when it has."""


class RunningActor:
    """One actor on its thread.

    Attributes
    ----------
    error
        Why it takes no more messages, once it does not.
    over
        Done when it has ended and cleaned up, or has had its time to.
    current
        The message that it is in the middle of, which the next one waits for.
    """

    thread_name: str

    def __init__(self, executor: Executor, record: MeshRecord, rank: int, payload: Record, procs: Any) -> None:
        self.executor = executor
        self.record = record
        self.rank = rank
        self.name = record.name
        self.extent = Extent(record.labels, record.sizes)
        self.error: MonarchError | None = None
        self.over: Future[None] = Future()
        self.sets_up = bool(record.spec.get("bootstrap"))  # its constructor is what processes run before any actor
        self.after: threading.Event | None = None
        self.current: Outcome | None = None
        self._failure: SupervisionError | None = None
        self._stopping: str | None = None
        self._payload: Record | None = payload
        point = Point(rank, self.extent)
        self._here = Context(
            Instance(
                point, record.name, f"{record.module}.{record.qualname}", address(record.id, record.name),
                creators(record.creator), record.id, procs, self,
            ),
            point,
        )  # fmt: skip
        self._last: tuple[tuple[int, ...], bytes, Context] | None = None
        self._object: Any = None
        self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # -- on the I/O thread

    def put(self, item: Item) -> None:
        """A message."""
        raise NotImplementedError

    def end(self, reason: str, *, now: bool = False) -> Future[None]:
        """Stop after the messages that are there; with `now`, after the one in progress. Gives `over`."""
        self._stopping = reason
        if now and self.error is None:
            self.error = self._stopped()
        self._stop()
        if not self.over.done():
            self.executor.io.loop.call_later(_lifecycle.STOP_WITHIN, self._give_up)
        return self.over

    def _give_up(self) -> None:
        """The constructor, or the messages that were there, have had their time: nobody waits for them any more."""
        if self.over.done():
            return
        if self.error is None:
            self.error = self._stopped()
        self.executor.settle(self, error_to_json(self.error))
        self._cut_off()

    def _cut_off(self) -> None:
        """Leave the message in progress where that can be done, or else leave it alone."""
        raise NotImplementedError

    def _stopped(self) -> MonarchError:
        return ActorStopped(f"{self.name} was stopped: {self._stopping}", **self._about())

    def supervise(self, failure: dict[str, Any]) -> None:
        """A mesh that this actor owns has failed."""
        self._tell(MeshFailure.from_dict(failure))

    def undelivered(self, where: str, why: str) -> None:
        """A message that this actor has sent did not get there."""
        if self._hook(_UNDELIVERED) is not None:
            self._tell(UndeliverableMessageEnvelope(self._here.actor_instance.actor_id, where, why))

    def _tell(self, told: Told) -> None:
        """Run the hook that is for it, between messages or beside them, one at a time."""
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    # -- from any thread

    @property
    def thread(self) -> int | None:
        """The identifier of its thread."""
        return self._thread.ident

    @property
    def constructing(self) -> bool:
        """Whether its constructor has not returned yet."""
        return self._object is None and self.error is None

    def under_way(self) -> bool:
        """Whether it is in the middle of something, or a message waits."""
        return self.current is not None or self.constructing or not self._idle()

    def stop_itself(self, reason: str | None) -> None:
        """`Instance.stop`: end this one actor after the messages that it has."""
        self.executor.io.post(self.executor.stop, self.record.id, reason or "it stopped itself")

    def abort(self, word: str, reason: str | None) -> None:
        """`Instance.abort` and `Instance.kill`: fail as soon as the message in progress is through."""
        self._soon(functools.partial(self._fail, f"it was {word}: {reason or 'no reason provided'}"))

    def _soon(self, job: Callable[[], object]) -> None:
        """Run `job` on the actor's thread, before the messages that wait."""
        raise NotImplementedError

    def _refuse(self, item: Item) -> None:
        """Answer a message that came too late."""
        assert self.error is not None
        self.executor.answer(item, self.rank, Status.FAULT, [error_to_json(self.error)], False)

    # -- on the actor's thread

    def _run(self) -> None:
        raise NotImplementedError

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
            if self.after is not None:
                self.after.wait()
            cls, args, kwargs = self._load()
            made = cls(*args, **kwargs)
        except BaseException as error:
            self._not_constructed(error)
        else:
            self._object = made
            self._through(None)
            self.executor.tell({"mesh": self.record.id, "rank": self.rank, "state": "ok"}, records.Kind.CREATED)
        finally:
            if self.sets_up:
                self.executor.set_up.set()

    def _not_constructed(self, error: BaseException) -> None:
        self._through(error)
        _without_ours(error)
        text = (
            f"{self.record.qualname}(...) of {self._where()} raised {_lifecycle.said(error)}\n"
            f"{_lifecycle.failed(self._here.actor_instance, _lifecycle.of_exception(error))}"
        )
        self._fail_with(ConstructorFailed(text, **self._about()))

    def _through(self, error: BaseException | None) -> None:
        """The user's code is through; one that stood at a breakpoint looks at what it failed with."""
        if self.executor.breakpoints is not None:
            self.executor.breakpoints.message_ended(self.record.id, self.rank, error)

    def _fail(self, why: str) -> None:
        """Take no more messages, and report it. `why` is one sentence, and a traceback below it where there is one."""
        first, _, more = why.partition("\n")
        restart = f"Bring it back with: %monarch restart {self.name}[{self.rank}]"
        text = f"{self._where()}: {first}. {restart}" + (f"\n{more}" if more else "")
        self._fail_with(SupervisionError(_lifecycle.failed(self._here.actor_instance, text), **self._about()))

    def _fail_with(self, error: SupervisionError) -> None:
        if self._failure is not None:
            return
        self._failure = self.error = error
        fault = error_to_json(error)
        notice = {"mesh": self.record.id, "rank": self.rank, "state": "failed", "fault": json.loads(fault)}
        self.executor.tell(notice, records.Kind.CREATED)
        self.executor.settle(self, fault)

    def _ended(self) -> None:
        """The last thing that its thread does: answer what nobody will answer now, and let go of the object."""
        if self.error is None:
            self.error = self._stopped()
        self.executor.settle(self, error_to_json(self.error))
        self._object = None
        self.over._resolve(lambda: None)

    def _bounded(self) -> None:
        """Whoever waits for the end waits for `__cleanup__` no longer than it is given."""
        io = self.executor.io
        within = _lifecycle.cleanup_within()
        io.post(lambda: io.loop.call_later(within, self.over._resolve, lambda: None))

    def _hook_for(self, told: Told) -> Callable[[Any], Any]:
        found = self._hook(_UNDELIVERED if isinstance(told, UndeliverableMessageEnvelope) else _SUPERVISE)
        return found if found is not None else _no_hook

    def _unhandled(self, told: Told, error: BaseException | None) -> None:
        """What it was told was not handled: it fails itself, and who owns it is told both."""
        if isinstance(told, UndeliverableMessageEnvelope):
            hook, what = _UNDELIVERED, "a message that it sent could not be delivered"
            report = f"{told.dest()}: {told.error_msg()}"
        else:
            hook, what, report = _SUPERVISE, "a mesh that it owns has failed", told.report()
        if error is None:
            why = f"its {hook} did not handle it" if self._hook(hook) is not None else f"it has no {hook}"
            self._fail(f"{what}, and {why}\n{report}")
            return
        _without_ours(error)
        self._fail(
            f"{what}, and its {hook} raised {_lifecycle.said(error)}\n{_lifecycle.of_exception(error)}\n"
            f"What it was told:\n{report}"
        )

    def _hook(self, name: str) -> Callable[..., Any] | None:
        found: Callable[..., Any] | None = getattr(self._object, name, None)
        return found

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

    def _enter(self, item: Item) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        """Method and arguments of a message, its context set; None when it has been answered already."""
        head, record, outcome = item
        outcome.begun = True
        self.current = outcome
        _current.set(self._message_rank(head))
        try:
            args, kwargs = pickling.loads(*pickling.decode(memoryview(record)[head.body :]))
            method = getattr(self._object, head.endpoint)
            if "opentelemetry.trace" in sys.modules:  # who wants spans has set a provider up, in this process
                from ._telemetry import instrumented

                method = instrumented(type(self._object), head.endpoint, method)
        except BaseException as error:
            self._raised(item, error, "its arguments could not be loaded there")
            return None
        if head.flags & records.PORT:
            from ._ports import response_port

            outcome.port = True

            return method, (response_port(self.executor, self, item), *args), kwargs
        return method, args, kwargs

    def _returned(self, item: Item, value: Any) -> None:
        self._through(None)
        flags = item[0].flags
        if flags & records.PORT:
            return  # it answers through its port, now or later
        if flags & records.QUIET:
            self._reply(item, Status.DONE, [])
            return
        if value is None:
            self._reply(item, Status.RESULT, [NONE])
            return
        if type(value) is CoroutineType:
            value.close()
            name = f"{self.record.qualname}.{item[0].endpoint}"
            self._raised(item, TypeError(f"{name} is an async def method, and an actor of def endpoints has no loop"))
            return
        try:
            data, buffers = pickling.dumps(value)
            body = pickling.encode([data, *buffers])
            waits = mentioned_pending()
        except BaseException as error:
            self._raised(item, error, "its result could not be sent back")
            return
        self._reply_after(item, body, waits)

    def _reply_after(self, item: Item, body: list[Record], waits: Sequence[Future[Any]]) -> None:
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

    def _raised(self, item: Item, error: BaseException, note: str | None = None) -> None:
        self._through(error)
        head = item[0]
        if note is not None:
            error.add_note(f"({note})")
        else:
            _without_ours(error)
        if not isinstance(error, Exception | asyncio.CancelledError):
            why = " ended the actor"
        elif head.flags & records.PORT and note is None:
            why = ": it answers through a port, which says nothing of this, so the actor is stopped"
        elif head.flags & records.QUIET:
            why = ": nobody waited for the answer, so the actor is stopped"
            self._reply(item, Status.DONE, [])  # it did get here
        else:
            self._reply(item, Status.RAISED, [pickling.dumps_exception(error)])
            return
        self._fail(f"{type(error).__name__} in {head.endpoint}{why}\n{_lifecycle.of_exception(error)}")

    def _reply(self, item: Item, status: Status, body: list[Record]) -> None:
        if item[2].answer is None:  # its end may have answered for it
            self.executor.answer(item, self.rank, status, body, self._idle())

    def _idle(self) -> bool:
        """Whether no other message waits."""
        raise NotImplementedError


def _no_hook(told: Told) -> bool:
    return False


def _without_ours(error: BaseException) -> None:
    """Take the frame off that called the user's code: it tells a reader nothing."""
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if below is not None:
        error.__traceback__ = below


__all__ = ["NONE", "Addressee", "Item", "RunningActor"]
