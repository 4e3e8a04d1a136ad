"""`up` again and again: one session a name, the same one while its spec fits, and never half of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from counting import Counter
from processes import file_of, keepers, procs

import monarch_kernel as mk
from monarch_kernel import errors
from monarch_kernel.protocol import statefile


@pytest.fixture
def lab(place):
    yield mk.up("lab", hosts=2, gpus=2, lease="20m")
    try:
        mk.down("lab")
    except errors.NoSuchSession:
        pass


def test_up_twice_is_the_same_session(lab):
    before = keepers("lab")
    assert mk.up("lab") is lab
    assert mk.up("lab", hosts=2, gpus=2) is lab
    assert mk.session() is lab
    lab.detach()
    again = mk.up("lab", hosts=2)
    assert again is not lab
    assert again.file.sid == lab.file.sid
    assert keepers("lab") == before
    assert tuple(again.epoch) > tuple(lab.epoch)


def test_another_spec_is_refused_with_every_difference_and_nothing_is_lost(lab):
    counters = mk.hosts().spawn_procs(per_host={"gpus": 1}).spawn("counters", Counter)
    counters.add.call(1).get(30)
    with pytest.raises(errors.SpecMismatch) as e:
        mk.up("lab", hosts=3, gpus=1)
    assert isinstance(e.value, ValueError)
    for words in ("'lab'", "hosts: asked 3, it has 2", "gpus: asked 1, it has 2", "--fresh"):
        assert words in str(e.value)
    assert mk.session() is lab
    assert counters.add.call(1).get(20).values() == [2, 2]


def test_times_of_the_lease_are_changed_in_place(lab):
    assert mk.up("lab", lease="3h", max_detached=86400 * 3) is lab
    assert (file_of("lab").lease, file_of("lab").max_detached) == (3 * 3600.0, 3 * 86400.0)
    for status in lab.statuses().values():
        assert "attached" in status.lease


def test_fresh_ends_everything_in_it_first(lab):
    counters = mk.hosts().spawn_procs().spawn("counters", Counter)
    counters.add.call(1).get(30)
    old, sid = keepers("lab"), lab.file.sid
    fresh = mk.up("lab", hosts=1, fresh=True)
    assert fresh.file.sid != sid
    assert not any(os.path.exists(f"/proc/{pid}") for pid in old)
    assert procs("lab") == {}
    assert dict(fresh.actors) == {}
    with pytest.raises((errors.StaleHandle, errors.NotAttached, errors.SessionEnded)):
        counters.add.call(1).get(20)


def test_more_slots_than_there_are(lab):
    first = mk.hosts().spawn_procs(per_host={"gpus": 2}, name="first")
    with pytest.raises(errors.NotEnoughSlots) as e:
        mk.hosts().spawn_procs(per_host={"gpus": 3}).initialized.get(20)
    assert isinstance(e.value, ValueError)
    assert "3 CPU slots a host were asked for; there are 2" in str(e.value)
    first.initialized.get(30)
    assert len(procs("lab")) == 4


def test_another_session_must_be_left_on_purpose(lab):
    with pytest.raises(errors.AlreadyAttached, match=r"'lab'.*detach"):
        mk.up("other")
    assert statefile.load("other") is None


RACE = """
import sys
import monarch_kernel as mk
from monarch_kernel.errors import ControllerPresent
input()
try:
    print("has", mk.up("race", lease="20m").file.sid, flush=True)
except ControllerPresent as error:
    print("present", error, flush=True)
input()
"""


def test_two_at_once_get_one_session_and_one_of_them_its_control(place):
    scripts = [
        subprocess.Popen([sys.executable, "-c", RACE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for script in scripts:
            script.stdin.write("\n")
            script.stdin.flush()
        said = sorted(script.stdout.readline().split(maxsplit=1) for script in scripts)
        assert [words[0] for words in said] == ["has", "present"]
        assert said[0][1].strip() == file_of("race").sid
        assert "session 'race' is controlled by" in said[1][1]
        assert "takeover" in said[1][1]
        assert len(keepers("race")) == 1
        folder = Path(os.environ["XDG_RUNTIME_DIR"], "monarch-kernel")
        assert [p.name for p in folder.iterdir() if any(p.iterdir())] == [file_of("race").sid[:8]]
    finally:
        for script in scripts:
            script.communicate("\n", timeout=30)
        mk.down("race")
    assert [script.returncode for script in scripts] == [0, 0]
