"""The programming model: what `monarch.actor` is in PyTorch Monarch, over hosts whose workers outlive the notebook.

>>> from monarch_kernel.actor import Actor, endpoint, this_host
>>> class Greeter(Actor):
...     @endpoint
...     def greet(self, name: str) -> str:
...         return f"hello, {name}"
>>> greeters = this_host().spawn_procs(per_host={"gpus": 2}).spawn("greeters", Greeter)      # doctest: +SKIP
>>> greeters.greet.call("you").get().values()                                               # doctest: +SKIP
['hello, you', 'hello, you']

Processes come from a mesh of hosts, actors from a mesh of processes; each mesh has named dimensions and is sliced like
an array. An endpoint of a mesh is called with an adverb (`call`, `call_one`, `choose`, `stream`, `broadcast`) and
answers with a `Future`, to be waited for with ``.get()`` or ``await`` anywhere: in a script, a cell, another endpoint.
Without a session `this_host` starts one of its own; see `monarch_kernel.up` for one with a name.
"""

from ..errors import ActorError, SupervisionError
from . import config
from ._accumulator import Accumulator
from ._bootstrap import BootstrapCommand, default_bootstrap_cmd
from ._context import Context, Instance, context, current_actor_name, current_rank, current_size
from ._controllers import get_or_spawn_controller
from ._debug_controller import debug_controller
from ._endpoint import Actor, Endpoint, as_endpoint, concurrent_endpoint, endpoint, send
from ._future import Future
from ._hosts import HostMesh, shutdown_context, this_host
from ._ids import ProcId, Uid
from ._lent import attach_to_workers, run_worker_loop_forever, run_worker_loop_until_shutdown, start_worker_loop_forever
from ._meshes import ActorMesh, ProcMesh, this_proc
from ._mock import patch_actor
from ._ports import Channel, Port, PortReceiver
from ._reach import attach, enable_transport
from ._returns import returns_future
from ._shape import Extent, NDSlice, Point, Region, Shape
from ._supervision import MeshFailure, unhandled_fault_hook
from ._telemetry import get_meter, span, traced
from ._transport import ChannelTransport
from ._undeliverable import UndeliverableMessageEnvelope
from ._valuemesh import ValueMesh

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "Instance",
    "MeshFailure",
    "NDSlice",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "Region",
    "Shape",
    "SupervisionError",
    "Uid",
    "UndeliverableMessageEnvelope",
    "ValueMesh",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "debug_controller",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "patch_actor",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "shutdown_context",
    "span",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "traced",
    "unhandled_fault_hook",
]


def __dir__() -> list[str]:
    return sorted(__all__)
