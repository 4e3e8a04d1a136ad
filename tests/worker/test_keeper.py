"""The keeper against real processes and real signals."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from monarch_kernel.protocol.keeper import KeeperClient, KeeperGone, KeeperRefused

WORKER = Path(__file__).parents[2] / "worker"
KEEPER = WORKER / "monarch_worker" / "keeper.py"
SLEEP = ["sleep", "1000"]
# A proc as ours are: tied to its keeper, with a child in a session of its own and a double-forked one.
FAMILY = f"""
import os, signal, subprocess, sys, time
sys.path.append({str(WORKER)!r})
from monarch_worker.lifeline import tie_to_keeper, watch_keeper
tie_to_keeper(); watch_keeper()
child = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    orphan = os.fork()
    if orphan:
        os.write(w, b"%d" % orphan); os._exit(0)
    os.execvp("sleep", ["sleep", "1000"])
with open(sys.argv[1] + ".tmp", "w") as f:
    f.write(f"{{os.getpid()}} {{child}} {{int(os.read(r, 20))}}")
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
signal.pause()
"""


def until(condition, timeout=5.0, what="it"):
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {timeout} s"
        time.sleep(0.002)
    return found


def alive(pid):
    """A zombie that nobody reaps is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def spec(name, argv=SLEEP, restart=False, **more):
    env = {"PATH": os.environ["PATH"]}
    return {"id": name, "argv": list(argv), "env": env, "cwd": None, "restart": restart, "log": None, "oom": 0} | more


class Host:
    def __init__(self, folder, **doc):
        self.state = folder / "state"
        self.rundir = folder / "run" / f"host{doc.get('host', 0)}"
        self.rundir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket = self.rundir / "keeper.sock"
        self.doc = {
            "socket": str(self.socket),
            "session": "lab",
            "sid": "ab" * 8,
            "host": 0,
            "hosts": 1,
            "state_dir": str(self.state),
            "rundir": str(self.rundir),
            "blobs": {},
            "spawn": [],
            "lease": None,
        } | doc
        self.client = KeeperClient(self.socket)
        self.pids = []

    def start(self, **popen):
        with open(self.state.parent / "keeper.log", "ab") as log:
            starter = subprocess.run(
                [sys.executable, "-I", "-S", str(KEEPER)],
                input=json.dumps(self.doc).encode(),
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=20,
                **popen,
            )
        self.said = json.loads(starter.stdout)
        if "error" not in self.said:
            self.pids = [self.said["guardian"], self.said["pid"]]
        return self

    @property
    def tombstone(self):
        return json.loads((self.state / "sessions" / "lab.ended.json").read_text())

    @property
    def record(self):
        return self.state / "keepers" / f"lab.{self.doc['host']}.json"

    def kid(self, name):
        return self.client.list()[name]

    def wait_gone(self, timeout=5.0):
        for pid in self.pids:
            until(lambda pid=pid: not alive(pid), timeout, "the end of the keeper")

    def close(self):
        with contextlib.suppress(KeeperGone, KeeperRefused):
            self.client.release("test over")
        self.client.close()
        with contextlib.suppress(AssertionError):
            self.wait_gone()
        for pid in self.pids:
            if alive(pid):  # its own children, so nobody else's number
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hosts(tmp_path):
    made = []

    def make(**doc):
        popen = doc.pop("popen", {})
        made.append(Host(tmp_path, **doc).start(**popen))
        return made[-1]

    yield make
    for host in made:
        host.close()


def family_of(folder, name):
    return tuple(map(int, until(lambda: (folder / name).exists() and (folder / name).read_text().split())))


def test_says_who_it_is_and_cuts_every_tie_to_its_launcher(hosts):
    host = hosts(lease=60)
    hello = host.client.hello()
    assert {k: hello[k] for k in ("pid", "start", "incarnation", "boot_id")} == {
        k: host.said[k] for k in ("pid", "start", "incarnation", "boot_id")
    }
    assert (hello["session"], hello["host"]) == ("lab", 0)
    assert 50 < hello["lease"] <= 60
    assert os.getsid(hello["pid"]) not in (os.getsid(0), hello["pid"])  # no terminal can be acquired, none signals it
    assert os.stat(host.socket).st_mode & 0o777 == 0o600
    targets = {os.readlink(f"/proc/{hello['pid']}/fd/{fd}") for fd in (0, 1, 2)}
    assert not any(t.startswith("/dev/pts") for t in targets)


