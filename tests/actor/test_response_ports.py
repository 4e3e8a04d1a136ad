"""Endpoints that answer through a port: once, at any time, from anywhere; and what is said when no answer can come."""

from __future__ import annotations

import os
import signal

import pytest
from mesh_actors import Counter
from port_actors import Answering

from monarch_kernel.actor import ActorError, Channel, SupervisionError, as_endpoint, send

WAIT = 30.0
SOON = 15.0
"""Seconds within which somebody who waits for an answer that cannot come is told so."""


@pytest.fixture
def pair(procs):
    """One actor on each of two hosts."""
    answering = procs.spawn("answering", Answering)
    return answering.slice(hosts=0, gpus=0), answering.slice(hosts=1, gpus=0)


def test_every_adverb_brings_what_the_port_was_given(procs):
    answering = procs.spawn("answering", Answering)
    assert answering.add.call(2, b=3).get(WAIT).values() == [5] * 4
    assert answering.add.choose(2).get(WAIT) == 3
    assert sorted(future.get(WAIT) for future in answering.add.stream(4)) == [5] * 4
    assert answering.slice(hosts=0, gpus=0).add.call_one(1).get(WAIT) == 2
    answering.add.broadcast(1)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        answering.add.call()


def test_an_error_through_the_port_leaves_the_actor_alive(pair):
    here, _ = pair
    with pytest.raises(ActorError) as caught:
        here.refuse.call_one("no").get(WAIT)
    assert isinstance(caught.value.exception, LookupError)
    assert here.add.call_one(1).get(WAIT) == 2


def test_a_second_answer_and_an_exception_end_the_actor(procs):
    twice = procs.slice(hosts=0, gpus=0).spawn("twice", Answering)
    assert twice.twice.call_one().get(WAIT) == 1
    with pytest.raises(SupervisionError, match="already used"):
        twice.add.call_one(1).get(WAIT)
    fails = procs.slice(hosts=0, gpus=0).spawn("fails", Answering)
    with pytest.raises(SupervisionError, match="on purpose"):
        fails.fails.call_one().get(WAIT)


def test_an_endpoint_that_never_answers_is_an_error_soon(pair):
    here, _ = pair
    with pytest.raises(SupervisionError, match="never ended without answering through its port"):
        here.never.call_one().get(SOON)
    assert here.add.call_one(1).get(WAIT) == 2


def test_a_port_that_is_kept_answers_later_and_one_that_is_dropped_says_so(pair):
    here, _ = pair
    first, second = here.later.call_one(), here.later.call_one()
    assert here.answer.call_one("now").get(WAIT) == 2
    assert [first.get(WAIT), second.get(WAIT)] == ["now", "now"]
    dropped = here.later.call_one()
    here.drop.call_one().get(WAIT)
    with pytest.raises(SupervisionError, match="nobody has the port any more"):
        dropped.get(SOON)


def test_who_waits_for_a_kept_port_is_told_when_its_actor_fails_or_is_stopped(procs):
    one = procs.slice(hosts=0, gpus=0)
    failing, stopped = one.spawn("failing", Answering), one.spawn("stopped", Answering)
    of_failing, of_stopped = failing.later.call_one(), stopped.later.call_one()
    with pytest.raises(SupervisionError, match="on purpose"):
        failing.fails.call_one().get(WAIT)
    with pytest.raises(SupervisionError, match="on purpose"):
        of_failing.get(SOON)
    stopped.stop("enough").get(WAIT)
    with pytest.raises(SupervisionError, match="stopped: enough"):
        of_stopped.get(SOON)


def test_another_actor_answers_and_a_third_one(procs, pair, until):
    here, there = pair
    third = procs.slice(hosts=1, gpus=1).spawn("third", Answering)
    answered = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    assert there.answer.call_one("from there").get(WAIT) == 1
    assert answered.get(WAIT) == "from there"

    answered = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    there.hand_on.call_one(third).get(WAIT)
    assert third.answer.call_one({"from": "the third"}).get(WAIT) == 1
    assert answered.get(WAIT) == {"from": "the third"}

    # Back where it began.
    answered = here.hand_over.call_one(here)
    until(lambda: here.holds.call_one().get(WAIT) == 1)
    here.answer.call_one("myself").get(WAIT)
    assert answered.get(WAIT) == "myself"


