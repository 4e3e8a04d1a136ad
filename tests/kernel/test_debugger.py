"""``breakpoint()`` in a cell's actor, and pdb's prompt below another cell, in a real kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

SETUP = """
import monarch_kernel as mk
from monarch_kernel.actor import Actor, endpoint
class Trainer(Actor):
    @endpoint
    def step(self, number):
        breakpoint()
        number += 1
        number *= 2
        return number
    @endpoint
    def slow(self, path):
        import os, time
        breakpoint()
        while not os.path.exists(path):
            time.sleep(0.02)
        return "seen"
session = mk.up("debugged", hosts=2)
trainers = mk.hosts().spawn_procs(per_host={"gpus": 1}).spawn("trainers", Trainer)
def waiting(number):
    import time
    until = time.monotonic() + 15
    while len([one for one in session.debugger.standing() if one.prompt]) != number:
        assert time.monotonic() < until
        time.sleep(0.02)
"""


class Typed:
    """Cells of one kernel that may ask for input, and what a person answers."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def run(self, code: str, lines: tuple[str, ...] = ()) -> str:
        """Run a cell; the lines answer its prompts, and all of them must be asked for."""
        left = list(lines)
        told: list[dict[str, Any]] = []
        client = self.kernel.client

        def asked(message: dict[str, Any]) -> None:
            assert message["content"]["prompt"] == "(Pdb) "
            client.input(left.pop(0))

        reply = client.execute_interactive(
            code, allow_stdin=bool(lines), stdin_hook=asked if lines else None, output_hook=told.append, timeout=40
        )["content"]
        assert left == []
        text = ""
        for message in told:
            content = message["content"]
            text += content.get("text", "") + content.get("data", {}).get("text/plain", "")
        if reply["status"] != "ok":
            text += f"{reply['ename']}: {reply['evalue']}"
        return text


@pytest.fixture(scope="module")
def typed(monarch: Any) -> Iterator[Typed]:
    made = Typed(monarch)
    assert "Error" not in made.run(SETUP)
    yield made
    made.run("session.release()")


def test_a_cell_that_waits_says_at_once_that_a_rank_stands_at_a_breakpoint(typed: Typed) -> None:
    reply = typed.kernel.run("trainers.slice(hosts=0).step.call_one(1).get(timeout=3)")
    assert reply.ename == "TimeoutError"
    assert re.search(
        r"monarch: \[[\d:]+\] rank 0 of trainers stands at a breakpoint, \S+:\d+ in Trainer.step: %monarch debug",
        reply.stderr,
    )
    typed.run("%monarch debug continue")


def test_the_ranks_are_listed_and_show_in_the_status(typed: Typed) -> None:
    typed.run("called = trainers.step.call(1); waiting(2)")
    listed = typed.run("%monarch debug")
    assert "2 ranks at a breakpoint" in listed
    assert re.search(r"trainers +1 +hosts 1, gpus 0 +at its prompt +\S+:\d+ in Trainer.step", listed)
    assert "Breakpoints" in typed.run("%monarch status")
    asked = "from monarch_kernel.actor import debug_controller\n"
    asked += "[one.rank for one in debug_controller().list.call_one(print_output=False).get(timeout=20)]"
    assert "[0, 1]" in typed.run(asked)
    assert "2 ranks going on" in typed.run("%monarch debug continue")
    assert typed.run("%monarch debug list") == "No rank stands at a breakpoint."
    assert "[4, 4]" in typed.run("called.get().values()")


def test_a_person_talks_to_pdb_below_the_cell(typed: Typed) -> None:
    typed.run("called = trainers.slice(hosts=1).step.call_one(20); waiting(1)")
    said = typed.run("%monarch debug attach trainers 1", ("p {'number': number}", "n", "", "p number", "detach"))
    assert "-> number += 1" in said  # the cell's own source
    assert "{'number': 20}" in said
    assert "-> return number" in said  # an empty line repeats
    assert "42\n" in said
    assert "trainers 1 stays where it is: %monarch debug attach trainers 1" in said
    said = typed.run("%monarch debug attach trainers 1", ("number = 7", "c"))
    assert said.endswith("trainers 1 goes on\n")
    assert "7" in typed.run("called.get()")


def test_one_command_at_a_time_and_one_for_several(typed: Typed) -> None:
    typed.run("called = trainers.step.call(5); waiting(2)")
    assert typed.run("%monarch debug trainers 0 p {1: number}[1]") == "5\n"
    said = typed.run("%monarch debug cast trainers ranks(hosts=0:2) p number + 1  # six")
    assert said == "-- trainers 0\n6\n-- trainers 1\n6\n"
    assert "trainers 0 goes on" in typed.run("%monarch debug trainers 0 c")
    assert "SessionError: rank 0 of trainers stands at no breakpoint; these do: trainers 1" in typed.run(
        "%monarch debug trainers 0 n"
    )
    assert "BdbQuit" in typed.run("%monarch debug trainers 1 q\ncalled.get()")
    assert "UsageError" not in typed.run("%monarch debug help")
    assert "ValueError: 'nonsense' is not understood; there are: list" in typed.run("%monarch debug nonsense")


def test_a_front_end_without_input_is_told_the_other_way(typed: Typed) -> None:
    typed.run("called = trainers.slice(hosts=0).step.call_one(5); waiting(1)")
    assert "UsageError: this front end takes no input" in typed.run("%monarch debug attach trainers 0")
    typed.run("%monarch debug continue")
    assert "12" in typed.run("called.get()")


def test_an_interrupt_leaves_a_rank_that_runs(typed: Typed, tmp_path: Any) -> None:
    go = tmp_path / "go"
    typed.run(f"called = trainers.slice(hosts=0).slow.call_one({str(go)!r}); waiting(1)")
    last = SETUP.strip()[: SETUP.strip().index('return "seen"')].count("\n") + 1  # where it stops again
    said = typed.run(
        "import threading, os, signal\n"
        "threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "%monarch debug attach trainers 0",
        (f"until {last}",),
    )
    assert "KeyboardInterrupt" in said
    go.touch()
    assert "1 rank going on" in typed.run("waiting(1)\n%monarch debug continue")
    assert "seen" in typed.run("called.get()")


def test_the_shell_talks_to_a_rank_too(typed: Typed, monarch: Any, environment: dict[str, str]) -> None:
    typed.run("called = trainers.slice(hosts=1).step.call_one(5); waiting(1)")

    def shell(*words: str) -> str:
        command = [sys.executable, "-m", "monarch_kernel.cli", "debug", "debugged", *words]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    assert "trainers" in shell()
    assert shell("trainers", "1", "p", "number") == "5\n"
    assert "stands at no breakpoint" in shell("trainers", "0", "c")
    assert shell("trainers", "1", "c") == "trainers 1 goes on\n"
    assert "12" in typed.run("called.get()")


def test_tab_completes_the_words_and_the_meshes(typed: Typed) -> None:
    def offered(code: str) -> list[str]:
        return list(typed.kernel.client.complete(code, len(code), reply=True, timeout=10)["content"]["matches"])

    assert offered("%monarch debug at") == ["attach"]
    assert offered("%monarch debug attach tr") == ["trainers"]
    assert offered("%monarch debug tr") == ["trainers"]
