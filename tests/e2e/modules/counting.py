"""Actors that count what they do: in memory, and in a file that has one line for each time that something ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from monarch_kernel.actor import Actor, context, endpoint


def rank() -> int:
    """Of the running actor, in its whole mesh."""
    return context().actor_instance.rank.rank


class Counter(Actor):
    def __init__(self, start: int = 0, ready: str = "") -> None:
        if ready:
            Path(f"{ready}.{rank()}").touch()
        while ready and not os.path.exists(ready):
            time.sleep(0.01)
        self.n = start

    @endpoint
    def add(self, by: int = 1) -> int:
        self.n += by
        return self.n

    @endpoint
    def value(self) -> int:
        return self.n

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def held(self, go: str, ran: str, word: str) -> str:
        """Say in the file `ran` that it runs, and end once the file `go` is there."""
        with open(ran, "a") as file:
            file.write(f"{word}.{rank()}\n")
        while not os.path.exists(go):
            time.sleep(0.01)
        self.n += 100
        return f"{word} done by {rank()}"

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def drive(self, other: Counter, calls: int) -> list[int]:
        """Call another mesh many times from here, without waiting in between."""
        return [future.get() for future in [other.add.call_one(1) for _ in range(calls)]]

    @endpoint
    def end(self, with_signal: int = signal.SIGKILL) -> None:
        os.kill(os.getpid(), with_signal)

    @endpoint
    def litter(self, folder: str) -> None:
        """Leave processes that have left our group, our session, and us as their parent."""
        for number in range(2):
            subprocess.run([sys.executable, "-c", ORPHAN, str(Path(folder) / f"{number}.{rank()}")], check=True)


ORPHAN = """
import os, sys, signal, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.setpgid(0, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
