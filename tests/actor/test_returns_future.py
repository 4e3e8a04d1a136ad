"""`returns_future`: a coroutine that begins when somebody waits for it, and runs where that is."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import warnings

import pytest

from monarch_kernel.actor import returns_future
from monarch_kernel.actor._returns import fake_sync_state, in_fake_sync_state
from monarch_kernel.errors import WouldBlockRuntime

WAIT = 30.0


@returns_future
async def value(of):
    return of


@returns_future
async def raises():
    raise ValueError("boom")


@returns_future
async def loop_of_the_body():
    return asyncio.get_running_loop()


def test_the_body_runs_once_and_only_when_somebody_waits():
    runs = []

    @returns_future
    async def count():
        runs.append(1)
        return len(runs)

    future = count()
    assert runs == []
    assert [future.get(), future.result(), asyncio.run(waiting(future))] == [1, 1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        count()
        gc.collect()
    assert runs == [1]


async def waiting(future):
    return await future


def test_the_body_sees_the_context_variables_of_the_call():
    variable = contextvars.ContextVar("variable", default="unset")

    @returns_future
    async def read_and_write():
        seen = variable.get()
        variable.set("by the body")
        return seen

    variable.set("at the call")
    future = read_and_write()
    variable.set("later")
    assert future.get() == "at the call"
    assert variable.get() == "later"


def test_an_await_runs_the_body_on_its_loop():
    async def main():
        assert await loop_of_the_body() is asyncio.get_running_loop()
        first, second = value(1), raises()
        assert await first == 1
        with pytest.raises(ValueError, match="boom"):
            await second
        # What has settled can be got on the loop that ran it.
        assert first.get() == 1
        with pytest.raises(ValueError, match="boom"):
            second.get()

    asyncio.run(main())


def test_a_waiter_that_is_cancelled_leaves_the_body_alone():
    async def main():
        gate = asyncio.Event()

        @returns_future
        async def waits():
            await gate.wait()
            return 7

        future = waits()
        first = future.as_asyncio()
        await asyncio.sleep(0)
        assert first.cancel()
        assert first.cancelled()
        gc.collect()
        gate.set()
        assert await future == 7

    asyncio.run(main())


@pytest.mark.parametrize("hidden", [False, True])
def test_a_get_over_its_time_cancels_the_body_and_waits_for_its_cleanup(hidden):
    cleaned = []

    @returns_future
    async def blocks():
        try:
            await asyncio.sleep(WAIT)
        finally:
            await asyncio.sleep(0.02)
            cleaned.append(1)

    future = blocks()

    async def inside():
        with fake_sync_state(), pytest.raises(TimeoutError, match=r"0\.05 s"):
            future.get(timeout=0.05)

    if hidden:
        asyncio.run(inside())
    else:
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            future.get(timeout=0.05)
    assert cleaned == [1]
    with pytest.raises(TimeoutError):
        future.get()


@pytest.mark.parametrize("inside", [False, True])
def test_an_interrupt_cancels_the_body_and_waits_for_its_cleanup(inside):
    cleaned = []

    @returns_future
    async def interrupted():
        asyncio.get_running_loop().call_soon(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.sleep(WAIT)
        finally:
            await asyncio.sleep(0.02)
            cleaned.append(1)

    future = interrupted()
    loop = asyncio.new_event_loop()

    async def main():
        future.get()

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main()) if inside else future.get()
    loop.close()
    assert cleaned == [1]
    with pytest.raises(asyncio.CancelledError):
        future.get()


def test_a_get_where_a_loop_runs_uses_a_thread_of_its_own_and_ends_what_the_body_left():
    left = []

    @returns_future
    async def leaves_a_task():
        async def forever():
            try:
                await asyncio.sleep(WAIT)
            finally:
                left.append("cancelled")

        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        assert not task.done()
        return await asyncio.to_thread(threading.get_ident), threading.get_ident()

    async def main():
        return leaves_a_task().get()

    assert leaves_a_task().get()[1] == threading.get_ident()
    assert asyncio.run(main())[1] != threading.get_ident()
    assert left == ["cancelled", "cancelled"]


def test_a_get_that_could_never_end_is_refused():
    @returns_future
    async def nests():
        return value(1).get()

    with pytest.raises(WouldBlockRuntime, match="await it there"):
        nests().get()

    async def main():
        with fake_sync_state(), pytest.raises(WouldBlockRuntime):
            nests().get()
        future = value(3)
        observer = future.as_asyncio()
        with pytest.raises(WouldBlockRuntime, match="stop the event loop"):
            future.get()
        return await observer

    assert asyncio.run(main()) == 3


def test_others_wait_for_the_one_who_runs_it():
    started, gate = threading.Event(), threading.Event()

    @returns_future
    async def waits():
        started.set()
        await asyncio.to_thread(gate.wait)
        return 9

    future = waits()
    found = []
    owner = threading.Thread(target=lambda: found.append(future.get()))
    owner.start()
    assert started.wait(WAIT)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.02)
    gate.set()
    assert future.get(timeout=WAIT) == 9
    owner.join(WAIT)
    assert found == [9]


def test_a_wrong_timeout_or_place_does_not_start_the_body():
    future = value(4)
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            future.get(wrong)
    with pytest.raises(RuntimeError):
        future.as_asyncio()
    with pytest.raises(ValueError, match="event loop"):
        future.__await__().send(None)
    assert future.get() == 4


def test_the_hidden_loop_is_there_again_afterwards():
    async def main():
        loop = asyncio.get_running_loop()
        with fake_sync_state():
            assert asyncio._get_running_loop() is None
            with fake_sync_state():
                assert in_fake_sync_state()
            assert in_fake_sync_state()
        assert not in_fake_sync_state()
        assert asyncio.get_running_loop() is loop

    asyncio.run(main())


def test_every_future_gives_asyncio_one_that_can_be_cancelled():
    from monarch_kernel.actor._future import Future, resolved

    async def main():
        future = Future()
        first, second = future.as_asyncio(), future.as_asyncio()
        first.cancel()
        future._resolve(lambda: 5)
        assert await second == 5
        assert resolved(6).as_asyncio().result() == 6
        stopped = Future()
        stopped._fail(StopIteration("done"))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await stopped.as_asyncio()

    asyncio.run(main())
