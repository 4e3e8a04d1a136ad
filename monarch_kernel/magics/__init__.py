"""The magics: ``%monarch``. Added to a shell by the extension."""

from __future__ import annotations

from typing import Any

__all__ = ["register", "unregister"]

_NAME = "monarch"


def register(ip: Any, extension: Any) -> None:
    """Add the magics and their completion to a shell.

    Parameters
    ----------
    ip
        The IPython shell.
    extension
        The `MonarchExtension` of that shell; `rerun` and `bindings` of it are used where it has them.
    """
    from monarch_kernel.magics.monarch import Monarch

    ip.register_magic_function(Monarch(ip, extension).monarch, "line", _NAME)
    for matcher in _matchers():
        if matcher not in ip.Completer.custom_matchers:
            ip.Completer.custom_matchers.append(matcher)


def unregister(ip: Any) -> None:
    """Take them away again."""
    ip.magics_manager.magics["line"].pop(_NAME, None)
    for matcher in _matchers():
        if matcher in ip.Completer.custom_matchers:
            ip.Completer.custom_matchers.remove(matcher)


def _matchers() -> tuple[Any, ...]:
    from monarch_kernel.magics.complete import matcher
    from monarch_kernel.magics.imports import public_names

    return matcher, public_names
