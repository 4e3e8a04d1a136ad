"""Interrupting a cell that awaits.

ipykernel's handler asks tornado to cancel the cell's task by ``add_callback``. From inside the running loop that
becomes ``call_soon``, which does not wake the selector: the cell goes on until the loop wakes for another reason, 5.4
s later where it was measured (https://github.com/ipython/ipykernel/issues/881). Cancelled by ``call_soon_threadsafe``
it ends within 0.1 s.

A signal that arrives just before the selector sleeps would be seen by Python only when it wakes, so the loop's own
wake-up descriptor is used as well.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAME = "_cancel_on_sigint"


class PromptInterrupts:
    """Replaces how one kernel turns SIGINT into the end of an asynchronous cell.

    Does nothing for a kernel that has no such place to replace.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._installed = False
        self._missed = False

    def install(self) -> None:
        """Put ours in the place of ipykernel's, on this one kernel object."""
        if callable(getattr(self._kernel, _NAME, None)):
            setattr(self._kernel, _NAME, self._cancel_on_sigint)
            self._installed = True

    def remove(self) -> None:
        """Uncover ipykernel's own again."""
        if self._installed and self._kernel.__dict__.get(_NAME) == self._cancel_on_sigint:
            delattr(self._kernel, _NAME)
        self._installed = False

    def take_missed(self) -> bool:
        """Whether an interrupt came while the cell's task ran, but not its code; forgets it."""
        missed, self._missed = self._missed, False
        return missed

    @contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        self._missed = False

        def interrupt(_signal: int, frame: FrameType | None) -> None:
            if asyncio.current_task(loop) is future:
                if self._in_user_code(frame):
                    # The cell is not waiting but computing, or blocked in a call: a cancel would only be seen at its
                    # next await, so it is stopped as a cell without await is. IPython catches this around the code.
                    raise KeyboardInterrupt
                self._missed = True  # for who blocks later in this task
            loop.call_soon_threadsafe(future.cancel)

        saved = signal.getsignal(signal.SIGINT)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # for its wake-up descriptor
        try:
            signal.signal(signal.SIGINT, interrupt)
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, saved)

    def _in_user_code(self, frame: FrameType | None) -> bool:
        # Outside of the cell's own code (in the loop, in IPython) an exception raised here would end the kernel.
        user_globals = self._kernel.shell.user_global_ns
        while frame is not None:
            if frame.f_globals is user_globals:
                return True
            frame = frame.f_back
        return False
