"""Messages to the ports of a process while its host's daemon is killed: none is lost, none comes twice."""

from __future__ import annotations

import os
import signal

import pytest
from port_actors import Answering, Keeper, Sender
from processes import daemons, until

import monarch_kernel as mk

NAME = "ports"
WAIT = 30.0


@pytest.fixture(scope="module")
def procs(place):
    mk.up(NAME, hosts=2, lease="20m")
    yield mk.hosts().spawn_procs(per_host={"gpus": 1})
    mk.down(NAME)


def test_what_is_sent_around_a_kill_of_the_daemon_arrives_once_and_in_order(procs):
    keeper = procs.slice(hosts=1, gpus=0).spawn("keeper", Keeper)
    sender = procs.slice(hosts=0, gpus=0).spawn("sender", Sender)
    port = keeper.open.call_one().get(WAIT)
    sender.count.call_one(port, 5).get(WAIT)
    old = daemons(NAME)[1]
    os.kill(old, signal.SIGKILL)
    for number in range(100, 105):
        port.send(number)
    sender.count.call_one(port, 3).get(WAIT)
    got = [keeper.receive.call_one().get(WAIT) for _ in range(13)]
    assert [number for number in got if number < 100] == [*range(5), *range(3)]
    assert [number for number in got if number >= 100] == [*range(100, 105)]
    until(lambda: daemons(NAME)[1] != old)


def test_the_port_of_a_call_that_is_held_elsewhere_survives_a_kill_of_both_daemons(procs):
    here = procs.slice(hosts=0, gpus=0).spawn("here", Answering)
    there = procs.slice(hosts=1, gpus=0).spawn("there", Answering)
    answered = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    for old in (daemons(NAME)[0], daemons(NAME)[1]):
        os.kill(old, signal.SIGKILL)
    assert there.answer.call_one("still there").get(WAIT) == 1
    assert answered.get(WAIT) == "still there"

    dropped = here.hand_over.call_one(there)
    until(lambda: there.holds.call_one().get(WAIT) == 1)
    os.kill(daemons(NAME)[1], signal.SIGKILL)
    os.kill(there.pid.call_one().get(WAIT), signal.SIGKILL)
    with pytest.raises(mk.errors.SupervisionError, match="ended without answering"):
        dropped.get(WAIT)
