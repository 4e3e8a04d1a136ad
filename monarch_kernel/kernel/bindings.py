"""The variables that hold meshes: sent to the hosts, so that the next kernel has them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_kernel.actor._meshes import Mesh, mesh_for
from monarch_kernel.actor._ndslice import NDSlice
from monarch_kernel.actor._region import Region
from monarch_kernel.kernel.cells import CellExecution, CellWatch
from monarch_kernel.session import Session, listen


class Bindings:
    """Sends the top-level variables that hold meshes (or slices of them) at the end of each cell and before a mesh is
    called for the first time; binds them again after an attach.
    """

    def __init__(self, ip: Any, cells: CellWatch) -> None:
        self._ip = ip
        self._cells = cells
        self._session: Session | None = None
        self._sent: dict[str, Any] = {}
        self._bound: list[str] = []
        self._unsaid = False
        self._unbound: dict[str, Any] = {}  # what an attach found and did not bind; the hosts keep it
        self._stop_listening: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Begin."""
        self._cells.add(self)
        self._stop_listening = listen(self._attached)

    def remove(self) -> None:
        """End."""
        self._stop_listening()
        self._cells.discard(self)
        if self._session is not None:
            self._session.controller.on_first_use = None
        self._session = None

    def _attached(self, session: Session) -> None:
        self._session = session
        self._sent = dict(session.bindings)
        self._bound = []
        self._unbound = dict(session.bindings)
        session.controller.on_first_use = self.send
        if session.bind and self.restore(session):
            self._unsaid = True

    def on_begin(self, execution: CellExecution) -> None:
        """Nothing."""

    def on_end(self, execution: CellExecution, ok: bool) -> None:
        """A cell ended: say once what an attach in it has bound, and send what changed."""
        if self._unsaid and self._bound:
            print(f"monarch: bound again: {', '.join(self._bound)}", flush=True)
        self._unsaid = False
        self.send()

    def send(self) -> None:
        """Send the variables, if they are others than before."""
        session = self._session
        if session is None or session.over is not None:
            return
        found = {
            name: _describe(value)
            for name, value in list(self._ip.user_ns.items())
            if isinstance(value, Mesh)
            and not name.startswith("_")
            and value._handle.runtime is session.controller
            and value._handle.record.name != "controller"
        }
        found = {**{name: kept for name, kept in self._unbound.items() if session.mesh(kept["mesh"])}, **found}
        if found != self._sent:
            self._sent = found
            session.tell_hosts({"variables": found})

    def restore(self, session: Session) -> list[str]:
        """Bind the variables again that held meshes of this session. A name that exists is never overwritten, unless it
        holds the same mesh from before this kernel was detached or taken over, which nothing can be done with any more.

        Returns
        -------
        list of str
            The names that this attach has bound, also when asked again. Whoever asks says them to the user.
        """
        self._unsaid = False
        namespace = self._ip.user_ns
        for name, binding in session.bindings.items():
            if name in namespace and not _left_over(namespace[name], binding, session):
                continue
            mesh = session.mesh(binding["mesh"])
            if mesh is not None:
                namespace[name] = mesh_for(mesh._handle, _region(binding["region"], mesh._handle.region))
                self._bound.append(name)
                self._unbound.pop(name, None)
        return list(self._bound)


def _left_over(value: Any, binding: dict[str, Any], session: Session) -> bool:
    if not isinstance(value, Mesh):
        return False
    return value._handle.id == binding["mesh"] and value._handle.runtime is not session.controller


def _describe(mesh: Mesh) -> dict[str, Any]:
    region = mesh._region
    return {
        "mesh": mesh._handle.id,
        "kind": mesh._handle.record.kind,
        "region": [list(region.labels), region.offset, list(region.sizes), list(region.strides)],
    }


def _region(data: list[Any], whole: Region) -> Region:
    labels, offset, sizes, strides = data
    region = Region(labels, NDSlice(offset=offset, sizes=sizes, strides=strides))
    return whole if region == whole else region
