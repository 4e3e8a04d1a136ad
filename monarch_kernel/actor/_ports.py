"""Ports: one end of a channel, or the answer that an endpoint gives when it likes, as things to keep and to send."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import MonarchError
from ..protocol import pickling, records
from ..protocol.faults import error_to_json
from ..protocol.frames import Record
from ..protocol.records import CONTROLLER, REPLY_BODY, Status
from ._calls import Answer, Call
from ._future import Future
from ._handle import Carried, Handle, mentioned
from ._mailbox import Box, Mailbox, Receive, Reply, What, opener, raised
from ._provider import current_runtime, runtime_of

if TYPE_CHECKING:
    from ._actors import Item, RunningActor
    from ._executor import Executor
    from ._runtime import Runtime

R = TypeVar("R")


class Port(Generic[R]):
    """Where to send values or an error: to a `PortReceiver`, or to who called an endpoint that answers through a port.

    It can be kept, and sent to other actors. Made by `Channel.open` or given to an endpoint, never by hand. What is
    sent to a port whose receiver is gone is dropped.

    Examples
    --------
    >>> port, receiver = Channel[int].open()                        # doctest: +SKIP
    >>> port.send(1)                                                # doctest: +SKIP
    >>> port.exception(ValueError("no more"))                       # doctest: +SKIP
    """

    __slots__ = ("__weakref__",)

    def send(self, obj: R) -> None:
        """Send a value; it returns at once. One sender's messages arrive in their order.

        Raises
        ------
        TypeError
            It cannot be pickled.
        RuntimeError
            The port takes one message, and has had it.
        """
        data, buffers = pickling.dumps(obj)
        body = pickling.encode([data, *buffers])
        mentions = mentioned()
        waits = [wait for mention in mentions for wait in mention.waits()]
        self._put(What.VALUE, body, waits, [mention for mention in mentions if isinstance(mention, Carried)])

    def exception(self, error: BaseException) -> None:
        """Send an error: `PortReceiver.recv` raises it; who called an endpoint gets it as an `ActorError`.

        Raises
        ------
        RuntimeError
            The port takes one message, and has had it.
        """
        self._put(What.ERROR, [pickling.dumps_exception(error)])

    def _put(
        self, what: What, body: list[Record], waits: Sequence[Future[Any]] = (), carried: Sequence[Carried] = ()
    ) -> None:
        raise NotImplementedError

    def _relay(self, rank: int, make: Callable[[], Any]) -> None:
        """Pass on an answer of a call, unopened. On the I/O thread."""
        raise NotImplementedError


class _OncePort(Port[R]):
    """A port that takes one message, at least from this object."""

    __slots__ = ("_use_lock", "_used")

    def __init__(self, used: bool) -> None:
        self._used = used
        self._use_lock = threading.Lock()

    def _use(self) -> bool:
        with self._use_lock:
            used, self._used = self._used, True
        return not used

    def _use_or_fail(self) -> None:
        if not self._use():
            raise RuntimeError("OncePortRef already used: this port takes one message")


class ChannelPort(_OncePort[R]):
    """The port of a channel."""

    __slots__ = ("_number", "_once", "_runtime", "_to")

    def __init__(self, runtime: Runtime, to: Handle, number: int, once: bool, used: bool = False) -> None:
        super().__init__(used)
        self._runtime = runtime
        self._to = to
        self._number = number
        self._once = once

    def _put(
        self, what: What, body: list[Record], waits: Sequence[Future[Any]] = (), carried: Sequence[Carried] = ()
    ) -> None:
        if self._once:
            self._use_or_fail()
        mailbox = self._runtime.mailbox
        if self._to.id == mailbox.id:
            # Meshes that are still being spawned are so for the receiver too: it is in this process.
            _into(mailbox, self._number, None, what, body)
        else:
            mailbox.post_to_port(self._to, self._number, None, what, body, waits, carried)

    def _relay(self, rank: int, make: Callable[[], Any]) -> None:
        if self._once and not self._use():
            return
        mailbox = self._runtime.mailbox
        if self._to.id != mailbox.id:
            mailbox.post_to_port(self._to, self._number, rank, *_unopened(make))
        elif (box := mailbox.box(self._number)) is not None:
            box.put(rank, make)

    def __reduce__(self) -> Any:
        host = self._to.hosts[0]
        reference = self._runtime.reference(() if host == CONTROLLER else (host,))
        return (_channel_port, (reference, self._to.id, host, self._number, self._once, self._used))

    def __repr__(self) -> str:
        return f"<port {self._number & 0xFFFF:04x}>"


def _into(mailbox: Mailbox, number: int, rank: int | None, what: What, body: list[Record]) -> None:
    if (box := mailbox.box(number)) is not None:
        box.put(rank, opener(what, b"".join(body)))


def _channel_port(
    reference: dict[str, Any], sender: int, host: int, number: int, once: bool, used: bool
) -> ChannelPort[Any]:
    runtime = runtime_of(reference, "a port")
    return ChannelPort(runtime, runtime.mailbox.of(sender, host), number, once, used)


class DroppingPort(Port[R]):
    """The port of an endpoint from which nobody wants an answer."""

    __slots__ = ()

    def send(self, obj: R) -> None:
        """Nothing."""

    def exception(self, error: BaseException) -> None:
        """Raise it: as of any endpoint that nobody waits for, its error ends the actor."""
        raise error

    def _relay(self, rank: int, make: Callable[[], Any]) -> None:
        """Nothing."""

    def __reduce__(self) -> Any:
        return (DroppingPort, ())


class ResponsePort(Port[R]):
    """The port of an endpoint that answers when it likes, in the process that has the endpoint."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        reply.keep()
        # The collector may run anywhere, with any lock held: what follows is for the I/O thread.
        weakref.finalize(self, reply.executor.io.post, reply.less).atexit = False

    def _put(
        self, what: What, body: list[Record], waits: Sequence[Future[Any]] = (), carried: Sequence[Carried] = ()
    ) -> None:
        if not self._reply.take():
            raise RuntimeError("OncePortRef already used: the port of a call takes one answer")
        if what == What.VALUE:
            self._reply.give_after(body, waits)
        else:
            self._reply.give(Status.RAISED, body)

    def _relay(self, rank: int, make: Callable[[], Any]) -> None:
        if self._reply.take():
            what, body = _unopened(make)
            self._reply.give_as(what, b"".join(body))

    def __reduce__(self) -> Any:
        runtime = current_runtime()
        number, copy = runtime.mailbox.send_away(self._reply, self)
        host = runtime.executor.host
        reference = runtime.reference(() if host == CONTROLLER else (host,))
        return (_held_port, (reference, runtime.sender, host, number, self._reply.used, copy))

    def __repr__(self) -> str:
        return f"<port of a call of {self._reply.item[0].endpoint}>"


