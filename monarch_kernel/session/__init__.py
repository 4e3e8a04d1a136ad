"""Sessions from the controller's side: `up`, `attach`, `session`, `sessions`, `down`, `hosts`."""

from __future__ import annotations

import asyncio
import atexit
import secrets
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..actor._future import Future, in_thread, resolved
from ..actor._provider import known_runtime, set_runtime
from ..errors import (
    AlreadyAttached,
    ControllerPresent,
    NoSuchSession,
    NotAttached,
    SessionError,
    SpecMismatch,
    TakenOver,
)
from ..launch import Launcher, LaunchSpec, LocalLauncher, ReleaseReport
from ..protocol import statefile
from ..state.lease import format_duration, parse_duration
from ._controller import Identity
from ._session import Session

if TYPE_CHECKING:
    from ..actor import HostMesh
    from ..launch.lending import WorkerLoop
    from ..protocol.workers import WorkerAddress

LEASE = 2 * 3600.0
MAX_DETACHED = 7 * 86400.0
PRIVATE_LEASE = 600.0
MOST_HOSTS = 64
"""Hosts that the local launcher makes of one machine: each costs two processes before anything runs on it."""

_current: Session | None = None
_listeners: list[Callable[[Session], None]] = []
_lock = threading.RLock()

__all__ = ["Identity", "Session", "attach", "down", "hosts", "session", "sessions", "up"]


def launcher_for(name: str) -> Launcher:
    """The launcher of this name."""
    if name != "local":
        raise SessionError(f"this version has no launcher {name!r}; it has: local")
    return LocalLauncher()


def up(
    name: str,
    hosts: int | None = None,
    gpus: int | None = None,
    lease: float | str | None = None,
    max_detached: float | str | None = None,
    fresh: bool = False,
    takeover: bool = False,
) -> Session:
    """Bring a session up and attach to it; a live one of that name and spec is attached to.

    May be said any number of times. The session goes on when this process ends; `Session.release` or its lease ends it.

    Parameters
    ----------
    name
        Its name: letters, digits, ``-`` and ``_``.
    hosts
        How many hosts; 1 for a new session.
    gpus
        Devices a host; None divides what the machine has evenly. Without a driver they are CPU slots.
    lease
        Seconds, or a text like ``2h``: how long the session lives with nobody attached and nothing running (2 hours).
    max_detached
        The same for nobody attached, whatever runs (7 days).
    fresh
        Release a live session of that name first.
    takeover
        Attach even where another controller is connected. That one is told, and its calls fail with that reason.

    Returns
    -------
    Session
        Attached. A session of the options that were given, or of those that the live one has.

    Raises
    ------
    ValueError
        The name, a number or a duration is none; says what would be one.
    SpecMismatch
        A live session of that name has another spec; names the differences. Only options given are compared.
    ControllerPresent
        Another controller is connected to it.
    AlreadyAttached
        This process is attached to another session.
    NotEnoughSlots, LaunchError
        It could not be started.

    Examples
    --------
    >>> import monarch_kernel as mk
    >>> session = mk.up("lab", hosts=2, lease="2h")      # doctest: +SKIP
    """
    statefile.valid_name(name)
    if hosts is not None and (not isinstance(hosts, int) or hosts < 1):
        raise ValueError(f"hosts must be a whole number, 1 or more; got {hosts!r}")
    if hosts is not None and hosts > MOST_HOSTS:
        raise ValueError(f"this machine can be at most {MOST_HOSTS} hosts; got {hosts}")
    if gpus is not None and (not isinstance(gpus, int) or gpus < 0):
        raise ValueError(f"gpus must be a whole number, 0 or more; got {gpus!r}")
    lease_s = None if lease is None else parse_duration(lease)
    max_s = None if max_detached is None else parse_duration(max_detached)
    with _lock:
        _make_room(name)
        file = _live(name)
        if file is not None and fresh:
            if _current is not None and _current.name == name:
                _current.detach()
            end(file, "replaced by a fresh start")
            file = None
        if file is not None:
            differences = [
                f"{what}: asked {asked}, it has {has}"
                for what, asked, has in (("hosts", hosts, file.hosts), ("gpus", gpus, file.gpus))
                if asked is not None and asked != has
            ]
            if differences:
                raise SpecMismatch(
                    f"session {name!r} is live with another spec ({'; '.join(differences)}). Leave the option out to "
                    f"attach to it as it is, or start anew with fresh=True (--fresh), which ends everything in it"
                )
            found = _attach(file, takeover)
            if lease_s is not None or max_s is not None:
                found.revise(lease_s, max_s)
            return found
        spec = LaunchSpec(
            name=name,
            hosts=hosts or 1,
            gpus=gpus,
            lease=LEASE if lease_s is None else lease_s,
            max_detached=MAX_DETACHED if max_s is None else max_s,
            sid=secrets.token_hex(8),
        )
        file = LocalLauncher().launch(spec)
        if file.sid != spec.sid:  # somebody else was quicker: it is theirs, and may have another spec
            return up(name, hosts, gpus, lease, max_detached, takeover=takeover)
        try:
            return _attach(file, takeover)
        except (ControllerPresent, TakenOver):  # and is in use already
            raise
        except BaseException:  # an interrupt too: what nobody got is not left behind
            launcher_for(file.launcher).release(file, "its start was given up")
            raise


