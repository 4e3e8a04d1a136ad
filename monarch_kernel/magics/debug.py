"""The debugger at a prompt: the same words for ``%monarch debug`` and for ``monarch-kernel debug``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_kernel.actor._debug_client import Breakpoint, Debugger, Said
from monarch_kernel.errors import MonarchError
from monarch_kernel.magics.render import Cell, Mark, Page, Table
from monarch_kernel.magics.words import ago, count
from monarch_kernel.state.debug import USAGE, DebugCommand, parse

__all__ = ["DebugPrompt", "breakpoints", "table"]

#: Seconds of one look at a rank that runs; an interrupt ends it at once.
_LOOK = 60.0


class DebugPrompt:
    """Does what a line says.

    Parameters
    ----------
    debugger
        Of the session.
    read
        Asks a person for a line, with this prompt; raises EOFError when there is none to come.
    write
        Takes text for the person.
    how
        How a line is written here, for messages: ``%monarch debug``.
    """

    def __init__(
        self, debugger: Debugger, read: Callable[[str], str], write: Callable[[str], object], how: str
    ) -> None:
        self._debugger = debugger
        self._read = read
        self._write = write
        self._how = how

    def run(self, line: str) -> Page | None:
        """Do it; returns what is shown as a page.

        Raises
        ------
        ValueError
            The line means nothing.
        SessionError
            The rank that it names stands at no breakpoint.
        """
        command = parse(line)
        match command.what:
            case "list":
                return breakpoints(self._debugger.standing(), self._how)
            case "help":
                page = Page("The debugger: ranks that stand at a breakpoint()")
                page.facts += list(USAGE.items())
                return page
            case "attach":
                self._attach(command)
            case "read":
                self._show([self._debugger.read(self._find(command))], named=False)
            case "send":
                self._show([self._debugger.send(self._find(command), command.line)], named=False)
            case "cast":
                self._show(self._debugger.cast(command.name, command.ranks, command.line))
            case "continue":
                going = self._debugger.resume()
                return Page(f"{count(sum(said.ended for said in going), 'rank')} going on")
            case "quit":
                pass  # a prompt that stays open ends; see `loop`
        return None

    def loop(self) -> None:
        """A prompt of its own until ``quit``."""
        while True:
            try:
                line = self._read("monarch_dbg> ").strip()
            except EOFError:
                self._write("\n")
                return
            if line in ("q", "quit"):
                return
            if not line:
                continue
            try:
                page = self.run(line)
            except (ValueError, MonarchError) as error:
                self._write(f"{error}\n")
            else:
                if page is not None:
                    self._write(f"{page.text()}\n")

    def _find(self, command: DebugCommand) -> Breakpoint:
        assert isinstance(command.ranks, int)
        return self._debugger.find(command.name, command.ranks)

    def _attach(self, command: DebugCommand) -> None:
        """Pdb's prompt at one rank, until it goes on or is left where it is."""
        at = self._find(command)
        stays = f"{at.name} {at.rank} stays where it is: {self._how} attach {at.name} {at.rank}\n"
        said = self._debugger.read(at, 0.0)
        try:
            while True:
                while not (said.prompt or said.ended):
                    said = self._debugger.read(said.at, _LOOK)
                self._write(said.output)
                if said.ended:
                    self._write(f"{at.name} {at.rank} goes on\n")
                    return
                line = self._read("(Pdb) ")
                if line.strip() == "detach":
                    break
                said = self._debugger.send(said.at, line + "\n")
        except EOFError:
            self._write("\n")
        except KeyboardInterrupt:
            self._write(stays)
            raise
        self._write(stays)

    def _show(self, answers: Sequence[Said], *, named: bool = True) -> None:
        for said in answers:
            name = f"{said.at.name} {said.at.rank}"
            if named:
                self._write(f"-- {name}\n")
            self._write(said.output)
            if said.ended:
                self._write(f"{name} goes on\n")
            elif not said.prompt:
                self._write(f"{name} runs; what it prints: {self._how} {name}\n")


def table(standing: Sequence[Breakpoint]) -> Table:
    """The ranks at a breakpoint."""
    rows: list[Sequence[Cell]] = [
        (Mark(one.name, "strong"), one.rank, ", ".join(f"{k} {v}" for k, v in one.coordinates.items()),
         Mark("at its prompt", "warn") if one.prompt else "runs", one.where, one.host, one.pid, ago(one.since))
        for one in standing
    ]  # fmt: skip
    columns = ("name", "rank", "at", "state", "where", "host", "pid", "stopped")
    return Table(columns, rows, "Breakpoints")


def breakpoints(standing: Sequence[Breakpoint], how: str) -> Page:
    """What ``list`` shows."""
    if not standing:
        return Page("No rank stands at a breakpoint.")
    page = Page(f"{count(len(standing), 'rank')} at a breakpoint")
    page.tables.append(table(standing))
    first = standing[0]
    page.notes.append(f"Talk to one: {how} attach {first.name} {first.rank}. Let all go on: {how} continue.")
    return page
