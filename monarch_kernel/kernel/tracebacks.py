"""Tracebacks in cells: the user's own lines and the message, without the frames of ours below them.

IPython leaves out frames that set ``__tracebackhide__``, but never the last one, which is where an error of ours is
raised. So the traceback is cut instead, before it is shown. What nobody meant to raise keeps all its frames.
"""

from __future__ import annotations

import asyncio
import linecache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from monarch_kernel.errors import MonarchError

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_NAME = "showtraceback"


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def of_frames(innermost: FrameType, outermost: FrameType) -> TracebackType | None:
    """A traceback to where these frames are now, from the outermost to the innermost, without frames of ours."""
    made: TracebackType | None = None
    frame: FrameType | None = innermost
    while frame is not None:
        if not is_ours(frame):
            made = TracebackType(made, frame, frame.f_lasti, frame.f_lineno)
        if frame is outermost:
            break
        frame = frame.f_back
    return made


class Tracebacks:
    """Cuts the tracebacks that one shell shows."""

    def __init__(self, ip: Any) -> None:
        self._ip = ip
        self._original: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """Wrap the shell's ``showtraceback``."""
        original = getattr(self._ip, _NAME)

        def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
            try:
                self._cut(self._ip._get_exc_info(exc_tuple)[1])
            except Exception:  # the error itself is shown in any case
                pass
            original(exc_tuple, *args, **kwargs)

        self._original, self._ours = original, showtraceback
        setattr(self._ip, _NAME, showtraceback)

    def remove(self) -> None:
        """Uncover the shell's own again, unless somebody has wrapped ours meanwhile."""
        if self._ours is not None and self._ip.__dict__.get(_NAME) is self._ours:
            if getattr(self._original, "__func__", None) is getattr(type(self._ip), _NAME, None):
                delattr(self._ip, _NAME)
            else:
                setattr(self._ip, _NAME, self._original)
        self._original = self._ours = None

    def _cut(self, error: BaseException | None) -> None:
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            self._cut_one(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    def _cut_one(self, error: BaseException) -> None:
        chain: list[TracebackType] = []
        node = error.__traceback__
        while node is not None:
            chain.append(node)
            node = node.tb_next
        namespace = self._ip.user_global_ns
        cell = max((i for i, part in enumerate(chain) if part.tb_frame.f_globals is namespace), default=-1)
        first = next((i for i in range(cell + 1, len(chain)) if is_ours(chain[i].tb_frame)), 0)
        if first > 0 and _meant(error, chain[-1]):
            chain[first - 1].tb_next = None


def _meant(error: BaseException, last: TracebackType) -> bool:
    """Whether the text alone is what a person needs: an error of ours, an interrupt, or what we raise on purpose."""
    if isinstance(error, MonarchError | KeyboardInterrupt | asyncio.CancelledError):
        return True
    line = linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno)
    return is_ours(last.tb_frame) and line.lstrip().startswith("raise ")


__all__ = ["Tracebacks", "is_ours", "of_frames"]
