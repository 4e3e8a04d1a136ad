"""Actors of which a session has one for each name."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from mesh_actors import BadConstructor, Counter, Runner

from monarch_kernel.actor import get_or_spawn_controller
from monarch_kernel.errors import ActorError, SupervisionError

WAIT = 30


def controller(name: str, *args: Any) -> Any:
    """Asks from wherever it is run."""
    return get_or_spawn_controller(name, Counter, *args).get(timeout=WAIT)


def pid_and_value(name: str) -> tuple[int, int]:
    mesh = get_or_spawn_controller(name, Runner).get(timeout=WAIT)
    return mesh.pid.call_one().get(timeout=WAIT), os.getpid()


def test_every_process_gets_the_same_controller_and_it_lives_in_the_script(procs):
    runners = procs.spawn("asking", Runner)
    found = list(runners.run.call(pid_and_value, "shared").get(timeout=WAIT).values())
    assert {where for where, _ in found} == {os.getpid()}
    assert len({asked for _, asked in found}) == 4
    assert pid_and_value("shared")[0] == os.getpid()


def test_the_first_who_asks_makes_it(procs):
    counters = procs.spawn("asking", Runner).run.call(controller, "counted", 10).get(timeout=WAIT)
    assert [mesh.add.call_one(1).get(timeout=WAIT) for mesh in counters.values()] == [11, 12, 13, 14]
    assert controller("counted", 99).value.call_one().get(timeout=WAIT) == 14
    assert controller("another", 5).value.call_one().get(timeout=WAIT) == 5


def test_many_who_ask_at_once_get_one(session):
    found: list[int] = []

    def ask() -> None:
        found.append(controller("raced", 0).add.call_one(1).get(timeout=WAIT))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(found) == list(range(1, 9))


def test_what_is_no_controller_is_refused(session):
    with pytest.raises(TypeError):
        get_or_spawn_controller("not one", dict)
    with pytest.raises(TypeError, match="name"):
        get_or_spawn_controller("", Counter)
    controller("a counter")
    with pytest.raises(ActorError, match="take another name"):
        get_or_spawn_controller("a counter", Runner).get(timeout=WAIT)


def test_a_controller_that_fails_is_told_to_whoever_asks_and_the_others_go_on(session, until):
    good = controller("good")
    bad = get_or_spawn_controller("bad", BadConstructor).get(timeout=WAIT)
    with pytest.raises(SupervisionError, match="no such weights file"):
        bad.ping.call_one().get(timeout=WAIT)

    def failure() -> BaseException | None:
        return get_or_spawn_controller("bad", BadConstructor).exception(WAIT)

    error = until(failure, what="the failure")
    assert "Failure on bad" in str(error)
    assert "no such weights file" in str(error)
    assert good.add.call_one(1).get(timeout=WAIT) == 1
    assert controller("good").value.call_one().get(timeout=WAIT) == 1
