"""Dead, stopped, busy, unresponsive, lost: what the evidence says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.state.liveness import HostLiveness, ProcLiveness
from monarch_kernel.state.times import Times


def proc(*, heartbeats_until: float = 10.0) -> ProcLiveness:
    subject = ProcLiveness(0.0)
    subject.connected(0.0)
    subject.heartbeat(heartbeats_until)
    return subject


def test_heartbeats_are_life() -> None:
    assert proc().verdict(12.9).state == "alive"


@pytest.mark.parametrize(
    ("code", "why"),
    [(-9, "signal SIGKILL"), (-63, "signal 63"), (3, "exited with code 3"), (0, "exited with code 0")],
)
def test_an_exit_is_death_at_once_and_says_how(code: int, why: str) -> None:
    subject = proc()
    subject.exit(code, 10.5)
    subject.heartbeat(10.6)
    verdict = subject.verdict(10.6)
    assert (verdict.state, verdict.since) == ("dead", 10.5)
    assert why in verdict.why


def test_an_end_of_stream_is_death_unless_it_said_goodbye() -> None:
    cut, left = proc(), proc()
    left.goodbye(10.0)
    for subject in (cut, left):
        subject.eof(10.5)
    assert cut.verdict(10.5).state == "dead"
    assert left.verdict(10.5).state == "ended"
    left.exit(0, 10.6)
    assert left.verdict(11.0).state == "ended"
    left.exit(-9, 11.0)
    assert left.verdict(11.0).state == "ended"


def test_a_stream_that_is_back_takes_its_end_back() -> None:
    subject = proc()
    subject.eof(10.5)
    subject.connected(10.8)
    assert subject.verdict(11.0).state == "alive"


def test_a_stopped_process_is_told_from_a_hung_one() -> None:
    subject = proc()
    subject.sample("T", 1.0, 11.0)
    subject.sample("T", 1.0, 20.0)
    verdict = subject.verdict(20.0)
    assert (verdict.state, verdict.since) == ("stopped", 11.0)
    subject.sample("S", 1.0, 21.0)
    assert subject.verdict(21.0).state == "unresponsive"


def test_a_heartbeat_after_the_look_is_newer_than_the_look() -> None:
    subject = proc()
    subject.sample("T", 1.0, 11.0)
    subject.heartbeat(11.5)
    assert subject.verdict(11.5).state == "alive"


def test_cpu_time_that_grows_without_heartbeats_is_busy_and_then_unresponsive() -> None:
    subject = proc()
    for second in range(11, 21):
        subject.sample("R", float(second), float(second))
    assert subject.verdict(20.0).state == "busy"
    for second in range(21, 31):
        subject.sample("S", 20.0, float(second))
    verdict = subject.verdict(30.0)
    assert (verdict.state, verdict.since) == ("unresponsive", 10.0)
    subject.sample("D", 20.0, 31.0)
    assert "waits in the system" in subject.verdict(31.0).why


def test_slow_growth_of_cpu_time_adds_up() -> None:
    subject = proc()
    for number in range(40):
        subject.sample("R", 0.01 * number, 10.0 + 0.5 * number)
    assert subject.verdict(29.5).state == "busy"


def test_a_process_that_proc_does_not_know_is_dead() -> None:
    for letter in (None, "Z", "X"):
        subject = proc()
        subject.sample(letter, 0.0, 11.0)
        assert subject.verdict(11.0).state == "dead"


def test_a_lost_host_hides_what_its_processes_do_but_not_their_death() -> None:
    subject = proc()
    subject.host_lost(40.0)
    assert subject.verdict(41.0).state == "lost host"
    subject.host_back(60.0)
    assert subject.verdict(61.0).state == "alive"
    subject.host_lost(70.0)
    subject.exit(-9, 71.0)
    assert subject.verdict(72.0).state == "dead"


def test_silence_while_we_slept_proves_nothing() -> None:
    subject, host = proc(), HostLiveness(10.0)
    for watched in (subject, host):
        watched.slept(5000.0)
    assert subject.verdict(5001.0).state == "alive"
    assert host.verdict(5001.0) == "alive"


def test_a_silent_process_is_looked_at_before_it_is_suspect() -> None:
    subject = proc()
    assert not subject.due(11.0)
    assert subject.due(12.0)
    subject.exit(1, 12.0)
    assert not subject.due(20.0)


def test_a_host_is_suspect_then_lost_then_back() -> None:
    host = HostLiveness(0.0)
    assert [host.verdict(t) for t in (2.9, 3.0, 29.9, 30.0)] == ["alive", "suspect", "suspect", "lost"]
    host.word(31.0)
    assert host.verdict(31.0) == "alive"
    host.ended(32.0)
    assert host.verdict(99.0) == "ended"


def test_times_are_configured_by_name_and_must_make_sense() -> None:
    assert Times.of({"lost": 10}).lost == 10.0
    with pytest.raises(ValueError, match="no time named 'last'; there are heartbeat, "):
        Times.of({"last": 1})
    with pytest.raises(ValueError, match="'suspect' must be below 'lost'"):
        Times.of({"lost": 1})
    with pytest.raises(ValueError, match="'heartbeat' must be above 0"):
        Times.of({"heartbeat": 0})


EVENTS = st.sampled_from(["heartbeat", "connected", "goodbye", "eof", "exit", "T", "S", "Z", "lost", "back", "slept"])


@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 5.0)), max_size=30))
def test_death_is_final_and_hearing_is_life(events: list[tuple[str, float]]) -> None:
    subject, now, exited = ProcLiveness(0.0), 0.0, False
    for event, wait in events:
        now += wait
        match event:
            case "exit":
                subject.exit(-9, now)
                exited = True
            case "lost":
                subject.host_lost(now)
            case "back":
                subject.host_back(now)
            case "T" | "S" | "Z":
                subject.sample(event, now / 2, now)
            case _:
                getattr(subject, event)(now)
        verdict = subject.verdict(now)
        assert verdict.since <= now
        assert (verdict.state == "dead") or not exited
        if verdict.state in ("busy", "unresponsive"):
            assert now - verdict.since >= 3.0
