"""The mailbox of a process: where messages to its ports come in, and who still holds a port that has to be answered.

A mailbox is called like an actor, by the number that names its process in calls, so that order, repeats after a break
and answers for the dead are those of any call. Three words are understood:

``!port``
    A message to a port: it goes into the `Box` of a receiver, or answers the call that the port stands for.
``!claim``
    Another process has got hold of such a call's port. This one then calls that one's mailbox with
``!hold``
    which is answered when the port is given up there. So the daemon, which answers for processes that die, tells of a
    holder's death, and nobody waits for an answer that cannot come.
"""

from __future__ import annotations

import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ..errors import ActorError, SupervisionError
from ..protocol import pickling, records
from ..protocol.faults import error_from_json, error_to_json
from ..protocol.frames import Record
from ..protocol.links import new_id
from ..protocol.records import Status
from ..state.records import MeshRecord
from ._calls import Call, Ends, QuietCall
from ._future import Future, resolved
from ._handle import Carried, Handle, mention
from ._ndslice import NDSlice
from ._region import Region

if TYPE_CHECKING:
    from ._actors import Item, RunningActor
    from ._executor import Executor
    from ._runtime import Runtime

PORT, CLAIM, HOLD = "!port", "!claim", "!hold"
UNCLAIMED = 60.0
"""Seconds that a port lives on in a message of which it is not known when it is read: an answer, or a constructor's."""
_HEAD = struct.Struct("<QB?xxi")  # of a message to a port; as long as buffers in a body are aligned
_CLAIM = struct.Struct("<QQQHxxxxxx")
_HOLD = struct.Struct("<Q")
_WHERE = struct.Struct("<I")

# Never a handle's own region, which stands for the layout of a mesh that daemons know.
_ONE = Region((), NDSlice(offset=0, sizes=(), strides=()))


class What(IntEnum):
    """What a message to a port is."""

    VALUE = 0
    ERROR = 1  # an exception, to be raised as it is
    RAISED = 2  # what an endpoint raised, to be raised as an `ActorError`; before it, which call that was
    FAULT = 3  # JSON: why there is no answer


def opener(what: int, body: Record) -> Callable[[], Any]:
    """What opens a message to a port: returns the value, or raises."""

    def make() -> Any:
        if what == What.VALUE:
            return pickling.loads(*pickling.decode(body))
        if what == What.FAULT:
            raise error_from_json(body)
        where, report = "", memoryview(body)
        if what == What.RAISED:
            (size,) = _WHERE.unpack_from(report)
            where, report = str(report[_WHERE.size : _WHERE.size + size], "utf-8"), report[_WHERE.size + size :]
        exception, trace = pickling.loads_exception(report)
        if what == What.ERROR:
            raise exception
        raise ActorError(exception, f"{where} raised {type(exception).__name__}.\n{trace}")

    return make


def raised(where: str, report: Record) -> list[Record]:
    """The body of a message RAISED."""
    text = where.encode()
    return [_WHERE.pack(len(text)) + text, report]


class Receive(Future[Any]):
    """The next message of a receiver, claimed when somebody begins to wait for it."""

    __slots__ = ("_box", "_claimed", "_ranked")

    def __init__(self, box: Box, ranked: bool) -> None:
        super().__init__()
        self._box = box
        self._claimed = False
        self._ranked = ranked

    def _observe(self) -> None:
        self._box.claim(self)

    def _arrived(self, rank: int | None, make: Callable[[], Any]) -> None:
        if not self._ranked:
            self._resolve(make)
        elif rank is None:
            self._fail(ValueError("this message came without a rank: it was sent to the port by hand, use recv()"))
        else:
            self._resolve(lambda: (rank, make()))


class Receipt:
    """Of a message that carries ports of calls: it is answered once it has been opened, or is gone."""

    __slots__ = ("__weakref__", "make")

    def __init__(self, mailbox: Mailbox, item: Item, make: Callable[[], Any]) -> None:
        self.make = make
        # The collector may run anywhere, with any lock held: what follows is for the I/O thread.
        weakref.finalize(self, mailbox.runtime.io.post, mailbox._done, item, Status.DONE).atexit = False

    def __call__(self) -> Any:
        return self.make()


