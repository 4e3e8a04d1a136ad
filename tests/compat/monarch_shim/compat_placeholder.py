"""What stands for a name of Monarch's that we lack: harmless while modules are imported, an error once it is used.

A test file names much that only some of its tests need. Each use is also written down, in the file that
`COMPAT_USED` names, so that a test that swallows the error does not pass.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn


class NotProvidedError(BaseException):
    """A name that we lack was used; no `except Exception` of a test is meant for it."""


def importing() -> bool:
    """Whether whoever called our caller is the body of a module or of a class.

    A script's body is its program, so it does not count.
    """
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == "__main__":
        return False
    in_class = "__module__" in frame.f_locals and "__qualname__" in frame.f_locals
    return in_class or frame.f_code.co_name == "<module>"


def refuse(name: str, how: str) -> NoReturn:
    """Write the use down and raise."""
    if file := os.environ.get("COMPAT_USED"):
        with open(file, "a") as uses:
            uses.write(f"{name} ({how})\n")
    raise NotProvidedError(f"{name} is not provided ({how})")


class Base:
    """Takes the place of a base class that we lack: a class may be derived from it, but not made an instance of."""

    stands_for = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(self.stands_for, "made an instance of a class derived from it")


class Placeholder:
    """One name of Monarch's, `module:name`, that we lack."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not importing():
            refuse(self._name, "called")
        # A decorator leaves what it decorates as it is.
        decorates = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Placeholder)
        return args[0] if decorates else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # what pytest, inspect and unittest.mock ask every object for
            raise AttributeError(name)
        if not importing():
            refuse(self._name, f"its attribute {name}")
        return Placeholder(f"{self._name}.{name}")

    # In an annotation: `Name[int] | None`.
    def __getitem__(self, item: Any) -> Placeholder:
        return self

    def __or__(self, other: Any) -> Placeholder:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type("Base", (Base,), {"stands_for": self._name}),)

    def __bool__(self) -> bool:
        return False  # `skipif(not has_it())` skips

    def __instancecheck__(self, instance: Any) -> NoReturn:
        refuse(self._name, "isinstance")

    def __iter__(self) -> NoReturn:
        refuse(self._name, "iterated")

    def __enter__(self) -> NoReturn:
        refuse(self._name, "entered")

    def __exit__(self, *exc: Any) -> None: ...

    def __repr__(self) -> str:
        return f"<Placeholder {self._name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Placeholder, (self._name,)
