"""Actors on hosts that worker loops lend, and the loops themselves as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from monarch_kernel.actor import Actor, endpoint
from monarch_kernel.rdma import RDMABuffer

LOOP = """
import sys
from pathlib import Path
from monarch_kernel.actor import run_worker_loop_until_shutdown
ca = Path(sys.argv[2]) if len(sys.argv) > 2 else "trust_all_connections"
run_worker_loop_until_shutdown(address=sys.argv[1], ca=ca)
print("returned", flush=True)
"""

FOREVER = """
import sys, threading
from monarch_kernel.actor import start_worker_loop_forever
start_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
print("goes on", end="")  # flushed by nobody here
threading.Event().wait()
"""


class Place(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def folder(self) -> str:
        return os.getcwd()

    @endpoint
    def ask(self, others: Any) -> list[int]:
        return list(others.pid.call().get(timeout=20).values())

    @endpoint
    def lend(self, data: bytes) -> RDMABuffer:
        self.lent = data
        return RDMABuffer(memoryview(self.lent))

    @endpoint
    def read(self, buffer: RDMABuffer) -> bytes:
        here = bytearray(buffer.size())
        buffer.read_into(memoryview(here)).get(timeout=20)
        return bytes(here)

    @endpoint
    def spawn_there(self, hosts: Any) -> list[int]:
        places = hosts.spawn_procs().spawn("from_inside", Place)
        return list(places.pid.call().get(timeout=30).values())


def start_loop(
    address: str, *more: str, before: Sequence[str] = (), script: str = LOOP, **options: Any
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", script, address, *more], stdout=subprocess.PIPE, text=True, **options
    )
