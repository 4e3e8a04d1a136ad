"""Processes that end: by their own hand, by a signal, with children, and what is left of the mesh."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from mesh_actors import Counter, Environment, Runner

from monarch_kernel.errors import ActorRestarted, ProcDied, SupervisionError

WAIT = 30


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def leave_at_once() -> None:
    os._exit(7)


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (leave_at_once, "exited with code 7"),
        (crash, "was killed by SIGSEGV"),
        (kill, "was killed by SIGKILL"),
    ],
)
def test_a_process_that_ends_in_an_endpoint(fresh, end, words):
    procs = fresh(gpus=2)
    mesh, other = procs.spawn("mesh", Runner), procs.spawn("other", Counter)
    pids = mesh.pid.call().get(timeout=WAIT)
    other.value.call().get(timeout=WAIT)
    began = time.monotonic()
    with pytest.raises(
        ProcDied, match=rf"rank 2 of mesh on host 1 \(pid {pids.item(hosts=1, gpus=0)}\) {words}"
    ) as caught:
        mesh.on_rank.call(2, end).get(timeout=WAIT)
    assert time.monotonic() - began < 2
    assert (caught.value.mesh, caught.value.rank, caught.value.host) == ("mesh", 2, 1)
    assert "restart mesh[2]" in str(caught.value)
    if end is crash:
        assert "Segmentation fault" in str(caught.value)

    # Slices without it work, slices with it fail at once, and so does everything else that was on it.
    assert list(mesh.slice(hosts=0).pid.call().get(timeout=WAIT).values()) == list(pids.slice(hosts=0).values())
    assert mesh.slice(hosts=1, gpus=1).pid.call_one().get(timeout=WAIT) == pids.item(hosts=1, gpus=1)
    began = time.monotonic()
    for part in (mesh.slice(hosts=1), mesh.slice(gpus=0), mesh):
        with pytest.raises(ProcDied, match=words):
            part.pid.call().get(timeout=WAIT)
    with pytest.raises(ProcDied, match="rank 2 of other"):
        other.value.call().get(timeout=WAIT)
    with pytest.raises(ProcDied):
        mesh.slice(hosts=1, gpus=0).pid.call_one().get(timeout=WAIT)
    assert time.monotonic() - began < 2
    assert len(other.slice(hosts=0).value.call().get(timeout=WAIT)) == 2

    # Stopping works with a dead rank, and is bounded.
    began = time.monotonic()
    mesh.stop().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    assert time.monotonic() - began < 5
    assert not any(alive(pid) for pid in pids.values())


def test_a_kill_from_outside_frees_the_others_of_a_waiting_call(fresh, tmp_path):
    procs = fresh(gpus=2)
    mesh = procs.spawn("waits", Runner)
    pids = mesh.pid.call().get(timeout=WAIT)

    def wait(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.005)
        return "went"

    call = mesh.run.call(wait, str(tmp_path / "go"))
    behind = mesh.slice(hosts=0, gpus=1).pid.call_one()
    os.kill(pids.item(hosts=0, gpus=1), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ProcDied, match=r"rank 1 of waits on host 0 .* was killed by SIGKILL"):
        call.get(timeout=WAIT)
    with pytest.raises(ProcDied):
        behind.get(timeout=WAIT)
    assert time.monotonic() - began < 1.5
    (tmp_path / "go").touch()
    assert len(mesh.slice(hosts=1).pid.call().get(timeout=WAIT)) == 2


def test_after_a_death_the_same_hosts_take_new_processes(fresh):
    procs = fresh(gpus=1)
    mesh = procs.spawn("dies", Runner)
    with pytest.raises(ProcDied):
        mesh.run.call(kill).get(timeout=WAIT)
    again = fresh(gpus=1)
    assert list(again.spawn("lives", Counter, 1).value.call().get(timeout=WAIT).values()) == [1, 1]


def test_new_actors_on_processes_of_which_one_is_dead(fresh):
    procs = fresh(gpus=2)
    mesh = procs.spawn("dies", Runner)
    with pytest.raises(ProcDied):
        mesh.on_rank.call(3, kill).get(timeout=WAIT)
    began = time.monotonic()
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        procs.spawn("on all", Counter).value.call().get(timeout=WAIT)
    assert time.monotonic() - began < 3
    without = procs.slice(gpus=0).spawn("without it", Counter, 4)
    assert list(without.value.call().get(timeout=WAIT).values()) == [4, 4]


def test_a_crashed_mesh_is_listed_as_dead_once(fresh, session):
    procs = fresh(gpus=1)
    mesh = procs.spawn("counted", Runner)
    mesh.pid.call().get(timeout=WAIT)
    with pytest.raises(ProcDied):
        mesh.on_rank.call(1, crash).get(timeout=WAIT)
    session.refresh()
    record = session.snapshot().get(mesh._handle.id)
    assert [record.ranks[rank].state for rank in (0, 1)] == ["ok", "dead"]


def test_a_failing_mesh_leaves_other_meshes_alone(fresh):
    bad, good = fresh(gpus=2), fresh(gpus=2)
    good_mesh = good.spawn("good", Counter)
    bad_mesh = bad.spawn("bad", Runner)
    bad_mesh.pid.call().get(timeout=WAIT)
    with pytest.raises(ProcDied):
        bad_mesh.run.call(kill).get(timeout=WAIT)
    assert list(good_mesh.add.call(1).get(timeout=WAIT).values()) == [1] * 4


def test_a_broadcast_to_a_dead_rank_reaches_the_others(fresh):
    from mesh_actors import Log

    procs = fresh(gpus=2)
    runner, log = procs.spawn("runner", Runner), procs.spawn("log", Log)
    log.all.call().get(timeout=WAIT)
    with pytest.raises(ProcDied):
        runner.on_rank.call(0, kill).get(timeout=WAIT)
    for number in range(10):
        log.tell.broadcast(number)
    assert list(log.slice(hosts=1).all.call().get(timeout=WAIT).values()) == [list(range(10))] * 2


def test_what_an_actor_printed_last_is_in_the_error(fresh):
    procs = fresh(gpus=1)

    def speak_and_die() -> None:
        print("about to divide by zero in C", flush=True)
        os._exit(3)

    mesh = procs.spawn("speaks", Runner)
    with pytest.raises(ProcDied, match=r"(?s)exited with code 3.*last lines.*about to divide by zero in C"):
        mesh.on_rank.call(0, speak_and_die).get(timeout=WAIT)


def test_the_children_of_a_process_die_with_it(fresh, until):
    def start() -> list[int]:
        import subprocess

        plain = subprocess.Popen(["sleep", "1000"])
        apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        # Its parent is gone at once: it falls to the proc, and then to the keeper.
        shell = subprocess.run(
            ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, check=True
        )
        return [plain.pid, apart.pid, int(shell.stdout)]

    procs = fresh(gpus=1)
    mesh = procs.spawn("parents", Runner)
    killed = mesh.slice(hosts=0, gpus=0).run.call_one(start).get(timeout=WAIT)
    stopped = mesh.slice(hosts=1, gpus=0).run.call_one(start).get(timeout=WAIT)
    assert all(map(alive, [*killed, *stopped]))
    with pytest.raises(ProcDied):
        mesh.on_rank.call(0, kill).get(timeout=WAIT)
    until(lambda: not any(map(alive, killed)), what="the end of the children")
    procs.stop().get(timeout=WAIT)
    until(lambda: not any(map(alive, stopped)), what="the end of the children")


def test_multiprocessing_inside_an_actor(fresh):
    def forked(method: str) -> list[int]:
        import multiprocessing

        with multiprocessing.get_context(method).Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])

    mesh = fresh(gpus=1).spawn("forks", Runner).slice(hosts=0, gpus=0)
    assert mesh.run.call_one(forked, "fork").get(timeout=WAIT) == [1, 2, 3]
    assert mesh.run.call_one(forked, "spawn").get(timeout=WAIT) == [1, 2, 3]
    assert mesh.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_a_mesh_in_a_fork_of_an_actor_gives_a_clear_error(fresh):
    def use_in_fork(mesh: Any) -> str:
        import multiprocessing

        def child(pipe: Any) -> None:
            try:
                mesh.value.call().get(timeout=5)
            except Exception as error:
                pipe.send(f"{type(error).__name__}: {error}")
            else:
                pipe.send("it worked")

        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
        process.start()
        assert ours.poll(20)
        text = ours.recv()
        process.join(20)
        return text

    procs = fresh(gpus=1)
    target = procs.spawn("target", Counter)
    target.value.call().get(timeout=WAIT)
    text = procs.spawn("forks", Runner).slice(hosts=0, gpus=0).run.call_one(use_in_fork, target).get(timeout=WAIT)
    assert "forked from one that drives a mesh" in text


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_of_the_controller_does_not_hang_and_cannot_use_the_mesh(fresh, tmp_path):
    mesh = fresh(gpus=1).spawn("here", Counter)
    mesh.value.call().get(timeout=WAIT)
    waiting = mesh.add_when.call(1, str(tmp_path / "go"))
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            words = []
            for use in (mesh.value.call, mesh.stop, mesh.value.broadcast, waiting.get):
                try:
                    use()
                except Exception as error:
                    words.append("forked" in str(error))
                else:
                    words.append(False)
            os.write(writes, repr(words).encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.set_blocking(reads, False)
    end = time.monotonic() + 20
    said = b""
    while not said and time.monotonic() < end:
        try:
            said = os.read(reads, 100)
            break
        except BlockingIOError:
            time.sleep(0.005)
    os.close(reads)
    if not said:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert said == b"[True, True, True, True]"
    (tmp_path / "go").touch()
    assert list(waiting.get(timeout=WAIT).values()) == [1, 1]
    assert list(mesh.add.call(1).get(timeout=WAIT).values()) == [2, 2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_multiprocessing_in_the_controller(fresh, capfd):
    import multiprocessing

    mesh = fresh(gpus=1).spawn("here", Counter)
    mesh.value.call().get(timeout=WAIT)
    for _ in range(3):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            futures = [mesh.add.call(1) for _ in range(20)]
            assert pool.map_async(abs, [-1, -2, -3]).get(timeout=WAIT) == [1, 2, 3]
            for future in futures:
                future.get(timeout=WAIT)
    assert set(mesh.value.call().get(timeout=WAIT).values()) == {60}
    assert capfd.readouterr() == ("", "")


def test_of_a_death_and_what_follows_from_it_the_death_is_shown(fresh):
    def act() -> None:
        from monarch_kernel.actor import current_rank

        if current_rank().rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionResetError("the peer is gone")

    mesh = fresh(gpus=2).spawn("group", Runner)
    mesh.pid.call().get(timeout=WAIT)
    with pytest.raises(ProcDied, match="rank 3 of group"):
        mesh.run.call(act).get(timeout=WAIT)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_of_many_calls_under_way_each_has_an_end(fresh, end):
    procs = fresh(gpus=2)
    mesh = procs.spawn("many", Counter)
    pids = procs.spawn("runner", Runner).pid.call().get(timeout=WAIT)
    mesh.value.call().get(timeout=WAIT)
    one, rest = mesh.slice(hosts=1, gpus=1), mesh.slice(hosts=0)
    futures: list[Any] = []
    for number in range(600):
        futures.append(mesh.add.call(1) if number % 3 else one.add.call_one(1))
        if number == 300:
            os.kill(pids.item(hosts=1, gpus=1), signal.SIGKILL) if end == "kill" else procs.stop()
    errors = [future.exception(timeout=WAIT) for future in futures]
    assert all(error is None or isinstance(error, SupervisionError) for error in errors)
    if end == "stop":
        procs.stop().get(timeout=WAIT)
    assert isinstance(mesh.value.call().exception(timeout=WAIT), SupervisionError)
    if end == "kill":
        assert errors[-1] is not None
        assert list(rest.add.call(0).get(timeout=WAIT).values()) == [400, 400]  # each of the casts, once


def test_each_printed_line_is_in_the_log_once(fresh, session):
    from monarch_kernel.protocol import statefile

    class Speaks(Runner):
        def __init__(self) -> None:
            super().__init__()
            print("in the constructor")

    procs = fresh(gpus=1)
    mesh = procs.spawn("speaks", Speaks)
    mesh.run.call(lambda: print("in the first call")).get(timeout=WAIT)
    name = procs._handle.name
    text = "".join(path.read_text() for path in statefile.logs_dir(session.name).glob(f"{name}-*.log"))
    assert text.count("in the constructor\n") == text.count("in the first call\n") == 2


def test_a_restarted_rank_is_new_and_the_call_it_was_in_says_so(fresh, session):
    procs = fresh(gpus=1)
    mesh = procs.spawn("anew", Counter, 5)
    mesh.add.call(1).get(timeout=WAIT)
    caught = mesh.slice(hosts=1, gpus=0).add_when.call_one(1, "/no/such/file")
    session.restart("anew[1]", "proc")
    with pytest.raises(ActorRestarted, match=r"rank 1 of .* was restarted"):
        caught.get(timeout=WAIT)
    assert list(mesh.value.call().get(timeout=WAIT).values()) == [6, 5]


def test_a_dead_rank_is_brought_back_with_its_large_argument(fresh, session):
    import numpy as np
    from mesh_actors import Relay

    procs = fresh(gpus=1)
    mesh, runner = procs.spawn("large", Relay, np.ones(8 << 20, dtype=np.uint8)), procs.spawn("runner", Runner)
    mesh.get.call().get(timeout=WAIT)
    with pytest.raises(ProcDied):
        runner.on_rank.call(0, kill).get(timeout=WAIT)
    session.restart("large[0]")
    assert [a.nbytes for a in mesh.get.call().get(timeout=WAIT).values()] == [8 << 20] * 2
    assert len(set(runner.pid.call().get(timeout=WAIT).values())) == 2


def test_environment_variables_are_there_before_anything_is_imported(session, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MY_OWN_VARIABLE", "seen")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    procs = session.hosts.spawn_procs(per_host={"gpus": 1})
    mesh = procs.spawn("env", Environment)
    assert set(mesh.of.call("MY_OWN_VARIABLE").get(timeout=WAIT).values()) == {"seen"}
    assert set(mesh.of.call("JPY_PARENT_PID").get(timeout=WAIT).values()) == {None}
    assert set(mesh.of.call("OMP_NUM_THREADS").get(timeout=WAIT).values()) == {"1"}
    assert set(mesh.of.call("MONARCH_PROC").get(timeout=WAIT).values()) == {None}

    def exec_time() -> list[str]:
        # What the process was started with, whatever Python code set later.
        with open("/proc/self/environ", "rb") as file:
            return [entry for entry in file.read().decode(errors="replace").split("\0") if entry.startswith("OMP_")]

    runner = procs.spawn("runner", Runner)
    assert set(map(tuple, runner.run.call(exec_time).get(timeout=WAIT).values())) == {("OMP_NUM_THREADS=1",)}
    procs.stop().get(timeout=WAIT)


def test_working_directory_and_modules_are_the_controllers(session, tmp_path, monkeypatch):
    (tmp_path / "beside_the_notebook.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    procs = session.hosts.slice(hosts=0).spawn_procs()

    def look() -> tuple[str, int]:
        import beside_the_notebook

        return os.getcwd(), beside_the_notebook.answer

    assert procs.spawn("looks", Runner).run.call_one(look).get(timeout=WAIT) == (str(tmp_path), 42)
    procs.stop().get(timeout=WAIT)


def test_signals_to_a_process_are_the_users_business(fresh):
    """SIGINT, as Ctrl-C sends it to a whole terminal, ends no process of a mesh."""
    mesh = fresh(gpus=1).spawn("stays", Runner)
    pids = list(mesh.pid.call().get(timeout=WAIT).values())
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert list(mesh.pid.call().get(timeout=WAIT).values()) == pids
