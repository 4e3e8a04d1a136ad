"""The local launcher: real keepers, and a stand-in daemon of twenty lines."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from monarch_kernel.errors import LaunchError, NotEnoughSlots
from monarch_kernel.launch import LaunchSpec, LocalLauncher
from monarch_kernel.launch.local import accepts
from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.keeper import KeeperClient, KeeperGone

ROOT = Path(__file__).parents[2]
DAEMON = f"""
import json, os, socket, sys
sys.path += [{str(ROOT / "worker")!r}, {str(ROOT)!r}]
from monarch_worker.lifeline import tie_to_keeper, watch_keeper
from monarch_kernel.protocol.keeper import KeeperClient
tie_to_keeper(); watch_keeper()
config = json.loads(KeeperClient(os.environ["MONARCH_KEEPER"]).get("config"))
path = config["hosts"][config["host"]].removeprefix("unix:")
if os.path.exists(path):
    os.unlink(path)
s = socket.socket(socket.AF_UNIX)
s.bind(path); s.listen()
print("daemon", config["host"], "up", flush=True)
while True:
    s.accept()
"""
STAND_IN = [sys.executable, "-S", "-c", DAEMON]
# The same without what a daemon should do, for the test that starts many.
LIGHT = [
    *(sys.executable, "-I", "-S", "-c"),
    """
import os, socket
s = socket.socket(socket.AF_UNIX)
s.bind(os.path.dirname(os.environ["MONARCH_KEEPER"]) + "/daemon.sock"); s.listen()
while True:
    s.accept()
""",
]


class NoGpus:
    def devices(self):
        return None


class Gpus:
    def devices(self):
        return ("0", "1", "2", "3")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "monarch-kernel"


@pytest.fixture(autouse=True)
def sockets(monkeypatch):
    """A run directory of the test's own; pytest's are too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder) / "monarch-kernel"


@pytest.fixture
def launcher():
    made = []

    class Watched(LocalLauncher):
        def launch(self, spec):
            made.append(super().launch(spec))
            return made[-1]

    def make(daemon=STAND_IN, probe=None, **more):
        return Watched(daemon=daemon, probe=probe or NoGpus(), **more)

    yield make
    for file in made:
        with contextlib.suppress(LaunchError):
            assert LocalLauncher(probe=NoGpus()).release(file, "test over", 10.0).gone


