"""How a magic fails: with the error itself, shown as one paragraph."""

from __future__ import annotations

import linecache
from copy import copy
from functools import partial

from monarch_kernel.errors import MonarchError
from monarch_kernel.magics.arguments import UsageError

__all__ = ["plainly"]


def plainly(error: BaseException) -> BaseException:
    """The error to raise: one that IPython shows without its traceback, if its text was written for a person.

    It stays what it is, so that a front end and nbclient see its type, and a program can catch it. What nobody meant to
    raise keeps its traceback.
    """
    if not (isinstance(error, KeyboardInterrupt | MonarchError | UsageError) or _meant(error)):
        return error
    if isinstance(error, MonarchError):
        # A session raises the error that ended it again and again; from the user's own code with its traceback.
        error = copy(error)
    text, name = str(error), type(error).__name__
    # A partial and not a closure: an error may be pickled.
    shown: partial[list[str]] = partial(list, [f"{name}: {text}" if text else name])
    setattr(error, "_render_traceback_", shown)  # noqa: B010  # no exception declares it
    return error


def _meant(error: BaseException) -> bool:
    """Whether a ``raise`` statement of ours raised it: a bad value, a file that cannot be used."""
    if not isinstance(error, ValueError | LookupError | OSError):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not str(last.tb_frame.f_globals.get("__name__", "")).startswith("monarch_kernel."):
        return False
    return linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).lstrip().startswith("raise ")
