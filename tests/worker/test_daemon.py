"""Two hosts whose daemons speak gRPC to each other: what a death of a daemon, of a host, or a pause costs."""

from __future__ import annotations

import os
import signal
import time

import pytest
from counting import Counter
from processes import daemons, keepers, kill, procs, tree, until

import monarch_kernel as mk
from monarch_kernel import errors

NAME = "pair"


@pytest.fixture(scope="module")
def session(place):
    made = mk.up(NAME, hosts=2, lease="20m")
    yield made
    mk.down(NAME)


@pytest.fixture(scope="module")
def counters(session):
    made = mk.hosts().spawn_procs(name="procs").spawn("counters", Counter)
    made.value.call().get(30)
    return made


def here_and_there(counters):
    return counters.slice(hosts=0), counters.slice(hosts=1)


def test_calls_between_actors_of_two_hosts_complete_once_when_the_link_between_them_is_cut(counters, tmp_path):
    here, there = here_and_there(counters)
    before, running = there.value.call_one().get(20), procs(NAME)
    driving = here.drive.call_one(there, 400)
    old = daemons(NAME)[1]
    until(lambda: there.value.call_one().get(20) > before + 20)
    os.kill(old, signal.SIGKILL)
    assert driving.get(30) == list(range(before + 1, before + 401))
    assert there.value.call_one().get(20) == before + 400
    assert procs(NAME) == running
    assert daemons(NAME)[1] != old


def test_the_roots_daemon_killed_in_the_middle_of_a_cast_runs_it_once_everywhere(counters, tmp_path):
    go, ran = tmp_path / "go", tmp_path / "ran"
    before = counters.value.call().get(20).values()
    casts = [counters.held.call(str(go), str(ran), f"cast {n}") for n in range(3)]
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    kill(daemons(NAME)[0])
    go.touch()
    for n, cast in enumerate(casts):
        assert cast.get(30).values() == [f"cast {n} done by {rank}" for rank in range(2)]
    assert sorted(ran.read_text().splitlines()) == sorted(f"cast {n}.{rank}" for n in range(3) for rank in range(2))
    assert counters.value.call().get(20).values() == [n + 300 for n in before]


def test_a_whole_host_that_stands_still_is_waited_for(counters):
    here, there = here_and_there(counters)
    before = there.value.call_one().get(20)
    session = mk.session()
    stopped = [keepers(NAME)[1], daemons(NAME)[1], *(pid for who, (pid, _) in procs(NAME).items() if "host1" in who)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        call = there.add.call_one(1)
        assert isinstance(here.value.call_one().get(20), int)  # nobody else waits
        with pytest.raises(TimeoutError):
            call.get(1.0)
        assert session.controller.lost == set()  # a host that does not answer is not lost yet
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert call.get(20) == before + 1


def test_what_dies_while_nobody_is_attached_is_told_at_the_next_attach(session, counters):
    mesh = mk.hosts().spawn_procs(name="mortal").spawn("mortals", Counter)
    pids = mesh.pid.call().get(30).values()
    session.detach()
    kill(pids[1])
    until(lambda: len(procs(NAME)) == 3)
    again = mk.attach(NAME)
    (fault,) = [f for f in again.faults if f.get("name") == "mortals" and f["record"]["state"] in ("dead", "failed")]
    assert fault["rank"] == 1
    assert "SIGKILL" in str(fault)
    found = again.actors["mortals"]
    assert found.slice(hosts=0).add.call_one(1).get(20) == 1
    with pytest.raises(errors.ProcDied, match="SIGKILL"):
        found.slice(hosts=1).add.call_one(1).get(20)
    assert mk.attach(NAME) is again


def test_a_host_whose_keeper_is_killed_is_lost_with_all_of_it_and_the_other_goes_on(place):
    """The last test here: it costs the session a host."""
    session = mk.session()
    counters = session.actors["counters"]
    here, there = here_and_there(counters)
    before = here.value.call_one().get(20)
    whole = [pid for pid in tree(NAME) if pid not in keepers(NAME)]
    began = time.monotonic()
    kill(keepers(NAME)[1])
    with pytest.raises(errors.HostLost) as e:
        there.add.call_one(1).get(20)
    print(f"HostLost after {time.monotonic() - began:.2f} s")
    assert e.value.host == 1
    assert here.add.call_one(1).get(20) == before + 1
    with pytest.raises(errors.HostLost):
        counters.add.call(1).get(20)
    assert here.value.call_one().get(20) == before + 2
    until(lambda: len([pid for pid in whole if os.path.exists(f"/proc/{pid}")]) < len(whole))
    until(lambda: session.controller.lost == {1})  # the other host may have known it first
