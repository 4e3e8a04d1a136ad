"""``%monarch``: the session at the notebook's prompt."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

from IPython.core.error import StdinNotImplementedError
from IPython.core.magic import no_var_expand
from IPython.display import display

from monarch_kernel.errors import NotAttached, SessionError
from monarch_kernel.magics import pages
from monarch_kernel.magics.arguments import UsageError, find, parse
from monarch_kernel.magics.debug import DebugPrompt
from monarch_kernel.magics.failure import plainly
from monarch_kernel.magics.progress import Progress
from monarch_kernel.magics.render import Page
from monarch_kernel.magics.survey import ended, glance, survey
from monarch_kernel.magics.words import count, lease_terms
from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.faults import error_from_dict
from monarch_kernel.protocol.keeper import KeeperClient, KeeperGone, KeeperRefused
from monarch_kernel.protocol.statefile import SessionFile
from monarch_kernel.session import Identity, Session, attach, down, up
from monarch_kernel.session import session as attached_session
from monarch_kernel.session.doctor import System, lifetime
from monarch_kernel.state.merge import merge

__all__ = ["Monarch", "current"]

# trainers{gpus: 0} names ranks; {name} without a colon is a variable, as in every magic.
_SELECTION = re.compile(r"\{[^{}]*:[^{}]*\}")

# What a debugger gets is Python of another process, braces and all.
_OWN_WORDS = re.compile(r"\s*debug\b")

_POLICIES = {
    "reuse": "a cell that runs again keeps the meshes whose code and arguments are the same, and replaces the others",
    "replace": "a cell that runs again always replaces its meshes",
    "new": "a cell that runs again leaves its meshes alone and starts others, as a script does",
}


class Monarch:
    """The magic of one shell.

    Parameters
    ----------
    ip
        The IPython shell.
    extension
        What else was added to the shell: its re-run policy and its bindings are used.
    """

    def __init__(self, ip: Any, extension: Any) -> None:
        self._ip = ip
        self._extension = extension
        self._progress = Progress(ip)

    @no_var_expand
    def monarch(self, line: str = "") -> None:
        """Drive the session of this notebook. ``%monarch help`` lists what there is."""
        try:
            parsed = parse(self._expanded(line))
            page: Page | None = getattr(self, f"_{parsed.command.name}")(**parsed.values)
        except BaseException as error:
            shown = plainly(error)
            if shown is error:
                raise
            raise shown from None
        if page is not None:
            display(page)

    def _expanded(self, line: str) -> str:
        # The frame of the cell: below are this function, `monarch`, and IPython's run_line_magic.
        return line if _SELECTION.search(line) or _OWN_WORDS.match(line) else str(self._ip.var_expand(line, 3))

    # -- subcommands, each by its name in the table

    def _up(self, name: str, **options: Any) -> Page:
        before = current()
        was = statefile.load(name)
        words = f"starting session {name!r}" if was is None else f"bringing session {name!r} up"
        try:
            session = self._progress.run(words, lambda: up(name, **options))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._undone(name, was)) from None
        how = "attached already" if session is before else "attached" if session.epoch != (0, 1) else "made"
        page = self._arrived(session, how)
        if how == "made":
            where = lifetime(System())
            if where.level != "ok" and where.follows:
                page.notes.append(f"Where it runs: {where.what}; {where.follows}.")
        return page

    def _attach(self, name: str | None = None, takeover: bool = False, no_bind: bool = False) -> Page:
        before = current()
        words = f"attaching to session {name!r}" if name else "attaching"
        session = self._progress.run(words, lambda: attach(name, takeover=takeover, bind=not no_bind))
        return self._arrived(session, "attached already" if session is before else "attached", bind=not no_bind)

    def _status(self) -> Page:
        try:
            session = attached_session()
        except NotAttached as error:
            text = str(error)
            return Page(text[:1].upper() + text[1:])
        answers = self._progress.run("asking the hosts", session.statuses)
        views = {m.index: answers[m.index].registry if m.index in answers else None for m in session.file.members}
        return pages.status(session, answers, merge(views).registry, session.debugger.standing())

    def _ps(self) -> Page:
        session = current()
        found = self._progress.run("looking at the sessions", survey)
        return pages.ps(found, ended(found), session.file.sid if session is not None else None)

    def _calls(self) -> Page:
        session = attached_session()
        session.check()
        mine = list(self._ip.user_ns.items())
        package = next((name for name, value in mine if getattr(value, "__name__", "") == "monarch_kernel"), None)
        page = pages.calls(session.calls, f"{package or 'mk'}.session()")
        if package is None and page.tables:
            page.notes.append("After: import monarch_kernel as mk")
        return page

    def _restart(self, mesh: str, level: str = "") -> Page:
        session = attached_session()
        record, ranks = session.find(mesh)
        name = session.snapshot().name_of(record.id)
        began = time.monotonic()
        words = f"restarting {count(len(ranks), 'rank')} of {name}"
        try:
            held = self._progress.run(words, lambda: session.restart_ranks(record.id, ranks, level))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"the hosts go on restarting {name}; %monarch status says how it is") from None
        failed = {rank: now for rank, now in sorted(held.items()) if now["state"] != "ok"}
        for rank, now in failed.items():
            fault = now.get("fault")
            if fault is not None:
                raise error_from_dict(fault)
            raise SessionError(f"rank {rank} of {name} is {now['state']} after the restart; see %monarch status")
        return pages.restarted(record, name, held, time.monotonic() - began)

    def _debug(self, line: str) -> Page | None:
        prompt = DebugPrompt(attached_session().debugger, _asked, sys.stdout.write, "%monarch debug")
        return prompt.run(line)

    def _detach(self) -> Page:
        session = attached_session()
        try:
            self._progress.run(f"leaving session {session.name!r}", session.detach, to_the_end=True)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"this notebook is leaving session {session.name!r} all the same") from None
        page = Page(f"Detached from session {session.name}: it goes on.")
        page.facts.append(("lease", lease_terms(session.file)))
        page.notes.append(f"%monarch attach {session.name} brings everything back, here or in another notebook.")
        return page

    def _down(self, name: str | None = None) -> Page:
        if name is None:
            name = attached_session().name
        file = statefile.load(name)
        live = file is not None and statefile.here(file).state == "live"
        processes = _processes(file) if file is not None and live else 0
        began = time.monotonic()
        try:
            self._progress.run(f"releasing session {name!r}", lambda: down(name), to_the_end=True)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"session {name!r} is being released all the same; %monarch ps says when it is gone"
            ) from None
        assert file is not None  # else `down` has said that there is none
        if not live:
            return Page(f"Session {name} was dead already; what it had left on disk is gone.")
        freed = f"{count(file.hosts, 'host')} and {count(processes, 'process', 'processes')}"
        return Page(
            f"Session {name} is released: {freed} ended in {time.monotonic() - began:.1f} s, their memory is free."
        )

    def _rerun(self, policy: str | None = None) -> Page:
        rules = getattr(self._extension, "rerun", None)
        if rules is None:
            raise UsageError("there is no re-run policy here: outside of a notebook, every spawn is new")
        if policy is not None:
            rules.policy = policy
        now = rules.policy
        page = Page(f"Re-run policy: {now}")
        page.facts += [(name, what) for name, what in _POLICIES.items() if policy is None or name == now]
        return page

    def _help(self, subcommand: str | None = None) -> Page:
        return pages.help_page(find(subcommand) if subcommand is not None else None)

    # -- inside

    def _arrived(self, session: Session, how: str, *, bind: bool = True) -> Page:
        bindings = getattr(self._extension, "bindings", None)
        bound = bindings.restore(session) if bind and how == "attached" and bindings is not None else []
        return pages.arrived(session, how, session.statuses(), bound)

    def _undone(self, name: str, was: SessionFile | None) -> str:
        """An interrupted ``up`` leaves no session behind that nobody has asked for; says what is there."""
        now = statefile.load(name)
        if now is not None and (was is None or was.sid != now.sid) and statefile.here(now).state == "live":
            status = glance([now]).get(now.sid)
            holder = status.controller.title if status is not None else ""
            # Somebody else may have been quicker, and has it.
            if not holder or holder.startswith(f"{Identity.kind} {os.getpid()} "):
                down(name)
                now = None
        if now is None:
            return f"session {name!r} was not started" + ("; the old one is released" if was is not None else "")
        return f"session {name!r} is as it was; %monarch up {name} attaches to it"


def current() -> Session | None:
    """The session that this process controls, or None."""
    try:
        session = attached_session()
    except NotAttached:
        return None
    return session if session.over is None else None


def _asked(prompt: str) -> str:
    """A line that a person types below the cell."""
    sys.stdout.flush()
    try:
        return input(prompt)
    except StdinNotImplementedError:
        raise UsageError(
            "this front end takes no input in a cell; send one command at a time: %monarch debug NAME RANK COMMAND"
        ) from None


def _processes(file: SessionFile) -> int:
    """How many processes a session has, daemons and keepers included."""
    number = 0
    for member in file.members:
        try:
            with KeeperClient(member.keeper_socket, 2.0) as keeper:
                number += len(keeper.tree()) + 1
        except (KeeperGone, KeeperRefused):
            pass  # its release will force it
    return number
