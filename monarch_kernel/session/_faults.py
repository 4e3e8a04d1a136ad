"""Failures that no actor handled, given to `monarch_kernel.actor.unhandled_fault_hook`.

A hook is user code, so it never runs on the I/O thread. When it raises in a script (as Monarch's own does, which
exits), the failure is reported and the main thread gets a KeyboardInterrupt: only there can Python end in order.
"""

from __future__ import annotations

import ctypes
import importlib
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from ..actor._supervision import MeshFailure
from ..actor._supervision import unhandled_fault_hook as ends_the_program

_Job = tuple[MeshFailure, Callable[[str], None]]


class FaultHook:
    """Calls the hook for one failure after the other, on a thread of its own.

    Parameters
    ----------
    interrupt
        Ends the program in order; called once, however many failures there are.
    """

    def __init__(self, interrupt: Callable[[], None] | None = None) -> None:
        self._interrupt = interrupt or interrupt_main
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ending = False

    def take(self, failure: dict[str, Any], *, kernel: bool, show: Callable[[str], None]) -> bool:
        """Whether the hook is called for this failure. From one thread only.

        Parameters
        ----------
        kernel
            A kernel lives on: only a hook that somebody has set is called, and what it raises goes to `show`.
        """
        if kernel and _hook() is ends_the_program:
            return False
        self._jobs.put((MeshFailure.from_dict(failure), show if kernel else self._end))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="monarch-faults", daemon=True)
            self._thread.start()
        return True

    def _run(self) -> None:
        while True:
            failure, unhandled = self._jobs.get()
            hook = _hook()
            try:
                hook(failure)
            except BaseException as error:
                if hook is ends_the_program:
                    unhandled(f"{failure.report()}\n(nobody handled this failure of {failure.mesh_name})")
                else:
                    raised = "".join(traceback.format_exception(error)).rstrip()
                    unhandled(f"{failure.report()}\nand unhandled_fault_hook raised:\n{raised}")

    def _end(self, text: str) -> None:
        if sys.is_finalizing():
            return
        sys.stderr.write(f"monarch: {text}\n")  # in one piece: the main thread writes its traceback meanwhile
        sys.stderr.flush()
        if not self._ending:
            self._ending = True
            self._interrupt()


def _hook() -> Callable[[MeshFailure], object]:
    """The hook as it is now: programs put their own into the module."""
    hook: Callable[[MeshFailure], object] = importlib.import_module("monarch_kernel.actor").unhandled_fault_hook
    return hook


def interrupt_main() -> None:
    """Raise KeyboardInterrupt in the main thread, be it in a system call or not."""
    main = threading.main_thread()
    if main.ident is None or not main.is_alive():
        return
    if callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(main.ident, signal.SIGINT)
    else:  # SIGINT is ignored, as in a shell's background: the interpreter can still be told
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main.ident), ctypes.py_object(KeyboardInterrupt))


__all__ = ["FaultHook", "interrupt_main"]
