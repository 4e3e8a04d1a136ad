"""State files: private, atomic, and never acted on where they were not written."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.statefile import Member, SessionFile, Tombstone


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv(statefile.ALLOW_LOOSE_MODES, raising=False)
    return tmp_path / "state" / "monarch-kernel"


def a_file(name="lab", **changes):
    file = SessionFile(
        name=name,
        sid="0123456789abcdef",
        secret="f" * 64,
        launcher="local",
        created=time.time(),
        wire=1,
        python="3.11",
        hosts=1,
        gpus=None,
        lease=600.0,
        max_detached=86400.0,
        machine_id=statefile.machine_id(),
        boot_id=statefile.boot_id(),
        pid_ns=statefile.pid_namespace(),
        uid=os.getuid(),
        hostname=os.uname().nodename,
        members=[Member(0, "unix:/x/daemon.sock", "/x/keeper.sock", 1 << 22, 1, 7)],
    )
    return dataclasses.replace(file, **changes)


def test_what_is_saved_is_loaded(home):
    file = a_file()
    statefile.save(file)
    assert statefile.load("lab") == file
    assert statefile.load_all() == [file]
    statefile.remove("lab")
    statefile.remove("lab")
    assert statefile.load("lab") is None
    assert statefile.load_all() == []


def test_the_secret_is_in_no_repr():
    assert "ffff" not in repr(a_file())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_files_are_0600_in_0700_directories_under_any_umask(home, umask):
    old = os.umask(umask)
    try:
        if umask == 0o777:  # the parents of our own directory are the user's, made as the umask says
            os.makedirs(home.parent, exist_ok=True)
            home.parent.chmod(0o755)
        statefile.save(a_file())
        statefile.bury(Tombstone("lab", "0" * 16, "x", 1.0))
        statefile.logs_dir("lab")
        with statefile.locked("lab"):
            pass
    finally:
        os.umask(old)
    assert statefile.load("lab") is not None
    for path in [home, *home.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 in (wanted, wanted & ~umask), path
    assert (home / "sessions" / "lab.json").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == (home / "sessions").stat().st_mode & 0o777 == 0o700


def test_a_loose_file_or_directory_is_tightened_or_refused(home):
    statefile.save(a_file())
    (home / "sessions").chmod(0o755)
    assert statefile.load("lab") is not None
    assert (home / "sessions").stat().st_mode & 0o777 == 0o700
    (home / "sessions" / "lab.json").chmod(0o644)
    with pytest.raises(PermissionError, match=r"lab\.json.*mode 644.*XDG_STATE_HOME"):
        statefile.load("lab")
    assert statefile.load_all() == []


def test_a_filesystem_that_cannot_set_modes_is_refused_with_a_named_override(home, monkeypatch):
    statefile.save(a_file())
    real = os.fstat

    def loose(fd):
        found = list(real(fd))
        found[0] = found[0] & ~0o777 | 0o777
        return os.stat_result(found)

    monkeypatch.setattr(statefile.os, "fstat", loose)
    with pytest.raises(PermissionError, match=statefile.ALLOW_LOOSE_MODES):
        statefile.save(a_file(hosts=2))
    assert json.loads((home / "sessions" / "lab.json").read_text())["hosts"] == 1
    monkeypatch.setenv(statefile.ALLOW_LOOSE_MODES, "1")
    statefile.save(a_file(hosts=2))
    assert statefile.load("lab").hosts == 2


def test_a_full_disk_is_an_error_that_names_the_path_and_keeps_the_old_file(home, monkeypatch):
    statefile.save(a_file())

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(statefile.os, "fsync", full)
    with pytest.raises(OSError, match=r"state file of session 'lab'.*No space left.*lab\.json") as e:
        statefile.save(a_file(hosts=2))
    assert e.value.errno == 28
    assert statefile.load("lab").hosts == 1
    assert sorted(p.name for p in (home / "sessions").iterdir()) == ["lab.json"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_a_disk_that_is_really_full(home):
    script = """
set -e; mkdir -p "$1"; mount -t tmpfs -o size=16k,mode=700 none "$1"
"$2" - <<'END'
import dataclasses, os, sys
sys.path.insert(0, os.environ["TESTS"])
from test_statefile import a_file
from monarch_kernel.protocol import statefile
statefile.save(a_file())
try:
    with open(statefile.state_dir() / "filler", "wb", buffering=0) as f:
        while True: f.write(bytes(1024))
