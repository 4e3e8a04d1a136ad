"""The lease, on an injected clock: by example and against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch_kernel.state.lease import LONGEST, Lease, Released, format_duration, parse_duration

H = 3600.0


def lease(lease: float | None = 2 * H, max_detached: float | None = 7 * 24 * H) -> Lease:
    return Lease(lease, max_detached, 0.0)


def run(subject: Lease, start: float, end: float, step: float = 10.0) -> float | None:
    """Tick from start to end; the time of the release, or None."""
    now = start
    while now <= end:
        if subject.tick(now) is not None:
            return now
        now += step
    return None


def test_nothing_is_released_while_a_controller_is_connected() -> None:
    subject = lease()
    subject.controller_connected("k", 1.0)
    assert run(subject, 0.0, 30 * 24 * H, 20.0) is None
    assert subject.left(5.0) is None
    assert subject.describe(5.0) == "attached"


def test_a_detached_idle_session_is_released_when_its_lease_is_over() -> None:
    subject = lease()
    subject.controller_connected("k", 0.0)
    subject.controller_gone("k", 100.0, clean=True)
    assert subject.describe(100.0 + 78 * 60) == "detached and idle, 42 min left"
    assert run(subject, 0.0, 3 * H) == 100.0 + 2 * H
    assert subject.state == "released"
    assert subject.describe(3 * H) == "released: detached and idle for 2 h (lease 2h)"


def test_the_lease_stands_still_while_calls_run_and_starts_anew_after_them() -> None:
    subject = lease()
    subject.work(3, 10.0)
    assert run(subject, 0.0, 10 * H) is None
    assert subject.describe(10 * H) == "detached and working, at most 6 days 14 h left"
    subject.work(0, 10 * H)
    assert run(subject, 10 * H, 20 * H) == 12 * H


def test_max_detached_ends_even_a_working_session() -> None:
    subject = lease(max_detached=24 * H)
    subject.work(1, 10.0)
    assert run(subject, 0.0, 48 * H) == 24 * H
    assert "max-detached 1d" in subject.describe(24 * H)


def test_what_other_hosts_see_counts_here_too() -> None:
    subject = lease()
    subject.peers(attached=True, working=False, now=10.0)
    assert run(subject, 0.0, 10 * H) is None
    subject.peers(attached=False, working=True, now=10 * H)
    assert subject.state == "working"
    assert run(subject, 10 * H, 20 * H) is None
    subject.peers(attached=False, working=False, now=20 * H)
    assert run(subject, 20 * H, 30 * H) == 22 * H


def test_the_second_of_two_controllers_keeps_the_session() -> None:
    subject = lease()
    subject.controller_connected("old", 0.0)
    subject.controller_connected("new", 1.0)
    subject.controller_gone("old", 2.0, clean=True)
    subject.controller_gone("old", 3.0, clean=True)
    assert subject.attached


def test_without_a_goodbye_nothing_is_released_within_the_reconnect_window() -> None:
    clean, cut = lease(0.0), lease(0.0)
    for subject, goodbye in ((clean, True), (cut, False)):
        subject.controller_connected("script", 0.0)
        assert run(subject, 0.0, 100.0) is None
        subject.controller_gone("script", 100.0, clean=goodbye)
    assert clean.tick(100.0) == Released("detached and idle for 0 s (lease 0s)")
    assert cut.tick(100.0) is None
    assert cut.tick(129.0) is None
    assert cut.tick(130.0) is not None


def test_a_new_host_waits_for_its_first_controller_whatever_the_lease() -> None:
    assert run(lease(0.0), 0.0, 100.0) == 30.0


def test_a_machine_that_slept_gives_its_user_a_grace() -> None:
    paused, suspended = lease(600.0), lease(600.0)
    assert run(paused, 0.0, 500.0) is None
    assert paused.tick(5000.0) is None
    assert paused.left(5000.0) == 60.0
    assert run(paused, 5000.0, 6000.0, 1.0) == 5060.0
    for now in range(0, 600, 10):
        assert suspended.tick(float(now), wall=1e9 + now) is None
    assert suspended.tick(600.0, wall=1e9 + 9000.0) is None
    assert suspended.left(600.0) == 60.0


def test_a_wall_clock_set_back_changes_nothing() -> None:
    subject = lease(600.0)
    subject.tick(0.0, wall=1e9)
    subject.tick(10.0, wall=5.0)
    assert subject.left(10.0) == 590.0


def test_other_times_take_effect_in_place_but_never_at_once() -> None:
    subject = lease()
    assert run(subject, 0.0, H) is None
    subject.update(60.0, None, H)
    assert subject.tick(H) is None
    assert run(subject, H, 2 * H) == H + 30.0


def test_the_keeper_gets_a_deadline_behind_our_own() -> None:
    subject = lease()
    subject.controller_connected("k", 0.0)
    assert subject.deadline(0.0) == 2 * H + 5.0
    subject.controller_gone("k", 10.0, clean=True)
    assert subject.deadline(100.0) == 10.0 + 2 * H - 100.0 + 5.0
    subject.work(1, 200.0)
    assert subject.deadline(200.0) == 2 * H + 5.0
    assert lease(None, None).deadline(0.0) is None
    subject.release("down")
    assert subject.deadline(300.0) == 5.0


def test_a_restarted_daemon_counts_on_where_it_was() -> None:
    before = lease()
    assert run(before, 0.0, H) is None
    after = Lease(1.0, 1.0, H)
    after.resume(before.to_dict(), H)
    assert after.left(H) == H
    late = Lease(1.0, 1.0, 3 * H)
    late.resume(before.to_dict(), 3 * H)
    assert late.left(3 * H) == 30.0


def test_without_a_lease_time_never_ends() -> None:
    subject = lease(None, None)
    assert run(subject, 0.0, 1000 * H, 1000.0) is None
    assert subject.describe(0.0) == "detached and idle, no lease"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("7d", 604800),
        ("45s", 45),
        ("1h30m", 5400),
        ("90", 90),
        (" 1 H ", 3600),
        (1.5, 1.5),
    ],
)
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "2x", "-1h", "1h1h", "1e3", "nan", "inf", "2h30", float("nan"), -1, float("inf"), True, "٣h"]
)
def test_what_is_no_duration_is_refused_with_examples(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write for example 45s, 90m"):
        parse_duration(text)


@given(st.integers(0, int(LONGEST)))
def test_durations_round_trip(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


class LeaseMachine(RuleBasedStateMachine):
    """The model remembers the history and asks it afresh at every tick."""

    LEASE, MAX, WINDOW, GRACE = 120.0, 600.0, 30.0, 60.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.subject = Lease(self.LEASE, self.MAX, 0.0, reconnect=self.WINDOW, grace=self.GRACE)
        self.controllers: set[str] = set()
        self.running = 0
        self.peer = (False, False)
        self.ticked = 0.0
        self.protected_until = self.WINDOW
        # Each moment with what held from then on: (time, attached, working).
        self.history: list[tuple[float, bool, bool]] = [(0.0, False, False)]

    def note(self) -> None:
        attached = bool(self.controllers) or self.peer[0]
        self.history.append((self.now, attached, self.running > 0 or self.peer[1]))

    def free_since(self, column: tuple[int, ...]) -> float | None:
        """Since when none of these columns holds, or None."""
        since: float | None = None
        for entry in self.history:
            if any(entry[index] for index in column):
                since = None
            elif since is None:
                since = entry[0]
        return since

    @rule(client=st.sampled_from("ab"))
    def connect(self, client: str) -> None:
        self.controllers.add(client)
        self.subject.controller_connected(client, self.now)
        self.note()

    @rule(client=st.sampled_from("ab"), clean=st.booleans())
    def leave(self, client: str, clean: bool) -> None:
        if client in self.controllers and not clean:
            self.protected_until = max(self.protected_until, self.now + self.WINDOW)
        self.controllers.discard(client)
        self.subject.controller_gone(client, self.now, clean=clean)
        self.note()

    @rule(running=st.integers(0, 2))
    def work(self, running: int) -> None:
        self.running = running
        self.subject.work(running, self.now)
        self.note()

    @rule(attached=st.booleans(), working=st.booleans())
    def peers(self, attached: bool, working: bool) -> None:
        self.peer = (attached, working)
        self.subject.peers(attached, working, self.now)
        self.note()

    @precondition(lambda self: self.subject.state != "released")
    @rule(seconds=st.sampled_from([1.0, 7.0, 29.0, 100.0, 2000.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        if self.now - self.ticked > 30.0:
            self.protected_until = max(self.protected_until, self.now + self.GRACE)
        self.ticked = self.now
        released = self.subject.tick(self.now)
        alone, quiet = self.free_since((1,)), self.free_since((1, 2))
        over = (alone is not None and self.now - alone >= self.MAX) or (
            quiet is not None and self.now - quiet >= self.LEASE
        )
        assert (released is not None) == (over and self.now >= self.protected_until)

    @precondition(lambda self: self.subject.state != "released")
    @rule()
    def daemon_restarts(self) -> None:
        # Controllers and calls announce themselves again at once.
        data = self.subject.to_dict()
        self.subject = Lease(1.0, 1.0, self.now, reconnect=self.WINDOW, grace=self.GRACE)
        self.subject.resume(data, self.now)
        self.ticked = self.now
        self.protected_until = max(self.protected_until, self.now + self.WINDOW)
        for client in self.controllers:
            self.subject.controller_connected(client, self.now)
        self.subject.work(self.running, self.now)
        self.subject.peers(*self.peer, self.now)

    @invariant()
    def the_deadline_is_never_before_our_own_release(self) -> None:
        left, deadline = self.subject.left(self.now), self.subject.deadline(self.now)
        assert deadline is not None
        assert deadline > 0
        if left is not None and self.subject.state == "idle":
            assert deadline > left

    def teardown(self) -> None:
        if self.subject.state == "released":
            return
        for client in list(self.controllers):
            self.leave(client, True)
        self.peers(False, False)
        for _ in range(200):
            self.now += 29.0
            if self.subject.tick(self.now) is not None:
                return
        raise AssertionError("left alone and never released")


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_time_beyond_all_clocks_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than ten years"):
        parse_duration("10000d")
