"""The book of calls: every answer once, what runs is counted, and what gone callers left is bounded."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch_kernel.state.ledger import Ledger

SENDER, MESH = 1, 2


def opened(ledger, number, ranks=(0, 1), origin="a", **more):
    return ledger.open((SENDER, MESH, number), "f", b"", origin, ranks, (0,), float(number), **more)


def answer(ledger, number, rank, size=10, failed=False):
    return ledger.answer((SENDER, MESH, number), rank, b"x" * size, size, failed=failed)


def test_a_call_runs_until_all_ranks_have_answered():
    ledger = Ledger()
    entry = opened(ledger, 1, record=b"call")
    assert (ledger.running, entry.done, entry.record) == (1, False, b"call")
    assert answer(ledger, 1, 0) is entry
    assert not entry.done
    answer(ledger, 1, 1, failed=True)
    assert (ledger.running, entry.done, entry.failed, entry.kept_bytes) == (0, True, {1}, 20)
    assert entry.record is None


def test_an_answer_counts_once_and_only_where_it_is_waited_for():
    ledger = Ledger()
    assert answer(ledger, 1, 0) is None
    entry = opened(ledger, 1)
    answer(ledger, 1, 0)
    assert answer(ledger, 1, 0) is None
    assert answer(ledger, 1, 7) is None
    assert list(entry.answers) == [0]


def test_a_call_that_was_handed_on_keeps_its_bytes_until_it_is_released():
    """If its root and its caller are lost, this may be the only host that has them."""
    ledger = Ledger()
    entry = opened(ledger, 1, (1,), record=b"call", relayed=True)
    answer(ledger, 1, 1)
    assert entry.done
    assert entry.record == b"call"
    assert entry.held_bytes == 14
    assert ledger.release(SENDER, MESH, [1]) == {0}
    assert ledger.entries == {}


def test_a_release_ends_calls_that_still_run_and_knows_where_they_went():
    ledger = Ledger()
    ledger.open((SENDER, MESH, 1), "f", b"", "a", (0,), (0, 2), 0.0)
    ledger.open((SENDER, MESH, 2), "f", b"", "a", (0,), (1,), 0.0)
    assert ledger.release(SENDER, MESH, [1, 2, 3]) == {0, 1, 2}
    assert (ledger.running, ledger.entries) == (0, {})


def test_more_ranks_may_belong_to_a_call_that_was_heard_of_from_one():
    ledger = Ledger()
    entry = opened(ledger, 1, [2])
    answer(ledger, 1, 2)
    ledger.widen(entry, [2])
    assert ledger.running == 0
    ledger.widen(entry, [0, 2, 1])
    assert (ledger.running, list(entry.ranks), entry.waiting) == (1, [0, 1, 2], {0, 1})


def test_what_a_gone_caller_left_is_kept_oldest_first_and_bounded_by_number():
    ledger = Ledger(kept_calls=3)
    for number in range(6):
        opened(ledger, number)
    for number in (0, 1, 2, 3, 4):
        for rank in (0, 1):
            answer(ledger, number, rank)
    assert len(ledger.origin_gone("a")) == 6
    assert [entry.key[2] for entry in ledger.kept()] == [2, 3, 4, 5]  # the last one runs
    assert ledger.dropped_calls == 2
    assert [entry.key[2] for entry in ledger.forgotten] == [0, 1]
    assert ledger.origin_gone("a") == []


def test_what_a_gone_caller_left_is_bounded_by_bytes_and_the_call_itself_stays_listed():
    ledger = Ledger(kept_bytes=100)
    for number in range(3):
        opened(ledger, number, (0,))
    ledger.origin_gone("a")
    for number in range(3):
        answer(ledger, number, 0, size=60)
    kept = ledger.kept()
    assert [(entry.key[2], entry.dropped, bool(entry.answers)) for entry in kept] == [
        (0, True, False), (1, True, False), (2, False, True),
    ]  # fmt: skip
    assert ledger.dropped_calls == 2
    assert [entry.key[2] for entry in ledger.forgotten] == [0, 1]


def test_calls_of_a_caller_that_is_there_are_not_bounded():
    ledger = Ledger(kept_calls=1, kept_bytes=1)
    for number in range(3):
        opened(ledger, number, (0,))
        answer(ledger, number, 0, size=60)
    ledger.origin_gone("somebody else")
    assert [len(entry.answers) for entry in ledger.entries.values()] == [1, 1, 1]


def test_stable_calls_need_no_bytes():
    ledger = Ledger()
    entry = opened(ledger, 1, record=b"call")
    assert ledger.stable(entry.key) is entry
    assert entry.record is None
    assert ledger.stable((9, 9, 9)) is None


def test_who_waits_for_a_rank():
    ledger = Ledger()
    opened(ledger, 1, (0, 1))
    opened(ledger, 2, (1,))
    answer(ledger, 1, 1)
    assert [entry.key[2] for entry in ledger.waiting_on(MESH, 1)] == [2]
    assert ledger.waiting_on(3, 1) == []


class Book(RuleBasedStateMachine):
    """Whatever happens: the counts are what a count of the entries gives, and the bounds hold."""

    KEPT, BYTES = 4, 200

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(self.KEPT, self.BYTES)

    @rule(
        number=st.integers(0, 12), ranks=st.sets(st.integers(0, 3)), origin=st.sampled_from("ab"), relayed=st.booleans()
    )
    def opens(self, number, ranks, origin, relayed):
        if (SENDER, MESH, number) not in self.ledger.entries:
            opened(self.ledger, number, sorted(ranks), origin, record=b"c" * 20, relayed=relayed)

    @rule(number=st.integers(0, 12), rank=st.integers(0, 3), size=st.integers(0, 120), failed=st.booleans())
    def answers(self, number, rank, size, failed):
        entry = self.ledger.entries.get((SENDER, MESH, number))
        waited = entry is not None and rank in entry.waiting
        found = answer(self.ledger, number, rank, size, failed)
        assert (found is not None) == waited

    @rule(number=st.integers(0, 12), ranks=st.sets(st.integers(0, 3)))
    def widens(self, number, ranks):
        entry = self.ledger.entries.get((SENDER, MESH, number))
        if entry is not None and not entry.dropped:
            self.ledger.widen(entry, ranks)

    @rule(numbers=st.sets(st.integers(0, 12), max_size=3))
    def releases(self, numbers):
        self.ledger.release(SENDER, MESH, numbers)

    @rule(origin=st.sampled_from("ab"))
    def goes(self, origin):
        self.ledger.origin_gone(origin)
        assert all(entry.origin != origin for entry in self.ledger.entries.values())

    @invariant()
    def adds_up(self):
        entries = list(self.ledger.entries.values())
        assert self.ledger.running == sum(bool(entry.waiting) for entry in entries)
        for entry in entries:
            assert set(entry.answers) | entry.waiting <= set(entry.ranks)
            assert not set(entry.answers) & entry.waiting
            assert entry.dropped or set(entry.answers) | entry.waiting == set(entry.ranks)
        left = [entry for entry in entries if entry.origin is None and entry.done]
        assert sum(entry.held_bytes for entry in left) <= self.BYTES


TestBook = Book.TestCase
