"""What a spawn in a notebook means: the re-run policy, driven by the cells of one kernel.

`state.rerun` decides; here the cell, the caller's frame and the session's meshes are put before it, and its decision is
carried out. What a cell started it waits for before it ends, and its last line says what was kept and what was made.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from monarch_kernel.actor._future import Future
from monarch_kernel.actor._handle import Handle
from monarch_kernel.actor._meshes import Mesh, mesh_for
from monarch_kernel.actor._runtime import SpawnPlan
from monarch_kernel.kernel.barrier import Wait
from monarch_kernel.kernel.cells import CellExecution, CellWatch
from monarch_kernel.kernel.tracebacks import is_ours, of_frames
from monarch_kernel.magics.progress import Progress
from monarch_kernel.session import Session, listen
from monarch_kernel.state.names import assigned_name
from monarch_kernel.state.registry import Registry
from monarch_kernel.state.rerun import Adopt, Keep, LiveMesh, Replace, ReRunPolicy, StopThenNew


@dataclass(slots=True)
class _Started:
    """A spawn whose end is not known yet.

    Attributes
    ----------
    old
        The mesh that it is to replace.
    asked
        Where in the notebook it was asked for.
    awaited
        The running cell waits for it.
    """

    handle: Handle
    ready: Future[Any]
    old: int | None
    asked: TracebackType | None
    awaited: bool


class ReRuns:
    """Decides the spawns of one kernel.

    Attributes
    ----------
    policy
        ``reuse``, ``replace`` or ``new``; settable.
    """

    def __init__(self, ip: Any, cells: CellWatch, barrier: Any) -> None:
        self._ip = ip
        self._cells = cells
        self._barrier = barrier
        self._rules = ReRunPolicy()
        self._session: Session | None = None
        self._progress = Progress(ip)
        self._started: list[_Started] = []
        self._said_starting = ""
        self._ending: set[int] = set()  # replaced while they started, and stopped as soon as they are there
        self._keys: dict[str, Any] = {}
        self._notes: list[str] = []
        self._said = ""  # the error of a spawn that this cell has shown
        self._stop_listening: Callable[[], None] = lambda: None

    @property
    def policy(self) -> str:
        """The policy in force."""
        return self._rules.policy

    @policy.setter
    def policy(self, value: str) -> None:
        if value not in ("reuse", "replace", "new"):
            raise ValueError(f"the re-run policy is one of reuse, replace, new; got {value!r}")
        self._rules.policy = value  # type: ignore[assignment]

    # -- a part of the extension

    def install(self) -> None:
        """Take the spawns of this kernel over."""
        self._cells.add(self)
        self._barrier.add(self._pending)
        self._stop_listening = listen(self._attached)

    def remove(self) -> None:
        """Spawns mean again what they mean in a script."""
        self._stop_listening()
        self._cells.discard(self)
        self._barrier.discard(self._pending)
        if self._session is not None:
            self._session.controller.decide = None
        self._session = None

    def _attached(self, session: Session) -> None:
        self._session = session
        self._started.clear()
        session.controller.decide = self.spawn

    # -- cells

    def _live(self) -> list[LiveMesh]:
        if self._session is None or self._session.over is not None:
            return []
        return self._known(self._session.snapshot())

    def _known(self, registry: Registry) -> list[LiveMesh]:
        """What is live, and what is on its way: an interrupted cell that is run again finds what it started."""
        live = [record for record in registry.live() if record.id not in self._ending]
        known = {record.id: LiveMesh.of(record, registry.name_of(record.id)) for record in live}
        for started in self._started:
            known.setdefault(started.handle.id, LiveMesh.of(started.handle.record))
        return list(known.values())

    def on_begin(self, execution: CellExecution) -> None:
        """A cell begins: what library code made for it the last time is stopped."""
        self._notes.clear()
        self._said = ""
        self._settle()
        for started in self._started:  # by a cell that failed or was interrupted: this one does not wait for it
            started.awaited = False
        self._say_notes()
        if execution.notebook is None:
            return
        began = self._rules.begin_execution(execution.notebook, execution.cell_id, execution.source_hash, self._live())
        session = self._session
        if session is not None:
            for mesh in began.stop:
                handle = self._handle(mesh)
                if handle is not None:
                    stopped = session.controller.stop(handle, "its cell was run again")
                    if session.mesh(mesh) is not None:
                        stopped.get(30)

    def on_end(self, execution: CellExecution, ok: bool) -> None:
        """A cell ended: one line says what it kept and made, and what it no longer makes is marked."""
        self._settle()
        if execution.notebook is None:
            return
        ended = self._rules.end_execution(ok, self._live())
        session = self._session
        if ended.line:
            self._notes.insert(0, ended.line)
        names = ", ".join(started.handle.name for started in self._started)
        if names and names != self._said_starting:  # once, not under every cell until it is through
            self._notes.append(f"still starting, and not waited for: {names}")
        self._said_starting = names
        self._say_notes()
        if session is not None and session.over is None and (self._keys or ended.orphaned):
            session.tell_hosts({"keys": self._keys}, ended.orphaned)
            snapshot = session.snapshot()
            for mesh, key in self._keys.items():
                snapshot.rekey(int(mesh), key)
            snapshot.orphan(ended.orphaned)
        self._keys = {}

    def _say_notes(self) -> None:
        if self._notes:
            print("\n".join(f"monarch: {note}" for note in self._notes), flush=True)
        self._notes.clear()

    # -- waiting

    def _pending(self) -> Iterable[Wait]:
        return [self._wait(started) for started in self._started if started.awaited]

    def _wait(self, started: _Started) -> Wait:
        def wait(seconds: float) -> bool:
            ready = started.ready
            if not ready._block(time.monotonic() + seconds):
                doing = "constructing" if started.handle.record.kind == "actors" else "starting"
                words = f"{doing} {started.handle.name}"
                self._progress.run(words, lambda: ready._block(None))
            error = self._over(started)
            if error is not None:
                self._said = str(error)
                raise error.with_traceback(started.asked) from None
            return True

        return wait

    def _settle(self) -> None:
        """See what has become of what nobody waited for."""
        for started in [started for started in self._started if started.ready.done()]:
            error = self._over(started)
            lost = self._session is None or self._session.over is not None
            if error is not None and str(error) != self._said and not lost:
                self._said = str(error)
                print(f"monarch: {error}", file=sys.stderr, flush=True)

    def _over(self, started: _Started) -> BaseException | None:
        """A spawn is over; returns why it failed."""
        self._started.remove(started)
        error = started.ready.exception()
        if error is not None:
            self._rules.failed(started.handle.id)
            if started.old is not None:
                self._put_back(started.handle, started.old)
        elif (late := self._on_its_way(started.old)) is not None:
            # The hosts cannot stop yet what it has replaced, and stop it once it is there.
            self._started.remove(late)
            self._ending.add(late.handle.id)
            late.handle.runtime.stop(late.handle, f"replaced by {started.handle.name}")
        return error

    def _put_back(self, failed: Handle, old: int) -> None:
        """A replacement failed: variables that were to hold it hold the old mesh, which lives on."""
        handle = self._handle(old)
        if handle is None:
            return
        mesh = mesh_for(handle)
        names = [n for n, v in self._ip.user_ns.items() if isinstance(v, Mesh) and v._handle is failed]
        for name in names:
            self._ip.user_ns[name] = mesh
        holds = f"; the variable {', '.join(names)} holds it again" if names else ""
        self._notes.append(f"the {handle.name} from before is as it was{holds}")

    def _handle(self, mesh: int) -> Handle | None:
        """The handle of a mesh that is live or on its way."""
        found = self._session.mesh(mesh) if self._session is not None else None
        if found is not None:
            return found._handle
        late = self._on_its_way(mesh)
        return late.handle if late is not None else None

    def _on_its_way(self, mesh: int | None) -> _Started | None:
        return next((started for started in self._started if started.handle.id == mesh), None)

    # -- spawns

    def spawn(self, plan: SpawnPlan) -> Handle:
        """A spawn of this kernel: keep, adopt, replace or make."""
        session = self._session
        assert session is not None
        record = plan.record
        frame = _caller()
        execution = self._cells.current
        if execution is None or execution.notebook is None:
            return session.controller.start(plan)
        here = frame is not None and frame.f_globals is self._ip.user_global_ns
        name = record.name or (_variable(frame, self._timed(execution)) if here and frame is not None else None)
        self._settle()
        live = self._known(session.refresh())
        decision = self._rules.spawn_request(
            name,
            record.kind,
            live=live,
            placement=_digest(record.labels, record.sizes, record.hosts, record.procs, record.proc_ranks),
            spec=_digest(
                record.spec.get("per_host"),
                record.spec.get("exclusive"),
                *([record.spec["how"]] if "how" in record.spec else []),
            ),
            fingerprint=record.fingerprint,
            args=plan.digest() if record.kind == "actors" else "",
            from_library=not here,
        )
        if isinstance(decision, Keep | Adopt):
            return self._keep(session, decision)
        record.name = name or ""
        record.key = decision.key.to_dict()
        old = decision.mesh if isinstance(decision, Replace | StopThenNew) else None
        if old is not None:
            plan.replaces = [mesh for mesh in (*decision.stops, old) if self._on_its_way(mesh) is None]  # type: ignore[union-attr]
            if decision.stops:  # type: ignore[union-attr]
                print(f"monarch: {name or 'procs'} is replaced: {decision.note}", flush=True)
        asked = None
        if frame is not None:
            asked = of_frames(frame, _cell_of(frame, self._ip.user_global_ns))
        handle = session.controller.start(plan)
        self._rules.spawned(record.id, decision, name=name or "procs", size=record.size)
        assert handle.ready is not None
        self._started.append(_Started(handle, handle.ready, old, asked, bool(plan.options.get("wait", True))))
        return handle

    def _timed(self, execution: CellExecution) -> Iterator[str]:
        """What ``%%time`` and ``%time`` compile; they keep no source of it."""
        first, _, rest = execution.source.partition("\n")
        if first.startswith("%%"):
            yield self._ip.transform_cell(rest)
        for line in execution.source.splitlines():
            magic, _, statement = line.strip().partition(" ")
            if magic in ("%time", "%prun"):
                yield self._ip.transform_cell(statement)

    def _keep(self, session: Session, decision: Keep | Adopt) -> Handle:
        self._keys[str(decision.mesh)] = decision.key.to_dict()
        handle = self._handle(decision.mesh)
        assert handle is not None
        record = handle.record
        late = self._on_its_way(decision.mesh)
        if late is not None:
            late.awaited = True
        known = session.snapshot().get(decision.mesh)
        bad = (
            [str(rank) for rank, held in sorted(known.ranks.items()) if held.state in ("dead", "failed", "lost")]
            if known
            else []
        )
        if bad:
            ranks = ",".join(bad)
            self._notes.append(
                f"{record.name}: rank {ranks} is not alive; bring it back with %monarch restart {record.name}[{ranks}]"
            )
        return handle


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _caller() -> FrameType | None:
    """The frame that asked: the first that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return frame


def _cell_of(frame: FrameType, namespace: dict[str, Any]) -> FrameType:
    """The frame of the cell's own lines below which this one runs; itself when there is none."""
    above: FrameType | None = frame
    while above is not None:
        if above.f_globals is namespace and above.f_code.co_name == "<module>":
            return above
        above = above.f_back
    return frame


def _variable(frame: FrameType, otherwise: Iterable[str]) -> str | None:
    """The variable that the call running in this frame is assigned to."""
    positions = list(frame.f_code.co_positions())
    index = frame.f_lasti // 2
    if index >= len(positions):
        return None
    _, end_line, _, end_column = positions[index]
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    for text in [source] if source else otherwise:
        if end_line is None or end_column is None:
            name = assigned_name(text, line=frame.f_lineno)
        else:
            name = assigned_name(text, end=(end_line, end_column))
        if name is not None:
            return name
    return None


__all__ = ["ReRuns"]
