"""Ends: of a session by its release, of scripts by every way there is, and of single actors that nobody asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from counting import Counter
from processes import SLACK, alive, gone, procs, tree, until

import monarch_kernel as mk
from monarch_kernel import errors
from monarch_kernel.protocol import statefile

PRIVATE = """
import os, sys
from monarch_kernel.actor import this_host
from counting import Counter
import monarch_kernel as mk
counters = this_host().spawn_procs(per_host={"gpus": 2}).spawn("counters", Counter)
counters.add.call(1).get()
counters.litter.call(sys.argv[1]).get()
print(mk.session().name)
"""
NAMED = """
import os, sys
import monarch_kernel as mk
from counting import Counter
mk.up(sys.argv[1], lease="20m")
counters = mk.hosts().spawn_procs(per_host={"gpus": 1}, name="procs").spawn("counters", Counter)
counters.add.call(1).get()
print("ready")
"""
ENDS = {
    "end": "",
    "exception": "raise RuntimeError('the end')",
    "exit": "sys.exit(3)",
    "TERM": "os.kill(os.getpid(), 15)\ninput()",
    "KILL": "os.kill(os.getpid(), 9)\ninput()",
}
CODES = {"end": 0, "exception": 1, "exit": 3, "TERM": -15, "KILL": -9}


def litter(folder: Path, count: int) -> list[int]:
    """Pids of the orphans that actors have left."""
    files = until(lambda: found if len(found := [p for p in folder.iterdir() if p.suffix != ".new"]) == count else None)
    return [int(path.read_text()) for path in files]


class Abandoned:
    """Private sessions whose scripts were ended by a signal, which no exit hook sees."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.left: dict[str, tuple[str, list[int]]] = {}


@pytest.fixture(scope="module")
def abandoned() -> Abandoned:
    return Abandoned()


@pytest.mark.parametrize("how", list(ENDS))
def test_the_private_session_of_a_script_ends_with_it(
    script: Callable[..., Any], tmp_path: Path, abandoned: Abandoned, how: str
) -> None:
    """Ended from inside, by its own exit. Ended by a signal, see the last test of this file: its hosts notice."""
    ended = script(PRIVATE + "input()\n" + ENDS[how], tmp_path)
    name = ended.line()
    assert name.startswith("local-")
    orphans = litter(tmp_path, 4)
    running = [pid for pid in tree(name) if alive(pid)]
    assert set(orphans) < set(running)
    assert len(running) == 2 + 2 + 4  # keeper and daemon, procs, what these left
    ended.say()
    assert ended.end() == CODES[how]
    assert ended.stderr.strip().endswith("RuntimeError: the end" if how == "exception" else "")
    if how in ("TERM", "KILL"):
        abandoned.left[how] = (name, running)
    else:
        assert [pid for pid in running if alive(pid)] == []
        assert statefile.load(name) is None


@pytest.mark.parametrize("how", list(ENDS))
def test_a_named_session_goes_on_however_its_script_ends(script: Callable[..., Any], detached: None, how: str) -> None:
    name = f"named-{how}"
    ended = script(NAMED + "input()\n" + ENDS[how], name)
    assert ended.line() == "ready"
    before = procs(name)
    ended.say()
    assert ended.end() == CODES[how]
    assert procs(name) == before
    session = mk.attach(name)
    assert session.actors["counters"].add.call(1).get(20).values() == [2]
    session.release()
    assert mk.sessions() == [] or name not in [file.name for file, _ in mk.sessions()]


