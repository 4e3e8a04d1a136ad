"""What each subcommand shows, made of what the session says. Nothing here asks anybody or changes anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_kernel.actor._debug_client import Breakpoint
from monarch_kernel.magics import debug
from monarch_kernel.magics.arguments import COMMANDS, Command
from monarch_kernel.magics.render import Cell, Mark, Page, Table
from monarch_kernel.magics.survey import Found
from monarch_kernel.magics.words import ago, clock, count, extent, lease_terms, ranks, slots
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol.statefile import SessionFile, Tombstone
from monarch_kernel.session import Session
from monarch_kernel.session._left import LeftCall
from monarch_kernel.state.records import Kind, MeshRecord
from monarch_kernel.state.registry import Registry
from monarch_kernel.state.supervision import plain_text

__all__ = ["arrived", "calls", "help_page", "ps", "restarted", "running", "status"]

_FAULTS_SHOWN = 4
_LINES_SHOWN = 6


def arrived(session: Session, how: str, answers: Mapping[int, pb.StatusReply], bound: Sequence[str]) -> Page:
    """After ``up`` and ``attach``.

    Parameters
    ----------
    how
        "made", "attached", or "attached already".
    answers
        What each host says.
    bound
        The variables that hold meshes again.
    """
    page = Page(f"Session {session.name}: {how}")
    page.facts.append(("hosts", _hosts(session.file, answers)))
    page.facts.append(("lease", lease_terms(session.file)))
    registry = session.snapshot()
    if how == "made":
        return page
    meshes = [*registry.names("procs"), *registry.names("actors")]
    processes = sum(record.size for record in registry.live("procs"))
    found = f"{', '.join(meshes)} ({count(processes, 'process', 'processes')})" if meshes else "no meshes"
    page.facts.append(("found", found))
    if how == "attached":
        if session.before is not None:
            who, when = session.before
            page.facts.append(("before", f"{who}, gone since {clock(when)} ({ago(when)})" if when else who))
        left = session.calls
        if left:
            going = sum(call.status == "running" for call in left)
            still = f", {'' if going == len(left) == 1 else f'{going} '}still running" if going else ""
            lists = "lists it, with its result" if len(left) == 1 else "lists them, with their results"
            page.facts.append(("calls left", f"{len(left)}{still}: %monarch calls {lists}"))
        if session.faults:
            page.facts.append(("meanwhile", _faults_while_away(session.faults)))
    bad = [name for kind in _KINDS for name, record in registry.names(kind).items() if _faulty(record)]
    if bad:
        page.notes.append(Mark(f"Not all ranks are alive in {', '.join(bad)}: see %monarch status.", "bad"))
    if bound:
        page.notes.append(f"Bound again: {', '.join(bound)}")
    return page


def status(
    session: Session,
    answers: Mapping[int, pb.StatusReply],
    registry: Registry,
    standing: Sequence[Breakpoint] = (),
) -> Page:
    """The attached session.

    Parameters
    ----------
    standing
        The ranks that stand at a breakpoint.
    """
    file = session.file
    page = Page(f"Session {session.name}")
    head = answers.get(0)
    page.facts.append(("hosts", _hosts(file, answers)))
    page.facts.append(("controller", f"this one: {head.controller.title}" if head is not None else "this one"))
    page.facts.append(("lease", f"{head.lease if head is not None else 'attached'}; {lease_terms(file)}"))
    page.facts.append(("epoch", ".".join(map(str, session.epoch))))
    page.facts.append(("started", f"{clock(file.created)} ({ago(file.created)})"))
    now = running(answers)
    left = len(session.calls)
    more = f"; {left} left by an earlier controller: %monarch calls" if left else ""
    page.facts.append(("calls running", f"{now}{more}"))
    rows: list[Sequence[Cell]] = []
    for member in file.members:
        answer = answers.get(member.index)
        if answer is None:
            lost = Mark("lost: its daemon does not answer", "bad")
            rows.append((member.index, lost, "", member.keeper_pid, "", ""))
        else:
            other = answer.package if head is not None and answer.package != head.package else ""
            rows.append((member.index, Mark("ok", "good"), answer.pid, answer.keeper_pid, slots(answer.slots), other))
    page.tables.append(Table(("host", "state", "daemon pid", "keeper pid", "slots", "version"), rows, "Hosts"))
    meshes = [_mesh_row(name, record, registry) for kind in _KINDS for name, record in registry.names(kind).items()]
    if meshes:
        columns = ("name", "kind", "class", "on", "extent", "ranks", "restarts", "generation", "remarks")
        page.tables.append(Table(columns, meshes, "Meshes"))
    else:
        page.notes.append("No meshes yet: monarch_kernel.hosts().spawn_procs(per_host={'gpus': 2}) starts processes.")
    if standing:
        page.tables.append(debug.table(standing))
    page.notes += _faults(registry)
    page.notes += _silent(registry)
    return page


def ps(found: Sequence[Found], gone: Sequence[Tombstone], mine: str | None) -> Page:
    """All sessions of this user.

    Parameters
    ----------
    mine
        The id of the session that this process is attached to.
    """
    rows: list[Sequence[Cell]] = []
    for one in found:
        file, status = one.file, one.status
        if one.standing.state == "elsewhere":
            state: Cell = Mark(f"on host {one.standing.hostname}", "dim")
        elif one.standing.state == "dead":
            why = f"{one.grave.reason}, {ago(one.grave.ended)}" if one.grave is not None else "its processes are gone"
            state = Mark(f"dead: {why}", "bad")
        elif file.sid == mine:
            state = Mark("live, attached here", "good")
        elif status is None:
            state = Mark("live, but its head does not answer", "warn")
        elif status.controller_connected:
            state = Mark(f"live, attached: {status.controller.title}", "good")
        else:
            # The head hears a moment later than its controller has left that no other host has one either.
            state = Mark(f"live, {status.lease if status.lease != 'attached' else 'detached'}", "good")
        size = f"{count(file.hosts, 'host')}" + (f", {count(file.gpus, 'slot')} each" if file.gpus is not None else "")
        rows.append((Mark(file.name, "strong"), state, size, ago(file.created), lease_terms(file)))
    rows += [(stone.name, Mark(f"ended {ago(stone.ended)}: {stone.reason}", "dim"), "", "", "") for stone in gone]
    if not rows:
        return Page("No sessions. Start one with %monarch up NAME.")
    live = [one.file.name for one in found if one.standing.state == "live" and one.file.sid != mine]
    page = Page(count(len(found), "session") if found else "No sessions now")
    page.tables.append(Table(("name", "state", "size", "started", "lease"), rows))
    if live:
        page.notes.append(f"Attach with %monarch attach {live[0]}; free with %monarch down {live[0]}.")
    dead = [one.file.name for one in found if one.standing.state == "dead"]
    if dead:
        page.notes.append(f"%monarch down {dead[0]} clears what a dead one left on disk.")
    return page


def calls(left: Sequence[LeftCall], session: str) -> Page:
    """Calls of an earlier controller.

    Parameters
    ----------
    session
        How the session is written in this notebook.
    """
    if not left:
        return Page("No calls were left behind by an earlier controller.")
    rows: list[Sequence[Cell]] = []
    tones = {"finished": "good", "failed": "bad", "running": "warn"}
    for index, call in enumerate(left):
        done = f"{call.done} of {count(call.size, 'rank')}" + (f", {call.failed} failed" if call.failed else "")
        mark = Mark(call.status, tones.get(call.status, "dim"))  # type: ignore[arg-type]  # tones
        rows.append(
            (index, f"{call.mesh}.{call.endpoint}", f"{clock(call.started)} ({ago(call.started)})", mark, done,
             f"{session}.calls[{index}].result()")
        )  # fmt: skip
    page = Page(f"{count(len(left), 'call')} left behind by an earlier controller")
    page.tables.append(Table(("", "call", "started", "status", "answered", "result"), rows))
    return page


def restarted(record: MeshRecord, name: str, held: Mapping[int, Mapping[str, Any]], seconds: float) -> Page:
    """After ``restart``."""
    which = _listed(sorted(held))
    page = Page(f"{name}: {'rank' if len(held) == 1 else 'ranks'} {which} restarted in {seconds:.1f} s")
    rows: list[Sequence[Cell]] = [
        (rank, record.hosts[rank], Mark(now["state"], "good" if now["state"] == "ok" else "bad"), now.get("pid") or "",
         now.get("restarts", 0))
        for rank, now in sorted(held.items())
    ]  # fmt: skip
    page.tables.append(Table(("rank", "host", "state", "pid", "restarts"), rows))
    return page


def help_page(command: Command | None = None) -> Page:
    """All subcommands, or one."""
    if command is None:
        page = Page("%monarch: sessions that outlive this kernel")
        page.tables.append(Table(("command", "what"), [(Mark(c.usage, "strong"), c.what) for c in COMMANDS.values()]))
        page.notes.append("In Python: import monarch_kernel as mk; mk.up, mk.attach, mk.session(), mk.hosts().")
        return page
    page = Page(command.usage)
    if command.argument is not None:
        page.facts.append((command.argument.value, command.argument.what))
        page.facts += command.argument.forms
    for option in command.options:
        value = "|".join(option.choices) or option.value
        page.facts.append((f"{option.flag} {value}".strip(), option.what))
    page.notes.append(command.what)
    return page


def running(answers: Mapping[int, pb.StatusReply]) -> int:
    """How many calls run in the session; one that is cast to several hosts is one call."""
    at_work = {
        (call.sender, call.mesh, call.number)
        for answer in answers.values()
        for call in answer.calls
        if len(call.done) < len(call.ranks)
    }
    return len(at_work)


# -- inside

_KINDS: tuple[Kind, ...] = ("procs", "actors")


def _hosts(file: SessionFile, answers: Mapping[int, pb.StatusReply]) -> Cell:
    what = {slots(answer.slots) for answer in answers.values()}
    lost = [member.index for member in file.members if member.index not in answers]
    each = (
        f", each {what.pop()}" if len(what) == 1 and file.hosts > 1 else f", {', '.join(sorted(what))}" if what else ""
    )
    text = f"{len(file.members)}{each}"
    return Mark(f"{text}; lost: {_listed(lost)}", "bad") if lost else text


def _mesh_row(name: str, record: MeshRecord, registry: Registry) -> Sequence[Cell]:
    on = registry.name_of(record.procs) if record.procs is not None and registry.get(record.procs) else ""
    outdated = sum(rank.outdated for rank in record.ranks.values())
    remarks = [
        "orphaned by a re-run" if record.orphaned else "",
        f"{count(outdated, 'rank')} outdated" if outdated else "",
        f"owned by an {record.owner.partition(':')[0]}" if record.owner.startswith("actor") else "",
    ]
    remark = ", ".join(filter(None, remarks))
    restarts = sum(rank.restarts for rank in record.ranks.values())
    return (
        Mark(name, "strong"),
        "processes" if record.kind == "procs" else "actors",
        record.qualname,
        on,
        extent(record.labels, record.sizes),
        ranks(record),
        restarts or "",
        record.generation if record.generation > 1 else "",
        Mark(remark, "warn") if remark else "",
    )


def _faulty(record: MeshRecord) -> bool:
    return any(rank.state in ("dead", "failed", "lost") for rank in record.ranks.values())


def _faults(registry: Registry) -> list[str | Mark]:
    """What is known of ranks that are not alive; a process that died is told once, not for each actor in it."""
    texts: dict[str, None] = {}
    for record in registry.live():
        for rank, held in sorted(record.ranks.items()):
            if held.state not in ("dead", "failed", "lost"):
                continue
            fault = held.fault or {}
            default = f"rank {rank} of {record.name} is {held.state} (host {record.hosts[rank]} does not answer)"
            texts.setdefault(_shortened(str(fault.get("text") or default)))
    shown: list[str | Mark] = [Mark(text, "bad") for text in list(texts)[:_FAULTS_SHOWN]]
    if len(texts) > _FAULTS_SHOWN:
        shown.append(f"and {count(len(texts) - _FAULTS_SHOWN, 'more fault')}")
    return shown


_SILENT = {
    "stopped": "is stopped by a signal; kill -CONT {pid} lets it go on",
    "busy": "gives no sign of life, but uses CPU time, as in a long call into native code: its calls wait for that",
    "unresponsive": "gives no sign of life and uses no CPU time; to start it anew: %monarch restart {mesh}[{rank}]",
}


def _silent(registry: Registry) -> list[str | Mark]:
    """Processes that are there, and say nothing."""
    shown: list[str | Mark] = []
    for name, record in registry.names("procs").items():
        for rank, held in sorted(record.ranks.items()):
            if held.state == "ok" and held.health != "alive":
                what = _SILENT[held.health].format(pid=held.pid, mesh=name, rank=rank)
                shown.append(Mark(f"rank {rank} of {name} (pid {held.pid}) {what}", "warn"))
    return shown[:_FAULTS_SHOWN]


def _shortened(text: str) -> str:
    """The first lines of a fault, and where its log is and what to do, which stand at its end."""
    lines = plain_text(text).splitlines()
    ends = [line for line in lines[_LINES_SHOWN:] if line.startswith(("Its log:", "Bring it back"))]
    return "\n".join([*lines[:_LINES_SHOWN], *(["  …"] if len(lines) > _LINES_SHOWN + len(ends) else []), *ends])


def _faults_while_away(faults: Sequence[Mapping[str, Any]]) -> Cell:
    """What happened with nobody there, a process and the actors in it once."""
    said: dict[str, None] = {}
    for event in faults:
        text = str(event.get("failure", {}).get("text", "")) or json.dumps(event)
        said.setdefault(plain_text(text).splitlines()[0])
    first = list(said)[:_FAULTS_SHOWN]
    more = [f"and {len(said) - len(first)} more: %monarch status"] if len(said) > len(first) else []
    return Mark("\n".join([*first, *more]), "bad")


def _listed(numbers: Sequence[int]) -> str:
    """Numbers, with runs as ranges.

    >>> _listed([0, 1, 2, 5])
    '0-2, 5'
    """
    parts: list[str] = []
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            run = numbers[start:end]
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            start = end
    return ", ".join(parts)
