"""Whoever asks ``mesh.slice?`` in a notebook gets an answer: what it is and, where it takes arguments, how."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from monarch_kernel import actor


def written_by_us(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("monarch_kernel")


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that are ours, wherever they are inherited from."""
    for name in dir(kind):
        if name.startswith("_"):
            continue
        value = inspect.getattr_static(kind, name)
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if (inspect.isfunction(function) or isinstance(value, property)) and written_by_us(function):
            yield name, value


def public() -> dict[str, tuple[Any, str]]:
    """Every public name and method, with the docstring of the class around it."""
    found: dict[str, tuple[Any, str]] = {}
    for name in actor.__all__:
        value = getattr(actor, name)
        if inspect.isclass(value):
            found[name] = (value, "")
            for member, method in members(value):
                found[f"{name}.{member}"] = (method, inspect.getdoc(value) or "")
        elif callable(value):
            found[name] = (value, "")
    return found


PUBLIC = public()


def takes_arguments(value: Any) -> bool:
    if isinstance(value, property):
        return False
    try:
        signature = inspect.signature(getattr(value, "__func__", value))
    except (TypeError, ValueError):
        return False
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    return bool(names)


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_is(name: str) -> None:
    value, _ = PUBLIC[name]
    text = inspect.getdoc(value)
    assert text, f"{name} has no docstring"
    assert text[0].isupper() or text[0] == "`", text


@pytest.mark.parametrize("name", [name for name, (value, _) in PUBLIC.items() if takes_arguments(value)])
def test_what_takes_arguments_shows_how(name: str) -> None:
    value, around = PUBLIC[name]
    shown = ">>>" in (inspect.getdoc(value) or "")
    if not shown and around:  # an example of the class may show several of its methods
        called = rf"\.{re.escape(name.rpartition('.')[2])}\("
        shown = any(re.search(called, line) for line in around.splitlines() if line.lstrip().startswith((">>>", "...")))
    assert shown, f"{name} takes arguments, and no example shows how"


MODULES = sorted({value.__module__ for value, _ in PUBLIC.values() if hasattr(value, "__module__")})


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("monarch_kernel")])
def test_the_examples_are_right(module: str) -> None:
    globs = dict(vars(importlib.import_module(module)))
    globs.update((name, getattr(actor, name)) for name in actor.__all__ if name not in globs)
    found = doctest.DocTestFinder().find(importlib.import_module(module), extraglobs=globs)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in found:
        runner.run(test)
    assert runner.failures == 0