except OSError: pass
try: statefile.save(a_file(hosts=2, members=a_file().members * 200)); print("written")
except OSError as e: print(e)
print(statefile.load("lab").hosts)
END
"""
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(home), sys.executable]
    env = os.environ | {"TESTS": str(Path(__file__).parent), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=env)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(done.stderr)
    said, hosts = done.stdout.splitlines()
    assert "No space left on device" in said
    assert "lab.json" in said
    assert hosts == "1"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a.b", "-x", "a b", "x" * 65, "é", "lab\n", "lab.ended"])
def test_names_that_name_no_session(name):
    with pytest.raises(ValueError, match="cannot name a session"):
        statefile.valid_name(name)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1, "name": "lab"}', '{"members": [{}]}'])
def test_a_damaged_file_is_named_and_does_not_hide_the_others(home, text):
    statefile.save(a_file("good"))
    path = home / "sessions" / "lab.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=r"lab\.json is damaged"):
        statefile.load("lab")
    assert [f.name for f in statefile.load_all()] == ["good"]


def test_later_versions_are_refused_and_later_keys_ignored(home):
    statefile.save(a_file())
    path = home / "sessions" / "lab.json"
    doc = json.loads(path.read_text())
    doc["later"] = doc["members"][0]["later"] = 1
    path.write_text(json.dumps(doc))
    assert statefile.load("lab") == a_file(created=doc["created"])
    path.write_text(json.dumps(doc | {"version": 2}))
    with pytest.raises(ValueError, match="later version"):
        statefile.load("lab")


def test_a_link_in_place_of_a_file_or_directory_is_not_followed(home, tmp_path):
    statefile.save(a_file())
    path = home / "sessions" / "lab.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(OSError, match=r"lab\.json"):
        statefile.load("lab")
    statefile.save(a_file(hosts=2))  # replaces the link, not what it points to
    assert not path.is_symlink()
    assert json.loads((tmp_path / "elsewhere.json").read_text())["hosts"] == 1


def test_sockets_are_in_a_short_private_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    (tmp_path / "r").mkdir()
    path = statefile.runtime_dir("0123456789abcdef")
    assert path.name == "01234567"
    assert path.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777 == 0o700
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    for unusable in (str(deep), str(tmp_path / "none"), "relative", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        path = statefile.runtime_dir("fedcba9876543210")
        assert path == Path(f"/tmp/monarch-kernel-{os.getuid()}/fedcba98")
        assert len(bytes(path / "host0" / "daemon.sock")) < statefile.SOCKET_PATH_LIMIT
        path.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another's directory")
def test_a_directory_of_somebody_else_is_refused(monkeypatch, request):
    tmp_path = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own are too long for sockets
    request.addfinalizer(lambda: shutil.rmtree(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "monarch-kernel").mkdir()
    os.chown(tmp_path / "monarch-kernel", 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to uid 65534"):
        statefile.runtime_dir("0123456789abcdef")
    (tmp_path / "monarch-kernel").rmdir()
    (tmp_path / "monarch-kernel").symlink_to(tmp_path / "target")
    (tmp_path / "target").mkdir()
    with pytest.raises(NotADirectoryError):
        statefile.runtime_dir("0123456789abcdef")


def test_a_file_of_this_boot_without_its_keeper_is_dead_also_when_the_pid_was_recycled():
    assert statefile.here(a_file()).state == "dead"
    recycled = Member(0, "unix:/x", "/x/keeper.sock", os.getpid(), 1, 7)
    assert statefile.here(a_file(members=[recycled])).state == "dead"


@pytest.mark.parametrize("key", ["machine_id", "boot_id", "pid_ns", "uid"])
def test_a_file_of_another_place_is_elsewhere_even_with_a_matching_process(key):
    start = statefile.start_time(os.getpid())
    member = Member(0, "unix:/x", "/x/keeper.sock", os.getpid(), start, 7)
    file = a_file(members=[member], hostname="far", **{key: 99 if key == "uid" else "another"})
    standing = statefile.here(file)
    assert (standing.state, standing.hostname) == ("elsewhere", "far")


def test_after_a_reboot_a_file_is_dead(monkeypatch):
    monkeypatch.setattr(statefile, "machine_id", lambda: "m")
    name = statefile.socket.gethostname()
    assert statefile.here(a_file(machine_id="m", boot_id="earlier", created=1.0, hostname=name)).state == "dead"
    # a machine cloned from the same image, up now: its sessions were made after our boot
    assert statefile.here(a_file(machine_id="m", boot_id="other", hostname=name)).state == "elsewhere"


def test_a_proven_keeper_that_does_not_answer_counts_as_live(monkeypatch):
    """Taking a slow host for a dead one would end somebody's work."""
    with subprocess.Popen(["sleep", "1000"]) as p:
        member = Member(0, "unix:/x", "/no/keeper.sock", p.pid, statefile.start_time(p.pid), 7)
        standing = statefile.here(a_file(members=[member]))
        assert (standing.state, standing.alive, standing.silent) == ("live", (), (0,))
        p.kill()


def test_a_zombie_proves_nothing():
    p = subprocess.Popen(["sleep", "1000"])
    start = statefile.start_time(p.pid)
    fd = statefile.prove(p.pid, start)
    assert fd is not None
    os.close(fd)
    assert statefile.prove(p.pid, start + 1) is None
    p.kill()
    os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
    assert statefile.start_time(p.pid) == start
    assert statefile.prove(p.pid, start) is None
    p.wait()
    assert statefile.start_time(p.pid) is None


def test_tombstones_are_listed_latest_first(home):
    statefile.bury(Tombstone("a", "1" * 16, "its lease ran out", 10.0, ("trainers",)))
    statefile.bury(Tombstone("b", "2" * 16, "released", 20.0))
    (home / "sessions" / "c.ended.json").write_text("{")
    assert [t.name for t in statefile.tombstones()] == ["b", "a"]
    assert statefile.tombstone("a").lost == ("trainers",)
    assert statefile.load_all() == []  # a tombstone is no session
    statefile.clear_tombstone("a")
    statefile.clear_tombstone("a")
    assert statefile.tombstone("a") is None


def test_a_name_is_held_by_one_at_a_time_and_freed_by_any_death(home):
    holder = "import sys; sys.path[:0] = sys.argv[1].split(':')\n"
    holder += "from monarch_kernel.protocol import statefile\n"
    holder += "with statefile.locked('lab'): print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", holder, os.pathsep.join(sys.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        with pytest.raises(TimeoutError, match="'lab'"), statefile.locked("lab", 0.05):
            pass
        with statefile.locked("other", 0.05):
            pass
        p.kill()
        with statefile.locked("lab", 5.0):
            pass


def test_readers_never_see_half_a_file(home):
    statefile.save(a_file(members=a_file().members * 50))
    stop = threading.Event()

    def write():
        while not stop.is_set():
            statefile.save(a_file(members=a_file().members * 50))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(len(statefile.load("lab").members) == 50 for _ in range(200))
    finally:
        stop.set()
        writer.join()
