"""Meshes of hosts and processes: who may stop them, what is left then, and what actors do with them."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from mesh_actors import Counter, Runner, Spawner
from test_spawning import alive

import monarch_kernel as mk
from monarch_kernel.actor import HostMesh, context, shutdown_context, this_host, this_proc
from monarch_kernel.errors import NotOwner, SessionError, SpawnError, SupervisionError

WAIT = 30


def stop_text(mesh: Any) -> str:
    """What an actor that does not own a mesh gets for stopping it."""
    try:
        mesh.stop().get(timeout=WAIT)
    except NotImplementedError as error:
        return str(error)
    return "stopped"


def spawn_and_stop() -> str:
    procs = this_host().spawn_procs(per_host={"x": 2})
    actors = procs.spawn("own", Counter, 1)
    assert list(actors.add.call(1).get(timeout=WAIT).values()) == [2, 2]
    actors.stop("seen enough").get(timeout=WAIT)
    try:
        actors.value.call().get(timeout=WAIT)
    except SupervisionError as error:
        text = str(error)
    procs.stop().get(timeout=WAIT)
    try:
        procs.spawn("late", Counter)
    except RuntimeError as error:
        return text + "\n" + str(error)
    return "it could be spawned on"


def test_only_who_spawned_a_mesh_stops_it(procs, one):
    mesh = procs.spawn("ours", Counter)
    runner = one.spawn("stranger", Runner)
    assert "was spawned by somebody else" in runner.run.call_one(stop_text, mesh).get(timeout=WAIT)
    theirs_procs, theirs = one.spawn("spawner", Spawner).spawn.call_one(1, 3).get(timeout=WAIT)
    for stranger in (theirs_procs, theirs):
        with pytest.raises(NotOwner, match="ask the owner"):
            stranger.stop()
    assert theirs.add.call_one(1).get(timeout=WAIT) == 4
    with pytest.raises(NotImplementedError, match="not on a slice"):
        mesh.slice(gpus=0).stop()
    mesh.stop().get(timeout=WAIT)


def test_an_actor_stops_what_it_spawned(one):
    text = one.spawn("spawner", Runner).run.call_one(spawn_and_stop).get(timeout=WAIT)
    assert "seen enough" in text
    assert "`ProcMesh` has already been stopped" in text


def test_stopping_actors_begins_without_a_wait_and_says_why_later(procs, until):
    mesh = procs.spawn("eager", Counter)
    mesh.value.call().get(timeout=WAIT)
    mesh.stop("no longer needed")
    error = until(lambda: mesh.value.call().exception(WAIT), what="the stop that nobody waits for")
    assert isinstance(error, SupervisionError)
    assert "no longer needed" in str(error)
    mesh.stop().get(timeout=WAIT)
    assert list(procs.spawn("after", Counter).value.call().get(timeout=WAIT).values()) == [0] * 4


def test_a_stopped_mesh_of_processes_takes_no_block_and_no_actors(session):
    procs = session.hosts.spawn_procs()

    async def main() -> None:
        async with procs:
            await procs.spawn("in block", Runner).pid.call()
            await procs.stop()
        async with procs:
            raise AssertionError("it has been stopped")

    with pytest.raises(SpawnError, match="`ProcMesh` has already been stopped"):
        asyncio.run(main())


def test_hosts_are_equal_hashable_and_pickled_as_references(session):
    hosts = session.hosts
    found = pickle.loads(pickle.dumps(hosts))
    assert found == hosts
    assert hash(found) == hash(hosts)
    assert found.slice(hosts=0) != found.slice(hosts=1)
    assert found != "hosts"
    assert not found.is_fake_in_process
    assert found.slice(hosts=1).region.ranks() == range(1, 2)
    assert found.initialized.get(timeout=WAIT)
    mesh = found.slice(hosts=1).spawn_procs().spawn("by reference", Runner)
    assert mesh.pid.call_one().get(timeout=WAIT) != os.getpid()
    with pytest.raises(RuntimeError, match="reference instead of owned"):
        found.stop()
    with pytest.raises(RuntimeError, match="reference instead of owned"):
        hosts.slice(hosts=0).shutdown()
    assert repr(hosts) == f"<hosts of session {session.name!r} {{hosts: 2}}>"


def test_actors_hand_on_hosts_and_processes(session, one):
    runner = one.spawn("runner", Runner)
    hosts = runner.run.call_one(this_host).get(timeout=WAIT)
    assert isinstance(hosts, HostMesh)
    assert hosts == session.hosts.slice(hosts=0)
    pid = runner.pid.call_one().get(timeout=WAIT)
    beside = runner.run.call_one(this_proc).get(timeout=WAIT).spawn("beside", Runner)
    assert beside.pid.call_one().get(timeout=WAIT) == pid
    theirs = runner.run.call_one(lambda: context().actor_instance.proc_mesh).get(timeout=WAIT)
    assert theirs.spawn("with it", Runner).pid.call_one().get(timeout=WAIT) == pid
    assert runner.run.call_one(lambda mesh: mesh.sizes, session.hosts).get(timeout=WAIT) == {"hosts": 2}
    assert theirs.host_mesh == hosts


def test_a_named_sessions_hosts_are_stopped_and_not_shut_down(session, until):
    with pytest.raises(SessionError, match="monarch down"):
        session.hosts.shutdown().get(timeout=WAIT)
    procs = session.hosts.spawn_procs()
    pids = list(procs.spawn("here", Runner).pid.call().get(timeout=WAIT).values())
    on_its_way = session.hosts.spawn_procs()
    session.hosts.stop().get(timeout=WAIT)
    assert not any(map(alive, pids))
    for stopped in (procs, on_its_way):
        with pytest.raises(SpawnError):
            stopped.spawn("late", Runner)
    assert session.hosts.spawn_procs().spawn("new", Runner).pid.call().get(timeout=WAIT)


def script(code: str, home: Any) -> str:
    env = {**os.environ, "XDG_STATE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_scripts_own_hosts_are_shut_down_and_start_anew(tmp_path):
    out = script(
        """
