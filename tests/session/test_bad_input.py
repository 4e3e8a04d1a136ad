"""Bad input gets one clear error at once, and nothing is lost or half made."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from processes import alive, file_of

import monarch_kernel as mk
from monarch_kernel import errors
from monarch_kernel.protocol import statefile


@pytest.fixture(scope="module")
def lab(place):
    made = mk.up("lab", lease="20m")
    yield made
    mk.down("lab")


@pytest.fixture
def bystander():
    """A process that has nothing to do with any of this."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    assert child.poll() is None, "an innocent process was signalled"
    child.kill()
    child.wait()


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "a/b", "é"])
def test_what_cannot_be_a_name(place, name):
    for what in (mk.up, mk.attach, mk.down):
        with pytest.raises(ValueError, match="cannot name a session"):
            what(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 0}, "hosts must be"), ({"hosts": -1}, "hosts must be"), ({"hosts": 1.5}, "hosts must be"),
        ({"hosts": "2"}, "hosts must be"), ({"gpus": -1}, "gpus must be"), ({"gpus": 0.5}, "gpus must be"),
        ({"lease": "soon"}, "soon"), ({"lease": "2x"}, "2x"), ({"lease": -5}, "-5"), ({"max_detached": "h"}, "h"),
        ({"lease": float("nan")}, "nan"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(place, options, words):
    with pytest.raises(ValueError, match=words):
        mk.up("never", **options)
    assert statefile.load("never") is None


def test_more_gpus_than_there_are_or_no_driver(place):
    """On a machine without devices a number of GPUs is one of CPU slots; with devices it is asked, there and free."""
    from monarch_kernel.launch import LaunchSpec, LocalLauncher

    class Two:
        def devices(self):
            return ("0", "1")

    with pytest.raises(errors.NotEnoughSlots, match=r"3(?s:.*)2"):
        LocalLauncher(probe=Two()).launch(LaunchSpec("never", gpus=3))
    assert statefile.load("never") is None


def test_attach_to_a_name_that_is_not_there_says_what_exists(lab):
    for what in (mk.attach, mk.down):
        with pytest.raises(errors.NoSuchSession, match=r"'nobody'.*Live sessions: .*lab") as e:
            what("nobody")
        assert isinstance(e.value, LookupError)
    assert mk.session().name == "lab"


def stale(lab, **changes):
    """A state file as an earlier session of another name left it."""
    members = [replace(member) for member in lab.file.members]
    file = replace(lab.file, name="stale", sid="0" * 16, members=members)
    for key, value in changes.items():
        if hasattr(members[0], key):
            setattr(members[0], key, value)
        else:
            setattr(file, key, value)
    statefile.save(file)
    return file


@pytest.mark.parametrize("key", ["machine_id", "boot_id", "pid_ns", "uid"])
def test_the_file_of_another_place_is_shown_and_never_acted_on(lab, bystander, key):
    other = {"uid": 12345}.get(key, "another")
    start = statefile.start_time(bystander.pid)
    stale(lab, **{key: other}, hostname="far-away", created=2e9, keeper_pid=bystander.pid, keeper_start=start)
    try:
        standing = {file.name: standing for file, standing in mk.sessions()}["stale"]
        assert (standing.state, standing.hostname) == ("elsewhere", "far-away")
        mk.session().detach()
        for what in (mk.attach, mk.up, mk.down):
            with pytest.raises(errors.SessionError, match="far-away"):
                what("stale")
        assert statefile.load("stale") is not None
    finally:
        statefile.remove("stale")
        mk.attach("lab")


def test_a_file_that_names_an_innocent_process_is_stale_and_nobody_is_signalled(lab, bystander):
    """Its pid is that of a process which started at another time: the pid was given out again."""
    stale(lab, keeper_pid=bystander.pid, keeper_start=statefile.start_time(bystander.pid) - 1)
    standing = {file.name: standing for file, standing in mk.sessions()}["stale"]
    assert standing.state == "dead"
    mk.session().detach()
    with pytest.raises(errors.NoSuchSession, match="no live session 'stale'"):
        mk.attach("stale")
    assert mk.down("stale").gone
    assert statefile.load("stale") is None
    assert mk.attach("lab").hosts is not None
    assert alive(file_of("lab").members[0].keeper_pid)


def test_a_damaged_state_file_is_named_and_hides_nobody(lab, place):
    path = place / "monarch-kernel" / "sessions" / "broken.json"
    path.write_text("{")
    path.chmod(0o600)
    try:
        assert "lab" in [file.name for file, _ in mk.sessions()]
        with pytest.raises(ValueError, match=r"broken\.json is damaged"):
            mk.down("broken")
    finally:
        path.unlink()


FILLS_UP = """
import resource, sys
import monarch_kernel as mk
from monarch_kernel.protocol import statefile
mk.up("fills", lease="20m")
path = statefile.state_dir() / "sessions" / "fills.json"
before = path.read_bytes()
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a full disk, no file may grow
try:
    mk.up("fills", lease="5h")
except OSError as error:
    print(error)
print(path.read_bytes() == before, [p.name for p in path.parent.iterdir() if p.name.endswith(".tmp")])
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
mk.up("fills", lease="5h")
print(statefile.load("fills").lease)
mk.down("fills")
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_is_a_clear_error_and_the_old_file_is_intact(place):
    done = run(FILLS_UP)
    error, intact, lease = done.stdout.splitlines()
    assert "cannot write the state file of session 'fills'" in error
    assert "fills.json" in error
    assert intact == "True []"
    assert lease == "18000.0"
    assert (done.returncode, done.stderr) == (0, "")


FULL = """
import resource
import monarch_kernel as mk
from monarch_kernel.errors import LaunchError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    mk.up("full")
except LaunchError as error:
    print(error)
"""


def test_on_a_full_disk_no_session_is_half_started(place):
    done = run(FULL)
    assert "'full'" in done.stdout, done.stderr
    assert "cannot write" in done.stdout or "could not be started" in done.stdout
    assert "Traceback" not in done.stderr
    assert statefile.load("full") is None
    sockets = os.path.join(os.environ["XDG_RUNTIME_DIR"], "monarch-kernel")
    left = [name for name in os.listdir(sockets) if os.listdir(os.path.join(sockets, name))]
    assert left == [file.sid[:8] for file in statefile.load_all()]