def test_a_killed_daemon_is_started_again_and_what_is_kept_is_intact(hosts):
    host = hosts(spawn=[spec("daemon", restart=True)], blobs={"config": '{"a": 1}'})
    host.client.put("vault", os.urandom(1 << 20))
    before = host.client.get("vault")
    first = host.kid("daemon")["pid"]
    watch = host.client.watch()
    os.kill(first, signal.SIGKILL)
    (event,) = watch.read(5)
    assert (event["ev"], event["id"], event["pid"], event["code"]) == ("exit", "daemon", first, -9)
    assert event["restart"] > 0
    second = until(lambda: host.kid("daemon")["alive"] and host.kid("daemon"))
    assert (second["pid"] != first, second["runs"]) == (True, 2)
    assert host.client.get("vault") == before
    assert host.client.get("config") == b'{"a": 1}'
    assert host.client.names() == {"config": 8, "vault": 1 << 20}
    watch.close()


def test_the_end_of_a_rank_is_known_within_milliseconds(hosts):
    host = hosts()
    watch = host.client.watch()
    delays = []
    for i in range(5):
        pid = host.client.spawn(spec(f"m.{i}"))
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        (event,) = watch.read(5)
        delays.append(time.monotonic() - began)
        assert (event["id"], event["code"], event["n"]) == (f"m.{i}", -9, i + 1)
        assert "restart" not in event
    assert sorted(delays)[2] < 0.1
    host.client.spawn(spec("m.9", ["sh", "-c", "exit 7"]))
    assert watch.read(5)[0]["code"] == 7
    watch.close()


def test_what_a_dead_proc_leaves_is_ended_and_nobody_elses(hosts, tmp_path):
    host = hosts()
    for name in "ab":
        host.client.spawn(spec(name, [sys.executable, "-c", FAMILY, str(tmp_path / name)]))
    a, b = family_of(tmp_path, "a"), family_of(tmp_path, "b")
    assert all(map(alive, a + b))
    assert set(a + b) <= set(host.client.tree())
    os.kill(a[0], signal.SIGKILL)
    until(lambda: not any(map(alive, a)), what="the end of what a left")
    assert all(map(alive, b))
    host.client.end("b")
    until(lambda: not any(map(alive, b)))


def test_the_lease_is_one_deadline_that_can_be_moved(hosts, tmp_path):
    host = hosts(lease=0.4, spawn=[spec("daemon", restart=True)])
    host.client.spawn(spec("p", [sys.executable, "-c", FAMILY, str(tmp_path / "p")]))
    host.client.lease(60)
    family = family_of(tmp_path, "p")
    host.client.lease(None)
    assert host.client.hello()["lease"] is None
    host.client.put("lost", b'["trainers (4 ranks)"]')
    host.client.lease(0.1)
    host.wait_gone()
    assert not any(map(alive, family))
    assert host.tombstone["reason"] == "its lease ran out"
    assert host.tombstone["lost"] == ["trainers (4 ranks)"]
    assert not host.rundir.exists()
    with pytest.raises(KeeperGone):
        host.client.hello()


def test_a_host_nobody_ever_attached_to_is_freed(hosts):
    host = hosts(lease=0.2, spawn=[spec("daemon", restart=True)])
    host.wait_gone()
    assert host.tombstone["lost"] == []


def test_the_keepers_death_ends_its_incarnation_within_a_second(hosts, tmp_path):
    """Also what is stopped, what has a session of its own, and what was double-forked."""
    host = hosts(spawn=[spec("daemon", restart=True)])
    for name in "ab":
        host.client.spawn(spec(name, [sys.executable, "-c", FAMILY, str(tmp_path / name)]))
    family = family_of(tmp_path, "a") + family_of(tmp_path, "b")
    os.kill(family[0], signal.SIGSTOP)
    os.kill(family[1], signal.SIGSTOP)
    tree = host.client.tree()
    os.kill(host.said["pid"], signal.SIGKILL)
    until(lambda: not any(map(alive, tree)), 1.0, "the end of the whole tree")
    host.wait_gone(1.0)
    assert set(family) <= set(tree)
    assert "signal 9" in host.tombstone["reason"]
    assert host.tombstone["lost"] == ["a", "b"]
    assert not host.rundir.exists()