def attach(name: str | None = None, *, takeover: bool = False, bind: bool = True) -> Session:
    """Take control of a live session: its meshes, names and supervision, as they are.

    Parameters
    ----------
    name
        Its name; may be left out when exactly one is live.
    takeover
        Needed only where another controller is connected and alive. That one is told.
    bind
        In a notebook, bind the variables again that held meshes. A name that exists is never overwritten.

    Returns
    -------
    Session
        With `Session.procs` and `Session.actors` by name, and in `Session.calls` what the controller before left.

    Raises
    ------
    NoSuchSession
        None of that name is live; says how it ended, and which are. Without a name: not exactly one is.
    ControllerPresent
        Another controller is connected and alive; says who.
    AlreadyAttached
        This process is attached to another session.
    VersionSkew
        The session runs another Python minor version, or another version of this package's protocol.

    Examples
    --------
    >>> session = mk.attach("lab")                           # doctest: +SKIP
    >>> session.actors["trainers"].step.call().get()         # doctest: +SKIP
    >>> session.calls[-1].result()                           # doctest: +SKIP
    """
    with _lock:
        if name is None:
            live = [file for file in statefile.load_all() if statefile.here(file).state == "live"]
            named = [file for file in live if not file.name.startswith("local-")] or live
            if len(named) != 1:
                raise NoSuchSession(f"name the session to attach to. {_what_exists()}")
            name = named[0].name
        statefile.valid_name(name)
        file = _live(name)
        if file is None:
            raise NoSuchSession(f"no live session {name!r}{_how_it_ended(name)}. {_what_exists()}")
        _make_room(name)
        return _attach(file, takeover, bind=bind)


def session() -> Session:
    """The session that this process is attached to; where there is none, `NotAttached` says which are live."""
    if _current is None:
        raise NotAttached(f"this process is attached to no session. {_what_exists()}")
    return _current


def sessions() -> list[tuple[statefile.SessionFile, statefile.Standing]]:
    """Every session of this user that has a state file, and whether it is live, dead or on another machine.

    Asks each keeper of this machine, which takes up to two seconds for one that does not answer. Changes nothing.
    """
    return [(file, statefile.here(file)) for file in statefile.load_all()]


def down(name: str) -> ReleaseReport:
    """Release a session by name, and wait until all of it is gone; works too where its daemons are dead or stopped.

    Returns
    -------
    ReleaseReport
        How many processes ended, whether a host had to be forced, and how long it took.

    Raises
    ------
    NoSuchSession
        There is none, live or dead.
    SessionError
        Something of it could not be ended; names what is left.
    """
    statefile.valid_name(name)
    with _lock:
        if _current is not None and _current.name == name and _current.over is None:
            return _current.release()
        file = statefile.load(name)
        if file is None:
            raise NoSuchSession(f"no session {name!r}{_how_it_ended(name)}. {_what_exists()}")
        return end(file, "released by name")


def hosts() -> HostMesh:
    """All hosts of the attached session, dimension ``hosts``; `NotAttached` where there is none."""
    return session().hosts


class _Face(types.ModuleType):
    """This package is also the function of its name: ``mk.session()`` must work once ``mk.session`` is imported."""

    def __call__(self) -> Session:
        return session()


sys.modules[__name__].__class__ = _Face


# -- inside


def start_private() -> Session:
    """A session of this process's own, for `this_host()` without `up`.

    In a script it is released when the script ends; in a kernel it is kept, with a lease of 10 minutes.
    """
    with _lock:
        if known_runtime() is not None and _current is not None:
            return _current
        _sweep()
        kernel = Identity.kind == "kernel"
        lease = PRIVATE_LEASE if kernel else 0.0
        spec = LaunchSpec(
            name=f"local-{secrets.token_hex(4)}",
            lease=lease,
            max_detached=MAX_DETACHED if kernel else 0.0,
            private=True,
        )
        return _attach(LocalLauncher().launch(spec), takeover=False, private=True)


class Growing:
    """What `attach_to_workers` asks of the session that this process has or, where it has none, starts."""

    def __init__(self, grown: Session) -> None:
        self._session = grown
        self.runtime = grown.controller
        self.reserve = grown.growth.reserve
        self.attach = grown.growth.attach

    async def give_back(self, hosts: Sequence[int], *, shut_down: bool) -> None:
        """Stop what runs on these hosts, and give them back; with `shut_down` end their worker loops, too."""
        if self._session.over is None:  # else they went with it
            await asyncio.to_thread(self._session.give_back, hosts, shut_down=shut_down)


