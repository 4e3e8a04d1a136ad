"""What the processes of a mesh log, and how it is shown here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from . import config
from ._context import context, running_actor

if TYPE_CHECKING:
    from ._future import Future
    from ._handle import Handle


class _Client(NamedTuple):
    """What programs written for Monarch flush through where they want the future of it."""

    handle: Handle

    def flush(self, instance: Any = None) -> Future[None]:
        """As `LoggingManager.flush`, without waiting; from which actor is all the same."""
        return self.handle.runtime.flush_logs(self.handle.id)


class LoggingManager:
    """The logging of one mesh of processes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def logging_option(self, stream_to_client: bool, aggregate_window_sec: float | None, level: int) -> None:
        """See `ProcMesh.logging_option`."""
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 255:
            raise ValueError(f"level is a level of Python's logging, a whole number from 0 to 255; got {level!r}")
        window = aggregate_window_sec
        if window is not None:
            if isinstance(window, bool) or not isinstance(window, int | float) or not 0 < window < float("inf"):
                raise ValueError(f"aggregate_window_sec is a number of seconds above 0, or None; got {window!r}")
            if not stream_to_client:
                raise ValueError("aggregate_window_sec gathers lines that are streamed: set stream_to_client=True, too")
        runtime, mesh = self._handle.runtime, self._handle.id
        if self._handle.ready is not None:
            await self._handle.ready
        shown = runtime.show_logs(mesh, stream_to_client, window)
        await runtime.request(
            "Log", lambda pb: pb.LogRequest(mesh=mesh, stream=runtime.streams(stream_to_client), level=level)
        )
        await shown

    @property
    def _logging_mesh_client(self) -> _Client:
        return _Client(self._handle)

    async def flush_async(self) -> None:
        """Show what was printed until now, and what a window still holds. Takes a few seconds at most."""
        await self._handle.runtime.flush_logs(self._handle.id)

    def flush(self) -> None:
        """The same from outside of a running event loop."""
        self._handle.runtime.flush_logs(self._handle.id).get()


def set_level(level: int) -> None:
    """Log from this level on, in this process."""
    logging.getLogger().setLevel(level)


_prefixed = False


def prefix_records(*, client: bool = False) -> None:
    """Let every record of `logging` in this process say which actor wrote it, whatever handlers there are.

    Parameters
    ----------
    client
        Also what no actor has written: in a script that is ``<root>``, as in Monarch.
    """
    global _prefixed
    if _prefixed:
        return
    _prefixed = True
    make = logging.getLogRecordFactory()

    def record_of_actor(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        actor = None
        if config.prefix_python_logs_with_actor:
            actor = context().actor_instance if client else running_actor()
        # An empty message stays empty: torch.compile writes its structured traces so, and insists on it.
        if actor is not None and record.msg:
            before = f"[actor={actor!r}] "
            record.actor_prefix = before
            record.msg = f"{before.replace('%', '%%') if record.args else before}{record.msg}"
        return record

    logging.setLogRecordFactory(record_of_actor)


__all__ = ["LoggingManager", "prefix_records", "set_level"]