def test_with_keeper_and_guardian_dead_a_proc_ends_by_itself(hosts, tmp_path):
    host = hosts()
    host.client.spawn(spec("a", [sys.executable, "-c", FAMILY, str(tmp_path / "a")]))
    family = family_of(tmp_path, "a")
    os.kill(host.said["guardian"], signal.SIGKILL)
    os.kill(host.said["pid"], signal.SIGKILL)
    until(lambda: not alive(family[0]), 1.0)
    for pid in family[1:]:  # nothing of ours is left that could end these; see the next test for what can
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# Gives up the parent-death signal, as a setuid program would, so that it outlives keeper and guardian.
STUBBORN = """
import ctypes, signal, subprocess, sys
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
child = subprocess.Popen(["sleep", "1000"]).pid
open(sys.argv[1], "w").write(str(child))
signal.pause()
"""


def test_the_next_keeper_ends_what_survived_and_never_an_innocent(hosts, tmp_path):
    host = hosts()
    pid = host.client.spawn(spec("a", [sys.executable, "-S", "-c", STUBBORN, str(tmp_path / "child")]))
    child = int(until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text()))
    until(lambda: host.record.exists() and str(pid) in host.record.read_text())
    os.kill(host.said["guardian"], signal.SIGKILL)
    os.kill(host.said["pid"], signal.SIGKILL)
    host.wait_gone()
    assert alive(pid)
    assert alive(child)
    with subprocess.Popen(SLEEP) as innocent:
        record = json.loads(host.record.read_text())
        record["kids"].append([innocent.pid, record["kids"][0][1], "recycled"])  # its pid, another start time
        record["incarnation"] = 1 << 62  # as if the clock had been set back since
        host.record.write_text(json.dumps(record))
        later = hosts()
        assert not alive(pid)
        assert not alive(child)
        assert innocent.poll() is None
        innocent.kill()
    assert later.said["incarnation"] > 1 << 62


@pytest.mark.parametrize("key", ["boot_id", "pid_ns"])
def test_a_record_of_another_boot_or_namespace_is_never_acted_on(hosts, tmp_path, key):
    with subprocess.Popen(SLEEP) as innocent:
        start = int(Path(f"/proc/{innocent.pid}/stat").read_text().rpartition(")")[2].split()[19])
        (tmp_path / "state" / "keepers").mkdir(parents=True)
        record = {"boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
        record |= {"pid_ns": os.readlink("/proc/self/ns/pid"), "incarnation": 5, "host": 0}
        record |= {"keeper": [1, 1], "guardian": [1, 1], "kids": [[innocent.pid, start, "x"]], key: "another"}
        (tmp_path / "state" / "keepers" / "lab.0.json").write_text(json.dumps(record))
        hosts()
        assert innocent.poll() is None
        innocent.kill()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"keeper": 7}', '{"kids": [[1]]}'])
def test_a_damaged_record_does_not_keep_a_host_from_starting(hosts, tmp_path, text):
    (tmp_path / "state" / "keepers").mkdir(parents=True)
    (tmp_path / "state" / "keepers" / "lab.0.json").write_text(text)
    assert "error" not in hosts().said


def test_a_host_has_one_keeper(hosts):
    first = hosts()
    until(first.record.exists)
    second = hosts()
    assert "has a keeper already" in second.said["error"]
    assert first.client.hello()["pid"] == first.said["pid"]
    assert first.socket.exists()


