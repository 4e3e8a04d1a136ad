"""What one daemon knows, and what of it outlives the daemon: registry, epoch and lease are blobs in the keeper."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from typing import Any

from monarch_kernel.protocol import dataplane
from monarch_kernel.protocol.keeper import KeeperClient
from monarch_kernel.protocol.links import new_id
from monarch_kernel.state.epoch import EpochGate
from monarch_kernel.state.lease import Lease
from monarch_kernel.state.ledger import Ledger
from monarch_kernel.state.registry import Registry
from monarch_kernel.state.spawn import Participant

FAULTS_KEPT = 200
_TICKS = os.sysconf("SC_CLK_TCK")


class Host:
    """The state of one host's daemon.

    Attributes
    ----------
    index
        This host's index in the session; 0 is the head.
    daemon
        A number made at each start of the daemon: by it others notice a restart.
    data_address
        Where procs of other hosts reach the registered memory of those here, as far as the hosts are known.
    faults
        What happened while nobody was attached, bounded; `faults_dropped` counts the rest.
    """

    def __init__(self, keeper: KeeperClient, config: dict[str, Any]) -> None:
        self.keeper = keeper
        self.config = config
        self.session: str = config["name"]
        self.sid: str = config["sid"]
        self.secret: str = config["secret"]
        self.index: int = config["host"]
        # What the session has grown by since its start is in the keeper; an empty one is a host that is not there.
        self.addresses: list[str] = json.loads(keeper.get("hosts") or b"null") or config["hosts"]
        self.data_address = dataplane.LOOPBACK
        self.rundir: str = config["rundir"]
        self.logs: str = config["logs"]
        self.daemon = new_id()
        hello = keeper.hello()
        self.incarnation: int = hello["incarnation"]
        self.keeper_pid: int = hello["pid"]
        self.events_seen: int = hello["n"]
        others = [h for h, there in enumerate(self.addresses) if there and h != self.index] if self.index == 0 else []
        self.gate = EpochGate.restore(keeper.get("epoch"), others)
        self.registry = Registry.from_blob(keeper.get("registry"), self.index)
        self.participant = Participant(self.registry)
        self.ledger = Ledger()
        self.private: bool = bool(config.get("private"))
        self.lease = Lease(config["lease"], config["max_detached"], time.monotonic())
        self._saved_lease = keeper.get("lease") or b""
        if self._saved_lease:
            self.lease.resume(json.loads(self._saved_lease), time.monotonic())
        self.faults: deque[dict[str, Any]] = deque(maxlen=FAULTS_KEPT)
        self.faults_dropped = 0
        self._saved = self.registry.revision
        self._saved_epoch = self.gate.persist()

    @property
    def head(self) -> bool:
        """Whether this is the head."""
        return self.index == 0

    def save(self) -> None:
        """Put what changed into the keeper. Before anything is answered that depends on it."""
        if self.registry.revision != self._saved:
            self.keeper.put("registry", self.registry.to_blob())
            self._saved = self.registry.revision
        if (epoch := self.gate.persist()) != self._saved_epoch:
            self.keeper.put("epoch", epoch)
            self._saved_epoch = epoch

    async def find_data_address(self) -> None:
        """Find `data_address`, anew when there are other hosts. Names are looked up, which may take a while."""
        if self.config.get("reached"):  # a host that is lent over TCP: as its worker loop is
            self.data_address = self.config["reached"]
            return
        look = asyncio.get_running_loop().run_in_executor
        self.data_address = await look(None, dataplane.address_towards, list(self.addresses))

    def save_hosts(self) -> None:
        """Put the addresses of the other hosts into the keeper."""
        self.keeper.put("hosts", json.dumps(self.addresses).encode())

    def save_lease(self) -> None:
        """Put the lease into the keeper when it changed: a restart of the daemon must not renew it."""
        lease = json.dumps(self.lease.to_dict()).encode()
        if lease != self._saved_lease:
            self.keeper.put("lease", lease)
            self._saved_lease = lease

    def fault(self, what: dict[str, Any]) -> None:
        """Keep something to tell at the next attach."""
        if len(self.faults) == FAULTS_KEPT:
            self.faults_dropped += 1
        self.faults.append(what)


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot: with its pid it names the process for good. None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def running(pid: int) -> tuple[str | None, float]:
    """The state letter of a process in ``/proc`` (None: it is gone), and the CPU seconds it has used so far."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None, 0.0


def signal_name(code: int) -> str:
    """How a process ended, in words: ``was killed by SIGKILL`` or ``exited with code 7``."""
    import signal

    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
