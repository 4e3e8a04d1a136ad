"""What is seen from outside of what a thread or task waits for: all that it needs, nothing that may end otherwise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from monarch_kernel.actor._blocking import awaited, blocked_in, driven_in
from monarch_kernel.actor._future import Future, resolved
from monarch_kernel.actor._returns import returns_future

Way = Callable[[Future[Any], Future[Any]], Awaitable[Any]]


async def plainly(a: Future[Any], b: Future[Any]) -> None:
    await a
    await b


async def nested(a: Future[Any], b: Future[Any]) -> None:
    async def inner() -> None:
        await asyncio.create_task(plainly(a, b))

    await asyncio.create_task(inner())


async def gathered(a: Future[Any], b: Future[Any]) -> None:
    await asyncio.gather(plainly(a, b), b)


async def waited(a: Future[Any], b: Future[Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(a), asyncio.ensure_future(b)])


async def grouped(a: Future[Any], b: Future[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(plainly(a, b))
        group.create_task(plainly(b, a))


async def first_of(a: Future[Any], b: Future[Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(a), asyncio.ensure_future(b)], return_when=asyncio.FIRST_COMPLETED)


async def waited_for_long(a: Future[Any], b: Future[Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(a)], timeout=100)


async def within(a: Future[Any], b: Future[Any]) -> None:
    async with asyncio.timeout(100):
        await a


async def limited(a: Future[Any], b: Future[Any]) -> None:
    await asyncio.wait_for(a, 100)


async def cancelled_later(a: Future[Any], b: Future[Any]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(100, task.cancel)
    await a


async def event(a: Future[Any], b: Future[Any]) -> None:
    done = asyncio.Event()

    async def tell() -> None:
        await a
        done.set()

    task = asyncio.create_task(tell())
    await done.wait()
    await task


async def beside(a: Future[Any], b: Future[Any]) -> None:
    """Does not wait for the task that waits."""
    task = asyncio.create_task(plainly(a, b))
    await b
    await task


async def out_of_time(a: Future[Any], b: Future[Any]) -> None:
    async with asyncio.timeout(100):
        await resolved(1)
    await a


@pytest.mark.parametrize(
    ("way", "seen"),
    [
        (plainly, "a"), (nested, "a"), (gathered, "ab"), (waited, "ab"), (grouped, "ab"), (beside, "b"),
        (out_of_time, "a"), (first_of, ""), (waited_for_long, ""), (within, ""), (limited, ""), (cancelled_later, ""),
        (event, ""),
    ],
    ids=lambda value: getattr(value, "__name__", value or "nothing"),
)  # fmt: skip
def test_a_task_that_waits(way: Way, seen: str) -> None:
    async def look() -> tuple[set[str], set[str]]:
        a: Future[Any] = Future()
        b: Future[Any] = Future()
        names = {id(a): "a", id(b): "b"}
        task = asyncio.ensure_future(way(a, b))
        for _ in range(5):
            await asyncio.sleep(0)
        found = {names[id(waiter.source)] for waiter in awaited(task)}
        a._resolve(lambda: 1)
        b._resolve(lambda: 2)
        await asyncio.wait_for(task, 10)
        return found, {names[id(waiter.source)] for waiter in awaited(task)}

    assert asyncio.run(look()) == (set(seen), set())


def test_a_wait_of_a_task_is_ended_and_its_future_is_not() -> None:
    async def look() -> None:
        future: Future[int] = Future()
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        (waiter,) = awaited(task)
        waiter.fail(RuntimeError("never"))
        with pytest.raises(RuntimeError, match="never"):
            await task
        assert not future.done()
        waiter.fail(RuntimeError("too late"))
        future._resolve(lambda: 1)
        assert await future == 1

    asyncio.run(look())


def blocked(work: Callable[[], Any], until: Callable[..., Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that does the work, once it is seen to be blocked; and what came of it."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: blocked_in(thread.ident), what="a blocked thread")
    return thread, ended


def test_a_thread_that_is_blocked_in_a_future(until: Any) -> None:
    future: Future[int] = Future()
    thread, ended = blocked(future.get, until)
    (wait,) = blocked_in(thread.ident)
    assert (wait.on(), wait.timed) == (future, False)
    wait.fail(RuntimeError("never"))
    thread.join(10)
    assert str(ended[0]) == "never"
    assert blocked_in(thread.ident) == []
    assert not future.done()
    thread, ended = blocked(lambda: future.get(timeout=100), until)
    assert [wait.timed for wait in blocked_in(thread.ident)] == [True]
    future._resolve(lambda: 1)
    thread.join(10)
    assert ended == [1]
    assert blocked_in(thread.ident) == []


def test_a_thread_that_runs_an_operation(until: Any) -> None:
    future: Future[int] = Future()

    @returns_future
    async def operation() -> int:
        return await future

    thread, ended = blocked(operation().get, until)
    (wait,) = blocked_in(thread.ident)
    task = wait.on()
    assert isinstance(task, asyncio.Task)
    until(lambda: [waiter.source for waiter in awaited(task)] == [future], what="its wait")
    future._resolve(lambda: 1)
    thread.join(10)
    assert ended == [1]


def test_a_thread_that_runs_a_loop_of_its_own(until: Any) -> None:
    future: Future[int] = Future()

    async def wait() -> int:
        return await future

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    task = until(lambda: driven_in(thread.ident), what="its task")
    until(lambda: [waiter.source for waiter in awaited(task)] == [future], what="its wait")
    future._resolve(lambda: 1)
    thread.join(10)
    assert driven_in(thread.ident) is None