def test_a_watcher_that_does_not_read_stops_nothing_and_history_is_bounded(hosts):
    host = hosts()
    stopped = host.client.watch()  # never read until the end
    slowest = 0.0
    for i in range(1050):
        began = time.monotonic()
        host.client.spawn(spec(f"m.{i}", ["/bin/true"]))
        slowest = max(slowest, time.monotonic() - began)
    until(lambda: host.client.hello()["n"] == 1050, 10)
    assert slowest < 2.0
    late = host.client.watch()
    numbers = []
    while not numbers or numbers[-1] < 1050:
        numbers += [e["n"] for e in late.read(5)]
    assert numbers == list(range(51, 1051))
    numbers = []
    while not numbers or numbers[-1] < 1050:
        numbers += [e["n"] for e in stopped.read(5)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1
    since = host.client.watch(since=1048)
    assert [e["n"] for e in since.read(5)] == [1049, 1050]
    assert len(host.client.list()) == 1000
    for watch in (stopped, late, since):
        watch.close()


def test_a_stopped_process_that_watches_stops_nothing(hosts):
    host = hosts()
    watcher = (
        "import socket, sys, json, time\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n"
        's.send(json.dumps({"op": "watch"}).encode()); s.recv(99); print(flush=True); time.sleep(1000)\n'
    )
    with subprocess.Popen([sys.executable, "-S", "-c", watcher, host.socket], stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        os.kill(p.pid, signal.SIGSTOP)
        for i in range(20):
            host.client.spawn(spec(f"m.{i}", ["/bin/true"]))
        until(lambda: host.client.hello()["n"] == 20)
        p.kill()


def test_a_caller_that_asks_without_reading_answers_is_hung_up_on(hosts):
    host = hosts()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(str(host.socket))
        s.settimeout(5)
        flood = (s.send(b'{"op": "list"}') for _ in range(100_000))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            all(flood)
    assert host.client.hello()["pid"] == host.said["pid"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_another_uid_is_refused():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        host = Host(Path(folder)).start()
        try:
            for path in (Path(folder), host.rundir.parent, host.rundir):
                path.chmod(0o755)
            host.socket.chmod(0o666)  # so that only the keeper's own check is left
            code = (
                "import os, socket, sys; os.setuid(65534)\n"
                "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n"
                'try: s.send(b\'{"op": "hello"}\'); print(s.recv(999))\n'
                "except OSError: print(b'')\n"
            )
            argv = ["/usr/bin/env", sys.executable, "-S", "-c", code, str(host.socket)]
            assert subprocess.run(argv, capture_output=True, timeout=20).stdout.strip() == b"b''"
            assert host.client.hello()["pid"] == host.said["pid"]
        finally:
            host.close()


def test_specs_and_answers_larger_than_a_packet(hosts):
    host = hosts()
    env = {"PATH": os.environ["PATH"]} | {f"V{i}": "x" * 1000 for i in range(200)}
    pid = host.client.spawn(spec("big", env=env))
    assert Path(f"/proc/{pid}/environ").read_bytes().count(b"x" * 1000) == 200
    for i in range(900):
        host.client.put(f"{i:03d}" + "n" * 100, b"1")
    assert len(host.client.names()) == 900
    host.client.drop("000" + "n" * 100)
    assert host.client.get("000" + "n" * 100) is None
    assert len(host.client.names()) == 899


def test_it_raises_its_own_descriptor_limit_and_not_its_childrens(hosts):
    host = hosts(popen={"preexec_fn": lambda: __import__("resource").setrlimit(7, (256, 4096))})
    for i in range(400):
        host.client.put(str(i), b"1")
    pid = host.client.spawn(spec("m.0"))
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    assert next(line for line in limits if "open files" in line).split()[3] == "256"
    theirs = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # a file that the child had open for a moment
            theirs.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    assert not [name for name in theirs if name.startswith(("/memfd:", "socket:"))]  # and none of its descriptors


def test_out_of_descriptors_it_answers_and_goes_on(hosts):
    host = hosts(popen={"preexec_fn": lambda: __import__("resource").setrlimit(7, (64, 64))})
    flood = (host.client.put(str(i), b"1") is None for i in range(100))
    with pytest.raises(KeeperRefused, match="no room for more"):
        all(flood)
    with pytest.raises(KeeperGone):
        KeeperClient(host.socket).hello()
    host.client.drop("0")
    host.client.drop("1")
    assert host.client.get("2") == b"1"


def test_kept_memory_cannot_shrink_and_only_memory_is_kept(hosts, tmp_path):
    host = hosts()
    fd = os.memfd_create("vault", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    host.client.put_fd("vault", fd)
    os.pwrite(fd, b"written after", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 8192)
    assert host.client.get("vault")[:13] == b"written after"
    for bad in (os.memfd_create("loose"), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)):
        with pytest.raises(KeeperRefused, match="memfd"):
            host.client.put_fd("vault", bad)
        os.close(bad)
    assert host.client.get("vault")[:13] == b"written after"
    os.close(fd)


def test_vault_memory_is_held_but_never_mapped(hosts):
    host = hosts()
    host.client.put("vault", bytes(64 << 20))
    maps = Path(f"/proc/{host.said['pid']}/maps").read_text()
    assert "memfd" not in maps
    rss = int(Path(f"/proc/{host.said['pid']}/statm").read_text().split()[1]) * 4096
    assert rss < 40 << 20


def test_a_child_that_keeps_failing_is_started_less_and_less_often(hosts):
    host = hosts()
    watch = host.client.watch()
    host.client.spawn(spec("daemon", ["false"], restart=True))
    with pytest.raises(KeeperRefused, match="no such"):
        host.client.spawn(spec("other", ["/no such"], restart=True))
    waits = []
    while len(waits) < 4:
        waits += [e["restart"] for e in watch.read(5)]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    host.client.spawn(spec("daemon", restart=True))  # a new one takes its place at once
    assert host.kid("daemon")["alive"]
    watch.close()


def test_a_program_that_went_away_is_tried_again_when_it_is_back(hosts, tmp_path):
    program = tmp_path / "daemon"
    program.symlink_to("/bin/sleep")
    host = hosts(spawn=[spec("daemon", [str(program), "1000"], restart=True)])
    program.rename(tmp_path / "upgrading")
    os.kill(host.kid("daemon")["pid"], signal.SIGKILL)
    until(lambda: b"cannot start" in (tmp_path / "keeper.log").read_bytes())
    (tmp_path / "upgrading").rename(program)
    until(lambda: host.kid("daemon")["alive"])


def test_ending_a_child_takes_back_its_restart(hosts):
    host = hosts(spawn=[spec("daemon", restart=True)])
    watch = host.client.watch()
    with pytest.raises(KeeperRefused, match="daemon is running"):
        host.client.spawn(spec("daemon"))
    host.client.end("daemon", signal.SIGTERM)
    (event,) = watch.read(5)
    assert (event["code"], event.get("restart")) == (-15, None)
    assert not host.kid("daemon")["alive"]
    host.client.end("daemon")  # no error: it is what was wanted
    with pytest.raises(KeeperRefused, match="nobody"):
        host.client.end("nobody")
    watch.close()


def test_a_child_gets_what_its_spec_says_and_nothing_else(hosts, tmp_path):
    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
        os.umask(0o027)

    host = hosts(popen={"preexec_fn": ignore, "env": {"SECRET_OF_THE_LAUNCHER": "1"}})
    log = tmp_path / "logs" / "m.log"
    code = "import os, signal, sys; print(os.getcwd()); print('err', file=sys.stderr); open(sys.argv[1], 'w').close()"
    code += "; print(signal.getsignal(2) is signal.default_int_handler, signal.pthread_sigmask(0, []) == set())"
    code += "; print(sorted(k for k in os.environ if k != 'LC_CTYPE')); print(open('/proc/self/oom_score_adj').read())"
    argv = [sys.executable, "-S", "-u", "-c", code, str(tmp_path / "made")]
    own = int(Path(f"/proc/{host.said['pid']}/oom_score_adj").read_text())
    host.client.spawn(spec("m.0", argv, env={"A": "1"}, cwd=str(tmp_path), log=str(log), oom=200))
    until(lambda: not host.kid("m.0")["alive"])
    lines = log.read_text().split("\n")
    assert lines[:4] == [str(tmp_path), "err", "True True", "['A', 'MONARCH_HOST', 'MONARCH_KEEPER']"]
    assert int(lines[4]) == own + 200
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_opened_does_not_keep_a_daemon_down(hosts, tmp_path):
    host = hosts(spawn=[spec("daemon", restart=True, log=str(tmp_path))])  # a directory, as good as a full disk
    assert host.kid("daemon")["alive"]


def test_a_program_that_is_not_there_is_the_spawners_error(hosts):
    host = hosts()
    with pytest.raises(KeeperRefused, match="no-such-program"):
        host.client.spawn(spec("m.0", ["/no-such-program"]))
    with pytest.raises(KeeperRefused, match="no-such-folder"):
        host.client.spawn(spec("m.0", cwd="/no-such-folder"))
    assert host.client.list() == {}
    assert "no-such-program" in hosts(host=1, spawn=[spec("daemon", ["/no-such-program"])]).said["error"]


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"op": "no"}',
        b'{"op": "put", "name": "x"}',
        b'{"op": "spawn"}',
        b'{"op": "get", "fd": true}',
        b'{"op": "spawn", "spec": {"id": "x", "argv": [], "env": {}}}',
        b'{"op": "lease", "left": NaN}',
        b'{"op": "lease", "left": Infinity}',
        b'{"op": "lease", "left": -1}',
        b'{"op": "lease", "left": "soon"}',
        b"[" * 60000,
        b"\xff" * 70000,
    ],
)
def test_no_packet_ends_the_keeper(hosts, packet):
    host = hosts()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(str(host.socket))
        s.send(packet)
        assert "error" in json.loads(s.recv(65536))
    assert host.client.hello()["pid"] == host.said["pid"]
    assert len(os.listdir(f"/proc/{host.said['pid']}/fd")) < 15