class HeldPort(_OncePort[R]):
    """A port of a call of another process's endpoint, or of one that has its answer."""

    __slots__ = ("_claim", "_number", "_runtime", "_to", "_unused")

    def __init__(self, runtime: Runtime, to: Handle, number: int, used: bool, copy: int) -> None:
        super().__init__(used)
        self._runtime = runtime
        self._to = to
        self._number = number
        self._claim = 0
        if not used:
            self._claim = runtime.mailbox.claim(to, number, copy)
            self._unused = weakref.finalize(self, runtime.io.post, runtime.mailbox.give_up, self._claim)
            self._unused.atexit = False

    def _put(
        self, what: What, body: list[Record], waits: Sequence[Future[Any]] = (), carried: Sequence[Carried] = ()
    ) -> None:
        self._use_or_fail()
        self._answer(what, body, waits, carried)

    def _relay(self, rank: int, make: Callable[[], Any]) -> None:
        if self._use():
            self._answer(*_unopened(make))

    def _answer(
        self, what: What, body: list[Record], waits: Sequence[Future[Any]] = (), carried: Sequence[Carried] = ()
    ) -> None:
        self._runtime.mailbox.post_to_port(self._to, self._number, None, what, body, waits, carried, self._claim)
        if self._claim:
            self._unused.detach()  # it is given up when the answer is there

    def __reduce__(self) -> Any:
        host = self._to.hosts[0]
        self._runtime.mailbox.carry(self)
        reference = self._runtime.reference(() if host == CONTROLLER else (host,))
        return (_held_port, (reference, self._to.id, host, self._number, self._used))