import asyncio, os
from monarch_kernel.actor import Actor, endpoint, shutdown_context, this_host
class Pid(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
def alive(pid):
    return os.path.exists(f"/proc/{pid}")
host = this_host()
pids = [host.spawn_procs().spawn("a", Pid).pid.call_one().get(30)]
future = host.shutdown()
future.get(30)
future.get(30)
for use in (host.spawn_procs, host.shutdown, host.stop):
    try:
        use()
    except RuntimeError as error:
        assert "HostMesh has already been shut down" in str(error), error
    else:
        raise AssertionError(use)
async def main():
    async with this_host() as again:
        pids.append(await again.spawn_procs().spawn("a", Pid).pid.call_one())
asyncio.run(main())
shutdown_context().get(30)
pids.append(this_host().spawn_procs().spawn("a", Pid).pid.call_one().get(30))
shutdown_context()
shutdown_context(5.0).get(30)
print(len(set(pids)), any(map(alive, pids[:2])))
""",
        tmp_path,
    )
    assert out.split() == ["3", "False"]


def test_the_context_of_a_named_session_is_left_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    try:
        out = script(
            """
import monarch_kernel as mk
from monarch_kernel.actor import shutdown_context
session = mk.up("kept")
session.hosts.spawn_procs(name="stay").initialized.get(30)
shutdown_context().get(30)
assert mk.attach("kept").procs["stay"].initialized.get(30)
print("there")
""",
            tmp_path,
        )
        assert out.strip() == "there"
    finally:
        mk.down("kept")


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_bound_that_is_none_is_refused(timeout):
    with pytest.raises(ValueError, match="finite"):
        shutdown_context(timeout)
