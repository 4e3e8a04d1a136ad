"""Threads and loops: what each kind of actor runs on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from mesh_actors import AsyncRunner, Runner

from monarch_kernel.actor import Actor, ActorError, endpoint

WAIT = 30


def test_a_sync_actor_runs_on_a_thread_of_its_own_without_a_loop(one):
    def look() -> tuple[bool, bool, int]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            running = False
        else:
            running = True
        return running, threading.current_thread() is threading.main_thread(), threading.get_ident()

    first, second = one.spawn("a", Runner), one.spawn("b", Runner)
    seen = [mesh.run.call_one(look).get(timeout=WAIT) for mesh in (first, first, second)]
    assert [s[:2] for s in seen] == [(False, False)] * 3
    assert seen[0][2] == seen[1][2] != seen[2][2]


def test_a_sync_endpoint_may_run_a_loop_of_its_own(one):
    async def inner() -> int:
        await asyncio.sleep(0)
        return 4

    def outer() -> int:
        return asyncio.run(inner())

    assert one.spawn("own", Runner).run.call_one(outer).get(timeout=WAIT) == 4


def test_an_async_actor_has_its_own_loop_from_the_constructor_on(one):
    first, second = one.spawn("a", AsyncRunner), one.spawn("b", AsyncRunner)
    same, thread, main = first.loops.call_one().get(timeout=WAIT)
    assert same
    assert not main
    assert thread != second.loops.call_one().get(timeout=WAIT)[1]


def test_tasks_of_an_async_actor_go_on_between_messages(one):
    async def start(self: Any) -> None:
        self.done = asyncio.Event()

        async def later() -> None:
            await asyncio.sleep(0)
            self.done.set()

        self.task = asyncio.create_task(later())

    async def wait(self: Any) -> str:
        await self.done.wait()
        return "done"

    mesh = one.spawn("tasks", AsyncRunner)
    mesh.with_self.call_one(start).get(timeout=WAIT)
    assert mesh.with_self.call_one(wait).get(timeout=WAIT) == "done"


@pytest.mark.parametrize("after_an_await", [False, True])
def test_an_error_of_an_async_endpoint_arrives(one, after_an_await):
    async def fail(first: bool) -> None:
        if first:
            await asyncio.sleep(0.001)
        raise KeyError("lost")

    mesh = one.spawn("fails", AsyncRunner)
    with pytest.raises(ActorError, match="KeyError: 'lost'"):
        mesh.run.call_one(fail, after_an_await).get(timeout=WAIT)
    assert mesh.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_cancelled_error_in_an_endpoint_is_an_error_and_the_actor_goes_on(one):
    async def cancelled() -> None:
        raise asyncio.CancelledError("by hand")

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    mesh = one.spawn("cancelled", AsyncRunner)
    for function in (cancelled, cancels_itself, cancels_itself):
        with pytest.raises(ActorError, match="CancelledError") as caught:
            mesh.run.call_one(function).get(timeout=WAIT)
        assert isinstance(caught.value.exception, asyncio.CancelledError)
        assert mesh.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"

    def cancelled_there() -> None:
        raise asyncio.CancelledError

    sync = one.spawn("sync", Runner)
    with pytest.raises(ActorError, match="CancelledError"):
        sync.run.call_one(cancelled_there).get(timeout=WAIT)
    assert sync.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_stop_iteration_is_an_error_like_any_other(one):
    def stop() -> None:
        raise StopIteration(3)

    mesh = one.spawn("sync", Runner)
    with pytest.raises(ActorError, match="StopIteration"):
        mesh.run.call_one(stop).get(timeout=WAIT)
    with pytest.raises(ActorError, match="StopIteration"):
        one.spawn("async", AsyncRunner).run.call_one(stop).get(timeout=WAIT)
    assert mesh.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_a_class_of_both_kinds_is_refused_with_their_names(one):
    class Mixed(Actor):
        @endpoint
        def plain(self) -> None: ...

        @endpoint
        async def awaited(self) -> None: ...

    with pytest.raises(ValueError, match=r"Mixed mixes .*'async def' \(awaited\).*'def' \(plain\)"):
        one.spawn("mixed", Mixed)


def test_numbers_of_async_actors_in_one_process(one):
    meshes = [one.spawn(f"a{n}", AsyncRunner) for n in range(20)]
    futures = [mesh.run.call_one(lambda: 1) for mesh in meshes]
    assert sum(future.get(timeout=WAIT) for future in futures) == 20