def test_release_ends_the_whole_tree_and_leaves_only_the_tombstone(hosts, tmp_path):
    host = hosts(spawn=[spec("daemon", restart=True)])
    for name in "ab":
        host.client.spawn(spec(name, [sys.executable, "-c", FAMILY, str(tmp_path / name)]))
        family_of(tmp_path, name)
    tree = host.client.tree()
    os.kill(tree[0], signal.SIGSTOP)
    watch = host.client.watch()
    host.client.release("asked by a test")
    host.wait_gone()
    assert not any(map(alive, tree))
    with pytest.raises(KeeperGone):
        all(watch.read(5) for _ in range(10))
    assert [p.relative_to(host.state).as_posix() for p in host.state.rglob("*") if p.is_file()] == [
        "sessions/lab.ended.json"
    ]
    assert (host.tombstone["reason"], host.tombstone["lost"]) == ("asked by a test", ["a", "b"])
    assert (host.state / "sessions" / "lab.ended.json").stat().st_mode & 0o777 == 0o600
    assert not host.rundir.parent.exists()
    watch.close()


def test_hosts_of_one_session_share_a_tombstone(hosts):
    one, two = hosts(hosts=2), hosts(host=1, hosts=2)
    assert one.socket != two.socket
    one.client.spawn(spec("a"))
    two.client.spawn(spec("b"))
    one.client.release("first")
    one.wait_gone()
    assert (one.tombstone["reason"], one.tombstone["lost"]) == ("first", ["a"])
    assert one.rundir.parent.exists()
    os.kill(two.said["pid"], signal.SIGKILL)
    two.wait_gone()
    assert (one.tombstone["reason"], one.tombstone["lost"]) == ("first", ["a", "b"])
    assert not one.rundir.parent.exists()


