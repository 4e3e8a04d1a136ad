"""Controllers of a kernel: they have a process of their own on the head host, and the next kernel finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes import kill

import monarch_kernel as mk

ASKER = """
import os
import monarch_kernel as mk
from counting import Counter
from monarch_kernel.actor import Actor, endpoint, get_or_spawn_controller
class Asker(Actor):
    @endpoint
    def ask(self):
        counter = get_or_spawn_controller("metrics", Counter).get(20)
        return counter.add.call_one(1).get(20), os.getpid()
"""
BEGIN = (
    ASKER
    + """
%monarch up keeping --hosts 2
asker = mk.hosts().spawn_procs().spawn("asker", Asker)
"""
)
SCRIPT = (
    ASKER
    + """
mk.up("keeping", hosts=2)
asker = mk.hosts().spawn_procs().spawn("asker", Asker)
print(sorted(n for n, pid in asker.ask.call().get(20).values()))
mk.session().detach()
"""
)
AGAIN = """
import os
import monarch_kernel as mk
from counting import Counter
from monarch_kernel.actor import get_or_spawn_controller
%monarch attach keeping
"""


@pytest.fixture
def session_ends(home: Any) -> Iterator[None]:
    yield
    mk.down("keeping")


def cell(kernel: Any, code: str) -> Any:
    reply = kernel.run(code, timeout=40)
    assert reply.status == "ok", reply
    return reply


def test_controllers_survive_the_kernel_and_every_process_finds_them(
    start_kernel: Callable[..., Any], session_ends: None
) -> None:
    kernel = start_kernel()
    cell(kernel, BEGIN)
    cell(kernel, "metrics = await get_or_spawn_controller('metrics', Counter, 10)")
    assert cell(kernel, "metrics.add.call_one(1).get()").result == "11"
    asked = cell(kernel, "sorted(n for n, pid in asker.ask.call().get().values())")
    assert asked.result == "[12, 13]"
    assert cell(kernel, "metrics.pid.call_one().get() != os.getpid()").result == "True"
    cell(kernel, "mk.hosts().stop().get()")
    assert cell(kernel, "metrics.add.call_one(1).get()").result == "14"
    kill(kernel.pid)
    kernel.restart(now=True)
    cell(kernel, AGAIN)
    assert cell(kernel, "get_or_spawn_controller('metrics', Counter).get().add.call_one(1).get()").result == "15"


def test_what_a_script_has_left_to_a_kernel_finds_the_kernels_controllers(
    script: Callable[..., Any], start_kernel: Callable[..., Any], session_ends: None
) -> None:
    left = script(SCRIPT)
    assert left.line() == "[1, 2]"
    assert left.end() == 0, left.stderr
    kernel = start_kernel()
    cell(kernel, AGAIN)
    cell(kernel, "metrics = get_or_spawn_controller('metrics', Counter, 10).get()")
    asked = cell(kernel, "sorted(n for n, pid in mk.session().actors['asker'].ask.call().get().values())")
    assert asked.result == "[11, 12]"
    assert cell(kernel, "metrics.value.call_one().get()").result == "12"
