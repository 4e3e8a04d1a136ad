"""Actors that wait for each other in a circle are told so, and nobody else is."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
from wait_actors import Async, Sync

from monarch_kernel.actor import ActorError, this_proc
from monarch_kernel.actor._provider import current_runtime
from monarch_kernel.errors import Deadlock, ProcDied, SupervisionError

WAIT = 30
SOON = 5.0
"""Seconds within which a circle must be told on a busy machine; on a quiet one it takes about one."""


def refused(call: Any, *lines: str) -> str:
    """The call ends soon in a `Deadlock` that says these lines; returns its text."""
    began = time.monotonic()
    with pytest.raises(ActorError) as caught:
        call.get(timeout=WAIT)
    assert time.monotonic() - began < SOON
    error: Any = caught.value
    while isinstance(error, ActorError):
        error = error.exception
    assert type(error) is Deadlock
    assert isinstance(error, SupervisionError)
    for line in lines:
        assert re.search(line, error.message), f"{line!r} is not in {error.message!r}"
    return error.message


@pytest.fixture(scope="module")
def places(procs: Any) -> list[Any]:
    """Two processes of one host, and one of the other."""
    return [procs.slice(hosts=0, gpus=0), procs.slice(hosts=0, gpus=1), procs.slice(hosts=1, gpus=0)]


@pytest.mark.parametrize("kind", [Sync, Async])
@pytest.mark.parametrize("where", [(0, 0), (0, 1), (0, 2), (0, 1, 2)], ids=lambda w: "-".join(map(str, w)))
def test_a_circle_is_told_with_all_that_are_in_it(places, kind, where):
    actors = [places[place].spawn(f"actor{n}", kind) for n, place in enumerate(where)]
    first, *others = actors
    text = refused(first.ask.call_one(*others, first), "deadlock: actors wait for each other", "@concurrent_endpoint")
    for n in range(1, len(actors)):
        assert f"actor{n - 1}[0].ask waits for actor{n}[0].ask" in text
    assert f"actor{len(others)}[0].ask waits for actor0[0].ping" in text
    assert "actor0[0].ping cannot be answered before actor0[0].ask has ended" in text
    for actor in actors:
        assert actor.ping.call_one().get(timeout=WAIT) == "pong"


def test_sync_and_async_actors_in_one_circle(places):
    first, second = places[0].spawn("first", Sync), places[2].spawn("second", Async)
    refused(first.ask.call_one(second, first))
    refused(second.ask.call_one(first, second))
    refused(second.gathered.call_one(first, second), r"second\[0\]\.gathered")
    refused(first.stream.call_one(second, first), r"first\[0\]\.stream")
    refused(first.run.call_one(second, first), r"first\[0\]\.run")
    refused(first.fold.call_one(second, first), r"first\[0\]\.fold")


def test_an_actor_of_the_clients_own_process(session, places):
    here, there = this_proc().spawn("here", Sync), places[2].spawn("there", Async)
    refused(here.ask.call_one(there, here))
    refused(there.ask.call_one(here, there))
    here.stop().get(timeout=WAIT)


def test_a_process_looks_only_while_something_is_under_way(session, until):
    watch = current_runtime().watch
    here = this_proc().spawn("here", Sync)
    until(lambda: not watch.on, what="an idle process")
    call = here.busy.call_one(1)
    until(lambda: watch.on, what="a look")
    assert call.get(timeout=WAIT) == "done"
    until(lambda: not watch.on, what="an idle process")
    here.stop().get(timeout=WAIT)


@pytest.mark.parametrize(
    "endpoint", ["ask", "blocked", "gathered", "in_task", "waited", "grouped", "as_future", "without_limit"]
)
def test_an_actor_that_waits_for_itself_in_any_way(places, endpoint):
    actor = places[0].spawn("alone", Async)
    refused(getattr(actor, endpoint).call_one(actor))
    assert actor.ping.call_one().get(timeout=WAIT) == "pong"


def test_a_rank_that_waits_for_a_mesh_which_waits_for_it(procs):
    mesh = procs.spawn("mesh", Sync)
    first, last = mesh.slice(hosts=0, gpus=0), mesh.slice(hosts=1, gpus=1)
    refused(first.ask.call_one(last, mesh.slice(hosts=0)), r"mesh\[0\]\.ask waits for mesh\[3\]\.ask")
    refused(first.ask.call_one(mesh))  # at once
    assert list(mesh.ping.call().get(timeout=WAIT).values()) == ["pong"] * 4


def test_two_actors_that_begin_to_wait_for_each_other_at_once(places, tmp_path):
    """Neither call is the other's: each is queued behind the message that waits."""
    first, second = places[0].spawn("first", Sync), places[2].spawn("second", Sync)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    began = time.monotonic()
    ended = []
    for call in [first.meet.call_one(here, there, second), second.meet.call_one(there, here, first)]:
        try:
            ended.append(call.get(timeout=WAIT).item())
        except ActorError as error:
            ended.append(type(error.exception))
    assert Deadlock in ended
    assert time.monotonic() - began < SOON


