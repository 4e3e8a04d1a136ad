"""Records: what travels on a link. A fixed head that everyone can read, and a body that only the receiver opens.

Ranks in a record are ranks of the *whole* mesh; a call on a slice lists them in the order of the slice and carries the
slice's own labels and sizes, from which the receiver knows its rank in it.

A call is named by ``(sender, mesh, number)``: the sending process, the mesh, and a counter that the sender keeps for
each mesh. Receivers use it to recognise a duplicate and to be asked for an outcome; order lives in the links.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from .frames import Record

Key = tuple[int, int, int]

ALIGN = 16

CONTROLLER = 0xFFFF
"""Stands for a host index where a mesh lives in the controller's own process."""


class Kind(IntEnum):
    """The first byte of a record."""

    CALL = 1
    REPLY = 2
    RELEASE = 3
    STABLE = 4
    REQUEST = 5
    RESPONSE = 6
    EVENT = 7
    CREATE = 8
    CREATED = 9
    STOP = 10
    PULSE = 11
    SUPERVISE = 12  # a fault of a mesh, on its way to the actor that owns the mesh
    LOG = 13  # lines that ranks have printed; to a proc: what it is to log
    DEBUG = 14  # a line for the debugger of a rank, and what it printed
    WAIT = 15  # asks what keeps ranks from answering a call, on behalf of somebody who waits for it


class Status(IntEnum):
    """What a reply's body is."""

    RESULT = 0  # a value
    RAISED = 1  # an exception of the endpoint
    DONE = 2  # nothing: a message that wanted no answer has been handled
    FAULT = 3  # JSON: the rank cannot answer, and why


RELAYED = 1  # handed on by the root: deliver here, hand on no further
QUIET = 2  # no answer wanted
ASK = 4  # no body: tell the outcome of a call that you had before
UNKNOWN_IS_LOST = 8  # with ASK: one who never had the call says so
PORT = 32  # the endpoint gets a port as its first argument, and answers through it
SPREAD = 16  # with RELAYED: by a host that is not the root, which is lost, and so is the caller; nobody waits there


class CallHead(NamedTuple):
    """The head of a CALL record; `body` is where its body starts."""

    flags: int
    sender: int
    mesh: int
    number: int
    hosts: tuple[int, ...]
    ranks: tuple[int, ...]
    endpoint: str
    region: bytes
    body: int

    @property
    def key(self) -> Key:
        """Its name."""
        return (self.sender, self.mesh, self.number)


_CALL = struct.Struct("<BBHHHIQQQ")
_Tail = tuple[tuple[int, ...], tuple[int, ...], str, bytes]
_tails: dict[tuple[bytes, int, int, int], _Tail] = {}
_TAILS = 4096
_NUMBER = struct.Struct("<Q")
_REPLY = struct.Struct("<BBHIQQQ")
_KEYED = struct.Struct("<B7xQQQ")
_RELEASE = struct.Struct("<B3xIQQ")
_REQUEST = struct.Struct("<BBHIQ")
_CREATE = struct.Struct("<B3xI")
REPLY_BODY = _REPLY.size


def call_ends(
    *, flags: int, sender: int, mesh: int, hosts: bytes, ranks: bytes, endpoint: bytes, region: bytes
) -> tuple[bytes, bytes]:
    """The head of CALLs that differ in their number only: what comes before it, and what comes after.

    `hosts` and `ranks` are packed (`pack_hosts`, `pack_ranks`); no ranks mean all of them. The head is padded, so that
    buffers in the body can be used where they lie.
    """
    before = _CALL.pack(
        Kind.CALL, flags, len(endpoint), len(hosts) // 2, len(region), len(ranks) // 4, sender, mesh, 0
    )[: -_NUMBER.size]
    after = b"".join((hosts, ranks, endpoint, region))
    return before, after + bytes(-(_CALL.size + len(after)) % ALIGN)


def call_head(ends: tuple[bytes, bytes], number: int) -> bytes:
    """The head of one CALL."""
    return ends[0] + _NUMBER.pack(number) + ends[1]


def pack_hosts(hosts: Sequence[int]) -> bytes:
    """Host indices, packed."""
    return array("H", hosts).tobytes()


def pack_ranks(ranks: Sequence[int]) -> bytes:
    """Ranks, packed."""
    return array("I", ranks).tobytes()