class Box:
    """The messages to one port that nobody has received yet, and those who wait for some.

    Parameters
    ----------
    once
        It takes one message.
    """

    __slots__ = ("__weakref__", "_had", "_lock", "_messages", "_waiting", "once")

    def __init__(self, once: bool) -> None:
        self.once = once
        self._had = False
        self._lock = threading.Lock()
        self._messages: deque[tuple[int | None, Callable[[], Any]]] = deque()
        # Whoever drops a future that waits claims nothing any more.
        self._waiting: deque[weakref.ref[Receive]] = deque()

    def put(self, rank: int | None, make: Callable[[], Any]) -> None:
        """A message came. From any thread."""
        with self._lock:
            if self.once and self._had:
                return
            self._had = True
            future = None
            while self._waiting and future is None:
                future = self._waiting.popleft()()
            if future is None:
                self._messages.append((rank, make))
                return
        future._arrived(rank, make)

    def claim(self, future: Receive) -> None:
        """The future stands for the next message. Said twice, it is heard once."""
        with self._lock:
            if future._claimed:
                return
            future._claimed = True
            if not self._messages and not (self.once and self._had):
                self._waiting.append(weakref.ref(future))
                return
            message = self._messages.popleft() if self._messages else None
        if message is None:
            future._fail(RuntimeError("the one message of this channel was received already"))
        else:
            future._arrived(*message)


class Reply:
    """The one answer that is still to be given to a message, through whichever port to it is used first."""

    __slots__ = ("_count", "_lock", "_why", "executor", "id", "item", "mailbox", "rank", "used", "where")

    def __init__(self, executor: Executor, running: RunningActor, item: Item) -> None:
        self.executor = executor
        self.item = item
        self.rank = running.rank
        self.where = running._where()
        self.used = False
        self.id = 0  # once a port to it has been sent away
        self.mailbox: Mailbox | None = None
        self._count = 0
        self._why = ""
        self._lock = threading.Lock()

    def keep(self) -> None:
        """One more port to it, here or elsewhere."""
        with self._lock:
            self._count += 1

    def less(self, why: str = "") -> None:
        """One less, perhaps since its holder has died. On the I/O thread."""
        with self._lock:
            self._count -= 1
            self._why = why or self._why
            gone = self._count == 0
        if gone and self.take():
            endpoint = self.item[0].endpoint
            text = (
                f"the port of {endpoint} was sent to another process, which ended without answering: {self._why}"
                if self._why
                else f"{endpoint} ended without answering through its port, and nobody has the port any more. An "
                "endpoint with explicit_response_port has to call port.send(value), or keep the port"
            )
            self.give(Status.FAULT, [error_to_json(SupervisionError(f"{self.where}: {text}"))])

    def take(self) -> bool:
        """Whether the answer had not been given; it counts as given from now on."""
        with self._lock:
            taken, self.used = self.used, True
        if self.mailbox is not None:
            self.mailbox.replies.pop(self.id, None)
        return not taken

    def give(self, status: Status, body: list[Record]) -> None:
        """Answer, unless the actor has failed meanwhile, which answers for it."""
        if self.item[2].answer is None:
            self.executor.answer(self.item, self.rank, status, body, True)

    def give_after(self, body: list[Record], waits: Sequence[Future[Any]]) -> None:
        """Answer once the meshes in the value are there: who gets it may call them through another host."""
        for wait in waits:
            if not wait.done():
                wait._when_done(lambda: self.executor.io.post(self.give_after, body, waits))
                return
            error = wait.exception()
            if error is not None:
                self.give(Status.RAISED, [pickling.dumps_exception(error)])
                return
        self.give(Status.RESULT, body)

    def give_as(self, what: int, body: Record) -> None:
        """Answer with a message that another process sent to the port."""
        if what == What.RAISED:
            (size,) = _WHERE.unpack_from(body)
            body = memoryview(body)[_WHERE.size + size :]
        statuses = {What.VALUE: Status.RESULT, What.FAULT: Status.FAULT}
        self.give(statuses.get(What(what), Status.RAISED), [bytes(body)])


class HoldCall(Call):
    """Answered when another process gives a port up, or dies."""

    __slots__ = ("reply",)
    reply: Reply

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Count it."""
        why = ""
        if failed:
            try:
                make()
            except Exception as error:
                why = str(error)
        self.reply.less(why)


class SentCall(Call):
    """An answer through a port that another process holds; answered once it is there.

    Only then the port is given up: the two go different ways, and whoever gives up a port without an answer is told so.
    """

    __slots__ = ("claim", "mailbox")
    claim: int
    mailbox: Mailbox

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Give the port up."""
        self.mailbox.give_up(self.claim)


