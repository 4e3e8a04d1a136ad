"""Names of the services of hosts, and how launchers hand them on. Here an address is enough to find a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ..actor import ProcId, Uid

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
"""Where a launcher that sets one environment for many hosts puts the names of all of them, as JSON."""
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"
"""Which of them is meant."""


def new_service_proc_id() -> ProcId:
    """A fresh name for the service of a host.

    >>> new_service_proc_id().label
    'service'
    """
    return ProcId(Uid.instance("service"))


def serialize_service_proc_ids(proc_ids: Sequence[ProcId]) -> str:
    """Names as a text for an environment variable.

    >>> serialize_service_proc_ids([ProcId.from_string("service<2>")])
    '["service<2>"]'
    """
    return json.dumps([str(proc_id) for proc_id in proc_ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """And back; raises ValueError for what is none."""
    return [ProcId.from_string(proc_id) for proc_id in json.loads(serialized)]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """The address of a worker with the name of its service in front of it, where it has one.

    >>> service_proc_addr("tcp://gpu-7:4444", ProcId.from_string("service<2>"))
    'service<2>@tcp://gpu-7:4444'
    """
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], proc_ids: Sequence[ProcId] | None) -> list[str]:
    """The same for several; raises ValueError when there are not as many names as addresses."""
    if proc_ids is None:
        return list(addresses)
    if len(addresses) != len(proc_ids):
        raise ValueError(f"got {len(addresses)} worker addresses and {len(proc_ids)} service ProcIds")
    return [service_proc_addr(address, proc_id) for address, proc_id in zip(addresses, proc_ids, strict=True)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """The name that a launcher meant for this worker; None where it gave none."""
    serialized, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if serialized is None or rank is None:
        return None
    return deserialize_service_proc_ids(serialized)[int(rank)]
