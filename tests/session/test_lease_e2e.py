"""Real leases, with windows of a moment: what runs out frees everything, and the next kernel is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from counting import Counter
from processes import alive, tree, until

import monarch_kernel as mk
from monarch_kernel import errors
from monarch_kernel.launch import LaunchSpec, LocalLauncher
from monarch_kernel.protocol import statefile

DAEMON = """
import functools
from monarch_worker import daemon, host
host.Lease = functools.partial(host.Lease, reconnect=0.2, grace=0.2)
daemon.TICK = 0.05
daemon.main()
"""


@pytest.fixture
def start(place):
    """A session whose daemons look at the clock often and wait for nobody to come back."""

    def make(name, lease, max_detached=86400.0):
        launcher = LocalLauncher(daemon=[sys.executable, "-P", "-c", DAEMON])
        launcher.launch(LaunchSpec(name, hosts=2, lease=lease, max_detached=max_detached))
        return mk.attach(name)

    yield make
    try:
        mk.session().release()
    except errors.NotAttached:
        pass


def test_a_session_that_is_detached_and_idle_is_freed_and_the_next_attach_says_why(start):
    session = start("idle", lease=1.0)
    mk.hosts().spawn_procs().spawn("counters", Counter).value.call().get(30)
    running = tree("idle")
    time.sleep(1.5)  # attached, no time counts
    assert session.actors["counters"].add.call(1).get(20).values() == [1, 1]
    session.detach()
    began = time.monotonic()
    until(lambda: not any(map(alive, running)), 15)
    assert time.monotonic() - began > 0.8
    stone = statefile.tombstone("idle")
    assert stone.sid == session.file.sid
    assert "lease" in stone.reason
    with pytest.raises(errors.NoSuchSession, match=r"no live session 'idle' \(it ended: .*lease"):
        mk.attach("idle")
    sockets = os.path.join(os.environ["XDG_RUNTIME_DIR"], "monarch-kernel", session.file.sid[:8])
    assert not os.path.exists(sockets) or os.listdir(sockets) == []
    fresh = mk.up("idle")
    assert fresh.file.sid != session.file.sid
    assert statefile.tombstone("idle") is None


def test_no_time_counts_while_a_call_runs_on_any_host(start, tmp_path):
    session = start("working", lease=1.2)
    counters = mk.hosts().spawn_procs().spawn("counters", Counter)
    counters.value.call().get(30)
    go, ran = tmp_path / "go", tmp_path / "ran"
    counters.slice(hosts=1).held.call(str(go), str(ran), "a")
    until(ran.exists)
    running = tree("working")
    session.detach()
    time.sleep(2.5)  # two leases
    assert all(map(alive, running))
    go.touch()
    until(lambda: not any(map(alive, running)), 15)
    assert ran.read_text() == "a.1\n"


def test_a_daemon_that_is_killed_again_and_again_does_not_renew_the_lease(start):
    session = start("restarted", lease=1.5)
    running = tree("restarted")
    session.detach()
    began = time.monotonic()
    daemon = next(pid for pid in running if b"daemon.main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(daemon, 9)
    until(lambda: not any(map(alive, running)) and statefile.tombstone("restarted"), 15)
    until(lambda: statefile.here(session.file).state == "dead", 15)
    assert time.monotonic() - began < 10


def test_the_longest_time_without_a_controller_ends_what_runs_too(start, tmp_path):
    session = start("forgotten", lease=600.0, max_detached=1.0)
    counters = mk.hosts().spawn_procs().spawn("counters", Counter)
    go, ran = tmp_path / "go", tmp_path / "ran"
    counters.held.call(str(go), str(ran), "a")
    until(ran.exists)
    running = tree("forgotten")
    session.detach()
    until(lambda: not any(map(alive, running)), 15)
    with pytest.raises(errors.NoSuchSession, match="it ended: "):
        mk.attach("forgotten")