def test_a_release_frees_the_whole_tree_and_what_it_had_on_disk(home: Path, detached: None, tmp_path: Path) -> None:
    session = mk.up("freed", hosts=2, lease="20m")
    counters = mk.hosts().spawn_procs(per_host={"gpus": 2}).spawn("counters", Counter)
    counters.litter.call(str(tmp_path)).get(30)
    orphans = litter(tmp_path, 8)
    running = [pid for pid in tree("freed") if alive(pid)]
    assert set(orphans) <= set(running)
    for pid in orphans:  # each leads a process group of its own
        assert os.getpgid(pid) == pid
    rundir = statefile.runtime_dir(session.file.sid)
    assert list(rundir.rglob("*.sock"))
    began = time.monotonic()
    report = session.release()
    print(f"{len(running)} processes ended in {time.monotonic() - began:.2f} s")
    assert [pid for pid in running if alive(pid)] == []
    assert report.left == ()
    assert not rundir.exists()
    assert statefile.load("freed") is None
    grave = statefile.tombstone("freed")
    assert grave is not None
    assert grave.reason == "released by its controller"
    sessions = home / "state" / "monarch-kernel" / "sessions"
    assert [path.name for path in sessions.glob("freed*json")] == ["freed.ended.json"]
    with pytest.raises(errors.SessionEnded, match="released"):
        counters.add.call(1).get(20)
    with pytest.raises(errors.NoSuchSession, match="it ended: released by its controller"):
        mk.attach("freed")


def test_what_an_actor_left_ends_with_its_process_and_nothing_else_does(
    home: Path, detached: None, tmp_path: Path
) -> None:
    """Two meshes; one is crashed completely. The other, and new ones, are not touched."""
    with mk.up("apart", lease="20m") as session:
        crashed = mk.hosts().spawn_procs(per_host={"gpus": 2}, name="p1").spawn("crashed", Counter)
        fine = mk.hosts().spawn_procs(per_host={"gpus": 2}, name="p2").spawn("fine", Counter)
        fine.add.call(1).get(30)
        crashed.litter.call(str(tmp_path)).get(30)
        orphans = litter(tmp_path, 4)
        with pytest.raises(errors.ProcDied, match="SIGKILL"):
            crashed.end.call().get(20)
        until(lambda: all(map(gone, orphans)))
        assert fine.add.call(1).get(20).values() == [2, 2]
        new = mk.hosts().spawn_procs(per_host={"gpus": 1}).spawn("new", Counter)
        assert new.add.call(1).get(30).values() == [1]
        assert sorted(session.actors) == ["crashed", "fine", "new"]
    mk.down("apart")


def test_a_stop_does_not_wait_for_the_dead_and_may_be_said_twice(home: Path, detached: None) -> None:
    with mk.up("stopped", lease="20m"):
        procs_ = mk.hosts().spawn_procs(per_host={"gpus": 4}, name="p")
        counters = procs_.spawn("counters", Counter)
        pids = counters.pid.call().get(30).values()
        os.kill(pids[1], 9)
        began = time.monotonic()
        for mesh in (counters, counters, procs_, procs_):
            mesh.stop().get(20)
        print(f"stopped in {time.monotonic() - began:.2f} s")
        assert time.monotonic() - began < 1.0 * SLACK
        until(lambda: all(map(gone, pids)))
        assert procs("stopped") == {}
        with pytest.raises(errors.SupervisionError):
            counters.add.call(1).get(20)
    mk.down("stopped")


def test_a_fault_of_an_idle_actor_is_shown_once_at_the_next_cell_and_ends_are_silent(
    start_kernel: Callable[[], Any],
) -> None:
    kernel = start_kernel()

    def ok(code: str) -> Any:
        reply = kernel.run(code, timeout=30)
        assert reply.status == "ok", reply
        return reply

    ok(
        "%monarch up idle\nimport monarch_kernel as mk\nfrom counting import Counter\n"
        "procs = mk.hosts().spawn_procs(per_host={'gpus': 2})\ncounters = procs.spawn('counters', Counter)"
    )
    pids = [int(pid) for pid in ok("print(*counters.pid.call().get().values())").stdout.split()]
    began = time.monotonic()
    os.kill(pids[1], 9)
    shown = until(lambda: ok("1").stderr, what="the fault is shown")
    print(f"shown {time.monotonic() - began:.2f} s after the kill")
    assert time.monotonic() - began < 1.0 * SLACK
    assert shown.count("rank 1 of counters on host 0") == 1
    assert "SIGKILL" in shown
    assert len([line for line in shown.splitlines() if line.startswith("monarch: ")]) == 1
    assert ok("1").stderr == ""
    assert ok("counters.slice(gpus=0).add.call_one(1).get()").result == "1"
    assert ok("%monarch restart counters[1]").stderr == ""
    assert ok("counters.add.call(1).get().values()").result == "[2, 1]"
    for code in ("counters.stop().get()", "procs.stop().get()", "1", "%monarch detach", "1", "%monarch attach idle",
                 "1", "mk.session().release()", "1"):  # fmt: skip
        reply = ok(code)
        assert (reply.stderr, reply.stdout) == ("", ""), code
    kernel.manager.shutdown_kernel(now=False)
    said = kernel.log.read_text()
    assert "Traceback" not in said
    assert "Error" not in said
    kernel.close()


