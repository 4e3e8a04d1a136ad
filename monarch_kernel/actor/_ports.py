"""Ports: one end of a channel, or the answer that an endpoint gives when it likes, as things to keep and to send."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import SupervisionError
from ..protocol import pickling, records
from ..protocol.faults import error_to_json
from ..protocol.frames import Record
from ..protocol.records import Status
from ._future import Future
from ._handle import mentioned_pending

if TYPE_CHECKING:
    from ._actors import Item, RunningActor
    from ._executor import Executor

R = TypeVar("R")


class Port(Generic[R]):
    """Where to send values or an error: to a `PortReceiver`, or to who called an endpoint that answers through a port.

    It can be kept, and sent to other actors. Made by `Channel.open` or given to an endpoint, never by hand.
    """

    __slots__ = ("__weakref__",)

    def send(self, obj: R) -> None:
        """Send a value; it returns at once.

        Raises
        ------
        TypeError
            It cannot be pickled.
        RuntimeError
            The port takes one message, and has had it.
        """
        raise NotImplementedError

    def exception(self, error: BaseException) -> None:
        """Send an error, which is raised at the receiver.

        Raises
        ------
        RuntimeError
            The port takes one message, and has had it.
        """
        raise NotImplementedError


def _pickled(value: Any) -> tuple[list[Record], Sequence[Future[Any]]]:
    """A value as a body, and the meshes in it that must be there before it may leave."""
    data, buffers = pickling.dumps(value)
    body = pickling.encode([data, *buffers])
    return body, mentioned_pending()


class DroppingPort(Port[R]):
    """The port of an endpoint from which nobody wants an answer."""

    __slots__ = ()

    def send(self, obj: R) -> None:
        """Nothing."""

    def exception(self, error: BaseException) -> None:
        """Raise it: as of any endpoint that nobody waits for, its error ends the actor."""
        raise error


class _Reply:
    """The one answer that is still to be given to a message."""

    __slots__ = ("_lock", "executor", "item", "rank", "used", "where")

    def __init__(self, executor: Executor, running: RunningActor, item: Item) -> None:
        self.executor = executor
        self.item = item
        self.rank = running.rank
        self.where = running._where()
        self.used = False
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether the answer had not been given; it counts as given from now on."""
        with self._lock:
            taken, self.used = self.used, True
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

    def drop(self) -> None:
        """No port to it is left."""
        if self.take():
            error = SupervisionError(
                f"{self.where}: {self.item[0].endpoint} ended without answering through its port, and nobody has the "
                "port any more. An endpoint with explicit_response_port has to call port.send(value), or keep the port"
            )
            self.give(Status.FAULT, [error_to_json(error)])


class ResponsePort(Port[R]):
    """The port of an endpoint that answers when it likes: one answer, to one call."""

    __slots__ = ("_reply",)

    def __init__(self, reply: _Reply) -> None:
        self._reply = reply
        # The collector may run anywhere, with any lock held: the answer is given by the I/O thread.
        weakref.finalize(self, reply.executor.io.post, reply.drop).atexit = False

    def _take(self) -> _Reply:
        if not self._reply.take():
            raise RuntimeError("OncePortRef already used: the port of a call takes one answer")
        return self._reply

    def send(self, obj: R) -> None:
        """Answer the call with a value."""
        body, waits = _pickled(obj)
        self._take().give_after(body, waits)

    def exception(self, error: BaseException) -> None:
        """Answer the call with an error; the actor goes on."""
        body = pickling.dumps_exception(error)
        self._take().give(Status.RAISED, [body])


def response_port(executor: Executor, running: RunningActor, item: Item) -> Port[Any]:
    """The port that an endpoint with ``explicit_response_port`` gets as its first argument."""
    if item[0].flags & records.QUIET:
        return DroppingPort()
    return ResponsePort(_Reply(executor, running, item))
