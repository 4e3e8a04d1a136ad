"""How fast 256 MiB are read from another process, beside a copy in this one: ``python benchmarks/rdma.py``.

Rounds alternate, so that whatever else the machine does falls on both. Printed are medians; nothing passes or fails.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

SIZE = 256 << 20
ROUNDS = 7


def rate(work: Callable[[], object]) -> float:
    """GiB/s."""
    began = time.perf_counter()
    work()
    return SIZE / (1 << 30) / (time.perf_counter() - began)


def main() -> None:
    from peers.memory import Owner

    import monarch_kernel as mk

    warnings.simplefilter("ignore")
    session = mk.up(f"bench-rdma-{os.getpid()}", hosts=1)
    try:
        owner = session.hosts.spawn_procs(per_host={"gpus": 1}).spawn("owner", Owner)
        buffer = owner.make.call_one(SIZE).get(60)
        into, source = bytearray(SIZE), bytearray(b"\1" * SIZE)
        work = {
            "memcpy": lambda: into.__setitem__(slice(None), source),
            "read_into": lambda: buffer.read_into(into).get(60),
            "write_from": lambda: buffer.write_from(into).get(60),
        }
        found: dict[str, list[float]] = {name: [] for name in work}
        for turn in range(ROUNDS + 1):
            for name, what in work.items():
                value = rate(what)
                if turn:  # the first one touches the pages
                    found[name].append(value)
        base = statistics.median(found["memcpy"])
        for name, values in found.items():
            middle = statistics.median(values)
            print(f"{name:>10}  {middle:6.2f} GiB/s  {middle / base:5.2f} x memcpy  ({ROUNDS} rounds)")
    finally:
        session.release()


if __name__ == "__main__":
    main()
