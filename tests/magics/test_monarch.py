"""%monarch in a real shell, on a real session of two hosts."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import monarch_kernel as mk
from monarch_kernel import errors
from monarch_kernel.magics import pages
from monarch_kernel.magics.arguments import UsageError
from monarch_kernel.protocol import statefile
from monarch_kernel.session import Session


def names() -> list[str]:
    return [file.name for file in statefile.load_all() if statefile.here(file).state == "live"]


def test_attach_says_what_it_found_and_the_result_of_a_call_left_behind_can_be_had(
    shell: Any, left_behind: Path
) -> None:
    attached = shell.ok("%monarch attach")  # one is live
    for words in ("Session lab: attached", "procs, trainers (2 processes)", "script", "left.py", "still running"):
        assert words in attached.text
    listed = shell.ok("import monarch_kernel as mk\n%monarch calls")
    assert re.search(r"\d +trainers\.wait_for .* running .*0 of 2 ranks", listed.text)
    left_behind.touch()
    expression = re.search(r"trainers\.wait_for .* (mk\.session.*)", listed.text)
    assert expression is not None
    assert shell.ip.ev(expression[1]).item(hosts=1, gpus=0) == "seen"
    assert re.search(r"trainers\.wait_for .* finished .*2 of 2 ranks", shell.ok("%monarch calls").text)


def test_status_shows_hosts_slots_meshes_lease_and_controller(attached: Session, shell: Any) -> None:
    shown = shell.ok("%monarch status")
    for words in (
        "Session lab",
        "CPU slots (no GPU driver)",
        "20m with nobody",
        f"{os.getpid()}",
        "hosts 2 × gpus 1",
        "2 ok",
    ):
        assert words in shown.text
    for status in attached.statuses().values():
        assert str(status.pid) in shown.text
    assert "Trainer" in shown.text
    assert "<table" in shown.html


def test_a_killed_rank_is_named_with_its_log_and_comes_back(attached: Session, shell: Any) -> None:
    record = attached.refresh().lookup("procs", "procs")
    before = record.ranks[1].pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while attached.refresh().lookup("procs", "procs").ranks[1].state != "dead":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shown = shell.ok("%monarch status").text
    assert shown.count("1 ok, 1 dead") == 2  # the processes, and the actors in them
    assert "rank 1 of procs on host 1" in shown
    assert "SIGKILL" in shown
    log = re.search(r"Its log: (\S+)", shown)
    assert log is not None
    assert Path(log[1]).exists()
    again = shell.ok("%monarch restart trainers[1]").text
    assert "trainers: rank 1 restarted" in again
    assert attached.refresh().lookup("trainers", "actors").ranks[1].pid != before
    assert "dead" not in shell.ok("%monarch status").text


def test_a_host_that_does_not_answer_is_shown_as_lost(
    shell: Any, attached: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = attached.statuses()
    del answers[1]
    monkeypatch.setattr(Session, "statuses", lambda self: answers)
    shown = shell.ok("%monarch status").text
    assert re.search(r"1 +lost: its daemon does not answer", shown)
    assert shown.count("1 ok, 1 lost") == 2
    assert "rank 1 of trainers is lost (host 1 does not answer)" in shown


def test_up_of_a_live_session_attaches_and_says_so(shell: Any, attached: Session) -> None:
    assert "attached already" in shell.ok("%monarch up lab --hosts 2").text
    shell.ok("%monarch detach")
    again = shell.ok("%monarch up lab --lease 30m").text
    assert "Session lab: attached" in again
    assert "30m with nobody" in again
    assert "this notebook" not in again


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("statsu", UsageError, "Did you mean 'status'?"),
        ("up lab --hosts 3", errors.SpecMismatch, "asked 3, it has 2"),
        ("up other", errors.AlreadyAttached, "%monarch detach"),
        ("down nothing", errors.NoSuchSession, "Live sessions: lab"),
        ("restart trainrs[0]", errors.SessionError, "did you mean 'trainers'?"),
        ("restart trainers[7]", IndexError, "its ranks are 0 to 1"),
        ("restart trainers{hosts: 5}", IndexError, "out of range"),
        ("restart trainers[x]", ValueError, "neither a rank nor a range"),
        ("help statsu", UsageError, "Did you mean 'status'?"),
    ],
)
def test_bad_input_is_one_paragraph_and_fails_the_cell(
    shell: Any, attached: Session, line: str, kind: type[Exception], said: str
) -> None:
    ran = shell.run(f"%monarch {line}\nafter = 1")
    assert isinstance(ran.error, kind)
    assert said in ran.text
    assert ran.text.strip().startswith(f"{type(ran.error).__name__}: ")
    assert "Traceback" not in ran.text
    assert len(ran.text.strip().splitlines()) == 1
    assert "after" not in shell.ip.user_ns
    assert mk.session() is attached


def test_an_error_that_nobody_meant_keeps_its_traceback(
    shell: Any, attached: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        [].pop()

    monkeypatch.setattr(pages, "status", broken)
    ran = shell.run("%monarch status")
    assert isinstance(ran.error, IndexError)
    assert "Traceback" in ran.text
    assert "broken" in ran.text


def test_variables_are_bound_again_and_named(shell: Any, attached: Session) -> None:
    shell.ok("import monarch_kernel as mk\ntrainers = mk.session().actors['trainers']")
    shell.ok("%monarch detach")
    shell.ok("del trainers")
    assert "Bound again: trainers" in shell.ok("%monarch attach lab").text
    assert shell.ip.ev("trainers.step.call(4).get().item(hosts=0, gpus=0)") == 5
    shell.ok("%monarch detach")
    shell.ok("del trainers")
    assert "Bound again" not in shell.ok("%monarch attach lab --no-bind").text
    assert "trainers" not in shell.ip.user_ns


def test_python_variables_stand_in_a_line_and_ranks_are_not_taken_for_one(shell: Any, attached: Session) -> None:
    shell.ok("which = 'lab'; hosts = 1")
    assert "attached already" in shell.ok("%monarch attach {which}").text
    assert "attached already" in shell.ok("%monarch attach $which").text
    assert "rank 0 restarted" in shell.ok("%monarch restart trainers{hosts: 0}").text


def test_a_controller_that_was_taken_over_is_told(shell: Any, attached: Session) -> None:
    code = "import monarch_kernel as mk; mk.attach('lab', takeover=True).detach()"
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)
    deadline = time.monotonic() + 10
    while attached.over is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ran = shell.run("%monarch status")
    assert isinstance(ran.error, errors.TakenOver)
    assert "Traceback" not in ran.text
    assert "Session lab: attached\n" in shell.ok("%monarch attach lab").text


def test_ps_tells_live_dead_and_elsewhere_apart(shell: Any, attached: Session) -> None:
    file = attached.file
    statefile.save(dataclasses.replace(file, name="far", sid="1" * 16, hostname="node7", machine_id="m", boot_id="b"))
    lost = [dataclasses.replace(member, keeper_start=1) for member in file.members]
    statefile.save(dataclasses.replace(file, name="gone", sid="2" * 16, members=lost))
    statefile.bury(statefile.Tombstone("gone", "2" * 16, "detached and idle for 2 h (lease 2h)", time.time() - 600))
    try:
        listed = shell.ok("%monarch ps").text
        assert re.search(r"lab +live, attached here +2 hosts", listed)
        assert re.search(r"far +on host node7", listed)
        assert re.search(r"gone +dead: detached and idle for 2 h \(lease 2h\), 10 min ago", listed)
        assert isinstance(shell.run("%monarch down far").error, errors.LaunchError)
        assert "dead already" in shell.ok("%monarch down gone").text
        assert statefile.load("gone") is None
    finally:
        statefile.remove("far")
        statefile.remove("gone")


def test_the_policy_of_re_runs_is_shown_and_set(shell: Any) -> None:
    assert "Re-run policy: reuse" in shell.ok("%monarch rerun").text
    assert "Re-run policy: new" in shell.ok("%monarch rerun new").text
    shell.ok("%monarch rerun reuse")


def test_a_session_is_made_found_again_made_anew_and_freed(shell: Any) -> None:
    shell.run("%monarch detach")
    assert "no session" in shell.ok("%monarch status").text
    assert isinstance(shell.run("%monarch calls").error, errors.NotAttached)
    assert isinstance(shell.run("%monarch down").error, errors.NotAttached)
    made = shell.ok("%monarch up small --gpus 1").text
    assert "Session small: made" in made
    assert re.search(r"hosts +1, CPU slots \(no GPU driver\), 1", made)
    keeper = mk.session().file.members[0].keeper_pid
    assert "Session small: made" in shell.ok("%monarch up small --fresh").text
    assert mk.session().file.members[0].keeper_pid != keeper
    freed = shell.ok("%monarch down").text
    assert re.search(r"Session small is released: 1 host and \d+ processes ended", freed)
    assert "small" not in names()
    assert re.search(r"small +ended just now: ", shell.ok("%monarch ps").text)


def test_an_interrupted_up_leaves_nothing(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.run("%monarch detach")

    def interrupted(self: Session, takeover: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_attach", interrupted)
        ran = shell.run("%monarch up stopped")
    assert isinstance(ran.error, KeyboardInterrupt)
    assert ran.text.strip() == "KeyboardInterrupt: session 'stopped' was not started"
    assert "stopped" not in names()


def test_help_names_every_subcommand_and_its_options(shell: Any) -> None:
    assert "%monarch restart MESH[ranks]" in shell.ok("%monarch").text
    assert "--takeover" in shell.ok("%monarch help attach").text
