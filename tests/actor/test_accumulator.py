"""`Accumulator`: sent at the call, folded when somebody waits."""

from __future__ import annotations

import asyncio
import operator

import pytest
from mesh_actors import Counter

from monarch_kernel.actor import Accumulator, Actor, ActorError, endpoint
from monarch_kernel.actor._future import Future, resolved

WAIT = 30.0


class Stream:
    """Answers as an endpoint's `stream` does, and notes what is asked of it."""

    def __init__(self, *answers):
        self.answers = answers
        self.events = []

    def stream(self, *args, **kwargs):
        self.events.append((args, kwargs))

        def answers():
            for answer in self.answers:
                self.events.append(answer)
                yield answer if isinstance(answer, Future) else resolved(answer)

        return answers()


def test_the_call_leaves_at_once_and_the_fold_waits():
    stream = Stream(2)
    future = Accumulator(stream, 1, operator.add).accumulate("a", k=1)
    assert stream.events == [(("a",), {"k": 1})]
    assert future.get() == 3
    assert asyncio.run(waiting(future)) == 3
    assert stream.events == [(("a",), {"k": 1}), 2]


async def waiting(future):
    return await future


def test_the_fold_goes_from_the_first_answer_to_the_last():
    assert Accumulator(Stream(1, 2, 3), [], lambda total, value: [*total, value]).accumulate().get() == [1, 2, 3]
    assert Accumulator(Stream(), 42, operator.add).accumulate().get() == 42


def test_an_error_ends_the_fold_and_is_the_same_for_all():
    failed = Future()
    failed._fail(LookupError("lost"))
    stream = Stream(1, failed, 3)
    future = Accumulator(stream, 0, operator.add).accumulate()
    with pytest.raises(LookupError, match="lost") as first:
        future.get()
    with pytest.raises(LookupError) as second:
        asyncio.run(waiting(future))
    assert first.value is second.value
    assert 3 not in stream.events

    future = Accumulator(Stream(1), 0, lambda total, value: total / 0).accumulate()
    with pytest.raises(ZeroDivisionError):
        future.get()


class Folding(Actor):
    """Folds over other actors, and over itself."""

    @endpoint
    def total(self, counters) -> int:
        return Accumulator(counters.value, 0, operator.add).accumulate().get(WAIT)


def test_a_fold_over_a_mesh_from_here_and_from_an_actor(procs, one):
    counters = procs.spawn("accumulated", Counter, 2)
    assert Accumulator(counters.value, 1, operator.add).accumulate().get(WAIT) == 9
    with pytest.raises(TypeError):
        Accumulator(counters.value, 1, operator.add).accumulate("too many")
    folding = one.spawn("folding", Folding)
    assert folding.total.call_one(counters).get(WAIT) == 8


def test_an_error_of_one_actor_is_the_fold_s(procs):
    counters = procs.spawn("failing", Counter, 2)
    with pytest.raises(ActorError):
        Accumulator(counters.fail, 0, operator.add).accumulate("on purpose").get(WAIT)
