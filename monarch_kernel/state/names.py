"""Names of meshes: what a name may look like, and the name that a cell gives by assigning.

``trainers = procs.spawn_procs(...)`` names its mesh ``trainers``; this module finds that from the syntax tree of the
cell. It never raises: a mesh without a name from here gets one of its own making.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

__all__ = ["SPAWNS", "assigned_name", "check_name"]

#: The methods that make a mesh. In a chain of them, a variable names what the last one makes.
SPAWNS = frozenset({"spawn", "spawn_procs"})

_LONGEST = 100
# What our own notation uses: NAME~2, NAME[ranks], several names in one line; and quotes, for the shell.
_RESERVED = frozenset("~[],;'\"`\\")


def check_name(name: object) -> str:
    """Return a name that somebody gave to a mesh, if it may be one.

    Raises
    ------
    ValueError
        With what is wrong about it.
    TypeError
        When it is not a string.

    Examples
    --------
    >>> check_name("trainers")
    'trainers'
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a mesh is a string, not {type(name).__name__}")
    if not name:
        raise ValueError("the name of a mesh must not be empty")
    if len(name) > _LONGEST:
        raise ValueError(f"the name of a mesh has at most {_LONGEST} characters, this one has {len(name)}")
    for char in name:
        if char in _RESERVED or char.isspace() or not char.isprintable():
            raise ValueError(f"the name of a mesh must not contain {char!r}: {name!r}")
    if name[0] in "-%!":
        raise ValueError(f"the name of a mesh must not begin with {name[0]!r}: {name!r}")
    return name


def assigned_name(
    source: str,
    *,
    line: int | None = None,
    end: tuple[int, int] | None = None,
    ordinal: int | None = None,
) -> str | None:
    """The variable that a spawn call is assigned to.

    Parameters
    ----------
    source
        The source of the cell *as it was compiled* (IPython's transformations done), or of the function around it.
    line
        The line of the call, from 1, as a frame's ``f_lineno`` has it. Enough when one spawn call touches the line.
    end
        Where the call ends, as ``code.co_positions()`` gives it: (line from 1, column in UTF-8 bytes from 0). It tells
        calls of one line apart.
    ordinal
        Instead of a place: the number of the spawn call in the source, from 0, in order of their ends.

    Returns
    -------
    str | None
        The name; None when the call is assigned to no plain variable, or cannot be found.

    Examples
    --------
    >>> assigned_name("a, b = x.spawn_procs(), y.spawn('w', W)", end=(1, 22))
    'a'
    >>> assigned_name("procs = hosts.spawn_procs(per_host={'gpus': 2})", line=1)
    'procs'
    """
    try:
        tree = ast.parse(source)
        calls = sorted(_spawn_calls(tree), key=_end)
        call = _pick(calls, line, end, ordinal)
        return None if call is None else _names(tree).get(_end(call))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _end(node: ast.expr) -> tuple[int, int]:
    # No two calls end at the same place, while a chain of calls begins at one.
    return node.end_lineno or 0, node.end_col_offset or 0


def _spawn_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _method(node) in SPAWNS:
            yield node


def _method(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _pick(
    calls: Sequence[ast.Call], line: int | None, end: tuple[int, int] | None, ordinal: int | None
) -> ast.Call | None:
    if end is not None:
        return next((call for call in calls if _end(call) == tuple(end)), None)
    if line is not None:
        touching = [call for call in calls if call.lineno <= line <= (call.end_lineno or call.lineno)]
        # The method's own line is the one a frame shows for a chain over several lines.
        exact = [call for call in touching if getattr(call.func, "end_lineno", None) == line]
        candidates = exact or touching
        return candidates[0] if len(candidates) == 1 else None
    if ordinal is not None:
        return calls[ordinal] if 0 <= ordinal < len(calls) else None
    return None


def _names(tree: ast.AST) -> dict[tuple[int, int], str]:
    """Where a spawn call ends -> the variable it is assigned to."""
    names: dict[tuple[int, int], str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _pair(target, value, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                _pair(target, value, names)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        _pair(item.optional_vars, item.context_expr, names)
    return names


def _pair(target: ast.expr, value: ast.expr, names: dict[tuple[int, int], str]) -> None:
    """Match a target with what is assigned to it; the first name a call gets stays."""
    if isinstance(target, (ast.Tuple, ast.List)):
        if not isinstance(value, (ast.Tuple, ast.List)):
            return
        inner_targets, inner_values = list(target.elts), list(value.elts)
        if any(isinstance(element, ast.Starred) for element in inner_values):
            return
        stars = [index for index, element in enumerate(inner_targets) if isinstance(element, ast.Starred)]
        if stars:
            # What the star takes has no name of its own; cut it out of both sides.
            taken = len(inner_values) - len(inner_targets) + 1
            del inner_targets[stars[0]], inner_values[stars[0] : stars[0] + max(taken, 0)]
        if len(inner_targets) == len(inner_values):
            for inner_target, inner_value in zip(inner_targets, inner_values, strict=True):
                _pair(inner_target, inner_value, names)
        return
    if isinstance(target, ast.Name):
        for call in _made_by(value):
            names.setdefault(_end(call), target.id)


def _made_by(value: ast.expr) -> Iterator[ast.Call]:
    """The spawn calls whose mesh, or a view of it, is the value of an expression."""
    match value:
        case ast.Call(func=ast.Attribute(value=inner)):
            if _method(value) in SPAWNS:
                yield value
            else:
                # procs = hosts.spawn_procs().slice(...): the mesh goes by the name of its view.
                yield from _made_by(inner)
        case ast.Await(value=inner) | ast.NamedExpr(value=inner):
            yield from _made_by(inner)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _made_by(body)
            yield from _made_by(orelse)
        case ast.BoolOp(values=values):
            for inner in values:
                yield from _made_by(inner)
