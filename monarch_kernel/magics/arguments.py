"""The words of ``%monarch``: one table, from which lines are parsed, help is written and Tab completes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from monarch_kernel.protocol.statefile import valid_name
from monarch_kernel.state.debug import USAGE
from monarch_kernel.state.lease import parse_duration

__all__ = ["COMMANDS", "Argument", "Command", "Option", "Parsed", "UsageError", "nearest", "parse", "split"]

#: What the words of an argument are, for Tab.
Words = Literal["sessions", "live sessions", "meshes", "commands", "debug", "other"]

# A word ends at white space outside of brackets: trainers{hosts: 0, gpus: 1-2} is one.
_WORD = re.compile(r"""(?:\[[^\]]*(?:\]|\Z)|\{[^}]*(?:\}|\Z)|"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s\[{"'])+""")


class UsageError(ValueError):
    """A line of ``%monarch`` that means nothing; the text says what would."""


@dataclass(frozen=True)
class Option:
    """One option of a subcommand.

    Attributes
    ----------
    flag
        As it is written, with its dashes.
    what
        What it does, in words.
    value
        How its value is called in help; empty for one that has none.
    read
        Makes the value of its text; raises ValueError with what is understood.
    choices
        All values there are, where there are few.
    """

    flag: str
    what: str
    value: str = ""
    read: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its value in Python."""
        return self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class Argument:
    """The one word beside options that a subcommand takes.

    Attributes
    ----------
    rest
        It is all that is left of the line, as it stands: brackets, quotes and comments mean nothing in it.
    forms
        What may stand there, with what it does.
    """

    name: str
    value: str
    what: str
    words: Words = "other"
    required: bool = False
    read: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    rest: bool = False
    forms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Command:
    """One subcommand."""

    name: str
    what: str
    argument: Argument | None = None
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        """How it is written."""
        parts = [f"%monarch {self.name}"]
        if self.argument is not None:
            value = "|".join(self.argument.choices) or self.argument.value
            parts.append(value if self.argument.required else f"[{value}]")
        for option in self.options:
            value = "|".join(option.choices) or option.value
            parts.append(f"[{option.flag} {value}]" if value else f"[{option.flag}]")
        return " ".join(parts)


@dataclass(frozen=True)
class Parsed:
    """A line that was understood: which subcommand, and the values for it by name."""

    command: Command
    values: dict[str, Any] = field(default_factory=dict)


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or int(text) < least:
            raise ValueError(f"a whole number, {least} or more, is needed; got {text!r}")
        return int(text)

    return read


_TAKEOVER = Option("--takeover", "attach even where another controller is connected; that one is told")

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(
            "up",
            "Start a session, or attach to the live one of that name.",
            Argument("name", "NAME", "the session's name", "live sessions", required=True, read=valid_name),
            (
                Option("--hosts", "how many hosts (1)", "N", _whole(1)),
                Option("--gpus", "devices a host (what the machine has, divided evenly)", "N", _whole(0)),
                Option(
                    "--lease", "how long it lives with nobody attached and nothing running (2h)", "2h", parse_duration
                ),
                Option(
                    "--max-detached", "how long it lives with nobody attached, whatever runs (7d)", "7d", parse_duration
                ),
                Option("--fresh", "release a live session of that name first, with all that is in it"),
                _TAKEOVER,
            ),
        ),
        Command(
            "attach",
            "Take control of a live session: its meshes, names and calls, as they are.",
            Argument("name", "NAME", "its name; may be left out when one is live", "live sessions", read=valid_name),
            (_TAKEOVER, Option("--no-bind", "leave the variables of this notebook alone")),
        ),
        Command("status", "Show the session that this notebook is attached to: hosts, meshes, faults."),
        Command("ps", "List the sessions of this user, live and ended."),
        Command("calls", "List the calls that an earlier controller left behind, and how to get their results."),
        Command(
            "restart",
            "Restart ranks of a mesh: in place, on the same slots.",
            Argument(
                "mesh", "MESH[ranks]", "trainers, trainers[2], trainers[0,3] or trainers{gpus: 0-1}", "meshes", True
            ),
            (
                Option(
                    "--level",
                    "actor: the object anew, in its process; proc: the process too (the least that works)",
                    "LEVEL",
                    choices=("actor", "proc"),
                ),
            ),
        ),
        Command(
            "debug",
            "List the ranks that stand at a breakpoint(), and talk to their debuggers.",
            Argument(
                "line", "WORDS", "what to do; the list when left out", "debug", rest=True, forms=tuple(USAGE.items())
            ),
        ),
        Command("detach", "Leave the session; it goes on, and its lease counts once nothing runs."),
        Command(
            "down",
            "Release a session: all its processes and memory are freed before this returns.",
            Argument("name", "NAME", "its name; the attached session when left out", "sessions", read=valid_name),
        ),
        Command(
            "rerun",
            "Show or set what running a cell again does to the meshes that it made.",
            Argument(
                "policy",
                "POLICY",
                "reuse: keep what is unchanged, replace the rest; replace: always; new: leave them and make others",
                choices=("reuse", "replace", "new"),
            ),
        ),
        Command(
            "help",
            "Show this, or more of one subcommand.",
            Argument("subcommand", "SUBCOMMAND", "one of the subcommands", "commands"),
        ),
    )
}


def split(text: str) -> list[str]:
    """The words of a line. Brackets and quotes hold a word together; a comment at its end is none.

    >>> split("restart trainers {gpus: 0-1} --level proc  # again")
    ['restart', 'trainers{gpus: 0-1}', '--level', 'proc']
    """
    text = re.sub(r"(?:^|\s)#.*", "", text)
    text = re.sub(r"(?<=\w)\s+(?=[\[{])", "", text)
    return [
        word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word
        for word in _WORD.findall(text)
    ]


def nearest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean …?`` where a known word is like it, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def find(name: str) -> Command:
    """The subcommand of this name.

    Raises
    ------
    UsageError
        There is none; names the nearest and all that there are.
    """
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"%monarch has no {name!r}.{nearest(name, COMMANDS)} It has: {', '.join(COMMANDS)}.")
    return command


def parse(text: str) -> Parsed:
    """Read a line.

    Raises
    ------
    UsageError
        It cannot be understood; the text says what can.

    Examples
    --------
    >>> parse("up lab --hosts 2 --lease 1h").values
    {'name': 'lab', 'hosts': 2, 'lease': 3600.0}
    """
    name, *words = split(text) or ["help"]
    command = find(name)
    values: dict[str, Any] = {}
    if command.argument is not None and command.argument.rest:
        return Parsed(command, {command.argument.name: text.strip()[len(name) :].strip()})
    while words:
        word = words.pop(0)
        if word.startswith("-"):
            option, value = _option(command, word, words)
            if option.name in values:
                raise UsageError(f"{option.flag} stands twice. Usage: {command.usage}")
            values[option.name] = value
            continue
        argument = command.argument
        if argument is None or argument.name in values:
            what = "takes no name" if argument is None else f"takes one {argument.value}"
            raise UsageError(f"%monarch {name} {what}; {word!r} is too much. Usage: {command.usage}")
        values[argument.name] = _value(argument.value, word, argument.read, argument.choices)
    if command.argument is not None and command.argument.required and command.argument.name not in values:
        raise UsageError(
            f"%monarch {name} needs {command.argument.value}: {command.argument.what}. Usage: {command.usage}"
        )
    return Parsed(command, values)


def _option(command: Command, word: str, rest: list[str]) -> tuple[Option, Any]:
    flag, equals, value = word.partition("=")
    known = {option.flag: option for option in command.options}
    if flag not in known:
        there = f"It has: {', '.join(known)}." if known else "It has none."
        raise UsageError(f"%monarch {command.name} has no option {flag!r}.{nearest(flag, known)} {there}")
    option = known[flag]
    if not option.value:
        if equals:
            raise UsageError(f"{flag} takes no value. Usage: {command.usage}")
        return option, True
    if not equals:
        if not rest or rest[0].startswith("--"):
            raise UsageError(f"{flag} needs a value, {option.value}: {option.what}. Usage: {command.usage}")
        value = rest.pop(0)
    return option, _value(flag, value, option.read, option.choices)


def _value(what: str, text: str, read: Callable[[str], Any], choices: tuple[str, ...]) -> Any:
    if choices and text not in choices:
        raise UsageError(f"{what}: {text!r} is not one of {', '.join(choices)}.{nearest(text, choices)}")
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None
