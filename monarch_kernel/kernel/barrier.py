"""What a cell waits for before it ends.

A cell that starts actors should fail where a constructor fails, so it waits for them inside its own execution. An error
raised in ``post_run_cell`` is shown, but the cell's status stays ok and nbclient runs on; therefore ``run_ast_nodes``
is wrapped. The wait blocks: an ``await`` there breaks cells without one ("needs a real async loop").
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from monarch_kernel.kernel.tracebacks import is_ours

#: Blocks for at most so many seconds, returns whether the work is done, and raises what should fail the cell.
Wait = Callable[[float], bool]
#: Asked at the end of a cell whose own code did not raise.
WaitSource = Callable[[], Iterable[Wait]]

_NAME = "run_ast_nodes"

# A signal that arrives just before a thread blocks on a lock does not wake it (seen in 1 of 80 interrupts that hit the
# start of a wait): so no wait is longer than this, in seconds.
_SLICE = 0.2


class Barrier:
    """Makes the cells of one shell wait for what they started.

    Parameters
    ----------
    ip
        The IPython shell.
    missed_interrupt
        Tells, once, whether an interrupt came after the cell's own code and before the wait.
    """

    def __init__(self, ip: Any, missed_interrupt: Callable[[], bool] = lambda: False) -> None:
        self._ip = ip
        self._missed_interrupt = missed_interrupt
        self._sources: list[WaitSource] = []
        self._original: Any = None
        self._ours: Any = None

    def add(self, source: WaitSource) -> None:
        """Ask a source at the end of each cell what to wait for; what it returns is waited for in order."""
        self._sources.append(source)

    def discard(self, source: WaitSource) -> None:
        """Ask it no more."""
        if source in self._sources:
            self._sources.remove(source)

    def install(self) -> None:
        """Wrap the shell's ``run_ast_nodes``."""
        original = getattr(self._ip, _NAME)

        async def run_ast_nodes(*args: Any, **kwargs: Any) -> bool:
            failed = bool(await original(*args, **kwargs))
            if failed or not self._sources:
                return failed
            result = kwargs.get("result", args[4] if len(args) > 4 else None)
            return not self._wait(result)

        self._original, self._ours = original, run_ast_nodes
        setattr(self._ip, _NAME, run_ast_nodes)

    def remove(self) -> None:
        """Uncover the shell's own again, unless somebody has wrapped ours meanwhile: then it lets everything pass."""
        self._sources.clear()
        if self._ours is not None and self._ip.__dict__.get(_NAME) is self._ours:
            if getattr(self._original, "__func__", None) is getattr(type(self._ip), _NAME, None):
                delattr(self._ip, _NAME)
            else:
                setattr(self._ip, _NAME, self._original)
        self._original = self._ours = None

    def _wait(self, result: Any) -> bool:
        try:
            with _interruptible():
                if self._missed_interrupt():
                    raise KeyboardInterrupt
                for source in tuple(self._sources):
                    for wait in source():
                        while not wait(_SLICE):
                            pass
        except BaseException as error:  # KeyboardInterrupt fails the cell as an error does
            if result is not None:
                result.error_in_exec = error
            # Without our own frames: a person wants to see what failed, not who waited for it.
            below = error.__traceback__
            while below is not None and is_ours(below.tb_frame):
                below = below.tb_next
            error.__traceback__ = below
            self._ip.showtraceback((type(error), error, below), tb_offset=0)
            return False
        return True


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt: in an asynchronous cell it only asks the loop, which is blocked here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    saved = signal.getsignal(signal.SIGINT)
    if saved is None or saved is signal.default_int_handler:  # None: not set from Python, and not ours to replace
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, saved)
