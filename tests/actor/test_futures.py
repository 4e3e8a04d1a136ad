"""Waiting for answers: from plain code, loops, threads and from inside actors."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mesh_actors import AsyncRelay, Counter, Relay, Runner

from monarch_kernel.actor import ActorError

WAIT = 30


@pytest.fixture(scope="module")
def counters(procs: Any) -> Any:
    mesh = procs.spawn("counters", Counter)
    mesh.value.call().get(timeout=WAIT)
    return mesh


@pytest.fixture(scope="module")
def runner(one: Any) -> Any:
    mesh = one.spawn("runner", Runner)
    mesh.pid.call_one().get(timeout=WAIT)
    return mesh


def held(runner: Any, path: Any) -> Any:
    """A call that ends once the file is there."""

    def wait(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.002)
        return "done"

    return runner.run.call_one(wait, str(path))


def test_get_with_a_timeout_does_not_consume_the_future(runner, tmp_path):
    future = held(runner, tmp_path / "go")
    for _ in range(2):
        with pytest.raises(TimeoutError, match="the call goes on"):
            future.get(timeout=0.02)
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.01)
    assert not future.done()
    (tmp_path / "go").touch()
    assert [future.get(timeout=WAIT), future.get(), future.result()] == ["done"] * 3
    assert future.exception() is None
    assert future.done()


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_a_timeout_that_is_no_time_is_refused(counters, timeout):
    future = counters.value.call()
    with pytest.raises(ValueError, match="timeout must be a finite number"):
        future.get(timeout=timeout)
    future.get(timeout=WAIT)


def test_an_error_is_raised_each_time(counters):
    future = counters.slice(hosts=0, gpus=0).fail.call_one("boom")
    for _ in range(3):
        with pytest.raises(ActorError, match="boom"):
            future.get(timeout=WAIT)
    assert isinstance(future.exception(), ActorError)


def test_await_gather_and_await_again(counters):
    async def main() -> None:
        one = counters.slice(hosts=0, gpus=0)
        future = one.value.call_one()
        first = await future
        assert await future == first == future.get()
        both = await asyncio.gather(one.value.call_one(), counters.slice(hosts=1, gpus=1).value.call_one())
        assert len(both) == 2
        with pytest.raises(ActorError, match="boom"):
            await one.fail.call_one("boom")
        assert await one.value.call_one().as_asyncio() == first

    asyncio.run(main())


def test_wait_for_leaves_the_call_alone(runner, tmp_path):
    async def main() -> None:
        future = held(runner, tmp_path / "go")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.02)
        (tmp_path / "go").touch()
        assert await asyncio.wait_for(future, WAIT) == "done"

    asyncio.run(main())


def test_get_inside_a_running_loop_works_and_warns_of_nothing(counters):
    async def main() -> int:
        return counters.slice(hosts=0, gpus=0).value.call_one().get(timeout=WAIT)

    # Warnings are errors here.
    assert asyncio.run(main()) == counters.slice(hosts=0, gpus=0).value.call_one().get(timeout=WAIT)


def test_await_without_a_loop_says_what_to_do(runner, tmp_path):
    future = held(runner, tmp_path / "go")
    with pytest.raises(ValueError, match=r"use \.get\(\)"):
        future.__await__().send(None)
    (tmp_path / "go").touch()
    future.get(timeout=WAIT)


def test_one_future_from_many_threads(runner, tmp_path):
    future = held(runner, tmp_path / "go")
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(future.get, WAIT) for _ in range(8)]
        (tmp_path / "go").touch()
        assert {thread.result(timeout=WAIT) for thread in waiting} == {"done"}


def test_calls_from_many_threads(procs):
    mesh = procs.spawn("shared", Counter)

    def work() -> None:
        for _ in range(25):
            mesh.add.call(1).get(timeout=WAIT)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert list(mesh.value.call().get(timeout=WAIT).values()) == [200] * 4


def test_a_future_may_be_dropped_unseen(counters):
    counters.fail.call("nobody looks")
    counters.value.call().get(timeout=WAIT)


def test_an_abandoned_wait_of_a_closed_loop_harms_nothing(runner, tmp_path):
    future = held(runner, tmp_path / "go")

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)

    asyncio.run(give_up())
    (tmp_path / "go").touch()
    assert future.get(timeout=WAIT) == "done"


def test_get_inside_a_synchronous_endpoint(procs):
    target = procs.slice(hosts=1).spawn("target", Counter, 10)
    relay = procs.slice(hosts=0, gpus=0).spawn("relay", Relay, target)
    assert relay.add.call_one(1).get(timeout=WAIT) == [11, 11]


def test_await_inside_an_asynchronous_endpoint(procs):
    target = procs.slice(hosts=1).spawn("target", Counter, 10)
    relay = procs.slice(hosts=0, gpus=0).spawn("relay", AsyncRelay)
    assert relay.add.call_one(target, 1).get(timeout=WAIT) == [11, 11]
    assert sorted(relay.add_twice.call_one(target, 1).get(timeout=WAIT)) == [[12, 12], [13, 13]]
    assert relay.add_blocking.call_one(target, 1).get(timeout=WAIT) == [14, 14]


def test_actors_of_one_process_may_call_each_other(one):
    target = one.spawn("target", Counter)
    relay = one.spawn("relay", Relay, target)
    assert relay.add.call_one(3).get(timeout=WAIT) == [3]


def test_an_interrupt_ends_the_wait_and_not_the_call(runner, tmp_path):
    future = held(runner, tmp_path / "go")
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        future.get(timeout=WAIT)
    assert time.monotonic() - began < 2
    timer.join()
    (tmp_path / "go").touch()
    assert future.get(timeout=WAIT) == "done"


def test_many_short_waits_leave_nothing_behind(runner, tmp_path):
    future = held(runner, tmp_path / "go")
    for _ in range(200):
        with pytest.raises(TimeoutError):
            future.get(timeout=0.0001)
    assert not future._callbacks
    (tmp_path / "go").touch()
    future.get(timeout=WAIT)


def test_a_future_says_how_it_is(runner, tmp_path):
    future = held(runner, tmp_path / "go")
    assert repr(future) == "<Future: waiting>"
    (tmp_path / "go").touch()
    future.get(timeout=WAIT)
    assert repr(future) == "<Future: done>"
