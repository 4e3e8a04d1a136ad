"""Where Monarch's semi-public names live here, for `MONARCH_COMPAT_PRIVATE`: its docs and tests import them privately.

The keys are Monarch's own module paths. Names that are missing here are left out: the shim then says so when a test
uses one.
"""

import importlib

_RUST = "monarch._rust_bindings.monarch_hyperactor"
_HERE = {
    f"{_RUST}.supervision:SupervisionError": "monarch_kernel.actor:SupervisionError",
    f"{_RUST}.shape:Point": "monarch_kernel.actor:Point",
    f"{_RUST}.shape:Region": "monarch_kernel.actor:Region",
    f"{_RUST}.host_mesh:BootstrapCommand": "monarch_kernel.actor._bootstrap:BootstrapCommand",
    f"{_RUST}.handle:WouldBlockRuntime": "monarch_kernel.errors:WouldBlockRuntime",
    "monarch._rust_bindings.rdma:RdmaInitError": "monarch_kernel.errors:RdmaInitError",
    f"{_RUST}.proc:ActorAddr": "monarch_kernel.actor._ids:ActorAddr",
    f"{_RUST}.mailbox:UndeliverableMessageEnvelope": "monarch_kernel.actor:UndeliverableMessageEnvelope",
    f"{_RUST}.channel:BindSpec": "monarch_kernel.actor._transport:BindSpec",
    f"{_RUST}.channel:ChannelTransport": "monarch_kernel.actor._transport:ChannelTransport",
    "monarch._src.actor.actor_mesh:ActorMesh": "monarch_kernel.actor:ActorMesh",
    "monarch._src.actor.shape:MeshTrait": "monarch_kernel.actor._shape:MeshTrait",
    "monarch._src.actor.shape:ShapeExt": "monarch_kernel.actor._shape:ShapeExt",
    "monarch._src.actor.sync_state:fake_sync_state": "monarch_kernel.actor._returns:fake_sync_state",
    "monarch._src.actor.sync_state:in_fake_sync_state": "monarch_kernel.actor._returns:in_fake_sync_state",
    "monarch._src.actor.mock:patch_actor": "monarch_kernel.actor._mock:patch_actor",
    "monarch._src.job.job:JobState": "monarch_kernel.job:JobState",
    "monarch._src.job.job:BatchJob": "monarch_kernel.job:BatchJob",
    "monarch._src.job.job:LoginJob": "monarch_kernel.job:LoginJob",
    "monarch._src.job.job:ProcessState": "monarch_kernel.job:ProcessState",
    "monarch._src.job.job:BashActor": "monarch_kernel.job:BashActor",
}


def _find(where: str) -> object | None:
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


PRIVATE = {key: found for key, where in _HERE.items() if (found := _find(where)) is not None}
