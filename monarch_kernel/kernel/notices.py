"""What happened to the session while nobody asked: shown once, under the next cell that begins or ends."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch_kernel.actor._debug_client import breakpoint_text
from monarch_kernel.kernel.cells import CellExecution, CellWatch
from monarch_kernel.session import Session, listen

_SHOWN = 5


class Notices:
    """Collects events of the session and prints the ones that a person must see; the kernel lives on."""

    def __init__(self, cells: CellWatch) -> None:
        self._cells = cells
        self._waiting: list[tuple[tuple[Any, ...], str]] = []
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._stop_listening: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Begin."""
        self._cells.add(self)
        self._stop_listening = listen(self._attached)

    def remove(self) -> None:
        """End."""
        self._stop_listening()
        self._cells.discard(self)
        if self._session is not None and self._event in self._session.listeners:
            self._session.listeners.remove(self._event)

    def _attached(self, session: Session) -> None:
        self._session = session
        session.listeners.append(self._event)

    def _event(self, event: dict[str, Any]) -> None:
        """On the I/O thread."""
        if "breakpoint" in event:
            self._stopped(event)
            return
        failure = event.get("failure")
        if failure is not None:
            spawning = "record" not in event and failure["error"] == "ConstructorFailed"
            if event.get("hooked") or (spawning and failure["notebook"]):
                return  # the program's own hook has it; or the cell that spawns fails of it
            key: tuple[Any, ...] = (failure["mesh_name"], failure["ranks"][0], failure["died"])
            text = failure["text"]
        elif "over" in event:
            key, text = ("over",), event["over"]
        elif "host_lost" in event:
            key, text = ("host", event["host_lost"]), event["text"]
        elif "host_back" in event:
            key, text = ("host", event["host_back"]), f"host {event['host_back']} is heard again"
        else:
            return
        with self._lock:
            self._waiting.append((key, f"{self._stamp(event)} {text}"))

    def _stopped(self, event: dict[str, Any]) -> None:
        """A rank stands at a breakpoint. A cell that waits for it must say so now: it will not end before."""
        text = f"{self._stamp(event)} {breakpoint_text(event)}: %monarch debug"
        if self._cells.current is not None:
            # The task that reads the link belongs to the cell that made the session; this is for the one that runs.
            contextvars.Context().run(print, f"monarch: {text}", file=sys.stderr, flush=True)
            return
        with self._lock:
            self._waiting.append((("breakpoint",), text))

    def _stamp(self, event: dict[str, Any]) -> str:
        return time.strftime("[%H:%M:%S]", time.localtime(event.get("at", time.time())))

    def on_begin(self, execution: CellExecution) -> None:
        """Show what happened since the last cell."""
        self._show(())

    def on_end(self, execution: CellExecution, ok: bool) -> None:
        """Show what happened during the cell, but not what its own error has said already."""
        said: tuple[Any, ...] = ()
        if not ok:
            error = getattr(sys, "last_value", None)
            rank = getattr(error, "rank", None)
            said = (getattr(error, "mesh", None), rank) if rank is not None else ()
        self._show(said)

    def _show(self, said: tuple[Any, ...]) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        # The death of a process, and not of each actor in it; that one of them was said is enough.
        died = {key[2] for key, _ in waiting if said and key[:2] == said}
        texts: dict[Any, str] = {}
        for key, text in waiting:
            if (said and key[:2] == said) or (key[2:] and key[2] is not None and key[2] in died):
                continue
            texts.setdefault(key[2] if key[2:] and key[2] is not None else text, text)
        sys.stdout.flush()  # what the cell printed comes first
        for text in list(texts.values())[:_SHOWN]:
            print(f"monarch: {text}", file=sys.stderr)
        if len(texts) > _SHOWN:
            print(f"monarch: and {len(texts) - _SHOWN} more; see %monarch status", file=sys.stderr)
        sys.stderr.flush()