def test_sigterm_is_a_release(hosts):
    host = hosts(spawn=[spec("daemon", restart=True)])
    os.kill(host.said["guardian"], signal.SIGTERM)  # the guardian leaves it to the keeper
    os.kill(host.said["pid"], signal.SIGTERM)
    host.wait_gone()
    assert "SIGTERM" in host.tombstone["reason"]


def test_a_launcher_that_went_away_gets_no_host(tmp_path):
    host = Host(tmp_path, spawn=[spec("daemon", restart=True)])
    r, w = os.pipe()
    os.close(r)
    subprocess.run(
        [sys.executable, "-I", "-S", str(KEEPER)], input=json.dumps(host.doc).encode(), stdout=w, timeout=20, check=True
    )
    os.close(w)
    until(lambda: not host.rundir.exists())
    assert not (host.state / "sessions" / "lab.ended.json").exists()


def test_a_process_that_is_not_the_keepers_child_does_not_start(hosts):
    host = hosts()
    code = f"import sys; sys.path.append({str(WORKER)!r})\n"
    code += "from monarch_worker.lifeline import tie_to_keeper; tie_to_keeper(sys.argv[1]); print('started')"
    for path in (str(host.socket), "/no/such/keeper.sock"):
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, timeout=20)
        assert (done.returncode, done.stdout) == (1, b"")


def test_a_client_is_shared_by_threads_and_survives_an_interrupt(hosts):
    from concurrent.futures import ThreadPoolExecutor

    host = hosts()
    for i in range(20):
        host.client.put(str(i), str(i).encode() * 1000)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: host.client.get(str(i % 20)), range(400)))
    assert got == [str(i % 20).encode() * 1000 for i in range(400)]
    child = os.fork()  # it shares the connection and must not use it
    if child == 0:
        os._exit(0 if all(host.client.get(str(i)) == str(i).encode() * 1000 for i in range(20)) else 1)
    assert all(host.client.get(str(i)) == str(i).encode() * 1000 for i in range(20))
    assert os.waitpid(child, 0)[1] == 0
    os.kill(host.said["pid"], signal.SIGSTOP)
    host.client.timeout = 0.1
    host.client.close()
    with pytest.raises(KeeperGone, match="in time"):
        host.client.hello()
    os.kill(host.said["pid"], signal.SIGCONT)
    host.client.timeout = 5.0
    assert host.client.get("7") == b"7" * 1000


def test_a_watch_can_be_waited_for_with_select(hosts):
    host = hosts()
    watch = host.client.watch()
    assert watch.read(0) == []
    host.client.spawn(spec("m.0", ["true"]))
    assert select.select([watch], [], [], 5)[0]
    assert watch.read()[0]["id"] == "m.0"
    watch.close()
