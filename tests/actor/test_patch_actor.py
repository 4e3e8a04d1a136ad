"""Programs under test that spawn other classes than they think."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch_kernel.actor import Actor, endpoint, patch_actor, this_host, this_proc

WAIT = 30.0


class Real(Actor):
    @endpoint
    def kind(self) -> str:
        return "real"


class Mock(Actor):
    @endpoint
    def kind(self) -> str:
        return "mock"


class Other(Actor):
    @endpoint
    def kind(self) -> str:
        return "other"


class Program(Actor):
    """Spawns on processes of its own."""

    @endpoint
    def kind(self) -> str:
        procs = this_host().spawn_procs(per_host={"workers": 1})
        found: str = procs.spawn("inner", Real).kind.call_one().get(WAIT)
        return found


def kind(procs: Any) -> str:
    found: str = procs.spawn("one", Real).kind.call_one().get(WAIT)
    return found


def test_within_a_patch_another_class_is_spawned_and_of_two_the_inner_one(one):
    with patch_actor(Real, Mock) as mock:
        assert mock is Mock
        assert kind(one) == "mock"
        with patch_actor(Real, Other):
            assert kind(one) == "other"
        assert kind(one) == "mock"
    assert kind(one) == "real"
    with pytest.raises(ZeroDivisionError), patch_actor(Real, Mock):
        raise ZeroDivisionError
    assert kind(one) == "real"


def test_as_a_decorator_and_in_coroutines(one):
    @patch_actor(Real, Mock)
    def plain() -> str:
        return kind(one)

    @patch_actor(Real, Mock)
    async def awaited() -> str:
        await asyncio.sleep(0)
        async with patch_actor(Other, Mock):
            return str(await one.spawn("one", Real).kind.call_one())

    assert plain() == "mock"
    assert asyncio.run(awaited()) == "mock"
    assert kind(one) == "real"


def test_what_an_actor_spawns_in_its_process_is_patched_too(fresh):
    procs = fresh(gpus=1).slice(hosts=0)
    with patch_actor(Real, Mock):
        assert procs.spawn("program", Program).kind.call_one().get(WAIT) == "mock"


def test_in_this_process_a_patch_ends_with_its_block(session):
    with patch_actor(Real, Mock):
        spawned = this_proc().spawn("here", Real)
    assert spawned.kind.call_one().get(WAIT) == "mock"
    assert kind(this_proc()) == "real"
