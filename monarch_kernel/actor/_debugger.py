"""``breakpoint()`` in an actor: pdb on that actor's own thread, its lines and its output carried by records.

Only the thread of the actor waits at a prompt; the I/O thread goes on, so that the process stays linked and the other
actors in it answer. Nobody needs to be attached: a rank waits at its breakpoint until somebody comes.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import pdb
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from ._context import context

OUTPUT_KEPT = 1 << 20
"""Characters of what one command prints; the rest is left out, and says so."""

# Stepping and the stack pass over these: a user's code stands above them, and their frames tell nothing.
_OURS = ["monarch_kernel", "monarch_kernel.*", "monarch_worker.*", "asyncio", "asyncio.*", "selectors", "threading"]

Tell = Callable[[dict[str, Any]], None]


class Breakpoints:
    """The breakpoints that the actors of this process stand at.

    Parameters
    ----------
    tell
        Takes what the daemon is to know, from any thread.
    proc
        Mesh and rank of this process: what stops outside of any actor's message is known by these.
    """

    def __init__(self, tell: Tell, proc: tuple[int, int]) -> None:
        self._tell = tell
        self._proc = proc
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._debuggers: list[_Debugger] = []

    def install(self) -> None:
        """Let ``breakpoint()`` and ``pdb.set_trace()`` stop here."""
        sys.breakpointhook = self._hook
        pdb.set_trace = self._hook

    def _hook(self, *args: Any, header: str | None = None, **options: Any) -> None:
        wanted = os.environ.get("PYTHONBREAKPOINT", "")
        if os.getpid() != self._pid or wanted not in ("", "pdb.set_trace"):  # a fork has no link to anybody
            sys.__breakpointhook__(*args, **options)
            return
        self._debugger().stop(sys._getframe(1), header)

    def _debugger(self) -> _Debugger:
        """The debugger of this message of this actor; one that another thread of the actor uses is waited for."""
        actor = context().actor_instance
        key = (actor.mesh, actor.rank.rank) if actor.mesh else self._proc
        thread = threading.current_thread()
        with self._changed:
            self._debuggers = [one for one in self._debuggers if one.open or one.thread.is_alive()]
            while True:
                mine = [one for one in self._debuggers if one.key == key]
                for one in mine:
                    if one.thread is thread:
                        return one
                if not any(one.open for one in mine):
                    break
                self._changed.wait()
            made = _Debugger(self, key, dict(actor.rank), thread)
            self._debuggers.append(made)
            return made

    def message_ended(self, mesh: int, rank: int, error: BaseException | None) -> None:
        """A message of an actor was handled, on its thread: what failed after a breakpoint is looked at once more."""
        if not self._debuggers:
            return
        for one in [one for one in self._debuggers if one.key == (mesh, rank)]:
            if one.of_this_message():
                try:
                    one.finish(error)
                finally:
                    with self._changed:
                        self._debuggers.remove(one)
                        self._changed.notify_all()

    def told(self, one: _Debugger, what: dict[str, Any]) -> None:
        """A debugger says how it is."""
        self._tell(what)
        if what.get("ended"):
            with self._changed:
                self._changed.notify_all()

    # -- on the I/O thread

    def heard(self, what: dict[str, Any]) -> None:
        """A line for a prompt."""
        for one in list(self._debuggers):
            if one.key == (what["mesh"], what["rank"]):
                one.lines.answer(what["prompt"], what["line"])

    def stop(self, mesh: int) -> None:
        """The mesh is stopped, or this rank of it constructed anew: nobody is to answer its prompt any more."""
        for one in list(self._debuggers):
            if one.key[0] == mesh:
                one.lines.hang_up()

    def standing(self) -> list[dict[str, Any]]:
        """What a daemon that was restarted has to be told."""
        return [one.last for one in list(self._debuggers) if one.open and one.last]


class _Lines(io.TextIOBase):
    """Standard input and output of one debugger."""

    def __init__(self, prompted: Callable[[int, str], None]) -> None:
        self._prompted = prompted
        self._out: list[str] = []
        self._size = 0
        self._prompt = 0
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._gone = False

    def write(self, text: str) -> int:
        """Keep what is printed until the next prompt."""
        if self._size < OUTPUT_KEPT:
            kept = text[: OUTPUT_KEPT - self._size]
            self._out.append(kept if len(kept) == len(text) else kept + "\n... (more was printed)\n")
        self._size += len(text)
        return len(text)

    def taken(self) -> str:
        """What was printed since the last time."""
        out, self._out, self._size = "".join(self._out), [], 0
        return out

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # no part of a line is ever asked for
        """Show a prompt and wait for the line that answers it; the end of the file when nobody can answer any more."""
        if self._gone:
            return ""
        self._prompt = next(_prompts)
        self._prompted(self._prompt, self.taken())
        return self._lines.get()

    def answer(self, prompt: int, line: str) -> None:
        """A line; one for an earlier prompt came twice."""
        if prompt == self._prompt:
            self._prompt = 0
            self._lines.put(line if line.endswith("\n") else line + "\n")

    def hang_up(self) -> None:
        """No line comes any more."""
        self._gone = True
        self._prompt = 0
        self._lines.put("")


_prompts = itertools.count(1)


class _Debugger(pdb.Pdb):
    """The debugger of one message."""

    def __init__(
        self, breakpoints: Breakpoints, key: tuple[int, int], coordinates: dict[str, int], thread: threading.Thread
    ) -> None:
        self.key = key
        self.thread = thread
        self.open = False
        self.last: dict[str, Any] = {}
        self.lines = _Lines(self._prompted)
        self._breakpoints = breakpoints
        self._coordinates = coordinates
        self._task = _task()
        self._since = 0.0
        lines: Any = self.lines  # all of a file that pdb uses
        super().__init__(stdin=lines, stdout=lines, skip=_OURS, nosigint=True)
        self.use_rawinput = False
        self.prompt = ""  # whoever shows it to a person writes one

    def of_this_message(self) -> bool:
        """Whether the message that is being handled on this thread is the one that this debugger belongs to."""
        if self.thread is not threading.current_thread():
            return False
        return self._task is None or self._task is _task() or self._task.done()

    def stop(self, frame: FrameType, header: str | None) -> None:
        """At a ``breakpoint()``."""
        self._opened()
        if header is not None:
            self.message(header)
        self.set_trace(frame)

    def finish(self, error: BaseException | None) -> None:
        """The message is over. An exception that it ended with is looked at where it was raised."""
        sys.settrace(None)
        trace = error.__traceback__ if error is not None else None
        if trace is not None and not self.quitting:
            self._opened()
            self.message("".join(_said(error)) + "The exception goes to the caller when you continue.")
            self.reset()
            self.interaction(None, trace)
        self.clear_all_breaks()
        self._ended()

    def _opened(self) -> None:
        if not self.open:
            self.open = True
            self._since = time.time()

    def _ended(self) -> None:
        if self.open:
            self.open = False
            self._say(ended=True, output=self.lines.taken())

    def _say(self, **what: Any) -> None:
        mesh, rank = self.key
        self.last = {"mesh": mesh, "rank": rank, **what}
        self._breakpoints.told(self, self.last)

    def _prompted(self, prompt: int, output: str) -> None:
        frame, line = self.stack[self.curindex]
        code = frame.f_code
        outermost = self.stack[0][0].f_code
        self._say(
            prompt=prompt,
            output=output,
            coordinates=self._coordinates,
            endpoint=outermost.co_name,
            function=code.co_qualname,
            file=code.co_filename,
            line=line,
            pid=os.getpid(),
            hostname=socket.gethostname(),
            since=self._since,
        )

    # -- what pdb does otherwise

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames of the user's code: how the message came to it is not theirs."""
        stack, at = super().get_stack(f, t)
        first = next((i for i, (frame, _) in enumerate(stack) if not self._is_ours(frame)), 0)
        last_ours = max((i for i, (frame, _) in enumerate(stack[:at]) if _runs_actors(frame)), default=first - 1)
        first = max(first, last_ours + 1)
        return stack[first:], max(at - first, 0)

    def _is_ours(self, frame: FrameType) -> bool:
        return bool(self.is_skipped_module(frame.f_globals.get("__name__", "")))

    def set_continue(self) -> None:
        """Go on; without breakpoints of its own the debugger has nothing more to do here."""
        super().set_continue()
        if not self.breaks:
            self._ended()

    def set_quit(self) -> None:
        """Raise `bdb.BdbQuit` in the endpoint: its caller gets it, and the actor lives."""
        super().set_quit()
        self._ended()

    def do_clear(self, arg: str) -> bool | None:
        """Clear breakpoints; all of them without asking, since nobody sees a question."""
        if arg:
            return super().do_clear(arg)
        self.clear_all_breaks()
        self.message("All breakpoints are cleared.")
        return None

    do_cl = do_clear

    def do_interact(self, arg: str) -> None:
        """A shell inside of a shell reads the process's own standard input, which nobody types into."""
        self.error("interact needs a terminal of its own; type a statement, or ! and a statement")


def _runs_actors(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in ("monarch_kernel.actor._sync_actor", "monarch_kernel.actor._async_actor")


def _said(error: BaseException | None) -> list[str]:
    import traceback

    return traceback.format_exception_only(error)


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