def parse_call(record: Record) -> CallHead:
    """The head of a CALL record."""
    _, flags, n_endpoint, n_hosts, n_region, n_ranks, sender, mesh, number = _CALL.unpack_from(record)
    end = _CALL.size + 2 * n_hosts + 4 * n_ranks + n_endpoint + n_region
    tail = bytes(record[_CALL.size : end])
    # Calls of one endpoint of one slice differ in their number only: what comes after it is read once.
    parts = _tails.get((tail, n_hosts, n_ranks, n_region))
    if parts is None:
        parts = _parse_tail(tail, n_hosts, n_ranks, n_region)
    return CallHead(flags, sender, mesh, number, *parts, end + -end % ALIGN)


def _parse_tail(tail: bytes, n_hosts: int, n_ranks: int, n_region: int) -> _Tail:
    hosts = struct.unpack_from(f"<{n_hosts}H", tail)
    at = 2 * n_hosts
    ranks = struct.unpack_from(f"<{n_ranks}I", tail, at)
    at += 4 * n_ranks
    end = len(tail) - n_region
    if len(_tails) >= _TAILS:
        _tails.clear()
    found = _tails[(tail, n_hosts, n_ranks, n_region)] = (hosts, ranks, tail[at:end].decode(), tail[end:])
    return found


def with_flags(record: Record, flags: int) -> list[Record]:
    """The same CALL with other flags, as chunks."""
    return [bytes((Kind.CALL, flags)), memoryview(record)[2:]]


def reply(status: int, rank: int, key: Key) -> bytes:
    """The head of a REPLY; its body follows."""
    return _REPLY.pack(Kind.REPLY, status, 0, rank, *key)


def parse_reply(record: Record) -> tuple[int, int, Key]:
    """``(status, rank, key)``; the body starts at `REPLY_BODY`."""
    _, status, _, rank, sender, mesh, number = _REPLY.unpack_from(record)
    return status, rank, (sender, mesh, number)


def keyed(kind: Kind, key: Key) -> bytes:
    """A STABLE record."""
    return _KEYED.pack(kind, *key)


def parse_keyed(record: Record) -> Key:
    """The key of a STABLE record."""
    _, sender, mesh, number = _KEYED.unpack_from(record)
    return (sender, mesh, number)


def release(sender: int, mesh: int, numbers: Sequence[int]) -> bytes:
    """The sender has all answers of these calls: what was kept of them may go."""
    return _RELEASE.pack(Kind.RELEASE, len(numbers), sender, mesh) + array("Q", numbers).tobytes()


def parse_release(record: Record) -> tuple[int, int, Sequence[int]]:
    """``(sender, mesh, numbers)``."""
    _, count, sender, mesh = _RELEASE.unpack_from(record)
    return sender, mesh, struct.unpack_from(f"<{count}Q", record, _RELEASE.size)


def request(number: int, method: str) -> bytes:
    """The head of a REQUEST (a proc asks its daemon for an RPC of the Host service); the message follows."""
    name = method.encode()
    return _REQUEST.pack(Kind.REQUEST, 0, len(name), 0, number) + name


def parse_request(record: Record) -> tuple[int, str, Record]:
    """``(number, method, message)``."""
    _, _, n_name, _, number = _REQUEST.unpack_from(record)
    at = _REQUEST.size
    return number, str(record[at : at + n_name], "utf-8"), record[at + n_name :]


def response(number: int, *, ok: bool) -> bytes:
    """The head of a RESPONSE; the message (or the error as JSON) follows."""
    return _REQUEST.pack(Kind.RESPONSE, ok, 0, 0, number)


def parse_response(record: Record) -> tuple[int, bool, Record]:
    """``(number, ok, body)``."""
    _, ok, _, _, number = _REQUEST.unpack_from(record)
    return number, bool(ok), record[_REQUEST.size :]


def notice(kind: Kind, what: dict[str, Any], payload: Record = b"") -> list[Record]:
    """A record (EVENT, CREATE, PULSE and others from there on) of JSON and perhaps a payload, as chunks."""
    text = json.dumps(what).encode()
    return [_CREATE.pack(kind, len(text)) + text, payload] if len(payload) else [_CREATE.pack(kind, len(text)) + text]


def parse_notice(record: Record) -> tuple[dict[str, Any], Record]:
    """``(what, payload)``."""
    _, size = _CREATE.unpack_from(record)
    at = _CREATE.size
    return json.loads(bytes(record[at : at + size])), memoryview(record)[at + size :]
