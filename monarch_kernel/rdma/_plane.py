"""This process's part in the data plane of its session: made at the first use, gone with the session."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable

from monarch_rdma.errors import NotAllowed, NotFound, OwnerGone, TransferError
from monarch_rdma.node import Node

from .. import errors
from ..actor._context import Context, context
from ..actor._future import Future
from ..actor._provider import current_runtime
from ..actor._runtime import Runtime

_planes: weakref.WeakKeyDictionary[Runtime, Plane] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Plane:
    """A `monarch_rdma.node.Node` on this process's I/O thread, with errors and futures of ours.

    Attributes
    ----------
    owner
        A text that names this process.
    """

    def __init__(self, runtime: Runtime) -> None:
        key, address = runtime.data_plane()
        self.io = runtime.io
        self.sid = runtime.sid
        self.node = Node(self.io.loop, key, address)
        self.owner = f"{_process()} (pid {os.getpid()}) of session {runtime.session!r}"

    def start(
        self,
        work: Callable[[], Awaitable[None]],
        what: str,
        owner_of: Callable[[bytes], str],
        timeout: float,
    ) -> Future[None]:
        """Begin some work now, whether or not anybody waits for it.

        Parameters
        ----------
        what
            Its name at the beginning of an error's text.
        owner_of
            Names the owner of a buffer, given the number of its node.
        """
        self.io.check_process()
        future: Future[None] = Future()

        async def run() -> None:
            try:
                async with asyncio.timeout(timeout):
                    await work()
            except BaseException as error:
                future._fail(_translated(error, what, owner_of, timeout))
                if not isinstance(error, Exception):
                    raise
            else:
                future._resolve(lambda: None)

        self.io.post(lambda: self.io.spawn(run()))
        return future


def _process() -> str:
    """The name of this process, be it asked in one of its actors."""
    import contextvars

    # Outside of every actor the context is the process's own.
    found: Context = contextvars.Context().run(context)
    return found.actor_instance.name


def plane() -> Plane:
    """The one of the session that this process belongs to."""
    runtime = current_runtime()
    with _lock:
        found = _planes.get(runtime)
        if found is None:
            found = _planes[runtime] = Plane(runtime)
            weakref.finalize(runtime, _close, found).atexit = False
        return found


def _close(gone: Plane) -> None:
    gone.io.post(lambda: gone.io.spawn(gone.node.close()))


def check_session(sid: str, owner: str) -> None:
    """Refuse a buffer of another session."""
    here = plane()
    if sid != here.sid:
        raise errors.StaleHandle(
            f"this buffer belongs to {owner}, and this process belongs to another session; buffers are for the "
            "processes of one session"
        )


def _translated(error: BaseException, what: str, owner_of: Callable[[bytes], str], timeout: float) -> BaseException:
    """The error that users see. Programs for Monarch expect a plain Exception and look at its text."""
    cause: errors.MonarchError
    if isinstance(error, NotFound):
        cause = errors.BufferNotFound(f"(Tcp) {error}\nit was dropped by {owner_of(error.node)} or on its behalf")
    elif isinstance(error, TimeoutError) and not isinstance(error, TransferError):
        cause = errors.TransferTimeout(f"(Tcp) tcp submit timed out after {timeout:g} s; `timeout` allows more")
    elif isinstance(error, OwnerGone):
        return errors.BufferOwnerGone(
            f"{what} failed: (Tcp) buffer {error.number} is gone with its owner, {owner_of(error.node)}: the process "
            "has ended or cannot be reached. Have a live process make a buffer anew"
        )
    elif isinstance(error, NotAllowed):
        return errors.AccessRefused(f"{what} failed: (Tcp) {error}")
    elif isinstance(error, asyncio.CancelledError):
        cause = errors.TransferError("this process is ending")
    elif isinstance(error, Exception):
        cause = errors.TransferError(f"{type(error).__name__}: {error}")
        cause.__cause__ = error
    else:
        return error
    plain = Exception(f"{what} failed: {cause}")
    plain.__cause__ = cause
    return plain
