"""Whatever a record's size, and however it is cut into chunks, units and frames: it arrives as it was."""

from __future__ import annotations

import itertools
import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.protocol import frames
from monarch_kernel.protocol.frames import UNIT_BYTES, Assembler, FrameError
from monarch_kernel.state.link import Frame

SMALL = 64
"""A unit's size in tests that try many records."""


def chunked(data: bytes, cuts: list[int]) -> list[bytes | memoryview]:
    """`data` in chunks, some of them views."""
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [memoryview(data)[a:b] if index % 2 else data[a:b] for index, (a, b) in enumerate(itertools.pairwise(at))]


def framed(units: list[bytes], sizes: list[int]) -> list[bytes]:
    """The units in frames of these numbers of units; the last size goes on."""
    made, at, turn = [], 0, 0
    while at < len(units):
        count = sizes[min(turn, len(sizes) - 1)]
        made.append(frames.encode(Frame(at + 1, 7, units[at : at + count])))
        at, turn = at + count, turn + 1
    return made


def taken_apart(data: list[bytes]) -> list[bytes]:
    assembler = Assembler()
    found = []
    for frame in data:
        _, ack, units = frames.decode(frame)
        assert ack == 7
        found += [bytes(record) for record in assembler.records(units)]
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=3 * SMALL), st.lists(st.integers(0, 3 * SMALL), max_size=4)), max_size=8),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
def test_records_arrive_as_they_were(made, sizes):
    with patch.object(frames, "UNIT_BYTES", SMALL):
        units = [unit for data, cuts in made for unit in frames.to_units(chunked(data, cuts))]
    assert all(len(unit) <= SMALL + 12 for unit in units)
    assert taken_apart(framed(units, sizes)) == [data for data, _ in made]


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_records_about_as_large_as_units(units, more):
    choose = random.Random(units)
    data = choose.randbytes(units * UNIT_BYTES + more)
    made = frames.to_units(chunked(data, [choose.randrange(len(data)) for _ in range(3)]))
    assert len(made) == units + (more > 0)
    around = [frames.to_units([b"before"])[0], *made, frames.to_units([b"after"])[0]]
    assert taken_apart(framed(around, [1, 2])) == [b"before", data, b"after"]


def test_a_large_record_that_came_whole_may_be_written_to_without_a_copy():
    units = frames.to_units([bytes(2 * UNIT_BYTES)])
    (record,) = Assembler().records(frames.decode(frames.encode(Frame(1, 0, units)))[2])
    assert isinstance(record, bytearray)


def test_a_small_unit_does_not_keep_its_frame_alive():
    units = [*frames.to_units([b"small"]), *frames.to_units([bytes(1 << 17)])]
    small, large = frames.decode(frames.encode(Frame(1, 0, units)))[2]
    assert isinstance(small, bytes)
    assert isinstance(large, memoryview)


@given(st.binary(max_size=200), st.booleans())
def test_bytes_that_are_no_frame_are_one_kind_of_error(data, fits):
    if fits:  # a unit whose length is right, and whose flags and content are anything
        data = frames._HEAD.pack(1, 0) + frames._UNIT.pack(len(data) | random.Random(data).getrandbits(2) << 30) + data
    try:
        units = frames.decode(data)[2]
        with patch.object(frames, "MAX_RECORD_BYTES", 1 << 16):
            Assembler().records(units)
    except FrameError:
        pass


def test_a_part_that_is_larger_than_what_is_left_of_its_record_is_refused():
    first, last = frames.to_units([bytes(UNIT_BYTES + 10)])
    with pytest.raises(FrameError, match="past its end"):
        Assembler().records([first, frames._UNIT.pack(11) + bytes(11)])
    assert len(Assembler().records([first, last])[0]) == UNIT_BYTES + 10
