"""Processes that are busy, stopped and dead are told apart, with real signals and a call that holds the interpreter."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from typing import Any

import pytest
from conftest import WAIT
from mesh_actors import Runner

from monarch_kernel.errors import ProcDied
from monarch_kernel.magics import pages
from monarch_kernel.state.records import RankRecord


@pytest.fixture
def lone(fresh) -> Any:
    """Processes of their own, one on each host, and an actor in each."""
    procs = fresh(gpus=1)
    actors = procs.spawn("lone", Runner)
    actors.pid.call().get(timeout=WAIT)
    return procs, actors


def rank(session: Any, procs: Any, number: int) -> RankRecord:
    return session.refresh().get(procs._handle.id).ranks[number]


def status(session: Any) -> str:
    return pages.status(session, session.statuses(), session.refresh()).text()


def hold_the_interpreter(seconds: float) -> None:
    """Native code that uses the processor, and lets no other thread run meanwhile."""
    began, sample = time.perf_counter(), 10_000_000
    sum(itertools.repeat(1, sample))
    sum(itertools.repeat(1, int(sample * seconds / (time.perf_counter() - began))))


def sleep_in_native_code(seconds: int) -> None:
    """The same without using the processor."""
    ctypes.PyDLL(None).sleep(seconds)


def test_a_stopped_process_is_seen_and_recovers_when_it_goes_on(session, lone, until, faults):
    procs, actors = lone
    pid = rank(session, procs, 1).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: rank(session, procs, 1).health == "stopped", what="word of the stop")
        held = rank(session, procs, 1)
        assert (held.state, rank(session, procs, 0).health) == ("ok", "alive")
        assert f"kill -CONT {pid}" in status(session)
        waiting = actors.pid.call()
        assert actors.slice(hosts=0).pid.call().get(timeout=WAIT).values()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert waiting.get(timeout=WAIT).item(hosts=1, gpus=0) == pid
    until(lambda: rank(session, procs, 1).health == "alive", what="the recovery")
    assert faults == []


@pytest.mark.parametrize(
    ("work", "health", "said"),
    [(hold_the_interpreter, "busy", "uses CPU time"), (sleep_in_native_code, "unresponsive", "no CPU time")],
)
def test_a_process_that_native_code_silences_is_not_dead(session, lone, until, faults, work, health, said):
    procs, actors = lone
    working = actors.slice(hosts=1, gpus=0).run.call_one(work, 7)
    until(lambda: rank(session, procs, 1).health == health, what="word of it")
    assert said in status(session)
    working.get(timeout=WAIT)
    until(lambda: rank(session, procs, 1).health == "alive", what="the recovery")
    assert faults == []


def test_a_killed_process_is_dead_in_under_a_second_be_it_stopped_before_or_not(session, lone, faults):
    procs, actors = lone
    for number in (0, 1):
        victim = actors.slice(hosts=number, gpus=0)
        pid = rank(session, procs, number).pid
        if number:
            os.kill(pid, signal.SIGSTOP)
        call = victim.pid.call_one() if number else victim.run.call_one(time.sleep, WAIT)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProcDied, match="SIGKILL"):
            call.get(timeout=WAIT)
        assert time.monotonic() - began < 1
        assert rank(session, procs, number).state == "dead"
