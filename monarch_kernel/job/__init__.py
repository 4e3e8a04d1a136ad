"""Jobs: a description of the hosts that a program wants, and how it gets them; `monarch.job` of PyTorch Monarch.

>>> from monarch_kernel.job import ProcessJob
>>> job = ProcessJob({"trainers": 2})
>>> state = job.state(cached_path=None)                         # doctest: +SKIP
>>> procs = state.trainers.spawn_procs(per_host={"gpus": 4})    # doctest: +SKIP
>>> job.kill()

A job starts worker loops where its hosts are, and attaches to them. The loops outlive the program: with a `cached_path`
the next run of it finds the job again. What runs on the hosts belongs to the program's session, as always.
"""

from ._command import BashActor, exec_command
from ._identity import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)
from ._local import BatchJob, LocalJob, hosts_from_config
from ._shell import shell
from ._state import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    job_load,
    job_loads,
    load_current_job,
    set_current_job,
)
from ._workers import LoginJob, ProcessJob, ProcessState

__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "BashActor",
    "BatchJob",
    "JobState",
    "JobTrait",
    "LocalJob",
    "LoginJob",
    "ProcessJob",
    "ProcessState",
    "deserialize_service_proc_ids",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "load_current_job",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
    "set_current_job",
    "shell",
]
