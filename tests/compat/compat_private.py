"""Where names live here that Monarch's docs and tests import from its private modules.

The keys are `module:name` of Monarch's own. `PRIVATE` has the objects of those that Monarch offers in no other way;
`ALIASES` the public name of those that it also has one for. Names that are missing here are left out: the shim then
says so when a test uses one.
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

_ACTOR = "monarch.actor"
_JOB = "monarch.job"
#: Monarch's private module, the public one that has the same names, and the names (`Here=There` where they differ).
_PUBLIC = [
    (f"{_RUST}.channel", _ACTOR, "ChannelTransport"),
    (f"{_RUST}.config", "monarch.config", "Encoding"),
    (f"{_RUST}.proc", _ACTOR, "ProcId Uid"),
    (f"{_RUST}.selection", "monarch", "Selection"),
    (f"{_RUST}.shape", _ACTOR, "Extent Shape Slice=NDSlice"),
    (f"{_RUST}.supervision", _ACTOR, "MeshFailure"),
    (f"{_RUST}.value_mesh", _ACTOR, "ValueMesh"),
    (
        "monarch._src.actor.actor_mesh",
        _ACTOR,
        "Actor ActorError Channel Context Port PortReceiver ValueMesh attach context current_rank shutdown_context",
    ),
    ("monarch._src.actor.bootstrap", _ACTOR, "attach_to_workers"),
    ("monarch._src.actor.concurrent", _ACTOR, "concurrent_endpoint"),
    ("monarch._src.actor.endpoint", _ACTOR, "endpoint"),
    ("monarch._src.actor.future", _ACTOR, "Future"),
    ("monarch._src.actor.host_mesh", _ACTOR, "HostMesh default_bootstrap_cmd this_host this_proc"),
    ("monarch._src.actor.proc_mesh", _ACTOR, "ProcMesh get_or_spawn_controller"),
    ("monarch._src.actor.returns_future", _ACTOR, "returns_future"),
    ("monarch._src.actor.shape", _ACTOR, "NDSlice Shape Slice=NDSlice"),
    ("monarch._src.job.job", _JOB, "JobTrait LocalJob MeshAdminConfig TelemetryConfig exec_command job_load job_loads"),
    ("monarch._src.job.process", _JOB, "ProcessJob"),
    (
        "monarch._src.job.service_identity",
        _JOB,
        "deserialize_service_proc_ids new_service_proc_id serialize_service_proc_ids service_proc_addr",
    ),
    ("monarch._src.job.slurm", _JOB, "SlurmJob"),
]
ALIASES = {
    f"{private}:{here}": f"{public}:{there or here}"
    for private, public, names in _PUBLIC
    for here, _, there in (name.partition("=") for name in names.split())
}
