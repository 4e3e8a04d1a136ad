"""Frames: the bytes of a link's batch, the same inside gRPC and on a host's unix socket.

A frame is ``first u64, ack u64`` and then units. A unit is ``u32`` (its length, two flag bits on top) and its bytes. A
record that is larger than `UNIT_BYTES` travels as several units, the first of which starts with the record's whole
length: so a heartbeat never waits behind a gigabyte, and no message limit of a transport is ever met.

The first message in each direction of a stream is not a frame but a greeting (JSON), see `links`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ..state.link import Frame, Unit

UNIT_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 36
"""Agreed limit of one record. A larger one fails at the sender, see `check_size`."""

_HEAD = struct.Struct("<QQ")
_UNIT = struct.Struct("<I")
_TOTAL = struct.Struct("<Q")
_MORE = 1 << 31
_FIRST = 1 << 30
_LENGTH = _FIRST - 1
_LARGE = 1 << 16

Record = bytes | bytearray | memoryview


class FrameError(ValueError):
    """Bytes that are no frame of ours."""


def check_size(size: int) -> None:
    """Refuse a record that no receiver would take, before anything of it is sent."""
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"a message of {size} bytes is over the limit of {MAX_RECORD_BYTES}; send it in parts")


def to_units(chunks: Sequence[Record]) -> list[bytes]:
    """Cut one record, given in chunks, into units with their heads in front."""
    if len(chunks) == 1 and len(chunks[0]) <= UNIT_BYTES:
        return [_UNIT.pack(len(chunks[0])) + chunks[0]]
    total = sum(map(len, chunks))
    if total <= UNIT_BYTES:
        return [b"".join((_UNIT.pack(total), *chunks))]
    units: list[bytes] = []
    part: list[Record] = []
    room = UNIT_BYTES
    sent = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while len(view):
            piece = view[:room]
            part.append(piece)
            room -= len(piece)
            view = view[len(piece) :]
            if not room:
                sent += UNIT_BYTES
                units.append(_fragment(part, total, first=not units, more=sent < total))
                part, room = [], UNIT_BYTES
    if part:
        units.append(_fragment(part, total, first=not units, more=False))
    return units


def _fragment(part: list[Record], total: int, *, first: bool, more: bool) -> bytes:
    length = sum(map(len, part))
    if first:
        part = [_TOTAL.pack(total), *part]
        length += _TOTAL.size
    # The last fragment carries neither flag: the reader knows by the total that it is the last.
    return b"".join((_UNIT.pack(length | (_MORE if more else 0) | (_FIRST if first else 0)), *part))


def encode(frame: Frame) -> bytes:
    """One frame as bytes."""
    return b"".join((_HEAD.pack(frame.first, frame.ack), *frame.units))


def decode(data: bytes | memoryview) -> tuple[int, int, list[Unit]]:
    """``(first, ack, units)`` of a frame; the units keep their heads. Large ones are parts of `data`, not copies."""
    size = len(data)
    if size < _HEAD.size:
        raise FrameError(f"a frame of {size} bytes")
    first, ack = _HEAD.unpack_from(data)
    view = memoryview(data) if size > _LARGE else data
    units: list[Unit] = []
    at = _HEAD.size
    unpack = _UNIT.unpack_from
    while at < size:
        end = at + 4 + (unpack(data, at)[0] & _LENGTH) if at + 4 <= size else size + 1
        if end > size:
            raise FrameError("a unit runs past the end of its frame")
        # A small unit is copied, or it would keep its whole frame alive.
        units.append(view[at:end] if end - at >= _LARGE else bytes(view[at:end]))
        at = end
    return first, ack, units


class Assembler:
    """Puts records together again from units. One a link; it lives as long as the link."""

    __slots__ = ("_at", "_record")

    def __init__(self) -> None:
        self._record: bytearray | None = None
        self._at = 0

    def records(self, units: Iterable[Unit]) -> list[Record]:
        """The records that these units complete. A record that came in fragments is writable."""
        done: list[Record] = []
        for unit in units:
            (head,) = _UNIT.unpack_from(unit)
            if self._record is None and not head & _FIRST:
                done.append(unit[4:])
                continue
            body = memoryview(unit)[4:]
            if head & _FIRST:
                total = _TOTAL.unpack_from(body)[0] if len(body) >= _TOTAL.size else MAX_RECORD_BYTES + 1
                if total > MAX_RECORD_BYTES:
                    raise FrameError(f"a record of {total} bytes")
                self._record, self._at = bytearray(total), 0
                body = body[_TOTAL.size :]
            record = self._record
            assert record is not None
            if len(body) > len(record) - self._at:
                raise FrameError("a part of a record runs past its end")
            record[self._at : self._at + len(body)] = body
            self._at += len(body)
            if self._at == len(record):
                done.append(record)
                self._record = None
        return done
