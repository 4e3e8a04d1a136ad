"""A link carries every unit once and in order, wherever it is cut."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch_kernel.state import link as link_module
from monarch_kernel.state.link import Frame, Link, LinkBroken


def test_units_are_batched_and_acknowledged_on_the_way_back() -> None:
    a, b = Link(), Link()
    for index in range(3):
        a.send(b"%d" % index)
    frame = a.frame()
    assert frame is not None
    assert list(b.received(frame.first, frame.ack, frame.units)) == [b"0", b"1", b"2"]
    assert a.frame() is None
    b.send(b"answer")
    back = b.frame()
    assert back is not None
    assert list(a.received(back.first, back.ack, back.units)) == [b"answer"]
    assert a.idle
    assert not b.idle


def test_a_silent_receiver_acknowledges_after_a_bound() -> None:
    a, b = Link(), Link()
    for _ in range(link_module.ACK_EVERY_UNITS):
        a.send(b"x")
    frame = a.frame()
    assert frame is not None
    b.received(frame.first, frame.ack, frame.units)
    back = b.frame()
    assert back is not None
    assert not back.units
    a.received(back.first, back.ack, back.units)
    assert a.idle


def test_the_window_bounds_what_is_under_way() -> None:
    a = Link()
    unit = bytes(link_module.FRAME_BYTES)
    for _ in range(40):
        a.send(unit)
    written = 0
    while (frame := a.frame()) is not None:
        written += sum(map(len, frame.units))
    assert written <= link_module.WINDOW_BYTES + link_module.FRAME_BYTES


def test_a_gap_and_a_false_acknowledgement_are_refused() -> None:
    with pytest.raises(LinkBroken, match="missing"):
        Link().received(2, 0, [b"x"])
    with pytest.raises(LinkBroken, match="acknowledged"):
        Link().received(1, 5, [])
    with pytest.raises(LinkBroken, match="peer has"):
        Link().resume(3)


class CutAnywhere(RuleBasedStateMachine):
    """Two ends and a stream that may be cut with frames under way in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = (Link(), Link())
        self.wires: tuple[deque[Frame], deque[Frame]] = (deque(), deque())
        self.sent: tuple[list[bytes], list[bytes]] = ([], [])
        self.had: tuple[list[bytes], list[bytes]] = ([], [])

    @rule(end=st.sampled_from([0, 1]), size=st.integers(1, 400_000))
    def send(self, end: int, size: int) -> None:
        unit = (b"%d:" % len(self.sent[end])).ljust(size, b".")
        self.sent[end].append(unit)
        self.ends[end].send(unit)

    @rule(end=st.sampled_from([0, 1]), empty=st.booleans())
    def write(self, end: int, empty: bool) -> None:
        if (frame := self.ends[end].frame(empty=empty)) is not None:
            self.wires[end].append(frame)

    @rule(end=st.sampled_from([0, 1]))
    def read(self, end: int) -> None:
        if self.wires[1 - end]:
            frame = self.wires[1 - end].popleft()
            self.had[end].extend(bytes(u) for u in self.ends[end].received(frame.first, frame.ack, frame.units))

    @rule()
    def cut(self) -> None:
        for wire in self.wires:
            wire.clear()
        got = [end.got for end in self.ends]
        self.ends[0].resume(got[1])
        self.ends[1].resume(got[0])

    @invariant()
    def in_order_and_once(self) -> None:
        for end in (0, 1):
            assert self.had[end] == self.sent[1 - end][: len(self.had[end])]

    def teardown(self) -> None:
        for _ in range(1000):
            if all(end.idle for end in self.ends):
                break
            for end in (0, 1):
                self.write(end, empty=True)
                self.read(1 - end)
        for end in (0, 1):
            assert self.had[end] == self.sent[1 - end]


TestCutAnywhere = CutAnywhere.TestCase
TestCutAnywhere.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
