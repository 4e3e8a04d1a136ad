"""What an actor's class may define about its life, and the words in which its end is reported."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SupervisionError
from . import _config

if TYPE_CHECKING:
    from ._context import Instance

STOP_WITHIN = 10.0
"""Seconds that a stop leaves an actor for its constructor and the messages it has; then they are given up."""

EXIT_WITHIN = 1.0
"""Seconds in which the interpreter of a process that ends may finalize."""


def cleanup_within() -> float:
    """Seconds that `__cleanup__` has in this process; whoever waits for the stop waits no longer."""
    return _config.seconds("cleanup_timeout")


def check_hooks(cls: type, sync: Sequence[str], asynchronous: Sequence[str]) -> None:
    """Refuse a class whose hooks do not fit its endpoints: an actor of ``def`` endpoints has no event loop.

    Parameters
    ----------
    sync, asynchronous
        The names of its ``def`` and of its ``async def`` endpoints.

    Raises
    ------
    ValueError
        It mixes both kinds, or a hook is of the other kind.
    """
    name = cls.__qualname__
    if sync and asynchronous:
        raise ValueError(
            f"{name} mixes both async and sync endpoints: 'async def' ({', '.join(asynchronous)}) and 'def' "
            f"({', '.join(sync)}). All of one actor must be of one kind, since a 'def' that waits stops the event loop"
        )
    hooks = {
        hook: getattr(cls, hook, None) for hook in ("__cleanup__", "__supervise__", "_handle_undeliverable_message")
    }
    for hook, method in hooks.items():
        is_async = inspect.iscoroutinefunction(method)
        if sync and is_async:
            raise ValueError(f"{name} has sync endpoints ({', '.join(sync)}), but an async {hook}: make it a 'def'")
        if asynchronous and hook == "__cleanup__" and method is not None and not is_async:
            raise ValueError(
                f"{name} has async endpoints ({', '.join(asynchronous)}), but a synchronous {hook}: "
                "make it an 'async def'"
            )


# -- the words; the first line is Monarch's own, which programs look for


def failed(instance: Instance, why: str) -> str:
    """The text of an actor's failure."""
    return f"The actor {instance!r} and all its descendants have failed:\n{why}"


def of_exception(error: BaseException) -> str:
    """The traceback of what a hook or an endpoint raised."""
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except BaseException:  # what raises when it is looked at
        return "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__


def said(error: BaseException) -> str:
    """Type and text of an exception."""
    try:
        return traceback.format_exception_only(error)[-1].strip()
    except BaseException:  # what raises when it is looked at
        return type(error).__qualname__


def reason_of(error: SupervisionError | None) -> Exception | None:
    """What `__cleanup__` is given: None after a stop, else an exception with the reason's text."""
    return None if error is None else Exception(error.message)