def test_a_holder_that_drops_the_port_is_noticed(pair, until):
    here, there = pair
    dropped = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    there.drop.call_one().get(WAIT)
    with pytest.raises(SupervisionError, match="nobody has the port any more"):
        dropped.get(SOON)


def test_a_holder_that_is_killed_is_an_error_soon(fresh, until):
    procs = fresh(gpus=1)
    answering = procs.spawn("answering", Answering)
    here, there = answering.slice(hosts=0), answering.slice(hosts=1)
    waiting = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    os.kill(there.pid.call_one().get(WAIT), signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"sent to another process, which ended without answering.*rank 1"):
        waiting.get(SOON)
    # Nobody there to take it in the first place.
    with pytest.raises(SupervisionError, match="without answering"):
        here.hand_over.call_one(there).get(SOON)


def test_the_process_of_the_endpoint_dies_while_another_holds_the_port(fresh, until):
    procs = fresh(gpus=1)
    answering = procs.spawn("answering", Answering)
    here, there = answering.slice(hosts=0), answering.slice(hosts=1)
    waiting = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    here.die.broadcast()
    with pytest.raises(SupervisionError, match="rank 0"):
        waiting.get(SOON)
    assert there.answer.call_one("too late").get(WAIT) == 1


def test_this_process_holds_the_port_of_a_call(pair):
    here, _ = pair
    to, receiver = Channel.open()
    waiting = here.by_channel.call_one(to)
    port = receiver.recv().get(WAIT)
    port.send("from the controller")
    assert waiting.get(WAIT) == "from the controller"
    with pytest.raises(RuntimeError, match="already used"):
        port.send(1)
    waiting = here.by_channel.call_one(to)
    receiver.recv().get(WAIT)
    with pytest.raises(SupervisionError, match="nobody has the port"):
        waiting.get(SOON)


def test_a_port_in_a_channel_lives_until_somebody_receives_it(procs):
    here = procs.slice(hosts=0, gpus=0).spawn("impatient", Answering)
    here.keep_ports_no_longer_than_needed.call_one().get(WAIT)
    to, receiver = Channel.open()
    waiting = here.by_channel.call_one(to)
    for _ in range(50):
        here.add.call_one(1).get(WAIT)
    assert not waiting.done()
    port = receiver.recv().get(WAIT)
    for _ in range(50):
        here.add.call_one(1).get(WAIT)
    port.send("late")
    assert waiting.get(WAIT) == "late"
    # What nobody receives is dropped with the receiver.
    waiting = here.by_channel.call_one(to)
    del receiver
    with pytest.raises(SupervisionError, match="nobody has the port"):
        waiting.get(WAIT)


def test_an_answer_is_left_to_other_actors(procs, pair):
    here, _ = pair
    counter = procs.slice(hosts=1, gpus=1).spawn("counted", Counter, 8)
    assert here.let_answer.call_one(counter).get(WAIT) == 8
    to, receiver = Channel.open_ranked()
    send(here.add, (1,), {}, port=to)
    assert receiver.recv().get(WAIT) == (0, 2)


def test_methods_that_are_no_endpoints(pair):
    here, _ = pair
    assert as_endpoint(here.plain).call_one(1).get(WAIT) == 2
    assert as_endpoint(here.plain_with_port, explicit_response_port=True).call_one(1).get(WAIT) == 3
    with pytest.raises(TypeError, match="missing a required argument: 'value'"):
        as_endpoint(here.plain).call_one()
    with pytest.raises(ValueError, match="as_endpoint takes"):
        as_endpoint(here.add)
    # A handle that came by itself finds the class where its module is imported.
    assert as_endpoint(here.slice().plain).call_one(5).get(WAIT) == 6