def growing() -> Growing:
    """The session of this process, for `attach_to_workers`."""
    return Growing(_current if _current is not None and _current.over is None else start_private())


def start_through(worker: WorkerAddress) -> None:
    """A private session that keeps a connection to a worker loop, for `monarch_kernel.actor.attach`."""
    with _lock:
        if _current is not None and _current.over is None:
            through = _current.growth.through
            if through == str(worker):
                return
            if through:
                raise SessionError(
                    f"client is already attached through {through}, not {worker}: use a new process for another"
                )
            raise SessionError(
                f"client was initialized without a remote attachment (it has session {_current.name!r}); call attach() "
                "before anything that starts a session"
            )
        if known_runtime() is not None:
            raise SessionError("an actor's process is reached by its host; attach() is for the client")
        started = start_private()
        try:
            started.growth.hold(worker)
        except BaseException:
            started.release()
            raise


def worker_loop(address: WorkerAddress, secret: bytes) -> WorkerLoop:
    """A worker loop, for `run_worker_loop_forever`."""
    from ..launch.lending import WorkerLoop

    return WorkerLoop(address, secret)


def _sweep() -> None:
    """Nobody will look for a private session that has ended: forget those that left their file behind."""
    for file in statefile.load_all():
        if file.name.startswith("local-") and statefile.here(file).state == "dead":
            statefile.remove(file.name)
            statefile.clear_tombstone(file.name)


def _attach(file: statefile.SessionFile, takeover: bool, *, private: bool = False, bind: bool = True) -> Session:
    global _current
    if _current is not None and _current.over is None and _current.file.sid == file.sid:
        return _current
    made = Session(file, private=private)
    made.bind = bind
    made._attach(takeover)
    _current = made
    for listener in _listeners:
        listener(made)
    return made


def listen(listener: Callable[[Session], None]) -> Callable[[], None]:
    """Call `listener` with each session that this process attaches to, now and later; returns how to stop."""
    _listeners.append(listener)
    if _current is not None and _current.over is None:
        listener(_current)
    return lambda: _listeners.remove(listener) if listener in _listeners else None


def _make_room(name: str) -> None:
    """A private session gives way; another named one must be left on purpose."""
    if _current is None or _current.name == name:
        return
    if _current.over is not None:
        forget(_current)
    elif _current.private:
        _current.release()
    else:
        raise AlreadyAttached(
            f"this process is attached to session {_current.name!r}; leave it first (%monarch detach, or "
            "monarch_kernel.session().detach()): it goes on without you"
        )


def end(file: statefile.SessionFile, reason: str, timeout: float = 30.0) -> ReleaseReport:
    """Release what a state file names."""
    report = launcher_for(file.launcher).release(file, reason, timeout)
    if not report.gone:
        raise SessionError(
            f"session {file.name!r} was released, but processes {', '.join(map(str, report.left))} could not be ended; "
            "they may hang in the kernel (state D): look with ps"
        )
    return report


def end_context(timeout: float | None) -> Future[None]:
    """`shutdown_context`: a private session is released, a named one left to go on."""
    with _lock:
        ended = _current
        if ended is None or ended.over is not None or ended.ending:
            return resolved(None)
        ended.ending = True

    def work() -> None:
        if ended.private:
            ended.release(30.0 if timeout is None else timeout)
        else:
            ended.detach()

    return in_thread(work, "monarch-end-context")


def forget(ended: Session) -> None:
    """The session is not this process's any more."""
    global _current
    with _lock:
        if _current is ended:
            _current = None
            if known_runtime() is ended.controller:
                set_runtime(None)


def _live(name: str) -> statefile.SessionFile | None:
    file = statefile.load(name)
    if file is None:
        return None
    standing = statefile.here(file)
    if standing.state == "elsewhere":
        raise SessionError(
            f"session {name!r} was started on host {standing.hostname}; attach to it there, or take another name here"
        )
    return file if standing.state == "live" else None


def _what_exists() -> str:
    live = [file.name for file, standing in sessions() if standing.state == "live"]
    if not live:
        return "No session is live; start one: %monarch up NAME (in Python: monarch_kernel.up(NAME))."
    return f"Live sessions: {', '.join(live)}. To take one: %monarch attach {live[0]} (or monarch_kernel.attach)."


def _how_it_ended(name: str) -> str:
    stone = statefile.tombstone(name)
    return f" (it ended: {stone.reason})" if stone is not None else ""


@atexit.register
def _at_exit() -> None:
    """A script's private session ends with it; a named one is left as it is. A kernel's exit frees nothing."""
    ended = _current
    if ended is None or ended.over is not None or Identity.kind == "kernel":
        return
    try:
        if ended.private:
            ended.release()
        else:
            ended.detach()
    except Exception:  # the process is ending; the lease does what this could not
        pass


def describe_lease(file: statefile.SessionFile) -> str:
    """The times of a session in words."""
    return f"lease {format_duration(file.lease)}, max-detached {format_duration(file.max_detached)}"
