"""Large and odd arguments and results."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from mesh_actors import Runner

from monarch_kernel.actor import ActorError

WAIT = 50
MIB = 1 << 20


@pytest.fixture(scope="module")
def runner(procs: Any) -> Any:
    mesh = procs.slice(hosts=1, gpus=0).spawn("runner", Runner)
    mesh.pid.call_one().get(timeout=WAIT)
    return mesh


@pytest.mark.parametrize("size", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 64 * MIB])
def test_bytes_of_any_size_both_ways(runner, size):
    data = bytes(size)
    (back,) = runner.echo.call_one(data).get(timeout=WAIT)
    assert back == data


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 4 * MIB + 1])
def test_arrays_of_any_size_both_ways(runner, size):
    array = np.arange(size, dtype=np.uint8)
    (back,) = runner.echo.call_one(array).get(timeout=WAIT)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    assert back.flags.writeable
    back[:1] = 1


def test_300_mib_there(runner):
    array = np.ones(300 * MIB, dtype=np.uint8)
    assert runner.run.call_one(lambda a: int(a.sum(dtype=np.int64)), array).get(timeout=WAIT) == 300 * MIB


def test_300_mib_back(runner):
    def make(size: int) -> Any:
        import numpy as np

        return np.ones(size, dtype=np.uint8)

    assert runner.run.call_one(make, 300 * MIB).get(timeout=WAIT).nbytes == 300 * MIB


def test_arguments_are_writable_and_each_ranks_own(procs):
    mesh = procs.spawn("writers", Runner)
    array = np.zeros(100_000)

    def write(array: Any) -> float:
        from monarch_kernel.actor import current_rank

        array += current_rank().rank
        return float(array[-1])

    assert list(mesh.run.call(write, array).get(timeout=WAIT).values()) == [0.0, 1.0, 2.0, 3.0]
    assert array.sum() == 0


def test_the_caller_may_change_an_array_once_the_call_is_made(runner):
    array = np.zeros(MIB, dtype=np.uint8)
    sums = []
    for number in range(5):
        array[:] = number
        sums.append(runner.run.call_one(lambda a: int(a[-1]), array))
        # The answer is the value of the moment in which the call was made.
        sums[-1].get(timeout=WAIT)
    assert [future.get() for future in sums] == [0, 1, 2, 3, 4]


def test_an_actor_may_change_what_it_has_returned(runner):
    def make(self: Any) -> Any:
        import numpy as np

        if not hasattr(self, "array"):
            self.array = np.zeros(1 << 20, dtype=np.uint8)
        self.array += 1
        return self.array

    futures = [runner.with_self.call_one(make) for _ in range(5)]
    assert [int(future.get(timeout=WAIT)[-1]) for future in futures] == [1, 2, 3, 4, 5]


def test_one_array_named_twice_is_one_array_there(runner):
    array = np.zeros(200_000, dtype=np.uint8)
    assert runner.run.call_one(lambda a, b: a is b, array, array).get(timeout=WAIT)


def test_tensors_keep_their_sharing(runner):
    import torch

    whole = torch.zeros(100_000)

    def shares(pair: Any) -> bool:
        whole, part = pair
        part += 1
        return bool(whole[:10].eq(1).all())

    assert runner.run.call_one(shares, [whole, whole[:10]]).get(timeout=WAIT)


def test_what_a_failed_call_was_given_is_not_kept_there(runner):
    class Big:
        pass

    def fail(self: Any, big: Any) -> None:
        import weakref

        self.seen = weakref.ref(big)
        raise MemoryError("too much")

    def kept(self: Any) -> bool:
        import gc

        gc.collect()
        return self.seen() is not None

    with pytest.raises(ActorError, match="MemoryError: too much"):
        runner.with_self.call_one(fail, Big()).get(timeout=WAIT)
    assert not runner.with_self.call_one(kept).get(timeout=WAIT)


def test_what_an_async_call_was_given_is_not_kept_there(one):
    from mesh_actors import AsyncRunner

    class Big:
        pass

    async def fail(self: Any, big: Any) -> None:
        import weakref

        self.seen = weakref.ref(big)
        raise MemoryError("too much")

    async def kept(self: Any) -> bool:
        import gc

        gc.collect()
        return self.seen() is not None

    mesh = one.spawn("async", AsyncRunner)
    with pytest.raises(ActorError, match="MemoryError: too much"):
        mesh.with_self.call_one(fail, Big()).get(timeout=WAIT)
    assert not mesh.with_self.call_one(kept).get(timeout=WAIT)


def test_a_caught_error_does_not_hold_the_callers_arguments(runner):
    class Big:
        def __init__(self) -> None:
            self.data = bytes(MIB)

    big = Big()
    seen = weakref.ref(big)
    try:
        runner.run.call_one(lambda b: 1 / 0, big).get(timeout=WAIT)
    except ActorError as error:
        kept = error
    del big
    gc.collect()
    assert seen() is None
    assert isinstance(kept.exception, ZeroDivisionError)


def test_arguments_are_let_go_once_the_answer_is_here(runner, until):
    array = np.zeros(4 * MIB, dtype=np.uint8)
    seen = weakref.ref(array)
    runner.run.call_one(lambda a: None, array).get(timeout=WAIT)
    del array
    gc.collect()
    until(lambda: seen() is None, what="the end of the array")


def test_the_memory_of_large_answers_is_given_back_there(runner):
    def make() -> Any:
        import numpy as np

        return np.ones(64 << 20, dtype=np.uint8)

    def resident() -> int:
        import gc

        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = runner.run.call_one(resident).get(timeout=WAIT)
    for _ in range(8):
        assert runner.run.call_one(make).get(timeout=WAIT).nbytes == 64 * MIB
    assert runner.run.call_one(resident).get(timeout=WAIT) - before < 300 * MIB


def test_many_arguments_and_deep_ones(runner):
    many = tuple(range(2000))
    assert runner.echo.call_one(*many).get(timeout=WAIT) == many
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert runner.echo.call_one(deep).get(timeout=WAIT) == (deep,)


def test_a_constructor_with_a_large_argument(procs):
    from mesh_actors import Relay

    array = np.ones(20 * MIB, dtype=np.uint8)
    mesh = procs.spawn("large", Relay, array)
    assert [a.nbytes for a in mesh.get.call().get(timeout=WAIT).values()] == [20 * MIB] * 4
    mesh.stop().get(timeout=WAIT)