def test_an_actor_that_waits_for_one_whose_constructor_asks_it(places):
    maker = places[0].spawn("maker", Sync)
    began = time.monotonic()
    with pytest.raises(ActorError) as caught:
        maker.construct.call_one(maker).get(timeout=WAIT)
    assert time.monotonic() - began < SOON
    text = str(caught.value)
    assert "deadlock: actors wait for each other" in text
    assert "maker[0].construct waits for made[0].ping" in text
    assert "made[0].ping cannot be answered before made[0].__init__ has ended" in text
    assert "made[0].__init__ waits for maker[0].ping" in text


def test_a_concurrent_endpoint_is_in_no_circle(places):
    first, second = places[0].spawn("first", Async), places[2].spawn("second", Sync)
    assert first.beside.call_one(second, first).get(timeout=WAIT).item().item() == "pong"
    assert first.beside.call_one(first).get(timeout=WAIT).item() == "pong"


def test_actors_that_are_busy_are_waited_for(places):
    first, second, third = (place.spawn("works", Sync) for place in places)
    slow = third.busy.call_one(3)
    behind = first.ask.call_one(second, third)  # a chain, whose end is busy
    assert third.ping.call_one().get(timeout=WAIT) == "pong"
    assert slow.get(timeout=WAIT) == "done"
    assert behind.get(timeout=WAIT).item().item() == "pong"


def test_a_wait_that_ends_by_itself_is_no_circle(places):
    first, second = places[0].spawn("first", Sync), places[2].spawn("second", Sync)
    with pytest.raises(ActorError, match="no answer within 2 s"):
        first.ask_within.call_one(2, second, first).get(timeout=WAIT)
    alone = places[0].spawn("alone", Async)
    assert alone.waits_within.call_one(2, alone).get(timeout=WAIT) == "late"


def test_a_time_out_around_a_circle_ends_it(places):
    first, second = places[0].spawn("first", Async), places[2].spawn("second", Sync)
    assert first.within.call_one(2, second, first).get(timeout=WAIT) == "late"


def test_a_task_that_nobody_waits_for_yet(places):
    actor = places[0].spawn("alone", Async)
    assert actor.started.call_one(actor).get(timeout=WAIT) == "done"
    assert actor.result.call_one().get(timeout=WAIT).item() == "pong"


def test_after_the_error_the_call_itself_goes_on(places):
    """Only the wait ends: what was asked for is done once its turn comes."""
    first, second = places[0].spawn("first", Sync), places[2].spawn("second", Sync)
    refused(first.ask.call_one(second, first))
    assert second.ask.call_one(first).get(timeout=WAIT).item() == "pong"


def test_a_peer_that_dies_while_it_has_a_call_is_no_circle(fresh):
    mesh = fresh(gpus=1)
    first, second = mesh.slice(hosts=0).spawn("first", Sync), mesh.slice(hosts=1).spawn("second", Sync)
    pid = second.pid.call_one().get(timeout=WAIT)
    call = first.ask_busy.call_one(second)
    time.sleep(1)  # probes are on their way by now
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorError) as caught:
        call.get(timeout=WAIT)
    assert isinstance(caught.value.exception, ProcDied)
