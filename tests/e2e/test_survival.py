"""What a session's processes live through: every death of a kernel, of the Jupyter server, and of the daemons."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import Counter
from jupyter_client import BlockingKernelClient
from processes import alive, daemons, gone, inodes, keepers, kill, kill_daemons, procs, until

import monarch_kernel as mk
from monarch_kernel.kernel import specs

IMPORTS = "import os, time\nimport monarch_kernel as mk\nfrom counting import Counter\n"
BEGIN = """
%monarch up life --hosts 2
procs = mk.hosts().spawn_procs(per_host={"gpus": 2})
counters = procs.spawn("counters", Counter, 5)
first = counters.slice(hosts=0, gpus=0)
class Written(mk.actor.Actor):
    "A class that only the notebook has."
    def __init__(self):
        self.words = []
    @mk.actor.endpoint
    def write(self, word):
        self.words.append(word)
        return self.words
written = procs.spawn("written", Written)
"""


class Life:
    """A session, the kernel that made it, and what must still be true."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.words: list[str] = []
        self.cell(IMPORTS + "import monarch_kernel.actor")
        self.cell(BEGIN)
        self.procs = procs("life")
        assert len(self.procs) == 4
        self.write("begin")

    def cell(self, code: str) -> Any:
        reply = self.kernel.run(code, timeout=30)
        assert reply.status == "ok", reply
        return reply

    def write(self, word: str) -> None:
        """Change the state of every actor, and see that what was there before is still there."""
        self.words.append(word)
        reply = self.cell(f"written.write.call({word!r}).get().values()")
        assert ast.literal_eval(reply.result) == [self.words] * 4
        assert procs("life") == self.procs


@pytest.fixture(scope="module")
def life(start_kernel: Callable[[], Any]) -> Life:
    return Life(start_kernel())


@pytest.mark.parametrize("how", ["soft", "now", "killed"])
def test_a_restart_of_the_kernel_keeps_every_process_and_all_state(life: Life, how: str) -> None:
    before = life.kernel.pid
    if how == "killed":
        kill(before)
    life.kernel.restart(now=how != "soft")
    assert life.kernel.pid != before
    assert procs("life") == life.procs
    assert (
        life.cell("sorted(name for name in globals() if name in ('procs', 'counters', 'first', 'written'))").result
        == "[]"
    )
    began = time.monotonic()
    page = life.cell(IMPORTS + "%monarch attach life").displayed[-1]["text/plain"]
    print(f"attached in {time.monotonic() - began:.2f} s")
    said = re.search(r"Bound again: (.*)", page)
    assert said is not None, page
    assert sorted(said[1].split(", ")) == ["counters", "first", "procs", "written"]
    assert "kernel " in page  # who was there before
    assert life.cell("counters.value.call().get().values(), first.value.call_one().get()").result == "([5, 5, 5, 5], 5)"
    life.write(how)


def test_a_kernel_that_attaches_by_python_is_told_in_one_line_what_was_bound(life: Life) -> None:
    life.kernel.restart(now=True)
    reply = life.cell(IMPORTS + "first = 'mine'\nsession = mk.attach('life')")
    lines = [line for line in reply.stdout.splitlines() if "bound again" in line]
    assert len(lines) == 1, reply
    assert sorted(lines[0].removeprefix("monarch: bound again: ").split(", ")) == ["counters", "procs", "written"]
    assert life.cell("first").result == "'mine'"
    life.write("attached by Python")


def test_five_restarts_use_the_same_ports_and_nothing_of_the_session_holds_what_was_the_kernels(life: Life) -> None:
    files = {"connection": life.kernel.manager.connection_file, "log": str(life.kernel.log)}
    ports = json.loads(Path(files["connection"]).read_text())
    log = life.kernel.log.stat().st_size
    for number in range(5):
        theirs = inodes(life.kernel.pid)
        for pid in [*keepers("life"), *daemons("life"), *(pid for pid, _ in life.procs.values())]:
            assert inodes(pid) & theirs == set()
            held = {os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 1, 2)}
            assert not any(
                name.startswith(("/dev/pts", "/dev/tty", "socket:")) or name in files.values() for name in held
            )
        life.kernel.restart(now=number % 2 == 0)
        life.cell(IMPORTS + "%monarch attach life")
        life.write(f"restart {number}")
    assert json.loads(Path(files["connection"]).read_text()) == ports
    said = life.kernel.log.read_bytes()[log:].decode()
    assert "in use" not in said
    assert "Traceback" not in said


