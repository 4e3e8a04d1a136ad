"""What ranks print, from bytes to the words under a cell: lines, similar ones together, and bounds on all of it.

No I/O and no clock of its own: `Splitter` runs beside the files at a host's daemon, `Display` in the controller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["PLAIN", "QUIET", "Budget", "Display", "Mode", "Source", "Splitter"]

LINE = 1 << 14
"""Bytes of one line; a longer one is shown in pieces."""

PARTIAL = 0.5
"""Seconds after which the beginning of a line is shown though its end has not come."""

GROUPS = 1000
"""Different lines that one window holds; with more of them it closes early."""

RANKS = 10_000
"""Ranks of which it is kept how much they have shown, before those that are quiet are forgotten."""

NOTE = 1.0
"""Seconds after which it is said how many lines were left out, when no line comes that could say it."""

_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Stream = Literal["out", "err"]
Shown = tuple[Stream, str]
"""Text to write, and where."""


class Splitter:
    r"""Makes lines of the bytes of one stream.

    What a carriage return has overwritten is left out, as a terminal would: of a progress bar its last state stays.

    Examples
    --------
    >>> splitter = Splitter()
    >>> splitter.feed(b"one\ntw", now=0.0), splitter.feed(b"o\n 10%\r 20%\n", now=0.1)
    (['one'], ['two', ' 20%'])
    """

    def __init__(self) -> None:
        self._rest = b""
        self._since = 0.0

    def feed(self, data: bytes, now: float) -> list[str]:
        """The lines that are complete with `data`."""
        if not self._rest:
            self._since = now
        *whole, rest = (self._rest + data).split(b"\n")
        found = [piece for line in whole for piece in _pieces(line)]
        if whole:
            self._since = now
        if len(rest) > LINE:
            cut = len(rest) - len(rest) % LINE
            found += _pieces(rest[:cut])
            rest = rest[cut:]
        self._rest = rest
        return found

    @property
    def waiting(self) -> bool:
        """Whether the beginning of a line is held."""
        return bool(self._rest)

    def partial(self, now: float, *, at_once: bool = False) -> list[str]:
        """The beginning of a line that has waited long enough for its end, or is wanted `at_once`."""
        if not self._rest or not (at_once or now - self._since >= PARTIAL):
            return []
        rest, self._rest = self._rest, b""
        return _pieces(rest)


def _pieces(line: bytes) -> list[str]:
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    if len(line) <= LINE:
        return [line.decode(errors="replace")]
    return [line[at : at + LINE].decode(errors="replace") for at in range(0, len(line), LINE)]


class Source(NamedTuple):
    """Where lines come from.

    Attributes
    ----------
    mesh, name
        The mesh of processes, and how it is called.
    log
        The file that has all of it.
    """

    mesh: int
    name: str
    rank: int
    host: int
    stream: Stream
    log: str


class Mode(NamedTuple):
    """How the lines of a mesh are shown.

    Attributes
    ----------
    how
        ``plain``: as they are. ``quiet``: not at all. ``ranks``: each after ``[name rank]``. ``streamed``: each after
        ``[name] [rank]``, as Monarch's ``logging_option(stream_to_client=True)`` has it.
    window
        Seconds over which similar lines of all ranks are gathered into one; None shows each.
    """

    how: Literal["plain", "quiet", "ranks", "streamed"]
    window: float | None = None


PLAIN = Mode("plain")
QUIET = Mode("quiet")


@dataclass(slots=True)
class _Window:
    """Similar lines of one mesh and stream that came since `begun`."""

    begun: float
    groups: dict[str, _Group] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    text: str
    source: Source
    count: int = 0


class Display:
    """What is shown of the lines of all ranks.

    Parameters
    ----------
    default
        How lines of a mesh are shown for which nothing was `set`.
    rate, burst
        Lines a second that are shown of one rank, and how many at once; None shows all. What is more is counted.
    """

    def __init__(self, default: Mode = PLAIN, *, rate: float | None = None, burst: int = 1000) -> None:
        self.default = default
        self.rate = rate
        self.burst = burst
        self._modes: dict[int, Mode] = {}
        self._windows: dict[tuple[int, Stream], _Window] = {}
        self._budgets: dict[Source, tuple[float, float]] = {}  # lines it may show, as of when
        self._missed: dict[Source, tuple[int, float]] = {}  # lines not shown, since when

    def mode(self, mesh: int) -> Mode:
        """How the lines of a mesh are shown now."""
        return self._modes.get(mesh, self.default)

    def set(self, mesh: int, mode: Mode) -> list[Shown]:
        """Show the lines of a mesh in another way from now on; what a window still holds is shown unless it goes on."""
        self._modes[mesh] = mode
        return [] if mode.window is not None else self.flush(mesh)

    def take(self, source: Source, lines: list[str], left_out: int, now: float) -> list[Shown]:
        """Lines of one rank; `left_out` more were too many to send."""
        mode = self.mode(source.mesh)
        if mode.how == "quiet":
            return []
        if mode.window is not None:
            gathered = self._gather(source, lines, now)
            return [_left_out(source, left_out), *gathered] if left_out else gathered
        allowed = self._allowed(source, len(lines), now)
        shown: list[Shown] = []
        missed, since = self._missed.pop(source, (0, now))
        missed += left_out
        if missed and (allowed or self.rate is None):
            shown.append(_left_out(source, missed))  # it stands where the lines were
            missed, since = 0, now
        missed += len(lines) - allowed
        if missed:
            self._missed[source] = (missed, since)
        before = _before(mode, source)
        text = "".join(f"{before}{line}\n" for line in lines[:allowed])
        return [*shown, (source.stream, text)] if text else shown

    def _allowed(self, source: Source, wanted: int, now: float) -> int:
        if self.rate is None:
            return wanted
        left, then = self._budgets.get(source, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        # One that was cut off gets a second's worth at a time: not every few lines a note of what is missing.
        least = min(self.rate, self.burst) if source in self._missed else 1
        allowed = min(wanted, int(left)) if left >= least else 0
        self._budgets[source] = (left - allowed, now)
        if len(self._budgets) > RANKS:  # ranks come and go; one that was quiet for so long may show all again
            full = now - self.burst / self.rate
            self._budgets = {source: at for source, at in self._budgets.items() if at[1] > full}
        return allowed

    def _gather(self, source: Source, lines: list[str], now: float) -> list[Shown]:
        shown: list[Shown] = []
        key = (source.mesh, source.stream)
        for line in lines:
            window = self._windows.get(key)
            if window is None:
                window = self._windows[key] = _Window(now)
            alike = _VARIES.sub("#", line)
            group = window.groups.get(alike)
            if group is None:
                if len(window.groups) >= GROUPS:
                    shown += self.flush(source.mesh)
                    window = self._windows[key] = _Window(now)
                group = window.groups[alike] = _Group(line, source)
            group.count += 1
        return shown

    def due(self) -> float | None:
        """When `tick` has something to show next; None while nothing waits."""
        # A window ends by the length that holds now, not by the one it began with.
        ends = [window.begun + (self.mode(mesh).window or 0.0) for (mesh, _), window in self._windows.items()]
        ends += [since + NOTE for _, since in self._missed.values()]
        return min(ends, default=None)

    def tick(self, now: float) -> list[Shown]:
        """What windows that end by now hold, and the counts of ranks that have become quiet again."""
        shown: list[Shown] = []
        for (mesh, _), window in list(self._windows.items()):
            if now >= window.begun + (self.mode(mesh).window or 0.0):
                shown += self.flush(mesh)
        for source, (count, since) in list(self._missed.items()):
            if now >= since + NOTE:
                del self._missed[source]
                shown.append(_left_out(source, count))
        return shown

    def flush(self, mesh: int | None = None) -> list[Shown]:
        """What is held back of one mesh, or of all."""
        shown: list[Shown] = []
        for key in [key for key in self._windows if mesh in (None, key[0])]:
            for group in self._windows.pop(key).groups.values():
                source = group.source
                if group.count == 1:
                    text = f"[{source.name}] [{source.rank}] {group.text}\n"
                else:
                    text = f"[{source.name}] [{group.count} similar log lines] {group.text}\n"
                shown.append((source.stream, text))
        sources = [source for source in self._missed if mesh in (None, source.mesh)]
        return shown + [_left_out(source, self._missed.pop(source)[0]) for source in sources]


class Budget:
    r"""How much one place shows: whole lines, until it is used up; what is more is counted.

    Examples
    --------
    >>> budget = Budget(lines=2, characters=100)
    >>> budget.take("a\nb\nc\n"), budget.take("d\n"), budget.left_out
    ('a\nb\n', '', 2)
    """

    def __init__(self, lines: int, characters: int) -> None:
        self._lines = lines
        self._characters = characters
        self.left_out = 0

    def take(self, text: str) -> str:
        """The part of some lines that is to be shown."""
        shown: list[str] = []
        for line in text.splitlines(keepends=True):
            if self.left_out or self._lines < 1 or self._characters < len(line):
                self.left_out += 1
                continue
            self._lines -= 1
            self._characters -= len(line)
            shown.append(line)
        return "".join(shown)


def _before(mode: Mode, source: Source) -> str:
    if mode.how == "ranks":
        return f"[{source.name} {source.rank}] "
    return f"[{source.name}] [{source.rank}] " if mode.how == "streamed" else ""


def _left_out(source: Source, count: int) -> Shown:
    what = "1 line" if count == 1 else f"{count} lines"
    return "err", f"[{source.name} {source.rank}] … {what} left out, see {source.log} on host {source.host}\n"
