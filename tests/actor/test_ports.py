"""Channels: ports that are sent anywhere, and receivers that claim a message when somebody waits."""

from __future__ import annotations

import gc
import os
import signal

import numpy as np
import pytest
from mesh_actors import Counter
from port_actors import Announcing, Keeper, Sender

from monarch_kernel.actor import ActorError, Channel, SupervisionError, send

WAIT = 30.0


def received(receiver, count):
    return [receiver.recv().get(WAIT) for _ in range(count)]


def test_what_is_sent_here_arrives_in_order_and_as_a_copy(session):
    port, receiver = Channel.open()
    array = np.arange(20_000)
    port.send(array)
    array[:] = 0
    port.send("second")
    assert receiver.recv().get(WAIT)[-1] == 19_999
    assert receiver.recv().get(WAIT) == "second"
    port.exception(LookupError("nothing here"))
    with pytest.raises(LookupError, match="nothing here"):
        receiver.recv().get(WAIT)
    with pytest.raises(TypeError, match="stays in its process"):
        port.send(receiver)


def test_a_receive_claims_its_message_when_somebody_waits(session):
    port, receiver = Channel.open()
    port.send(1)
    port.send(2)
    first, second = receiver.recv(), receiver.recv()
    assert second.get(WAIT) == 1
    assert first.get(WAIT) == 2
    discarded = receiver.recv()
    with pytest.raises(TimeoutError):
        discarded.get(timeout=0)
    del discarded
    gc.collect()
    kept = receiver.recv()
    with pytest.raises(TimeoutError):
        kept.get(timeout=0.01)
    port.send(3)
    assert kept.get(WAIT) == 3


def test_a_channel_for_one_message_takes_one(session):
    port, receiver = Channel.open(once=True)
    port.send(1)
    with pytest.raises(RuntimeError, match="already used"):
        port.send(2)
    del_me = receiver.recv()
    del del_me
    assert receiver.recv().get(WAIT) == 1
    with pytest.raises(RuntimeError, match="received already"):
        receiver.recv().get(WAIT)


def test_actors_send_to_a_port_in_their_order(procs):
    senders = procs.spawn("senders", Sender)
    port, receiver = Channel.open()
    senders.slice(hosts=1, gpus=1).count.broadcast(port, 100)
    assert received(receiver, 100) == list(range(100))
    senders.count.call(port, 50).get(WAIT)
    got = received(receiver, 200)
    assert sorted(got) == sorted([*range(50)] * 4)


def test_a_port_goes_to_another_actor_and_back(procs):
    senders = procs.spawn("senders", Sender)
    here = senders.slice(hosts=0, gpus=0)
    there = senders.slice(hosts=1, gpus=1)
    port, receiver = Channel.open()
    back = here.pass_on.call_one(there, port, "through two").get(WAIT)
    assert receiver.recv().get(WAIT) == "through two"
    back.send("from here again")
    assert receiver.recv().get(WAIT) == "from here again"
    # An actor receives from what another one sends.
    assert here.ask.call_one(there, "a question").get(WAIT) == "a question"


def test_a_port_given_to_a_constructor_and_a_mesh_that_is_still_being_spawned(one):
    port, receiver = Channel.open()
    one.spawn("announcing", Announcing, one, port)
    counter = receiver.recv().get(WAIT)
    assert counter.value.call_one().get(WAIT) == 42


def test_send_brings_answers_with_their_ranks(procs):
    counters = procs.spawn("counted", Counter, 3)
    port, receiver = Channel.open_ranked()
    send(counters.slice(hosts=1).add, (4,), {}, port=port)
    assert sorted(received(receiver, 2)) == [(0, 7), (1, 7)]
    send(counters.value, (), {}, port=port, selection="choose")
    assert received(receiver, 1)[0][0] == 0
    send(counters.slice(hosts=0, gpus=0).fail, ("on purpose",), {}, port=port)
    with pytest.raises(ActorError, match=r"counted\.fail failed: rank 0 of .* raised ValueError"):
        receiver.recv().get(WAIT)
    with pytest.raises(ValueError, match="selection"):
        send(counters.value, (), {}, selection="some")
    with pytest.raises(TypeError, match="Channel"):
        send(counters.value, (), {}, port=receiver)


def test_a_message_without_a_rank_says_so_to_a_ranked_receiver(session):
    port, receiver = Channel.open_ranked()
    port.send(1)
    with pytest.raises(ValueError, match="without a rank"):
        receiver.recv().get(WAIT)


def test_an_actor_lets_answers_go_to_a_port_of_somebody_else(procs):
    counters = procs.spawn("counted", Counter, 5)
    sender = procs.slice(hosts=0, gpus=0).spawn("forwarding", Sender)
    port, receiver = Channel.open()
    sender.let_answer.call_one(counters, port).get(WAIT)
    assert received(receiver, 4) == [5] * 4
    assert sorted(rank for rank, _ in received_after(sender, counters)) == [0, 1, 2, 3]
    sender.let_fail.call_one(counters, port).get(WAIT)
    with pytest.raises(ActorError, match="ValueError"):
        received(receiver, 1)


def received_after(sender, counters):
    port, receiver = Channel.open_ranked()
    sender.let_answer.call_one(counters, port).get(WAIT)
    return received(receiver, 4)


def test_a_port_of_a_dead_process_takes_what_is_sent_and_nobody_hangs(fresh):
    procs = fresh(gpus=2)
    keeper = procs.slice(hosts=0, gpus=0).spawn("keeper", Keeper)
    port = keeper.open.call_one().get(WAIT)
    port.send("kept")
    assert keeper.receive.call_one().get(WAIT) == "kept"
    os.kill(keeper.pid.call_one().get(WAIT), signal.SIGKILL)
    with pytest.raises(SupervisionError):
        keeper.pid.call_one().get(WAIT)
    port.send("to nobody")
    # From another process of that host too; it goes on.
    other = procs.slice(hosts=0, gpus=1).spawn("sender", Sender)
    assert other.count.call_one(port, 3).get(WAIT) is None


def test_who_waits_for_a_sender_that_died_can_stop_waiting(fresh):
    procs = fresh(gpus=1)
    sender = procs.slice(hosts=0).spawn("sender", Sender)
    port, receiver = Channel.open()
    sender.count.call_one(port, 1).get(WAIT)
    assert receiver.recv().get(WAIT) == 0
    sender.die.broadcast()
    with pytest.raises(SupervisionError):
        sender.count.call_one(port, 1).get(WAIT)
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.05)