@pytest.fixture(scope="module")
def standing(home: Path) -> Iterator[str]:
    """A session that scripts come to and go from."""
    with mk.up("standing", lease="20m") as session:
        mk.hosts().spawn_procs(per_host={"gpus": 1}, name="procs").spawn("counters", Counter).value.call().get(30)
    yield session.name
    mk.down(session.name)


def test_twenty_scripts_with_live_meshes_end_in_silence(standing: str, script: Callable[..., Any]) -> None:
    """Each leaves calls under way, an actor of its own process, and its meshes; half of them have a private session."""
    code = """
import sys
import monarch_kernel as mk
from monarch_kernel.actor import this_host, this_proc
from counting import Counter
if sys.argv[1] == "named":
    mk.attach("standing", takeover=True)
    counters = mk.session().actors["counters"]
else:
    counters = this_host().spawn_procs(per_host={"gpus": 1}).spawn("counters", Counter)
mine = this_proc().spawn("mine", Counter)
counters.add.call(1).get()
futures = [counters.add.call(1) for _ in range(50)]
mine.add.call(1)
counters.add.broadcast(1)
"""

    def one(number: int) -> tuple[int, str]:
        made = script(code, "named" if number % 2 else "private")
        return made.end(60), made.stderr

    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        ended = list(pool.map(one, range(20)))
    print(f"20 starts and exits in {time.monotonic() - began:.1f} s")
    assert [why for why in ended if why != (0, "")] == []


def test_what_an_actor_of_a_scripts_own_process_spawned_ends_with_the_script(
    standing: str, script: Callable[..., Any]
) -> None:
    """The actor is gone with its process; what the script itself spawned is the session's, and goes on."""
    code = """
import monarch_kernel as mk
from monarch_kernel.actor import Actor, endpoint, this_proc
from counting import Counter

class Owner(Actor):
    @endpoint
    def spawn(self, procs):
        self.child = procs.spawn("child", Counter)
        self.child.add.call(1).get()

mk.attach("standing", takeover=True)
procs = mk.session().procs["procs"]
procs.spawn("kept", Counter).add.call(1).get()
this_proc().spawn("owner", Owner).spawn.call_one(procs).get()
print(sorted(mk.session().actors))
"""
    made = script(code)
    assert made.line() == "['child', 'counters', 'kept']"
    assert made.end() == 0
    with mk.attach(standing) as session:
        until(lambda: "child" not in {record.name for record in session.refresh().live()}, what="the end of the child")
        assert session.actors["kept"].value.call().get(20).values() == [1]
        session.actors["kept"].stop().get(20)


@pytest.mark.timeout(120)
def test_private_sessions_of_killed_scripts_are_freed_after_the_reconnect_window(abandoned: Abandoned) -> None:
    """The last test here, because it waits for half a minute that has begun long ago."""
    if not abandoned.left:
        pytest.skip("the tests that leave them did not run")
    for how, (name, running) in abandoned.left.items():
        until(lambda: all(map(gone, running)), 45 * 2, f"end of what SIG{how} left")  # noqa: B023
        until(lambda: (grave := statefile.tombstone(name)) is not None and "detached" in grave.reason, 10)  # noqa: B023
        mk.down(name)
    print(f"freed {time.monotonic() - abandoned.began:.0f} s after the first script began")
