"""One message at a time, and in the order in which each sender sent them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from mesh_actors import AsyncRunner, Log, Relay, Runner

WAIT = 60


def test_600_mixed_broadcasts_arrive_in_order(procs):
    log = procs.spawn("log", Log)
    parts = {
        "all": (log, [0, 1, 2, 3]),
        "host 0": (log.slice(hosts=0), [0, 1]),
        "host 1": (log.slice(hosts=1), [2, 3]),
        "gpu 1": (log.slice(gpus=1), [1, 3]),
        "last": (log.slice(hosts=1, gpus=1), [3]),
    }
    choose = random.Random(7)
    expected: list[list[int]] = [[], [], [], []]
    for number in range(600):
        mesh, ranks = parts[choose.choice(list(parts))]
        mesh.tell.broadcast(number)
        for rank in ranks:
            expected[rank].append(number)
    assert list(log.all.call().get(timeout=WAIT).values()) == expected


def test_calls_of_all_kinds_keep_their_order(procs):
    log = procs.spawn("log", Log)
    one = log.slice(hosts=1, gpus=0)
    futures = []
    for number in range(0, 300, 3):
        futures.append(log.tell.call(number))
        one.tell.broadcast(number + 1)
        futures.append(one.tell.call_one(number + 2))
    for future in futures:
        future.get(timeout=WAIT)
    told = log.all.call().get(timeout=WAIT)
    assert told.item(hosts=1, gpus=0) == list(range(300))
    assert told.item(hosts=0, gpus=1) == list(range(0, 300, 3))


def test_large_messages_do_not_fall_behind_small_ones(procs):
    log = procs.slice(hosts=1, gpus=1).spawn("log", Log)
    sizes = [0, 3 << 20, 1, 1 << 20, 2]
    for number, size in enumerate(sizes * 3):
        log.tell.broadcast((number, bytes(size)))
    assert [number for number, _ in log.all.call().get(timeout=WAIT).item()] == list(range(15))


def test_each_sender_is_in_order_when_several_send(procs):
    log = procs.slice(hosts=1, gpus=0).spawn("log", Log)
    relays = procs.spawn("relays", Relay, log)
    calls = [relays.slice(hosts=h, gpus=g).tell_many.call_one(f"{h}{g}", 100) for h in (0, 1) for g in (0, 1)]
    for number in range(100):
        log.tell.broadcast(("client", number))
    for call in calls:
        call.get(timeout=WAIT)

    def complete() -> list[Any] | None:
        told = log.all.call().get(timeout=WAIT).item()
        return told if len(told) == 500 else None

    told = None
    for _ in range(200):
        if (told := complete()) is not None:
            break
    assert told is not None
    for who in ("client", "00", "01", "10", "11"):
        assert [number for name, number in told if name == who] == list(range(100))
    assert log.overlapped.call().get(timeout=WAIT).item() == 0


def test_a_sync_actor_handles_one_message_at_a_time(one):
    log = one.spawn("log", Log)
    for number in range(10):
        log.tell.broadcast(number, seconds=0.002)
    assert log.all.call().get(timeout=WAIT).item() == list(range(10))
    assert log.overlapped.call().get(timeout=WAIT).item() == 0


def test_an_async_actor_handles_one_message_at_a_time(one):
    mesh = one.spawn("async", AsyncRunner)
    for name in "abc":
        mesh.slow.broadcast(name)
    events = mesh.seen.call().get(timeout=WAIT).item()
    assert events == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_different_actors_of_one_process_run_at_the_same_time(one, tmp_path):
    first, second = one.spawn("first", Runner), one.spawn("second", Runner)

    def wait(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.002)
        return "went"

    def go(path: str) -> None:
        open(path, "w").close()

    waiting = first.run.call_one(wait, str(tmp_path / "go"))
    second.run.call_one(go, str(tmp_path / "go")).get(timeout=WAIT)
    assert waiting.get(timeout=WAIT) == "went"


@pytest.mark.parametrize("repeat", range(3))
def test_calls_sent_before_the_mesh_is_there_are_in_order(session, repeat):
    procs = session.hosts.spawn_procs(per_host={"x": 1})
    log = procs.spawn("early", Log)
    for number in range(20):
        (log if number % 2 else log.slice(hosts=1)).tell.broadcast(number)
    told = list(log.all.call().get(timeout=WAIT).values())
    assert told == [list(range(1, 20, 2)), list(range(20))]
    procs.stop().get(timeout=WAIT)
