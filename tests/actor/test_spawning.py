"""Spawning and stopping: by controllers and by actors, in time and out of time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from mesh_actors import BadConstructor, Cleaner, Counter, Runner, Spawner

import monarch_kernel.actor as ma
from monarch_kernel.actor import this_host, this_proc
from monarch_kernel.errors import (
    ActorStopped,
    ConstructorFailed,
    NotEnoughSlots,
    ProcDied,
    SpawnError,
    SupervisionError,
)

WAIT = 30


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def test_spawning_returns_at_once_and_calls_wait(session):
    began = time.monotonic()
    procs = session.hosts.spawn_procs(per_host={"gpus": 1})
    mesh = procs.spawn("early", Counter, 1)
    answer = mesh.add.call(1)
    assert time.monotonic() - began < 0.2
    assert not answer.done()
    assert list(answer.get(timeout=WAIT).values()) == [2, 2]
    assert procs.initialized.get(timeout=WAIT) is True
    assert mesh.initialized.get(timeout=WAIT) is None
    procs.stop().get(timeout=WAIT)


def test_dimensions_are_the_hosts_and_then_those_asked_for(session):
    procs = session.hosts.spawn_procs(per_host={"a": 1, "b": 2})
    assert procs.extent == ma.Extent(("hosts", "a", "b"), (2, 1, 2))
    procs.stop().get(timeout=WAIT)
    single = session.hosts.slice(hosts=1).spawn_procs()
    assert single.extent == ma.Extent((), ())
    assert single.host_mesh == session.hosts.slice(hosts=1) or len(single.host_mesh) == 1
    single.stop().get(timeout=WAIT)


def test_this_host_is_the_head_and_has_no_dimensions(session):
    assert len(this_host()) == 1
    assert this_host().extent == ma.Extent((), ())
    procs = this_host().spawn_procs(per_host={"n": 2})
    assert procs.extent == ma.Extent(("n",), (2,))
    assert list(procs.spawn("here", Counter).add.call(1).get(timeout=WAIT).values()) == [1, 1]
    procs.stop().get(timeout=WAIT)


@pytest.mark.parametrize(
    ("per_host", "error", "words"),
    [
        ({"gpus": 0}, ValueError, "1 or more"),
        ({"gpus": -1}, ValueError, "1 or more"),
        ({"gpus": 1.5}, ValueError, "whole number"),
        ({"gpus": True}, ValueError, "whole number"),
        ({"hosts": 2}, ValueError, "already"),
        ({"no word": 2}, ValueError, "identifier"),
        ({1: 2}, ValueError, "identifier"),
        (4, TypeError, "per_host"),
        ("gpus", TypeError, "per_host"),
    ],
)
def test_a_bad_per_host_is_refused_at_the_caller(session, per_host, error, words):
    with pytest.raises(error, match=words):
        session.hosts.spawn_procs(per_host=per_host)


@pytest.mark.parametrize("thing", [int, dict, object(), "Counter", lambda: None])
def test_only_actor_classes_are_spawned(procs, thing):
    with pytest.raises(TypeError, match="is no actor class"):
        procs.spawn("thing", thing)


def test_constructor_arguments_are_checked_at_the_spawn(procs):
    with pytest.raises(TypeError, match=r"Counter\(\.\.\.\): too many positional arguments"):
        procs.spawn("bad", Counter, 1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'stop'"):
        procs.spawn("bad", Counter, stop=1)
    with pytest.raises(TypeError, match="cannot be sent"):
        procs.spawn("bad", Counter, (n for n in range(3)))
    with pytest.raises(TypeError, match="needs a name"):
        procs.spawn("", Counter)


def test_endpoints_named_like_what_every_mesh_has_are_refused(procs):
    for name in ("stop", "slice", "size", "initialized", "extent", "flatten"):
        cls = type("Clash", (ma.Actor,), {name: ma.endpoint(lambda self: None)})
        with pytest.raises(ValueError, match=f"every mesh has {name}"):
            procs.spawn("clash", cls)


def test_endpoints_may_have_names_that_only_we_use(procs):
    names = ("name", "options", "restart", "reload", "ranks", "host_mesh", "proc_mesh")
    made = {name: ma.endpoint(lambda self, name=name: f"my own {name}") for name in names}
    mesh = procs.spawn("theirs", type("Theirs", (ma.Actor,), made))
    for name in names:
        assert set(getattr(mesh, name).call().get(timeout=WAIT).values()) == {f"my own {name}"}
    assert mesh.slice(gpus=0, hosts=0).name.call_one().get(timeout=WAIT) == "my own name"
    assert "theirs" in repr(mesh)
    mesh.stop().get(timeout=WAIT)


def test_a_constructor_that_raises_fails_every_call_with_its_own_error(procs):
    mesh = procs.spawn("bad", BadConstructor)
    for _ in range(2):
        with pytest.raises(ConstructorFailed, match="no such weights file") as caught:
            mesh.ping.call().get(timeout=WAIT)
        assert "raise RuntimeError" in str(caught.value)  # the source line over there
        assert "BadConstructor(...) of bad, rank" in str(caught.value)
        assert isinstance(caught.value, SupervisionError)
    with pytest.raises(SupervisionError, match="no such weights file"):
        mesh.initialized.get(timeout=WAIT)


def test_the_processes_of_a_failed_constructor_take_new_actors(procs):
    with pytest.raises(ConstructorFailed):
        procs.spawn("bad", BadConstructor).ping.call().get(timeout=WAIT)
    assert set(procs.spawn("good", Counter, 1).value.call().get(timeout=WAIT).values()) == {1}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt", "CancelledError", "Textless"])
def test_a_constructor_may_raise_anything(one, how, kind):
    class Textless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("it has no text")

    def fail(how: str) -> None:
        import asyncio
        import builtins

        raise {"CancelledError": asyncio.CancelledError, "Textless": Textless}.get(how) or getattr(builtins, how)

    class Sync(ma.Actor):
        def __init__(self, how: str) -> None:
            fail(how)

        @ma.endpoint
        def ping(self) -> None: ...

    class Async(ma.Actor):
        def __init__(self, how: str) -> None:
            fail(how)

        @ma.endpoint
        async def ping(self) -> None: ...

    with pytest.raises(ConstructorFailed, match=how):
        one.spawn("odd", Sync if kind == "sync" else Async, how).ping.call_one().get(timeout=WAIT)


def test_a_constructor_whose_argument_cannot_be_loaded(one):
    class Bomb:
        def __reduce__(self) -> Any:
            return (eval, ("1/0",))

    with pytest.raises(ConstructorFailed, match=r"Counter\(\.\.\.\) of bomb.*ZeroDivisionError"):
        one.spawn("bomb", Counter, Bomb()).value.call_one().get(timeout=WAIT)


def test_a_process_that_ends_in_a_constructor(session):
    procs = session.hosts.spawn_procs(per_host={"x": 1})

    class Leaves(Counter):
        def __init__(self) -> None:
            import os

            os._exit(4)

    with pytest.raises(ProcDied, match="exited with code 4"):
        procs.spawn("leaves", Leaves).value.call().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)


def test_what_is_no_method_is_no_endpoint():
    for thing in (staticmethod(print), classmethod(print), 3):
        with pytest.raises(TypeError, match="@endpoint marks a method"):
            ma.endpoint(thing)


def test_stop_is_idempotent_and_calls_after_it_say_so(procs):
    mesh = procs.spawn("short", Counter)
    mesh.value.call().get(timeout=WAIT)
    for _ in range(3):
        assert mesh.stop("enough").get(timeout=WAIT) is None
    began = time.monotonic()
    with pytest.raises(ActorStopped, match="short was stopped"):
        mesh.value.call().get(timeout=WAIT)
    with pytest.raises(ActorStopped):
        mesh.slice(hosts=1, gpus=0).value.call_one().get(timeout=WAIT)
    assert time.monotonic() - began < 2
    mesh.value.broadcast()
    assert set(procs.spawn("next", Counter).value.call().get(timeout=WAIT).values()) == {0}


def test_messages_sent_before_a_stop_are_handled(procs, tmp_path):
    mesh = procs.spawn("working", Runner)

    def slow(path: str) -> str:
        import time

        time.sleep(0.05)
        return path

    answers = [mesh.run.call(slow, str(n)) for n in range(3)]
    mesh.stop().get(timeout=WAIT)
    assert [set(answer.get(timeout=WAIT).values()) for answer in answers] == [{"0"}, {"1"}, {"2"}]


def test_a_mesh_may_be_stopped_before_it_is_there(session):
    procs = session.hosts.spawn_procs(per_host={"x": 1})
    mesh = procs.spawn("never", Counter)
    mesh.stop().get(timeout=WAIT)
    with pytest.raises(ActorStopped):
        mesh.value.call().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)


def test_stopping_processes_ends_them_and_all_on_them(session, until):
    procs = session.hosts.spawn_procs(per_host={"x": 1})
    mesh = procs.spawn("on them", Runner)
    pids = list(mesh.pid.call().get(timeout=WAIT).values())
    for _ in range(2):
        procs.stop().get(timeout=WAIT)
    assert not any(map(alive, pids))
    with pytest.raises(SupervisionError, match="stopped"):
        mesh.pid.call().get(timeout=WAIT)
    with pytest.raises(SpawnError, match="`ProcMesh` has already been stopped"):
        procs.spawn("late", Counter)


def test_a_call_under_way_fails_when_its_processes_are_stopped(session):
    procs = session.hosts.spawn_procs(per_host={"x": 1})
    mesh = procs.spawn("busy", Runner)
    mesh.pid.call().get(timeout=WAIT)

    def for_ever() -> None:
        import time

        time.sleep(1000)

    call = mesh.run.call(for_ever)
    procs.stop("no more").get(timeout=WAIT)
    with pytest.raises(SupervisionError, match="no more"):
        call.get(timeout=WAIT)


def test_only_whole_meshes_are_stopped(procs):
    mesh = procs.spawn("whole", Counter)
    with pytest.raises(NotImplementedError, match="whole mesh"):
        mesh.slice(hosts=0).stop()
    with pytest.raises(NotImplementedError, match="whole mesh"):
        procs.slice(hosts=0).stop()


def test_cleanup_runs_when_an_actor_is_stopped(procs, tmp_path, until):
    path = tmp_path / "cleaned"
    mesh = procs.slice(hosts=0, gpus=0).spawn("cleaner", Cleaner, str(path))
    mesh.ping.call_one().get(timeout=WAIT)
    mesh.stop().get(timeout=WAIT)
    until(path.exists, what="the clean-up")
    assert path.read_text() == "cleaned up: None\n"


def test_actors_spawn_processes_and_actors_and_hand_them_out(procs):
    spawner = procs.slice(hosts=1, gpus=0).spawn("spawner", Spawner)
    theirs, mesh = spawner.spawn.call_one(2, 5).get(timeout=WAIT)
    assert mesh.extent == ma.Extent(("workers",), (2,))
    assert list(mesh.add.call(1).get(timeout=WAIT).values()) == [6, 6]
    assert list(theirs.spawn("more", Counter, 1).add.call(1).get(timeout=WAIT).values()) == [2, 2]
    # They are on the host of the actor that spawned them.
    assert set(theirs._handle.hosts) == {1}


def test_an_actor_uses_what_it_spawned(procs):
    spawners = procs.spawn("spawners", Spawner)
    assert list(spawners.spawn_and_use.call(1).get(timeout=60).values()) == [[6]] * 4


def test_this_proc_of_an_actor_is_its_process(procs):
    spawner = procs.slice(hosts=1, gpus=1).spawn("spawner", Spawner)
    beside, pid = spawner.spawn_here.call_one(0).get(timeout=WAIT)
    assert beside.pid.call_one().get(timeout=WAIT) == pid


def test_actors_on_the_controllers_own_process(session, procs):
    import os

    mesh = this_proc().spawn("mine", Runner)
    assert mesh.pid.call_one().get(timeout=WAIT) == os.getpid()
    with pytest.raises(ma.ActorError, match="ZeroDivisionError"):
        mesh.run.call_one(lambda: 1 / 0).get(timeout=WAIT)

    def from_afar(mesh: Any) -> int:
        return mesh.pid.call_one().get(timeout=10)

    there = procs.slice(hosts=1, gpus=1).spawn("there", Runner)
    assert there.run.call_one(from_afar, mesh).get(timeout=WAIT) == os.getpid()
    mesh.stop().get(timeout=WAIT)
    with pytest.raises(ActorStopped):
        mesh.pid.call_one().get(timeout=WAIT)


def test_a_constructor_that_raises_on_the_controllers_own_process(session):
    with pytest.raises(ConstructorFailed, match="no such weights file"):
        this_proc().spawn("mine", BadConstructor).ping.call_one().get(timeout=WAIT)


def test_a_mesh_without_a_name_says_so(session):
    with pytest.raises(TypeError, match="text"):
        session.hosts.spawn_procs(name="")
    assert issubclass(NotEnoughSlots, ValueError)


def test_leaving_the_block_of_processes_stops_them(session):
    import asyncio

    async def main() -> int:
        async with session.hosts.spawn_procs(per_host={"x": 1}) as procs:
            pids = await procs.spawn("in block", Runner).pid.call()
        return next(iter(pids.values()))

    assert not alive(asyncio.run(main()))


def test_what_an_actor_spawned_ends_with_it(procs, until):
    spawner = procs.slice(hosts=1, gpus=0).spawn("spawner", Spawner)
    theirs, _ = spawner.spawn.call_one(1, 0).get(timeout=WAIT)
    runner = theirs.spawn("runner", Runner)
    (pid,) = runner.pid.call().get(timeout=WAIT).values()
    spawner.stop().get(timeout=WAIT)
    until(lambda: not alive(pid), what="the end of what it spawned")
    with pytest.raises(SupervisionError, match="stopped"):
        runner.pid.call().get(timeout=WAIT)


def test_words_of_ours_stay_apart_from_the_constructors(procs):
    class Waits(Counter):
        def __init__(self, wait: bool) -> None:
            super().__init__(int(wait))

    mesh = procs.options(wait=False).spawn("waits", Waits, wait=True)
    assert set(mesh.value.call().get(timeout=WAIT).values()) == {1}


def test_a_module_that_the_workers_lack_is_named_with_the_remedy(procs, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("class Thing:\n    pass\n")
    procs.initialized.get(timeout=WAIT)
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    mesh = procs.spawn("lacks", Runner)
    with pytest.raises(ma.ActorError, match=r"(?s)no module 'only_here'.*register_pickle_by_value"):
        mesh.echo.call(only_here.Thing()).get(timeout=WAIT)
    assert len(mesh.pid.call().get(timeout=WAIT)) == 4
