"""Failures go to whoever spawned the mesh, and up from there; what is not handled reaches the program's hook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT
from mesh_actors import BadConstructor, Counter, Runner

from monarch_kernel.actor import Actor, MeshFailure, endpoint, this_proc
from monarch_kernel.errors import ActorStopped, ConstructorFailed, ProcDied, SupervisionError

ROOT = Path(__file__).resolve().parents[2]


class Fatal(BaseException):
    """Ends an actor."""


def fail() -> None:
    raise Fatal("on purpose")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Parent(Actor):
    """Owns a mesh, and keeps what it is told of it."""

    def __init__(self, procs: Any, handles: bool = True) -> None:
        self.child = procs.spawn("child", Runner)
        self.handles = handles
        self.told: list[MeshFailure] = []

    @endpoint
    def call(self, function: Any) -> None:
        self.child.run.call(function).get(timeout=20)

    @endpoint
    def tell(self, function: Any) -> None:
        self.child.run.broadcast(function)

    @endpoint
    def end(self, how: Any) -> None:
        how()

    @endpoint
    def mesh(self) -> Any:
        return self.child

    @endpoint
    def failures(self) -> list[MeshFailure]:
        return self.told

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure)
        return self.handles


def told(parent: Any, count: int) -> list[MeshFailure]:
    end = time.monotonic() + 10
    while len(found := parent.failures.call_one().get(timeout=WAIT)) < count:
        assert time.monotonic() < end, found
    return found


# -- to the program


def test_an_actor_that_fails_is_told_to_the_hook_with_its_mesh_rank_and_traceback(one, faults):
    mesh = one.spawn("failing", Runner)
    mesh.run.broadcast(fail)
    (failure,) = faults.wait()
    assert isinstance(failure, MeshFailure)
    assert (failure.mesh_name, failure.crashed_ranks, failure.mesh) == ("failing", (0,), ("failing",))
    first, _, rest = failure.report().partition("\n")
    assert first == "The actor <root>.<mesh_actors.Runner failing> and all its descendants have failed:"
    assert "Fatal: on purpose" in rest
    assert str(failure).startswith("MeshFailure(mesh_name=failing, crashed_ranks=[0], event=The actor ")


def test_a_caller_that_got_the_error_and_the_hook_are_both_told(procs, faults):
    mesh = procs.spawn("failing", Runner)
    first = (
        r"^Endpoint call failing\.on_rank\(\) failed, The actor .*Runner failing\{'hosts': 1/2, 'gpus': 0/2\}> and all"
    )
    with pytest.raises(SupervisionError, match=first) as e:
        mesh.on_rank.call(2, fail).get(timeout=WAIT)
    assert (e.value.mesh, e.value.rank, e.value.host) == ("failing", 2, 1)
    assert [f.crashed_ranks for f in faults.wait()] == [(2,)]
    with pytest.raises(SupervisionError, match=r"^Endpoint call failing.pid\(\) failed, The actor .* have failed"):
        mesh.pid.call().get(timeout=WAIT)
    assert len(mesh.slice(hosts=0).pid.call().get(timeout=WAIT)) == 2
    mesh.stop().get(timeout=WAIT)


def test_a_dead_process_is_one_failure_for_each_mesh_of_actors_in_it(fresh, faults):
    procs = fresh(gpus=1)
    first, second = procs.spawn("first", Runner), procs.spawn("second", Counter)
    second.value.call().get(timeout=WAIT)
    began = time.monotonic()
    with pytest.raises(ProcDied, match=r"(?s)Endpoint call first.run.*SIGKILL"):
        first.slice(hosts=1, gpus=0).run.call_one(die).get(timeout=WAIT)
    assert time.monotonic() - began < 2
    assert sorted((f.mesh_name, f.crashed_ranks) for f in faults.wait(2)) == [("first", (1,)), ("second", (1,))]
    for failure in faults:
        assert "\nthe process this actor was running on failed: Killed(sig=9)\n" in failure.report()
    assert second.slice(hosts=0).add.call(1).get(timeout=WAIT).values() == [1]


def test_a_process_without_actors_is_a_failure_of_its_own_mesh(fresh, faults, session, until):
    procs = fresh(gpus=1)
    procs.initialized.get(timeout=WAIT)
    record = session.refresh().lookup(procs.name)
    os.kill(record.ranks[1].pid, signal.SIGKILL)
    (failure,) = faults.wait()
    assert (failure.mesh_name, failure.crashed_ranks) == (procs.name, (1,))
    assert "SIGKILL" in failure.report()


def test_a_failing_constructor_is_a_failure_of_each_of_its_ranks(procs, faults):
    mesh = procs.spawn("bad", BadConstructor)
    assert sorted(f.crashed_ranks for f in faults.wait(4)) == [(0,), (1,), (2,), (3,)]
    assert {f.mesh_name for f in faults} == {"bad"}
    assert all("no such weights file" in str(f) for f in faults)
    for _ in range(2):
        with pytest.raises(ConstructorFailed, match="no such weights file"):
            mesh.ping.call().get(timeout=WAIT)


def test_what_is_stopped_on_purpose_is_no_failure(fresh, faults):
    procs = fresh(gpus=1)
    mesh = procs.spawn("healthy", Runner)
    mesh.pid.call().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    with pytest.raises(
        ActorStopped, match=r"^Endpoint call healthy.pid\(\) failed, Supervision event: actor .* stopped"
    ):
        mesh.pid.call().get(timeout=WAIT)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.spawn("late", Runner).initialized.get(timeout=WAIT)
    assert faults == []


# -- to an owner


def test_the_owner_of_a_mesh_is_told_of_each_rank_and_nobody_else_is(one, procs, faults):
    parent, other = one.spawn("parent", Parent, procs), one.spawn("other", Parent, procs)
    child = parent.mesh.call_one().get(timeout=WAIT)
    with pytest.raises(SupervisionError):
        child.run.call(fail).get(timeout=WAIT)
    found = told(parent, 4)
    assert sorted(f.crashed_ranks for f in found) == [(0,), (1,), (2,), (3,)]
    assert {f.mesh_name for f in found} == {"child"}
    assert f"<root>.<{__name__}.Parent parent>.<mesh_actors.Runner child{{'hosts'" in found[0].report()
    assert other.failures.call_one().get(timeout=WAIT) == []
    assert faults == []


def test_an_owner_on_another_host_is_told(session, procs, faults):
    parent = procs.slice(hosts=1, gpus=1).spawn("parent", Parent, procs.slice(hosts=0, gpus=0))
    parent.tell.call_one(fail).get(timeout=WAIT)
    (failure,) = told(parent, 1)
    assert "on purpose" in failure.report()
    assert faults == []


def test_a_failure_that_nobody_handles_passes_every_level_up_to_the_program(procs, faults):
    low, high = procs.slice(hosts=0, gpus=1), procs.slice(hosts=1, gpus=0)
    parent = procs.slice(hosts=0, gpus=0).spawn("top", Grandparent, low, high)
    parent.call.call_one(None).get(timeout=WAIT)
    (failure,) = faults.wait()
    text = failure.report()
    assert failure.mesh_name == "top"
    heads = [line for line in text.splitlines() if "and all its descendants have failed" in line]
    assert [h.rsplit("<", 1)[1].split("{")[0].split(">")[0] for h in heads] == [
        f"{__name__}.Grandparent top",
        f"{__name__}.Parent middle",
        "mesh_actors.Runner child",
    ]
    assert "Fatal: on purpose" in text
    with pytest.raises(SupervisionError, match="on purpose"):
        parent.call.call_one(None).get(timeout=WAIT)
    assert len(faults) == 1


class Grandparent(Actor):
    def __init__(self, low: Any, high: Any) -> None:
        self.middle = low.spawn("middle", Parent, high, handles=False)

    @endpoint
    def call(self, _: Any) -> None:
        self.middle.tell.call_one(fail).get(timeout=20)


def test_the_death_of_a_process_reaches_the_owner(one, fresh, faults):
    procs = fresh(gpus=1)
    parent = one.spawn("parent", Parent, procs)
    parent.tell.call_one(die).get(timeout=WAIT)
    found = told(parent, 2)
    assert all("Killed(sig=9)" in f.report() for f in found)
    assert faults == []


def test_an_owner_in_the_controller_is_told(procs, faults):
    parent = this_proc().spawn("parent", Parent, procs)
    child = parent.mesh.call_one().get(timeout=WAIT)
    with pytest.raises(SupervisionError):
        child.slice(hosts=1, gpus=0).run.call_one(fail).get(timeout=WAIT)
    (failure,) = told(parent, 1)
    assert failure.crashed_ranks == (2,)
    assert faults == []
    parent.stop().get(timeout=WAIT)


def test_an_actor_in_the_controller_that_does_not_handle_it_fails(procs, faults):
    parent = this_proc().spawn("parent", Parent, procs.slice(hosts=0, gpus=0), handles=False)
    parent.tell.call_one(fail).get(timeout=WAIT)
    (failure,) = faults.wait()
    assert failure.mesh_name == "parent"
    assert "on purpose" in failure.report()
    with pytest.raises(SupervisionError, match="on purpose"):
        parent.failures.call_one().get(timeout=WAIT)


# -- what an owner has ends with it


def ended(session: Any, mesh: Any) -> bool:
    return mesh._handle.id not in {record.id for record in session.refresh().live()}


@pytest.mark.parametrize("end", ["stop", "fail", "die"])
def test_a_mesh_ends_with_the_actor_that_spawned_it_on_whichever_host_it_is(session, fresh, procs, until, end):
    owners = fresh(gpus=1)
    parent = owners.slice(hosts=1, gpus=0).spawn("parent", Parent, procs.slice(hosts=0, gpus=0))
    child = parent.mesh.call_one().get(timeout=WAIT)
    child.pid.call_one().get(timeout=WAIT)
    if end == "stop":
        parent.stop().get(timeout=WAIT)
        assert ended(session, child)
    else:
        parent.end.broadcast(fail if end == "fail" else die)
        until(lambda: ended(session, child), what="the end of the child")
    with pytest.raises(ActorStopped, match="child was stopped"):
        child.pid.call_one().get(timeout=WAIT)


# -- a script


def script(text: str, tmp_path: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("", "worker", "rdma"))
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


ACTOR = """
    import atexit, time
    import monarch_kernel.actor
    from monarch_kernel.actor import Actor, endpoint, this_host

    class Failing(Actor):
        @endpoint
        def fail(self) -> None:
            raise ValueError("out of luck")

    def start():
        return this_host().spawn_procs(per_host={"gpus": 1}).spawn("failing", Failing)