def until(condition, timeout=5.0):
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.002)
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def keepers(home):
    """Pids of the keepers and guardians whose log is below `home`."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and alive(entry):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/fd/2").startswith(f"{home}/logs/lab/keeper-"):
                    found.add(int(entry))
    return found


def config(file, host=0):
    with KeeperClient(file.members[host].keeper_socket) as k:
        return json.loads(k.get("config"))


def everything(file):
    """Every pid of a session."""
    pids = set()
    for m in file.members:
        with KeeperClient(m.keeper_socket) as k:
            pids |= {m.keeper_pid, k.hello()["guardian"][0], *k.tree()}
    return pids


def rundir(file):
    return Path(file.members[0].keeper_socket).parent.parent


def test_a_session_starts_answers_and_is_found_again(launcher, home):
    file = launcher().launch(LaunchSpec("lab", hosts=2, lease=300.0))
    assert statefile.load("lab") == file
    standing = statefile.here(file)
    assert (standing.state, standing.alive) == ("live", (0, 1))
    assert all(accepts(m.address) for m in file.members)
    assert (file.hosts, file.gpus, file.lease, file.launcher) == (2, None, 300.0, "local")
    doc = config(file, 1)
    assert (doc["host"], doc["sid"], doc["secret"], doc["name"]) == (1, file.sid, file.secret, "lab")
    assert doc["hosts"] == [m.address for m in file.members]
    assert doc["slots"] == {"gpus": [], "kind": "cpu", "count": None}
    assert "daemon 1 up" in (Path(doc["logs"]) / "daemon-1.log").read_text()
    with KeeperClient(file.members[0].keeper_socket) as k:
        assert 30 < k.hello()["lease"] <= 60  # until the daemon takes it over


def test_the_secret_is_in_no_argv_environment_or_log(launcher, home):
    file = launcher().launch(LaunchSpec("lab"))
    for pid in everything(file):
        for what in ("cmdline", "environ"):
            assert file.secret.encode() not in Path(f"/proc/{pid}/{what}").read_bytes()
    holders = [p for p in home.rglob("*") if p.is_file() and file.secret in p.read_text()]
    assert holders == [home / "sessions" / "lab.json"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    assert rundir(file).stat().st_mode & 0o777 == 0o700


def test_daemons_get_the_filtered_environment_without_proxies(launcher):
    environ = dict(os.environ) | {"JPY_PARENT_PID": "1", "http_proxy": "http://dead", "OMP_NUM_THREADS": "3"}
    environ["PYTHONPATH"] = "lib:/abs"
    file = launcher(environ=environ, probe=Gpus()).launch(LaunchSpec("lab"))
    with KeeperClient(file.members[0].keeper_socket) as k:
        pid = k.list()["daemon"]["pid"]
    env = dict(x.split("=", 1) for x in Path(f"/proc/{pid}/environ").read_text().split("\0") if x)
    assert "JPY_PARENT_PID" not in env
    assert "http_proxy" not in env
    assert (env["OMP_NUM_THREADS"], env["MONARCH_HOST"]) == ("3", "0")
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["PYTHONPATH"] == f"{os.getcwd()}/lib:/abs"


def test_local_hosts_divide_the_machines_devices(launcher, home):
    file = launcher(probe=Gpus()).launch(LaunchSpec("lab", hosts=2))
    assert [config(file, i)["slots"]["gpus"] for i in (0, 1)] == [["0", "1"], ["2", "3"]]
    with pytest.raises(NotEnoughSlots, match="asked for 8"):
        launcher(probe=Gpus()).launch(LaunchSpec("big", hosts=2, gpus=4))
    assert [f.name for f in statefile.load_all()] == ["lab"]


def test_release_ends_everything_and_says_why_to_the_next_kernel(launcher, home):
    file = launcher().launch(LaunchSpec("lab", hosts=2))
    with KeeperClient(file.members[0].keeper_socket) as k:
        env = {"PATH": os.environ["PATH"]}
        k.spawn(
            {"id": "m.0", "argv": ["sh", "-c", "setsid sleep 1000 & sleep 1000"], "env": env, "cwd": None, "log": None}
        )
        until(lambda: len(k.tree()) >= 3)
        os.kill(k.list()["daemon"]["pid"], signal.SIGSTOP)
    pids = everything(file)
    report = launcher().release(file, "released by %monarch down")
    assert report.gone
    assert report.forced == ()
    assert report.ended >= len(pids) - 2  # the guardians are not counted
    assert not any(map(alive, pids))
    assert not rundir(file).exists()
    assert statefile.load("lab") is None
    grave = statefile.tombstone("lab")
    assert (grave.reason, grave.sid, grave.lost) == ("released by %monarch down", file.sid, ("m.0",))
    again = launcher().release(file, "twice")
    assert (again.gone, again.ended) == (True, 0)
    assert statefile.tombstone("lab").reason == "released by %monarch down"


@pytest.mark.parametrize("how", ["stopped keeper", "stopped keeper and guardian", "stopped keeper, dead guardian"])
def test_release_works_when_nobody_answers(launcher, how):
    file = launcher().launch(LaunchSpec("lab"))
    pids = everything(file)
    with KeeperClient(file.members[0].keeper_socket) as k:
        guardian = k.hello()["guardian"][0]
    if "guardian" in how:
        os.kill(guardian, signal.SIGKILL if "dead" in how else signal.SIGSTOP)
    os.kill(file.members[0].keeper_pid, signal.SIGSTOP)
    report = launcher().release(file, "down", 10.0)
    assert (report.gone, report.forced) == (True, (0,))
    assert report.seconds < 5.0
    until(lambda: not any(map(alive, pids)))
    assert statefile.tombstone("lab").reason == "down"
    assert not rundir(file).exists()


def test_a_dead_keeper_leaves_a_dead_session_whose_name_is_free(launcher):
    first = launcher().launch(LaunchSpec("lab"))
    pids = everything(first)
    os.kill(first.members[0].keeper_pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), 1.0)
    assert statefile.here(first).state == "dead"
    assert "signal 9" in statefile.tombstone("lab").reason
    second = launcher().launch(LaunchSpec("lab"))
    assert second.sid != first.sid
    assert second.members[0].incarnation > first.members[0].incarnation
    assert statefile.tombstone("lab") is None
    assert launcher().release(first, "late").ended == 0  # an old file never ends a new session
    assert statefile.here(second).state == "live"
    assert statefile.load("lab") == second


def test_an_innocent_process_in_a_stale_file_is_never_signalled(launcher):
    file = launcher().launch(LaunchSpec("lab"))
    launcher().release(file, "down")
    with subprocess.Popen(["sleep", "1000"]) as innocent:
        file.members[0].keeper_pid = innocent.pid  # recycled
        statefile.save(file)
        assert statefile.here(file).state == "dead"
        assert launcher().release(file, "down").ended == 0
        assert innocent.poll() is None
        statefile.save(file)
        launcher().launch(LaunchSpec("lab"))
        assert innocent.poll() is None
        innocent.kill()


def test_a_file_from_elsewhere_is_shown_and_not_acted_on(launcher):
    file = launcher().launch(LaunchSpec("lab"))
    far = json.loads(json.dumps(file.__dict__, default=lambda m: m.__dict__)) | {
        "boot_id": "other",
        "hostname": "far-node",
    }
    far = statefile.SessionFile(**far | {"members": file.members})
    statefile.save(far)
    with pytest.raises(LaunchError, match="far-node"):
        launcher().release(far, "down")
    with pytest.raises(LaunchError, match="far-node"):
        launcher().launch(LaunchSpec("lab"))
    assert statefile.here(file).state == "live"


def test_two_at_once_get_one_session(launcher, home):
    make = launcher()
    with ThreadPoolExecutor(3) as pool:
        files = list(pool.map(lambda _: make.launch(LaunchSpec("lab")), range(3)))
    assert len({f.sid for f in files}) == 1
    assert len(keepers(home)) == 2


@pytest.mark.parametrize(
    ("daemon", "words"),
    [
        (["sh", "-c", "echo the reason; exit 3"], r"daemon of host 0 ended 3 times.*code 3(?s:.*)the reason"),
        (["/no/such/daemon"], r"keeper of host 0 did not start(?s:.*)/no/such/daemon"),
        (["sh", "-c", "echo still thinking; sleep 1000"], r"did not answer within(?s:.*)still thinking"),
    ],
)
def test_a_host_that_does_not_come_up_says_why_and_leaves_nothing(launcher, home, sockets, daemon, words):
    fds = len(os.listdir("/proc/self/fd"))
    (home / "logs" / "lab").mkdir(parents=True)
    (home / "logs" / "lab" / "daemon-0.log").write_text("of an earlier session\n")
    began = time.monotonic()
    with pytest.raises(LaunchError, match=words) as e:
        launcher(daemon, start_timeout=0.7).launch(LaunchSpec("lab", hosts=2))
    assert time.monotonic() - began < 5.0
    assert "earlier" not in str(e.value)
    assert e.value.host in (0, 1)
    until(lambda: not keepers(home))
    assert len(os.listdir("/proc/self/fd")) == fds
    assert list(sockets.iterdir()) == []
    assert statefile.load("lab") is None
    assert statefile.tombstone("lab") is None


def test_an_interrupted_start_leaves_nothing(launcher, home):

    def interrupt(address):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launcher(ready=interrupt).launch(LaunchSpec("lab"))
    until(lambda: not keepers(home))
    assert statefile.load("lab") is None


def test_a_state_file_that_cannot_be_written_undoes_the_start(launcher, home, monkeypatch):

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(statefile.os, "fsync", full)
    with pytest.raises(LaunchError, match=r"No space left.*lab\.json"):
        launcher().launch(LaunchSpec("lab"))
    until(lambda: not keepers(home))


def test_a_session_outlives_the_process_that_started_it(launcher, home):
    code = (
        "import sys, os, signal; sys.path[:0] = sys.argv[1].split(':')\n"
        "from monarch_kernel.launch import LocalLauncher, LaunchSpec\n"
        "LocalLauncher(daemon=sys.argv[2:]).launch(LaunchSpec('lab', gpus=0))\n"
        "os.killpg(os.getpgrp(), signal.SIGKILL)\n"
    )
    argv = [sys.executable, "-c", code, os.pathsep.join([str(ROOT), str(ROOT / "worker")]), *STAND_IN]
    done = subprocess.run(
        argv, start_new_session=True, timeout=30, capture_output=True
    )  # a pipe kept open would hang here
    assert done.returncode == -signal.SIGKILL
    file = statefile.load("lab")
    assert statefile.here(file).state == "live"
    assert accepts(file.members[0].address)
    assert launcher().release(file, "down").gone


def test_an_abandoned_session_is_freed_by_its_lease(launcher):
    file = launcher().launch(LaunchSpec("lab", lease=1.0))
    pids = everything(file)
    for member in file.members:  # what a daemon does; it had the time to start before
        with KeeperClient(member.keeper_socket) as keeper:
            assert keeper.hello()["lease"] > 10.0
            keeper.lease(1.0)
    until(lambda: not any(map(alive, pids)), 5.0)
    assert statefile.here(file).state == "dead"
    assert statefile.tombstone("lab").reason == "its lease ran out"
    with pytest.raises(KeeperGone):
        config(file)


def test_twenty_sessions_later_nothing_is_left(launcher, home, sockets):
    make = launcher(LIGHT)
    make.release(make.launch(LaunchSpec("lab")), "warm up")
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for i in range(20):
        file = make.launch(LaunchSpec("lab"))
        assert make.release(file, f"round {i}").gone
        assert list(sockets.iterdir()) == []
        assert not keepers(home)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert str(sockets) not in Path("/proc/net/unix").read_text()
    names = {p.name for p in home.rglob("*") if p.is_file()}
    assert names == {"lab.lock", "lab.ended.json", "daemon-0.log", "keeper-0.log"}