class Mailbox:
    """The mailbox of one process.

    Attributes
    ----------
    replies
        Answers still to be given, of which a port has been sent away.
    """

    rank = 0
    name = "mailbox"

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.id = runtime.sender
        self.host = runtime.executor.host
        self.replies: dict[int, Reply] = {}
        self._boxes: weakref.WeakValueDictionary[int, Box] = weakref.WeakValueDictionary()
        self._on_the_way: weakref.WeakValueDictionary[int, Carried] = weakref.WeakValueDictionary()
        self._held: dict[int, Item | None] = {}  # by claim: the call that is answered when the port is given up
        self._ends: weakref.WeakKeyDictionary[Handle, dict[tuple[str, bool], Ends]] = weakref.WeakKeyDictionary()

    # -- from any thread

    def open(self, once: bool) -> tuple[int, Box]:
        """A new box, and its number. It is there for as long as somebody has it."""
        number, box = new_id(), Box(once)
        self._boxes[number] = box
        return number, box

    def box(self, number: int) -> Box | None:
        """The box of this number, if somebody may still receive from it."""
        return self._boxes.get(number)

    def of(self, sender: int, host: int) -> Handle:
        """The mailbox of another process, to send to."""
        return self.runtime.handle(MeshRecord(id=sender, kind="actors", name="a port", hosts=(host,)))

    def post(
        self,
        to: Handle,
        word: str,
        body: list[Record],
        waits: Sequence[Future[Any]] = (),
        call: Call | None = None,
        carried: Sequence[Carried] = (),
    ) -> None:
        """Send a message to a mailbox."""
        if call is None:
            call = QuietCall(to, _ONE, word, to.hosts)
        call.carried = carried
        ends = self._ends.setdefault(to, {})
        key = (word, call.quiet)
        if key not in ends:
            flags = records.QUIET if call.quiet else 0
            ends[key] = self.runtime.caller.ends(to, _ONE, to.hosts, word, flags)
        self.runtime.caller.submit(call, ends[key], body, waits)

    def post_to_port(
        self,
        to: Handle,
        number: int,
        rank: int | None,
        what: What,
        body: list[Record],
        waits: Sequence[Future[Any]] = (),
        carried: Sequence[Carried] = (),
        claim: int = 0,
    ) -> None:
        """Send a message to a port of another process; a claim on it is given up once it is there."""
        head = _HEAD.pack(number, what, bool(carried), -1 if rank is None else rank)
        call = None
        if claim:
            call = SentCall(to, _ONE, PORT, to.hosts)
            call.claim, call.mailbox = claim, self
        self.post(to, PORT, [head, *body], waits, call, carried)

    def send_away(self, reply: Reply, port: object) -> tuple[int, int]:
        """A port to this answer is being pickled; returns the number to ask for it by, and that of this copy."""
        if not reply.id:
            reply.id, reply.mailbox = new_id(), self
            if not reply.used:
                self.replies[reply.id] = reply
        copy = new_id()
        self._on_the_way[copy] = self.carry(port)
        return reply.id, copy

    def carry(self, port: object) -> Carried:
        """Keep a port that is being pickled, until whoever gets it has claimed it."""
        carried = Carried(port)
        mention(carried)
        self.runtime.io.post(self.runtime.io.loop.call_later, UNCLAIMED, carried.expire)
        return carried

    def claim(self, to: Handle, number: int, copy: int) -> int:
        """A port to an answer of another process came here; returns what it is given up by."""
        claim = new_id()
        self._held[claim] = None
        self.post(to, CLAIM, [_CLAIM.pack(number, claim, copy, self.host)])
        return claim

    # -- on the I/O thread

    def give_up(self, claim: int) -> None:
        """The port is not here any more, or has been used."""
        item = self._held.pop(claim, None)
        if item is not None:
            self._done(item, Status.DONE)

    def put(self, item: Item) -> None:
        """A message; see the head of this module."""
        head, record, _ = item
        body = memoryview(record)[head.body :]
        if head.endpoint == PORT:
            number, what, carries, rank = _HEAD.unpack_from(body)
            rest = body[_HEAD.size :]
            if (box := self._boxes.get(number)) is not None:
                make = opener(what, rest)
                if carries:
                    box.put(None if rank < 0 else rank, Receipt(self, item, make))
                    return
                box.put(None if rank < 0 else rank, make)
            elif (reply := self.replies.get(number)) is not None and reply.take():
                reply.give_as(what, rest)
        elif head.endpoint == CLAIM:
            number, claim, copy, host = _CLAIM.unpack_from(body)
            if (reply := self.replies.get(number)) is not None:
                reply.keep()
                holder = self.of(head.sender, host)
                call = HoldCall(holder, _ONE, HOLD, holder.hosts)
                call.reply = reply
                self.post(holder, HOLD, [_HOLD.pack(claim)], call=call)
            carried = self._on_the_way.pop(copy, None)
            if carried is not None and carried.for_one:
                carried.let_go()
        elif head.endpoint == HOLD:
            (claim,) = _HOLD.unpack_from(body)
            if claim in self._held:
                self._held[claim] = item
                return
        self._done(item, Status.DONE)

    def _done(self, item: Item, status: Status) -> None:
        self.runtime.executor.answer(item, 0, status, [], False)

    def end(self, reason: str, *, now: bool = False) -> Future[None]:
        """It ends with its process."""
        return resolved(None)
