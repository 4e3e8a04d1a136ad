"""What ranks print is shown under its cell, and a cell is never flooded."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.parametrize("front_end", [True], indirect=True, ids=["cellId"])

CLASS = """
class Talker(Actor):
    @endpoint
    def say(self, text, times=1):
        for _ in range(times):
            print(text)

    @endpoint
    def say_when(self, path, text):
        import os, time
        while not os.path.exists(path):
            time.sleep(0.01)
        print(text)
"""


@pytest.fixture(scope="module")
def talkers(lab):
    """A notebook with two actors that print."""
    lab.ok(CLASS, "class")
    lab.ok("procs = mk.hosts().spawn_procs(per_host={'gpus': 2}, name='procs')\n", "procs")
    lab.ok("talkers = procs.spawn('talkers', Talker)", "spawn")
    return lab


def test_lines_appear_under_the_cell_with_their_rank_and_after_what_it_printed_before(talkers):
    shown = talkers.ok("print('before')\nawait talkers.say.call('hello')", "hello").splitlines()
    assert shown[0] == "before"
    assert sorted(shown[1:]) == ["[procs 0] hello", "[procs 1] hello"]


def test_lines_that_nobody_waits_for_belong_to_the_cell_that_runs(talkers, tmp_path):
    path = str(tmp_path / "now")
    assert talkers.ok(f"asked = talkers.slice(gpus=0).say_when.call_one({path!r}, 'late')", "ask") == ""
    assert "late" in talkers.ok(f"open({path!r}, 'w').close(); await asked", "wait")


def test_similar_lines_are_shown_as_one_at_the_end_of_the_cell(talkers):
    talkers.ok("await procs.logging_option(stream_to_client=True, aggregate_window_sec=600)", "option")
    try:
        shown = talkers.ok("await talkers.say.call('again', 50)", "again")
        assert shown == "[procs] [100 similar log lines] again\n"
    finally:
        talkers.ok("await procs.logging_option(stream_to_client=True)", "option")


def test_a_mesh_that_is_not_streamed_shows_nothing(talkers):
    talkers.ok("await procs.logging_option()", "option")
    try:
        assert talkers.ok("await talkers.say.call('hidden')", "hidden") == ""
    finally:
        talkers.ok("await procs.logging_option(stream_to_client=True)", "option")
    assert "seen" in talkers.ok("await talkers.say.call('seen')", "seen")


def test_a_cell_shows_so_much_and_says_that_there_was_more(talkers):
    reply = talkers.run("await talkers.say.call('flood ' * 20, 30_000)", "flood")
    assert reply.status == "ok", reply
    assert len(reply.stdout.splitlines()) <= 10_000
    assert "shows no more" in reply.stderr or "left out" in reply.stderr
    assert "calm" in talkers.ok("await talkers.say.call('calm')", "calm")
