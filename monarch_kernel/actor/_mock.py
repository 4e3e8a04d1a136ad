"""Another class in an actor's place, for tests of programs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..protocol.links import new_id

_patches: dict[type, type] = {}
_HERE = new_id()


class patch_actor:  # noqa: N801  # Monarch's name; it reads like `unittest.mock.patch`
    """Within it, whoever spawns one class gets actors of another: a context manager and a decorator, async too.

    It reaches the processes in which actors are spawned meanwhile, and what these spawn in turn; there it stays for as
    long as the process lives. Of patches of one class, one inside of the other, the inner one counts.

    Parameters
    ----------
    original
        The class that the program under test spawns.
    mock
        The class that takes its place. The constructor's arguments have to fit this one.

    Examples
    --------
    >>> class Model(Actor): ...
    >>> class Tiny(Actor): ...
    >>> with patch_actor(Model, Tiny):                      # doctest: +SKIP
    ...     train()
    """

    def __init__(self, original: type, mock: type) -> None:
        self.original = original
        self.mock = mock
        self._before: list[type | None] = []

    def __enter__(self) -> type:
        self._before.append(_patches.get(self.original))
        _patches[self.original] = self.mock
        return self.mock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before.pop()
        if before is not None:
            _patches[self.original] = before
        else:
            _patches.pop(self.original, None)

    async def __aenter__(self) -> type:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function, ``def`` or ``async def``: it runs within the patch."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return awaited

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return called


def patched(cls: type) -> type:
    """The class that is spawned for this one."""
    return _patches.get(cls, cls)


def travelling(cls: type) -> Any:
    """A class to be pickled for another process, with the patches that are to count there too."""
    return _Travelling(cls) if _patches else cls


class _Travelling:
    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __reduce__(self) -> Any:
        return (_arrived, (_HERE, dict(_patches), self._cls))


def _arrived(sender: int, patches: dict[type, type], cls: type) -> type:
    if sender != _HERE:  # in the same process they end with their block
        _patches.update(patches)
    return cls


__all__ = ["patch_actor", "patched", "travelling"]