def test_the_kernel_of_a_jupyter_server_that_is_killed_costs_nothing(
    home: Path, kernelspecs: Path, life: Life, tmp_path: Path
) -> None:
    life.cell("%monarch detach")
    with Server(kernelspecs, tmp_path) as server:
        pid = server.run("import os; print(os.getpid())")
        server.run("%monarch attach life\nprint('attached')")
        assert server.run("written.write.call('by a server').get(); print('written')").splitlines()[-1] == "written"
        life.words.append("by a server")
        began = time.monotonic()
        kill(server.process.pid)
        # ipykernel ends a kernel whose server is gone; that is the kernel's end, not the session's.
        until(lambda: gone(int(pid)), 30, "end of the kernel")
        print(f"the kernel ended {time.monotonic() - began:.1f} s after its server")
    assert procs("life") == life.procs
    life.cell("%monarch attach life")
    life.write("after the server")


class Server:
    """A Jupyter server with one of our kernels."""

    def __init__(self, kernelspecs: Path, folder: Path) -> None:
        runtime = folder / "runtime"
        environment = {
            **os.environ,
            "JUPYTER_PATH": str(kernelspecs.parent),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_TOKEN": "t",
        }
        self.log = folder / "server.log"
        options = ["--no-browser", "--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={folder}"]
        if os.getuid() == 0:
            options.append("--allow-root")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_server", *options], env=environment, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        about = runtime / f"jpserver-{self.process.pid}.json"
        try:
            until(lambda: about.exists() or self.process.poll() is not None, 30)
            self.url = until(self._url, 30, "the server's port")
            kernel = until(self._kernel, 30, "a kernel of the server's")
            self.client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel}.json"))
            self.client.load_connection_file()
            self.client.start_channels()
            until(self._ready, 40, "the kernel is ready")
        except BaseException:
            self.__exit__()
            print(self.log.read_text())
            raise

    def _url(self) -> str | None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.log.read_text())
        return found[0] if found is not None and found[1] != "0" else None

    def _kernel(self) -> str | None:
        request = urllib.request.Request(
            f"{self.url}api/kernels", json.dumps({"name": specs.NAME}).encode(), {"Authorization": "token t"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)["id"]
        except OSError:
            return None

    def _ready(self) -> bool:
        try:
            self.client.wait_for_ready(timeout=10)
        except RuntimeError:  # also said of a kernel that is slow to answer its first heartbeats
            return False
        return True

    def run(self, code: str) -> str:
        """Run a cell and return what it printed."""
        printed: list[str] = []

        def output(message: dict[str, Any]) -> None:
            if message["header"]["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, output_hook=output, timeout=30)
        assert reply["content"]["status"] == "ok", reply
        return "".join(printed)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        if hasattr(self, "client"):
            self.client.stop_channels()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


# -- the daemons; from here on this process is the controller


@pytest.fixture(scope="module")
def crowd(home: Path) -> Iterator[mk.Session]:
    """A session of two hosts whose controller is this process."""
    session = mk.up("crowd", hosts=2)
    yield session
    session.detach()
    mk.down("crowd")


@pytest.fixture(scope="module")
def counters(crowd: mk.Session) -> Any:
    made = mk.hosts().spawn_procs(per_host={"gpus": 2}, name="crowd").spawn("counters", Counter)
    made.value.call().get(30)
    return made


@pytest.fixture
def undisturbed(crowd: mk.Session, counters: Any) -> Iterator[None]:
    """The same procs after the test as before, and other daemons."""
    before, old = procs("crowd"), daemons("crowd")
    yield
    assert {name: held for name, held in procs("crowd").items() if name in before} == before
    assert not set(daemons("crowd")) & set(old)


def test_daemons_that_are_killed_while_nothing_runs_are_not_missed(
    crowd: mk.Session, counters: Any, undisturbed: None
) -> None:
    expected = counters.add.call(1).get(20).values()
    old = kill_daemons("crowd")
    began = time.monotonic()
    assert "counters" in crowd.actors  # known, though nobody can be asked now
    until(lambda: all(map(gone, old)) and all(map(alive, daemons("crowd"))))
    assert counters.value.call().get(20).values() == expected
    print(f"answered {time.monotonic() - began:.2f} s after the daemons were killed")
    assert sorted(counters.pid.call().get(20).values()) == sorted(pid for pid, _ in procs("crowd").values())


def test_calls_in_flight_in_both_directions_complete_once_when_daemons_are_killed(
    counters: Any, undisturbed: None, tmp_path: Path
) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    start = counters.value.call().get(20).values()
    whole = counters.held.call(str(go), str(ran), "whole")
    part = counters.slice(hosts=1).held.call(str(go), str(ran), "part")  # in line behind the first
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 4)
    kill_daemons("crowd")
    during = counters.slice(hosts=0, gpus=1).add.call(7)  # made while there is no daemon
    go.touch()
    assert whole.get(20).values() == [f"whole done by {rank}" for rank in range(4)]
    assert part.get(20).values() == ["part done by 2", "part done by 3"]
    assert during.get(20).values() == [start[1] + 107]
    assert sorted(ran.read_text().splitlines()) == sorted([*(f"whole.{rank}" for rank in range(4)), "part.2", "part.3"])
    expected = [start[0] + 100, start[1] + 107, start[2] + 200, start[3] + 200]
    assert counters.value.call().get(20).values() == expected


def test_nothing_is_lost_and_nothing_runs_twice_when_daemons_die_in_a_storm_of_calls(
    counters: Any, undisturbed: None
) -> None:
    """Controller to actors, actors to actors on the other host and back: all under way when both daemons are killed."""
    before = counters.value.call().get(20).values()
    there = counters.slice(hosts=1, gpus=0)
    mine, theirs, deaths = 3000, 1500, 3
    driver = counters.slice(hosts=0, gpus=0)
    stop = threading.Event()

    def killer() -> None:
        for _ in range(deaths):
            pids = kill_daemons("crowd")
            until(lambda: all(map(gone, pids)))  # noqa: B023
            until(lambda: all(map(alive, daemons("crowd"))))
        stop.set()

    driven = driver.drive.call_one(there, theirs)
    sent = [there.add.call_one(1) for _ in range(mine // 2)]
    thread = threading.Thread(target=killer)
    began = time.monotonic()
    thread.start()
    sent += [there.add.call_one(1) for _ in range(mine // 2)]
    answers = [future.get(40) for future in sent]
    answers += driven.get(40)
    thread.join()
    print(f"{mine + theirs} calls and {deaths} deaths of two daemons in {time.monotonic() - began:.2f} s")
    # Each number of calls so far was answered to exactly one call.
    assert sorted(answers) == list(range(before[2] + 1, before[2] + mine + theirs + 1))
    assert stop.is_set()
    assert counters.value.call().get(20).values() == [before[0], before[1], before[2] + mine + theirs, before[3]]


def test_a_spawn_of_procs_goes_on_when_daemons_are_killed_in_the_middle(crowd: mk.Session, undisturbed: None) -> None:
    known = set(procs("crowd"))
    spawned = mk.hosts().spawn_procs(per_host={"gpus": 1}, name="late")
    until(lambda: len(set(procs("crowd")) - known) == 2)  # their processes are there, and do not answer yet
    kill_daemons("crowd")
    late = spawned.spawn("late counters", Counter, 3)
    assert late.add.call(1).get(40).values() == [4, 4]
    assert set(late.pid.call().get(20).values()) == {
        pid for name, (pid, _) in procs("crowd").items() if name not in known
    }
    assert "late" in crowd.procs
    spawned.stop().get(20)


def test_a_spawn_of_actors_goes_on_when_daemons_are_killed_in_the_middle(
    crowd: mk.Session, counters: Any, undisturbed: None, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    slow = crowd.procs["crowd"].spawn("slow", Counter, 3, ready=str(go))
    call = slow.add.call(1)
    until(lambda: len(list(tmp_path.glob("go.*"))) == 4)  # constructors run
    kill_daemons("crowd")
    go.touch()
    assert call.get(40).values() == [4] * 4
    assert slow.value.call().get(20).values() == [4] * 4
    slow.stop().get(20)


def test_an_attach_goes_on_when_the_daemons_are_killed_in_the_middle(crowd: mk.Session) -> None:
    """In a session of its own: a keeper starts a daemon that ends soon later each time."""
    crowd.detach()  # for good: this is the last test of this file
    try:
        session = mk.up("cut", hosts=2, lease="20m")
        counters = mk.hosts().spawn_procs(per_host={"gpus": 1}, name="procs").spawn("counters", Counter, 3)
        assert counters.value.call().get(30).values() == [3, 3]
        before = procs("cut")
        for after in (0.0, 0.004, 0.012, 0.036):  # an attach takes a few hundredths of a second
            session.detach()
            old = daemons("cut")
            cut = threading.Timer(after, lambda: kill_daemons("cut"))
            cut.start()
            if after == 0.0:
                cut.join()
            began = time.monotonic()
            session = mk.attach("cut")
            print(f"cut after {after * 1000:.0f} ms: attached in {time.monotonic() - began:.2f} s")
            cut.join()
            assert session.actors["counters"].value.call().get(20).values() == [3, 3]
            assert not set(daemons("cut")) & set(old)
        assert procs("cut") == before
    finally:
        mk.down("cut")
