"""Tab after ``from monarch_kernel.actor import``: the public names, where IPython offers private modules as well."""

from __future__ import annotations

import importlib
import inspect
import re

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

__all__ = ["public_names"]

_IMPORT = re.compile(
    r"\s*from\s+(?P<module>monarch_kernel(?:\.[a-z]\w*)+)\s+import\s+\(?(?:\w+(?:\s+as\s+\w+)?\s*,\s*)*(?P<fragment>[A-Za-z]\w*)?\Z"
)


def public_names(context: CompletionContext) -> SimpleMatcherResult:
    """What a module of ours exports. Whoever begins with an underscore wants more, and gets IPython's own answer."""
    line = _IMPORT.match(context.text_until_cursor)
    if line is None:
        return SimpleMatcherResult(completions=[])
    try:
        module = importlib.import_module(line["module"])
        names = sorted(module.__all__)
    except (ImportError, AttributeError):
        return SimpleMatcherResult(completions=[])
    fragment = line["fragment"] or ""
    return SimpleMatcherResult(
        completions=[
            SimpleCompletion(text=name, type=_kind(getattr(module, name)))
            for name in names
            if name.startswith(fragment)
        ],
        matched_fragment=fragment,
        suppress=True,
        ordered=True,
    )


def _kind(value: object) -> str:
    if inspect.ismodule(value):
        return "module"
    return "class" if isinstance(value, type) else "function" if callable(value) else "instance"


# Before IPython's own, so that those are not even asked.
public_names = context_matcher(priority=1000, identifier="monarch_kernel.imports")(public_names)
