"""The words of the debugger: what a line that a person typed to it means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Some = int | Sequence[int] | range
Ranks = Some | Mapping[str, Some]

USAGE = {
    "list": "the ranks that stand at a breakpoint (also: l)",
    "attach NAME RANK": "pdb's own prompt at one rank; detach leaves it where it is (also: a)",
    "NAME RANK [COMMAND]": "one command for the debugger of one rank; without it, what it printed last",
    "cast NAME ranks(...) COMMAND": "one for several: ranks(2), ranks(0,3), ranks(0:8:2), ranks(hosts=0,gpus=1:3)",
    "continue": "clear all breakpoints and let every rank go on (also: c)",
    "quit": "leave the debugger; the ranks stay where they are (also: q)",
    "help": "this (also: h)",
}


@dataclass(frozen=True)
class DebugCommand:
    """One line, understood.

    Attributes
    ----------
    ranks
        Of a cast: as `selects` takes them.
    line
        What the debuggers of the ranks get.
    """

    what: Literal["list", "attach", "read", "send", "cast", "continue", "quit", "help"]
    name: str = ""
    ranks: Ranks = 0
    line: str = ""


_SHORT = {"l": "list", "c": "continue", "q": "quit", "h": "help"}
_NAME = r"(?P<name>[^\s()\[\]{}=,:]+)"
_ATTACH = re.compile(rf"(?:a|attach)\s+{_NAME}\s+(?P<rank>\d+)")
_SEND = re.compile(rf"{_NAME}\s+(?P<rank>\d+)(?:\s+(?P<line>\S.*))?", re.DOTALL)
_CAST = re.compile(rf"cast\s+{_NAME}\s+ranks\((?P<ranks>(?:[^()]|\([^()]*\))*)\)\s*(?P<line>\S.*)", re.DOTALL)
_DIMENSION = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\([^()]*\)|[^,()]+)\s*(?:,|\Z)")
_RANGE = re.compile(r"\s*(\d*)\s*:\s*(\d*)\s*(?::\s*(\d*)\s*)?")
_NO_END = 1 << 62


def parse(text: str) -> DebugCommand:
    """Read a line.

    Raises
    ------
    ValueError
        It means nothing; the text says what would.

    Examples
    --------
    >>> parse("cast trainers ranks(0:4:2) p loss")
    DebugCommand(what='cast', name='trainers', ranks=range(0, 4, 2), line='p loss')
    """
    text = text.strip()
    word = _SHORT.get(text, text or "list")
    if word in ("list", "continue", "quit", "help"):
        return DebugCommand(word)  # type: ignore[arg-type]  # one of its four
    if found := _CAST.fullmatch(text):
        return DebugCommand("cast", found["name"], _ranks(found["ranks"]), found["line"].strip())
    if found := _ATTACH.fullmatch(text):
        return DebugCommand("attach", found["name"], int(found["rank"]))
    if (found := _SEND.fullmatch(text)) and found["name"] not in ("attach", "cast"):
        line = (found["line"] or "").strip()
        return DebugCommand("send" if line else "read", found["name"], int(found["rank"]), line)
    raise ValueError(f"{text!r} is not understood; there are: {', '.join(USAGE)}")


def _ranks(text: str) -> Ranks:
    if "=" not in text:
        return _some(text, text)
    chosen: dict[str, Some] = {}
    at = 0
    while at < len(text):
        found = _DIMENSION.match(text, at)
        if found is None:
            raise _not_understood(text)
        value = found[2].strip()
        chosen[found[1]] = _some(value.strip("()"), text)
        at = found.end()
    return chosen


def _some(part: str, text: str) -> Some:
    if found := _RANGE.fullmatch(part):
        start, stop, step = (int(number) if number else None for number in found.groups())
        if step == 0:
            raise _not_understood(text)
        return range(start or 0, _NO_END if stop is None else stop, step or 1)
    try:
        numbers = [int(number) for number in part.split(",")]
    except ValueError:
        raise _not_understood(text) from None
    if min(numbers) < 0:
        raise _not_understood(text)
    return numbers if len(numbers) > 1 else numbers[0]


def _not_understood(text: str) -> ValueError:
    return ValueError(
        f"ranks({text}) is not understood; write ranks(2), ranks(0,3), ranks(0:8:2) or ranks(hosts=0,gpus=(1,3))"
    )


def selects(ranks: Ranks, rank: int, coordinates: Mapping[str, int]) -> bool:
    """Whether a rank at these coordinates is meant.

    >>> selects({"gpus": range(1, 3)}, 5, {"hosts": 1, "gpus": 1})
    True

    Raises
    ------
    ValueError
        A dimension is named that the mesh does not have.
    """
    if not isinstance(ranks, Mapping):
        return _has(ranks, rank)
    unknown = [name for name in ranks if name not in coordinates]
    if unknown:
        there = ", ".join(coordinates) or "none"
        raise ValueError(f"the mesh has no dimension {unknown[0]!r}; it has: {there}")
    return all(_has(some, coordinates[name]) for name, some in ranks.items())


def _has(some: Some, number: int) -> bool:
    return number == some if isinstance(some, int) else number in some
