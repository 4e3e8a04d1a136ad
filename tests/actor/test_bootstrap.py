"""What processes are started with: a command, cores, another Python, a function that runs first."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import threading
from types import MappingProxyType

import pytest
from mesh_actors import Environment, Prepared, Runner, Spawner

from monarch_kernel.actor import BootstrapCommand, Point, default_bootstrap_cmd, this_proc
from monarch_kernel.errors import ActorError, SpawnError

WAIT = 30


def variable(name: str) -> str | None:
    return os.environ.get(name)


def prepare() -> None:
    os.environ["PREPARED"] = str(os.getpid())


async def prepare_slowly() -> None:
    await asyncio.sleep(0.2)
    os.environ["PREPARED"] = "slowly"


def fail() -> None:
    raise LookupError("no such data set")


async def fail_slowly() -> None:
    fail()


def test_a_bootstrap_runs_in_every_process_before_any_actor(session):
    procs = session.hosts.spawn_procs(per_host={"x": 2}, bootstrap=prepare)
    mesh = procs.spawn("prepared", Environment)
    assert len(set(mesh.of.call("PREPARED").get(timeout=WAIT).values())) == 4
    assert "setup" not in session.actors
    slow = session.hosts.spawn_procs(bootstrap=prepare_slowly).spawn("slowly", Environment)
    assert set(slow.of.call("PREPARED").get(timeout=WAIT).values()) == {"slowly"}


def spawn_beside() -> None:
    """What a bootstrap spawns outlives it, and can be called from it."""
    kept = this_proc().spawn("kept", Runner)
    os.environ["KEPT"] = str(kept.run.call_one(os.getpid).get(timeout=WAIT) == os.getpid())


def test_a_bootstrap_may_spawn_actors_and_call_them(session):
    mesh = session.hosts.spawn_procs(bootstrap=spawn_beside, name="with company").spawn("guests", Runner)
    assert set(mesh.run.call(variable, "KEPT").get(timeout=WAIT).values()) == {"True"}
    assert "kept" in session.actors


@pytest.mark.parametrize("bootstrap", [fail, fail_slowly])
def test_a_bootstrap_that_raises_fails_the_first_call_and_leaves_no_process(session, until, bootstrap):
    procs = session.hosts.spawn_procs(bootstrap=bootstrap, name="unprepared")
    with pytest.raises(ActorError, match=r"Actor call setup\.setup failed") as caught:
        procs.spawn("never", Runner).pid.call().get(timeout=WAIT)
    assert isinstance(caught.value.exception, LookupError)
    with pytest.raises(ActorError):
        procs.initialized.get(timeout=WAIT)
    until(lambda: "unprepared" not in session.procs, what="the end of the processes")


def test_a_bootstrap_that_cannot_be_called_or_pickled_says_so(session):
    with pytest.raises(TypeError, match="without arguments"):
        session.hosts.spawn_procs(bootstrap=3)
    lock = threading.Lock()
    with pytest.raises(TypeError):
        session.hosts.spawn_procs(bootstrap=lambda: lock.acquire())


def test_a_restarted_process_runs_its_bootstrap_again(session):
    mesh = session.hosts.spawn_procs(bootstrap=prepare_slowly, name="renewed").spawn("on renewed", Prepared)
    assert set(mesh.when_made.call().get(timeout=WAIT).values()) == {"slowly"}
    session.restart("renewed")
    assert set(mesh.when_made.call().get(timeout=WAIT).values()) == {"slowly"}


def test_a_command_adds_and_removes_variables_for_its_processes_only(session, monkeypatch):
    monkeypatch.setenv("TAKEN_AWAY", "there")
    command = default_bootstrap_cmd().with_env({"ADDED": "yes", "TAKEN_AWAY": None, "CUDA_VISIBLE_DEVICES": "3"})
    mesh = session.hosts.spawn_procs(per_host={"gpus": 1}, bootstrap_command=command).spawn("own", Environment)
    names = ("ADDED", "TAKEN_AWAY", "CUDA_VISIBLE_DEVICES")
    assert [set(mesh.of.call(name).get(timeout=WAIT).values()) for name in names] == [{"yes"}, {None}, {"3"}]
    plain = session.hosts.spawn_procs(per_host={"gpus": 1}).spawn("plain", Environment)
    assert set(plain.of.call("ADDED").get(timeout=WAIT).values()) == {None}
    assert set(plain.of.call("TAKEN_AWAY").get(timeout=WAIT).values()) == {"there"}


def test_a_function_makes_the_command_of_each_rank(session):
    def of(point: Point) -> BootstrapCommand:
        return default_bootstrap_cmd().with_env({"PLACE": f"{point['hosts']}.{point['x']}"})

    mesh = session.hosts.spawn_procs(per_host={"x": 2}, bootstrap_command=of).spawn("each", Environment)
    assert list(mesh.of.call("PLACE").get(timeout=WAIT).values()) == ["0.0", "0.1", "1.0", "1.1"]


def test_a_command_may_inherit_nothing_and_be_called_by_another_name(session):
    base = default_bootstrap_cmd()
    begin = 'CALLED=$(tr "\\0" "\\n" < /proc/$$/cmdline | head -n 1) exec "$@"'
    args = ["-c", begin, "sh", base.program, *base.args]
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    command = BootstrapCommand("/bin/sh", "trainer", args, {**kept, "ONLY": "this"}, inherit_env=False)
    mesh = session.hosts.spawn_procs(bootstrap_command=command).spawn("bare", Runner)
    assert set(mesh.run.call(variable, "ONLY").get(timeout=WAIT).values()) == {"this"}
    assert set(mesh.run.call(variable, "XDG_STATE_HOME").get(timeout=WAIT).values()) == {None}
    assert set(mesh.run.call(variable, "CALLED").get(timeout=WAIT).values()) == {"trainer"}


def test_a_program_that_is_not_there_fails_the_spawn(session):
    command = BootstrapCommand("/no/such/python", None, [], {})
    with pytest.raises(SpawnError, match="/no/such/python"):
        session.hosts.spawn_procs(bootstrap_command=command).initialized.get(timeout=WAIT)


def test_what_is_no_command_is_refused_at_once(session):
    with pytest.raises(TypeError, match="BootstrapCommand"):
        session.hosts.spawn_procs(bootstrap_command="python")
    with pytest.raises(TypeError, match="no BootstrapCommand"):
        session.hosts.spawn_procs(bootstrap_command=lambda point: None)
    for bad in [
        ("", None, [], {}),
        ("p", 1, [], {}),
        ("p", None, "args", {}),
        ("p", None, [1], {}),
        ("p", None, [], 1),
    ]:
        with pytest.raises(TypeError):
            BootstrapCommand(*bad)
    command = BootstrapCommand("p", None, [], MappingProxyType({"A": None}))
    assert command.env == {"A": None}
    for env in ({"A": 1}, {1: "A"}):
        with pytest.raises(TypeError):
            command.with_env(env)
        with pytest.raises(TypeError):
            command.env = env
    assert command == BootstrapCommand("p", None, [], {"A": None}) != BootstrapCommand("q", None, [], {})
    assert "inherit_env=True" in repr(command)


def cores() -> set[int]:
    return os.sched_getaffinity(0)


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
def test_processes_are_bound_to_cores(session):
    first, *_, last = sorted(cores())
    procs = session.hosts.spawn_procs(per_host={"x": 2}, proc_bind=[{"cpus": str(first)}, {"cpus": str(last)}])
    found = procs.spawn("bound", Runner).run.call(cores).get(timeout=WAIT)
    assert list(found.values()) == [{first}, {last}, {first}, {last}]


@pytest.mark.skipif(shutil.which("numactl") is not None, reason="numactl is installed")
def test_what_binds_processes_and_is_not_there_fails_the_spawn(session):
    procs = session.hosts.spawn_procs(proc_bind=[{"cpunodebind": "0"}])
    with pytest.raises(SpawnError, match="numactl"):
        procs.initialized.get(timeout=WAIT)


def test_a_binding_of_the_wrong_kind_is_refused_at_once(session):
    hosts = session.hosts
    with pytest.raises(ValueError, match=r"proc_bind length \(1\) must equal procs_per_host \(4\)"):
        hosts.spawn_procs(per_host={"gpus": 4}, proc_bind=[{"cpunodebind": "0"}])
    with pytest.raises(ValueError, match="knows"):
        hosts.spawn_procs(proc_bind=[{"cores": "0"}])
    for bad in ({"cpus": "0"}, "0", ["0"], [{"cpus": 0}]):
        with pytest.raises(TypeError):
            hosts.spawn_procs(proc_bind=bad)


def test_another_python_runs_the_processes_and_those_that_they_spawn(session, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nWRAPPED=$$ exec {sys.executable} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    hosts = session.hosts.with_python_executable(str(wrapper))
    procs = hosts.slice(hosts=0).spawn_procs()
    outer = procs.spawn("outer", Runner).run.call_one(variable, "WRAPPED").get(timeout=WAIT)
    inner_procs, _ = procs.spawn("spawner", Spawner).spawn.call_one(1, 0).get(timeout=WAIT)
    inner = inner_procs.spawn("inner", Runner).run.call_one(variable, "WRAPPED").get(timeout=WAIT)
    assert outer
    assert inner
    assert outer != inner
    plain = session.hosts.spawn_procs().spawn("plain", Runner)
    assert set(plain.run.call(variable, "WRAPPED").get(timeout=WAIT).values()) == {None}
    with pytest.raises(TypeError, match="path"):
        session.hosts.with_python_executable(3)
