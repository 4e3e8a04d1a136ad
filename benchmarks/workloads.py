"""The work every peer does, and the program that does it once: ``python workloads.py PEER`` prints one line of JSON.

A peer is a module of `peers` with an `Echo` actor whose endpoint returns its small argument. It is imported by name,
not defined here, because this file is ``__main__`` and a peer may pickle classes of ``__main__`` by value.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RANKS = 8


@dataclass(frozen=True)
class Work:
    """One line of the table: `measure` takes the actor mesh of 8 ranks and a factor for the amount of work."""

    key: str
    title: str
    unit: str
    better: str  # "less" for a time, "more" for a rate
    measure: Callable[[Any, float], float] | None  # None: measured on the way to the others


def timed(call: Callable[[int], Any], count: int, warm: int) -> float:
    """Median of the seconds that one call takes, its answer awaited."""
    for number in range(warm):
        call(number)
    took = []
    for number in range(count):
        start = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def lone_call(mesh: Any, scale: float) -> float:
    echo = mesh.slice(gpus=0).echo
    return 1e3 * timed(lambda number: echo.call_one(number).get(), int(1000 * scale), int(100 * scale))


def gather(mesh: Any, scale: float) -> float:
    return 1e3 * timed(lambda number: mesh.echo.call(number).get(), int(400 * scale), int(50 * scale))


def rate(send: Callable[[int], Any], count: int, messages_each: int, check: Callable[[int, Any], bool]) -> float:
    """Actor-messages a second with `count` calls in flight: all are sent, then all answers are taken. Median of 3."""
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        futures = [send(number) for number in range(count)]
        answers = [future.get() for future in futures]
        rates.append(count * messages_each / (time.perf_counter() - start))
        if not all(check(number, answer) for number, answer in enumerate(answers)):
            raise RuntimeError("an answer belongs to another call")
    return statistics.median(rates)


def pipelined_calls(mesh: Any, scale: float) -> float:
    echo = mesh.slice(gpus=0).echo
    return rate(echo.call_one, int(5000 * scale), 1, lambda number, answer: answer == number)


def pipelined_broadcasts(mesh: Any, scale: float) -> float:
    def all_equal(number: int, answer: Any) -> bool:
        return list(answer.values()) == [number] * RANKS

    return rate(mesh.echo.call, int(2000 * scale), RANKS, all_equal)


WORK = (
    Work("call", "call one actor, wait, p50", "ms", "less", lone_call),
    Work("gather", f"call {RANKS} actors, gather, p50", "ms", "less", gather),
    Work("calls", "calls to one actor, 5,000 in flight", "calls/s", "more", pipelined_calls),
    Work("broadcasts", f"calls to {RANKS} actors, 2,000 in flight", "actor-messages/s", "more", pipelined_broadcasts),
    Work("start", f"start of {RANKS} processes with an actor, first answers in", "s", "less", None),
)


def run(peer: Any, keys: list[str], scale: float) -> dict[str, float]:
    """All the work named, on one mesh."""
    start = time.perf_counter()
    procs = peer.this_host().spawn_procs(per_host={"gpus": RANKS})
    mesh = procs.spawn("echo", peer.Echo)
    mesh.echo.call(0).get()
    found = {"start": time.perf_counter() - start}
    for work in WORK:
        if work.measure is not None and work.key in keys:
            found[work.key] = work.measure(mesh, scale)
    procs.stop().get()
    return {key: value for key, value in found.items() if key in keys}


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "from a source tree"


def main() -> None:
    parser = argparse.ArgumentParser(description="Do the work of the benchmark once, with one peer.")
    parser.add_argument("peer", help="a module of benchmarks/peers, or any importable one like it")
    parser.add_argument("--work", default=",".join(work.key for work in WORK), help="keys, with commas between")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the amount of work")
    options = parser.parse_args()
    begun = time.perf_counter()
    try:
        peer = importlib.import_module(f"peers.{options.peer}" if "." not in options.peer else options.peer)
    except ModuleNotFoundError as error:
        sys.exit(f"{options.peer} cannot be imported by {sys.executable}: {error}")
    imported = time.perf_counter() - begun
    report = {
        "peer": peer.NAME,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in peer.PACKAGES},
        "import_s": imported,
        "values": run(peer, options.work.split(","), options.scale),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
