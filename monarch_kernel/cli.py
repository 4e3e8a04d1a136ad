"""The ``monarch-kernel`` command: sessions, the kernelspec, and what this machine is good for.

Exit codes
----------
0
    Done.
1
    It could not be done; one paragraph on standard error says why, and what to do.
2
    The command line is wrong.
3
    ``doctor`` found a problem: something will not work here.
130
    Interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch_kernel.errors import MonarchError

if TYPE_CHECKING:
    from monarch_kernel.magics.survey import Found
    from monarch_kernel.protocol import host_pb2 as pb
    from monarch_kernel.protocol.statefile import SessionFile

__all__ = ["main"]

_ANSWER = 5.0  # seconds a daemon has to answer


class _Refused(Exception):
    """The command cannot be done; its text is for the person at the shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv
        The words after ``monarch-kernel``; by default those of this process.
    """
    options = _parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = options.act
    try:
        return act(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of `monarch-kernel ps | head` has seen enough
        sys.stderr.close()
        return 1
    except (MonarchError, _Refused, ValueError, OSError) as error:
        print(f"monarch-kernel {options.command}: {error}", file=sys.stderr)
        return 1


# -- sessions


def _up(options: argparse.Namespace) -> int:
    from monarch_kernel.session import describe_lease, up

    began = time.monotonic()
    # Nothing is asked and nobody is kept waiting unseen.
    print(f"bringing session {options.name!r} up", file=sys.stderr, flush=True)
    mine = up(
        options.name,
        hosts=options.hosts,
        gpus=options.gpus,
        lease=options.lease,
        max_detached=options.max_detached,
        fresh=options.fresh,
    )
    file, made = mine.file, mine.epoch == (0, 1)
    mine.detach()
    seconds = f"{time.monotonic() - began:.1f} s"
    print(f"Session {file.name} is {'up' if made else 'live already'}: {_size(file)} ({seconds}).")
    print(f"Its times: {describe_lease(file)}. In a notebook: %monarch attach {file.name}")
    return 0


def _ps(options: argparse.Namespace) -> int:
    from monarch_kernel.magics import pages
    from monarch_kernel.magics.survey import ended, survey

    found = survey()
    gone = ended(found)
    if options.json:
        graves = [
            {"name": stone.name, "state": "ended", "reason": stone.reason, "ended": stone.ended, "lost": [*stone.lost]}
            for stone in gone
        ]
        _print_json([*map(_as_json, found), *graves])
        return 0
    page = pages.ps(found, gone, None)
    if not page.tables:
        print("No sessions. Start one with: monarch-kernel up NAME")
        return 0
    page.notes = []  # they speak of magics
    print(page.text())
    return 0


def _calls(options: argparse.Namespace) -> int:
    from monarch_kernel.magics.render import Cell, Page, Table
    from monarch_kernel.magics.words import ago, clock, count
    from monarch_kernel.session import describe_lease

    file = _live(options.name)
    answers = _statuses(file)
    if not answers:
        raise _Refused(f"no host of session {file.name!r} answers; see: monarch-kernel ps")
    calls = _merged(file, answers)
    if options.json:
        _print_json(calls)
        return 0
    silent = [str(member.index) for member in file.members if member.index not in answers]
    if silent:
        print(f"monarch-kernel calls: host {', '.join(silent)} does not answer", file=sys.stderr)
    if not calls:
        print(f"Session {file.name} runs no call and keeps no answer of one.")
        return 0
    page = Page(f"{count(len(calls), 'call')} of session {file.name} ({describe_lease(file)})")
    rows: list[Sequence[Cell]] = [
        (
            f"{call['mesh']}.{call['endpoint']}",
            f"{clock(call['started'])} ({ago(call['started'])})",
            call["status"],
            f"{call['done']} of {count(call['ranks'], 'rank')}" + (f", {call['failed']} failed" * bool(call["failed"])),
        )
        for call in calls
    ]
    page.tables.append(Table(("call", "started", "status", "answered"), rows))
    print(page.text())
    return 0


def _debug(options: argparse.Namespace) -> int:
    from monarch_kernel.actor._debug_client import Debugger
    from monarch_kernel.magics.debug import DebugPrompt
    from monarch_kernel.protocol import host_pb2 as pb
    from monarch_kernel.protocol.rpc import Dialer
    from monarch_kernel.session._controller import io_thread

    file, io = _live(options.name), io_thread()

    async def connect() -> Dialer:
        return Dialer(file.members[0].address, file.secret)

    head = io.run(connect(), _ANSWER)

    def ask(seconds: float, **fields: Any) -> pb.DebugReply:
        return io.run(head.call("Debug", pb.DebugRequest(**fields), seconds), seconds + _ANSWER)  # type: ignore[no-any-return]

    def write(text: str) -> None:
        print(text, end="", flush=True)

    prompt = DebugPrompt(Debugger(ask), input, write, f"monarch-kernel debug {file.name}")
    try:
        if not options.line and sys.stdin.isatty():
            write("help lists the commands, quit leaves.\n")
            prompt.loop()
        elif (page := prompt.run(" ".join(options.line))) is not None:
            print(page.text())
    finally:
        io.run(head.close(), _ANSWER)
    return 0


def _down(options: argparse.Namespace) -> int:
    from monarch_kernel.protocol import statefile
    from monarch_kernel.session import down

    statefile.valid_name(options.name)
    file = statefile.load(options.name)
    live = file is not None and statefile.here(file).state == "live"
    if file is not None and live and not options.yes and sys.stdin.isatty() and sys.stdout.isatty():
        answer = input(f"End session {file.name} ({_size(file)}) and everything that runs in it? [y/N] ")
        if answer.strip().lower() not in {"y", "yes"}:
            print("left as it is")
            return 1
    began = time.monotonic()
    down(options.name)
    if live:
        print(f"Session {options.name} is released ({time.monotonic() - began:.1f} s).")
    else:
        print(f"Session {options.name} was dead already; what it had left on disk is gone.")
    return 0


# -- this machine


def _doctor(options: argparse.Namespace) -> int:
    from monarch_kernel.session.doctor import diagnose

    findings = diagnose()
    if options.json:
        _print_json([{"topic": f.topic, "level": f.level, "what": f.what, "follows": f.follows} for f in findings])
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            print(f"{finding.level:<8} {finding.topic:<{width}}  {finding.what}")
            if finding.follows:
                print(f"{'':<{width + 9}}  {finding.follows}")
    return 3 if any(finding.level == "problem" for finding in findings) else 0


def _install(options: argparse.Namespace) -> int:
    specs = _specs("ipykernel", "jupyter_client")
    # Without an option, as a package is installed: for this environment.
    prefix = options.prefix or (None if options.user else sys.prefix)
    try:
        where = specs.install(user=options.user, prefix=prefix)
    except PermissionError as error:
        raise _Refused(
            f"{error.filename or 'the place'} cannot be written. Install for yourself with --user, or into this "
            f"environment with --sys-prefix"
        ) from None
    print(f"The kernel {specs.DISPLAY_NAME!r} is installed in {where}")
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    specs = _specs("jupyter_core")
    prefix = sys.prefix if options.sys_prefix else options.prefix
    removed = specs.uninstall(user=options.user, prefix=prefix)
    if not removed:
        raise _Refused(f"no kernelspec of ours named {specs.NAME!r} is installed there")
    for where in removed:
        print(f"removed {where}")
    return 0


def _specs(*needed: str) -> Any:
    from importlib.util import find_spec

    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise _Refused(
            f"{' and '.join(missing)} is not installed here: this is a worker's installation. For the notebook's "
            f"side: pip install 'monarch-kernel[notebook]'"
        )
    from monarch_kernel.kernel import specs

    return specs


# -- inside


def _size(file: SessionFile) -> str:
    hosts = f"{file.hosts} host{'s' * (file.hosts != 1)}"
    return hosts if file.gpus is None else f"{hosts}, {file.gpus} slot{'s' * (file.gpus != 1)} each"


def _live(name: str) -> SessionFile:
    from monarch_kernel.protocol import statefile
    from monarch_kernel.session import sessions

    statefile.valid_name(name)
    known = {file.name: (file, standing) for file, standing in sessions()}
    if name not in known:
        stone = statefile.tombstone(name)
        ended = f" (it ended: {stone.reason})" if stone is not None else ""
        live = [n for n, (_, standing) in known.items() if standing.state == "live"]
        raise _Refused(f"no session {name!r}{ended}. Live sessions: {', '.join(live) or 'none'}")
    file, standing = known[name]
    if standing.state == "elsewhere":
        raise _Refused(f"session {name!r} runs on host {standing.hostname}; ask there")
    if standing.state == "dead":
        raise _Refused(f"session {name!r} is dead; monarch-kernel down {name} clears what it left on disk")
    return file


def _statuses(file: SessionFile) -> dict[int, pb.StatusReply]:
    """Ask every host, without becoming its controller; those that do not answer are left out."""
    from monarch_kernel.protocol import host_pb2 as pb
    from monarch_kernel.protocol.rpc import Dialer
    from monarch_kernel.session._controller import io_thread

    answers: dict[int, pb.StatusReply] = {}

    async def ask(index: int, address: str) -> None:
        dialer = Dialer(address, file.secret)
        try:
            answers[index] = await dialer.call("Status", pb.StatusRequest(), _ANSWER, patience=0.0)
        except MonarchError:
            pass  # the caller sees which are missing
        finally:
            await dialer.close()

    async def everyone() -> None:
        await asyncio.gather(*(ask(member.index, member.address) for member in file.members))

    io_thread().run(everyone(), 2 * _ANSWER)
    return answers


def _merged(file: SessionFile, answers: dict[int, pb.StatusReply]) -> list[dict[str, Any]]:
    """One entry a call, oldest first; a call cast to several hosts is known in part to each of them."""
    from monarch_kernel.state.merge import merge

    registry = merge({member.index: getattr(answers.get(member.index), "registry", None) for member in file.members})
    found: dict[tuple[int, int, int], dict[str, Any]] = {}
    for answer in answers.values():
        for info in answer.calls:
            call = found.setdefault(
                (info.sender, info.mesh, info.number),
                {"ranks": set(), "done": set(), "failed": set(), "dropped": False, "started": info.started},
            )
            for part in ("ranks", "done", "failed"):
                call[part].update(getattr(info, part))
            call["dropped"] |= info.dropped
            call["endpoint"] = call.get("endpoint") or info.endpoint
    calls = []
    for (_, mesh, number), call in found.items():
        record = registry.registry.get(mesh)
        done, failed, ranks = len(call["done"]), len(call["failed"]), len(call["ranks"])
        ended = "failed" if failed else "finished"
        calls.append(
            {
                "mesh": registry.registry.name_of(mesh)
                if record is not None and record.state == "live"
                else "(stopped)",
                "endpoint": call["endpoint"],
                "number": number,
                "started": call["started"],
                "status": "running" if done < ranks else "not kept" if call["dropped"] else ended,
                "ranks": ranks,
                "done": done,
                "failed": failed,
            }
        )
    return sorted(calls, key=lambda call: (call["started"], call["number"]))


def _as_json(one: Found) -> dict[str, Any]:
    """A session for programs; its secret and its addresses are nobody's business."""
    file, status = one.file, one.status
    connected = status is not None and status.controller_connected
    return {
        "name": file.name,
        "state": one.standing.state,
        "hosts": file.hosts,
        "gpus": file.gpus,
        "created": file.created,
        "lease": file.lease,
        "max_detached": file.max_detached,
        "hostname": file.hostname,
        "controller": status.controller.title if status is not None and connected else None,
        "lease_state": status.lease if status is not None else None,
        "reason": one.grave.reason if one.grave is not None else None,
    }


