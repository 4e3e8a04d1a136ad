"""What is packed into a record's head is read from it again, and the body starts where it may be used in place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.protocol import records
from monarch_kernel.protocol.records import ALIGN, REPLY_BODY, Kind, Status

u64 = st.integers(0, 2**64 - 1)
ranks = st.lists(st.integers(0, 2**32 - 1), max_size=20)
names = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.integers(0, 31),
    u64,
    u64,
    u64,
    st.lists(st.integers(0, 0xFFFF), max_size=9),
    ranks,
    names,
    st.binary(max_size=40),
)
def test_the_head_of_a_call(flags, sender, mesh, number, hosts, ranks, endpoint, region):
    ends = records.call_ends(
        flags=flags,
        sender=sender,
        mesh=mesh,
        hosts=records.pack_hosts(hosts),
        ranks=records.pack_ranks(ranks),
        endpoint=endpoint.encode(),
        region=region,
    )
    record = records.call_head(ends, number) + b"body"
    head = records.parse_call(record)
    assert head == (flags, sender, mesh, number, tuple(hosts), tuple(ranks), endpoint, region, len(record) - 4)
    assert head.key == (sender, mesh, number)
    assert head.body % ALIGN == 0
    # Whoever hands it on changes the flags and nothing else, and a view does as well as bytes.
    changed = b"".join(records.with_flags(memoryview(record), flags ^ records.RELAYED))
    assert records.parse_call(memoryview(changed)) == head._replace(flags=flags ^ records.RELAYED)


def test_heads_that_differ_in_the_number_only_share_what_was_read():
    ends = records.call_ends(
        flags=0, sender=1, mesh=2, hosts=b"", ranks=records.pack_ranks([3, 4]), endpoint=b"f", region=b"a=2"
    )
    one, two = (records.parse_call(records.call_head(ends, number)) for number in (1, 2))
    assert one.ranks is two.ranks


@given(st.sampled_from(Status), st.integers(0, 2**32 - 1), st.tuples(u64, u64, u64))
def test_a_reply(status, rank, key):
    record = records.reply(status, rank, key)
    assert records.parse_reply(record) == (status, rank, key)
    assert len(record) == REPLY_BODY
    assert REPLY_BODY % 8 == 0


@given(st.tuples(u64, u64, u64), st.lists(u64, max_size=50))
def test_what_says_that_calls_are_over(key, numbers):
    assert records.parse_keyed(records.keyed(Kind.STABLE, key)) == key
    sender, mesh, found = records.parse_release(records.release(key[0], key[1], numbers))
    assert (sender, mesh, list(found)) == (key[0], key[1], numbers)


@given(u64, names, st.binary(max_size=50), st.booleans())
def test_a_request_and_its_response(number, method, message, ok):
    assert records.parse_request(records.request(number, method) + message) == (number, method, message)
    assert records.parse_response(records.response(number, ok=ok) + message) == (number, ok, message)


@given(st.dictionaries(names, st.integers() | names, max_size=5), st.binary(max_size=50))
def test_a_notice(what, payload):
    record = b"".join(records.notice(Kind.CREATE, what, payload))
    found, rest = records.parse_notice(record)
    assert (record[0], found, bytes(rest)) == (Kind.CREATE, what, payload)


@pytest.mark.parametrize("kind", Kind)
def test_the_first_byte_says_the_kind(kind):
    record = {
        Kind.CALL: records.call_head(
            records.call_ends(flags=0, sender=1, mesh=1, hosts=b"", ranks=b"", endpoint=b"", region=b""), 1
        ),
        Kind.REPLY: records.reply(0, 0, (1, 1, 1)),
        Kind.RELEASE: records.release(1, 1, [1]),
        Kind.STABLE: records.keyed(Kind.STABLE, (1, 1, 1)),
        Kind.REQUEST: records.request(1, "Spawn"),
        Kind.RESPONSE: records.response(1, ok=True),
    }.get(kind) or records.notice(kind, {})[0]
    assert record[0] == kind
