"""Tab for ``%monarch``: words, options, names of sessions and meshes, ranks in brackets."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from monarch_kernel.magics.arguments import COMMANDS, Argument, Command, split
from monarch_kernel.magics.monarch import current
from monarch_kernel.protocol import statefile
from monarch_kernel.state.debug import USAGE

__all__ = ["complete", "matcher"]

_LINE = re.compile(r"^\s*(?:[\w, ]+=\s*)?%monarch\s(?P<rest>.*)$|^monarch\s(?P<bare>.*)$")

#: Seconds that looking at files may hold a key press up; afterwards what was known before is offered.
_BOUND = 0.2


def matcher(context: CompletionContext) -> SimpleMatcherResult:
    """IPython's way to ask."""
    line = _LINE.match(context.text_until_cursor)
    if line is None:
        return SimpleMatcherResult(completions=[])
    rest = line["rest"] if line["rest"] is not None else line["bare"]
    fragment, found = complete(rest)
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=text, type=kind) for text, kind in found],
        matched_fragment=fragment,
        suppress=True,  # files and Python names mean nothing here
        ordered=True,
    )


# Before IPython's own, so that those are not even asked.
matcher = context_matcher(priority=1000, identifier="monarch_kernel.magics")(matcher)


def complete(rest: str) -> tuple[str, list[tuple[str, str]]]:
    """What may stand at the end of a line.

    Parameters
    ----------
    rest
        The line up to the cursor, without ``%monarch``.

    Returns
    -------
    tuple
        The last word so far, and what it may become, each with its kind.
    """
    words = split(rest)
    fragment = "" if not words or (rest[-1:].isspace() and _open(rest) is None) else _last(rest)
    before = words[:-1] if fragment else words
    if not before:
        return fragment, _matching(fragment, COMMANDS, "subcommand")
    command = COMMANDS.get(before[0])
    if command is None:
        return fragment, []
    return fragment, _arguments(command, before[1:], fragment)


def _arguments(command: Command, before: list[str], fragment: str) -> list[tuple[str, str]]:
    if command.argument is not None and command.argument.words == "debug":
        return _debug(before, fragment)
    options = {option.flag: option for option in command.options}
    last = options.get(before[-1]) if before else None
    if last is not None and last.value:
        return _matching(fragment, last.choices, "value")
    flag, equals, value = fragment.partition("=")
    if equals and flag in options:
        return [(f"{flag}={text}", kind) for text, kind in _matching(value, options[flag].choices, "value")]
    unused = [flag for flag in options if flag not in before]
    if fragment.startswith("-"):
        return _matching(fragment, unused, "option")
    found: list[tuple[str, str]] = []
    if command.argument is not None and not _given(before, command):
        found = _values(command.argument, fragment)
    return found or _matching(fragment, unused, "option")


def _given(before: list[str], command: Command) -> bool:
    """Whether the argument stands there already."""
    taking = {option.flag for option in command.options if option.value}
    after = ["", *before]
    return any(not w.startswith("-") and p not in taking for p, w in zip(after, before, strict=False))


def _values(argument: Argument, fragment: str) -> list[tuple[str, str]]:
    match argument.words:
        case "sessions":
            return _matching(fragment, _SESSIONS(), "session")
        case "live sessions":
            return _matching(fragment, _LIVE(), "session")
        case "meshes":
            return _meshes(fragment)
        case "commands":
            return _matching(fragment, COMMANDS, "subcommand")
        case _:
            return _matching(fragment, argument.choices, "value")


def _debug(before: list[str], fragment: str) -> list[tuple[str, str]]:
    """The words of the debugger, and the meshes that they are about."""
    if not before:
        words = [usage.split()[0] for usage in USAGE if usage[0].islower()]
        return _matching(fragment, words, "value") + _meshes(fragment)
    return _meshes(fragment) if before in (["attach"], ["a"], ["cast"]) else []


def _meshes(fragment: str) -> list[tuple[str, str]]:
    session = current()
    if session is None:
        return []
    registry = session.snapshot()  # asks nobody
    names = {**registry.names("procs"), **registry.names("actors")}
    name, bracket, chosen = fragment.partition("[")
    if not bracket:
        return _matching(fragment, [*registry.names("actors"), *registry.names("procs")], "mesh")
    if name.strip() not in names:
        return []
    record = names[name.strip()]
    states = [record.ranks[rank].state if rank in record.ranks else "ok" for rank in range(record.size)]
    earlier, comma, _ = chosen.rpartition(",")
    taken = {word.strip() for word in earlier.split(",")}
    # What needs a restart comes first.
    order = sorted(range(record.size), key=lambda rank: (states[rank] == "ok", rank))
    found = [(f"{name}[{earlier}{comma}{rank}]", states[rank]) for rank in order if str(rank) not in taken]
    return [(text, state) for text, state in found if text.startswith(fragment)]


def _matching(fragment: str, known: Iterable[str], kind: str) -> list[tuple[str, str]]:
    return [(word, kind) for word in known if word.startswith(fragment)]


def _last(rest: str) -> str:
    """The last word as it was typed: what is offered replaces it."""
    opened = _open(rest)
    if opened is not None:
        return rest[rest.rfind(" ", 0, opened) + 1 :]
    return re.split(r"\s", rest)[-1]


def _open(rest: str) -> int | None:
    """Where a bracket stands that is not closed."""
    at = max(rest.rfind("["), rest.rfind("{"))
    return at if at > max(rest.rfind("]"), rest.rfind("}")) else None


class _Bounded:
    """Names from disk, which may be slow (a home on the network): waited for shortly, else those of the last time."""

    def __init__(self, look: Callable[[], list[str]]) -> None:
        self._look = look
        self._known: list[str] = []
        self._busy: threading.Thread | None = None

    def __call__(self) -> list[str]:
        if self._busy is None or not self._busy.is_alive():
            self._busy = threading.Thread(target=self._refresh, name="monarch-complete", daemon=True)
            self._busy.start()
        self._busy.join(_BOUND)
        return self._known

    def _refresh(self) -> None:
        with suppress(OSError):
            self._known = self._look()


def _on_file(*, live: bool) -> list[str]:
    found = []
    for path in sorted((statefile.state_dir() / "sessions").glob("*.json")):
        with suppress(ValueError, OSError):  # a tombstone, or a damaged file, which %monarch ps tells of
            file = statefile.load(path.stem)
            if file is not None and (not live or _runs(file)):
                found.append(file.name)
    return found


def _runs(file: statefile.SessionFile) -> bool:
    """Whether a keeper is there; it is not asked, for that may take long."""
    if not statefile.written_here(file):
        return False
    return any(m.keeper_start == statefile.start_time(m.keeper_pid) for m in file.members)


_SESSIONS = _Bounded(lambda: _on_file(live=False))
_LIVE = _Bounded(lambda: _on_file(live=True))