def _print_json(what: Any) -> None:
    print(json.dumps(what, indent=2))


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text) if text.isdecimal() else -1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} or more")
        return value

    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="monarch-kernel",
        description="Sessions of hosts that outlive the notebook that drives them.",
        epilog="Exit codes: 0 done, 1 it could not be done, 2 wrong command line, 3 doctor found a problem.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, act: Callable[[argparse.Namespace], int], what: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        sub.set_defaults(act=act)
        return sub

    def lists(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--json", action="store_true", help="for programs")

    up = command("up", _up, "bring a session up, or find it live with the same spec")
    up.add_argument("name", metavar="NAME")
    up.add_argument("--hosts", type=_whole(1), metavar="N", help="how many hosts; 1 for a new session")
    up.add_argument("--gpus", type=_whole(0), metavar="N", help="devices a host; by default evenly divided")
    up.add_argument("--lease", metavar="2h", help="how long it lives with nobody attached and nothing running")
    up.add_argument("--max-detached", metavar="7d", help="the same, whatever runs")
    up.add_argument("--fresh", action="store_true", help="release a live session of that name first")

    lists(command("ps", _ps, "list the sessions of this user, and what ended lately"))

    calls = command("calls", _calls, "list the calls that a session runs, or keeps the answers of")
    calls.add_argument("name", metavar="NAME")
    lists(calls)

    debug = command("debug", _debug, "list the ranks of a session that stand at a breakpoint(), and talk to them")
    debug.add_argument("name", metavar="NAME")
    debug.add_argument("line", metavar="[WORDS]", nargs=argparse.REMAINDER, help="as after %%monarch debug")

    down = command("down", _down, "release a session: end everything that runs in it, and wait until it is gone")
    down.add_argument("name", metavar="NAME")
    down.add_argument("--yes", action="store_true", help="do not ask (nobody is asked away from a terminal)")

    lists(command("doctor", _doctor, "look at this machine and say what follows"))

    for name, act, what in (
        (
            "install",
            _install,
            "install the kernel 'Monarch (Python)' for Jupyter; without an option as with --sys-prefix",
        ),
        ("uninstall", _uninstall, "remove it; without an option, wherever this environment's Jupyter finds it"),
    ):
        place = command(name, act, what).add_mutually_exclusive_group()
        place.add_argument("--user", action="store_true", help="for this user, in every environment's Jupyter")
        place.add_argument("--sys-prefix", action="store_true", help="for this environment's Jupyter only")
        place.add_argument("--prefix", metavar="P", help="in P/share/jupyter/kernels")
    return parser


if __name__ == "__main__":
    sys.exit(main())
