"""Widget callbacks while a cell blocks.

A front end sends a widget's messages to a subshell of its own, so that they are handled while a cell runs. ipykernel
7.4 sends every message of a comm to the shell that last *sent* on it instead: a widget that a cell displayed was sent
from the main shell, and its clicks then wait until the running cell ends (measured: two clicks during
``time.sleep(8)``).
"""

from __future__ import annotations

from typing import Any

_NAME = "_reply_subshell_for"


class CommRouting:
    """Lets the front end's choice of a subshell stand, in the whole process.

    Answers to a request that the kernel sent still go to the shell that waits for them. Does nothing under an ipykernel
    that does not override the front end's choice.
    """

    def __init__(self) -> None:
        self._original: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """Put ours in the place of ipykernel's."""
        from ipykernel.comm.comm import BaseComm

        original = getattr(BaseComm, _NAME, None)
        if original is None:
            return

        def reply_subshell_for(comm: Any, data: Any, asked: str | None) -> Any:
            content = data.get("content") if isinstance(data, dict) else None
            request = content.get("id") if isinstance(content, dict) else None
            # Looked up before the original forgets it.
            answers = isinstance(request, str) and request in getattr(comm, "_reply_subshell_ids", ())
            chosen = original(comm, data, asked)
            return chosen if answers or asked is None else asked

        self._original, self._ours = original, reply_subshell_for
        setattr(BaseComm, _NAME, reply_subshell_for)

    def remove(self) -> None:
        """Put ipykernel's own back, unless somebody has replaced ours meanwhile."""
        from ipykernel.comm.comm import BaseComm

        if self._original is not None and getattr(BaseComm, _NAME, None) is self._ours:
            setattr(BaseComm, _NAME, self._original)
        self._original = self._ours = None