def _held_port(reference: dict[str, Any], sender: int, host: int, number: int, used: bool, copy: int = 0) -> Port[Any]:
    runtime = runtime_of(reference, "a port")
    if sender == runtime.sender:
        reply = runtime.mailbox.replies.get(number)
        if reply is not None:
            return ResponsePort(reply)
        used = True
    return HeldPort(runtime, runtime.mailbox.of(sender, host), number, used, copy)


def response_port(executor: Executor, running: RunningActor, item: Item) -> Port[Any]:
    """The port that an endpoint with ``explicit_response_port`` gets as its first argument."""
    if item[0].flags & records.QUIET:
        return DroppingPort()
    return ResponsePort(Reply(executor, running, item))


def _unopened(make: Callable[[], Any]) -> tuple[What, list[Record]]:
    """An answer as a message to a port, without opening what a user's code would be needed for."""
    if isinstance(make, Answer):
        body = memoryview(make.record)[REPLY_BODY:]
        if make.status == Status.RESULT:
            return What.VALUE, [body]
        if make.status == Status.RAISED:
            return What.RAISED, raised(make.where(), body)
        return What.FAULT, [body]
    try:
        make()
    except MonarchError as error:
        return What.FAULT, [error_to_json(error)]
    raise AssertionError("an answer that nobody sent is an error")


class PortedCall(Call):
    """The answers go to a port."""

    __slots__ = ("port",)
    port: Port[Any]

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Pass it on."""
        self.port._relay(position, make)


class PortReceiver(Generic[R]):
    """The end of a channel that messages come out of, in the process that opened it.

    Examples
    --------
    >>> port, receiver = Channel[int].open()                        # doctest: +SKIP
    >>> receiver.recv().get(timeout=60)                             # doctest: +SKIP
    1
    """

    __slots__ = ("_box", "_ranked")

    def __init__(self, box: Box, ranked: bool = False) -> None:
        self._box = box
        self._ranked = ranked

    def recv(self) -> Future[R]:
        """The next message. The future claims one when somebody begins to wait for it, not before.

        An error that was sent is raised there.
        """
        return Receive(self._box, self._ranked)

    def ranked(self) -> PortReceiver[tuple[int, R]]:
        """A receiver of the same messages with, of each, the rank of who answered: for `send` with this port."""
        return PortReceiver(self._box, True)

    def __reduce__(self) -> Any:
        raise TypeError("a receiver stays in its process; send the port")


class Channel(Generic[R]):
    """A way for others to send here, apart from calls.

    Examples
    --------
    >>> port, receiver = Channel[int].open()                # doctest: +SKIP
    >>> workers.report_to.broadcast(port)                   # doctest: +SKIP
    >>> receiver.recv().get(timeout=60)                     # doctest: +SKIP
    """

    @staticmethod
    def open(once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """A port to send to from anywhere, and the receiver here.

        Parameters
        ----------
        once
            It takes one message.
        """
        runtime = current_runtime()
        mailbox = runtime.mailbox
        number, box = mailbox.open(once)
        return ChannelPort(runtime, mailbox.of(mailbox.id, mailbox.host), number, once), PortReceiver(box)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[R], PortReceiver[tuple[int, R]]]:
        """The same, with a receiver of ``(rank, value)``, see `PortReceiver.ranked`.

        Examples
        --------
        >>> port, receiver = Channel[int].open_ranked()             # doctest: +SKIP
        >>> send(trainers.step, (batch,), {}, port)                 # doctest: +SKIP
        >>> receiver.recv().get(timeout=60)                         # doctest: +SKIP
        (3, 0.5)
        """
        port, receiver = Channel[R].open(once)
        return port, receiver.ranked()