"""


def test_a_script_ends_by_a_failure_that_nobody_handles_and_its_exit_handlers_run(tmp_path):
    done = script(
        ACTOR
        + """
    atexit.register(print, "exit handler")
    try:
        start().fail.broadcast()
        time.sleep(60)
    finally:
        print("finally")
    """,
        tmp_path,
        timeout=30,
    )
    assert done.returncode != 0
    assert done.stdout.split("\n")[:2] == ["finally", "exit handler"]
    assert "monarch: The actor <root>.<__main__.Failing failing{'gpus': 0/1}> and all its descendants" in done.stderr
    assert "ValueError: out of luck" in done.stderr
    assert "KeyboardInterrupt" in done.stderr


def test_a_hook_of_the_script_is_called_instead_and_one_that_returns_drops_the_failure(tmp_path):
    done = script(
        ACTOR
        + """
    import threading
    seen = threading.Event()
    def hook(failure):
        print(failure.mesh_name, threading.current_thread() is threading.main_thread())
        seen.set()
    monarch_kernel.actor.unhandled_fault_hook = hook
    start().fail.broadcast()
    assert seen.wait(20)
    """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "failing False\n", "")


def test_a_hook_that_raises_is_called_once_and_ends_the_script(tmp_path):
    done = script(
        ACTOR
        + """
    def hook(failure):
        print("called")
        raise RuntimeError("the hook's own")
    monarch_kernel.actor.unhandled_fault_hook = hook
    start().fail.broadcast()
    time.sleep(60)
    """,
        tmp_path,
        timeout=30,
    )
    assert done.returncode != 0
    assert done.stdout == "called\n"
    assert "unhandled_fault_hook raised:" in done.stderr
    assert "RuntimeError: the hook's own" in done.stderr
