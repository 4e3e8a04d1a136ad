"""Reading and writing memory of other processes: what arrives, what is refused, and how."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from typing import Any

import pytest

from monarch_kernel import errors
from monarch_kernel.actor import Actor, endpoint, this_proc
from monarch_kernel.config import configured
from monarch_kernel.rdma import (
    RDMAAction,
    RDMABuffer,
    RDMATcpFallbackWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)

pytestmark = pytest.mark.filterwarnings("ignore::monarch_kernel.rdma.RDMATcpFallbackWarning")
WAIT = 30.0
LARGE = 5_000_003
"""Bytes; more than goes through a socket at once."""


def test_a_process_reads_what_one_on_another_host_owns(owner: Any, reader: Any) -> None:
    buffer = owner.make.call_one("a", 100, 7).get(WAIT)
    assert buffer.size() == 100
    assert reader.read.call_one(buffer).get(WAIT) == b"\7" * 100


def test_a_process_writes_what_another_owns_and_the_rest_stays(owner: Any, reader: Any) -> None:
    buffer = owner.make.call_one("b", 10, 1).get(WAIT)
    reader.write.call_one(buffer, b"\2\2\2").get(WAIT)
    assert owner.holds.call_one("b").get(WAIT) == b"\2\2\2" + b"\1" * 7


def test_large_memory_arrives_whole_in_both_directions(owner: Any) -> None:
    buffer = owner.make.call_one("large", LARGE, 3).get(WAIT)
    mine = bytearray(LARGE)
    buffer.read_into(mine).get(WAIT)
    assert mine == b"\3" * LARGE
    mine[:] = bytes(range(256)) * (LARGE // 256) + bytes(LARGE % 256)
    buffer.write_from(mine).get(WAIT)
    assert owner.holds.call_one("large").get(WAIT) == mine


def test_what_the_destination_has_more_stays_as_it_is(owner: Any) -> None:
    mine = bytearray(b"x" * 6)
    owner.make.call_one("short", 4, 0).get(WAIT).read_into(mine).get(WAIT)
    assert mine == b"\0\0\0\0xx"


def test_the_client_owns_memory_that_actors_read_and_write(reader: Any) -> None:
    mine = bytearray(b"of the client")
    buffer = RDMABuffer(mine)
    assert reader.read.call_one(buffer).get(WAIT) == b"of the client"
    reader.write.call_one(buffer, b"OF").get(WAIT)
    assert mine == b"OF the client"


class InTheClient(Actor):
    """Owns memory in the controller."""

    def __init__(self) -> None:
        self.data = bytearray(b"here")

    @endpoint
    async def buffer(self) -> RDMABuffer:
        return RDMABuffer(self.data)

    @endpoint
    async def read(self, buffer: RDMABuffer) -> bytes:
        into = bytearray(buffer.size())
        await buffer.read_into(into)
        return bytes(into)


def test_an_actor_in_the_client_owns_and_reads(session: Any, owner: Any, reader: Any) -> None:
    local = this_proc().spawn("local", InTheClient)
    assert reader.read.call_one(local.buffer.call_one().get(WAIT)).get(WAIT) == b"here"
    assert local.read.call_one(owner.make.call_one("c", 3, 65).get(WAIT)).get(WAIT) == b"AAA"


@pytest.mark.parametrize("size", [10, LARGE])
def test_within_a_process_it_is_a_copy(session: Any, size: int) -> None:
    there, mine = bytearray(b"\1" * size), bytearray(size)
    buffer = RDMABuffer(there)
    buffer.read_into(mine).get(WAIT)
    assert mine == there
    buffer.write_from(bytearray(b"\5" * 4)).get(WAIT)
    assert there[:5] == b"\5\5\5\5\1"


def test_several_read_at_once(owner: Any, procs: Any) -> None:
    from buffers import Reader

    readers = procs.spawn("readers", Reader)
    buffer = owner.make.call_one("shared", LARGE, 9).get(WAIT)
    assert readers.first_and_last.call(buffer).get(WAIT).values() == [(9, 9)] * 4


def test_many_transfers_of_one_process_go_on_at_once(owner: Any) -> None:
    buffers = [owner.make.call_one(f"many{n}", 300_000, n).get(WAIT) for n in range(20)]
    mine = [bytearray(300_000) for _ in buffers]
    for future in [buffer.read_into(into) for buffer, into in zip(buffers, mine, strict=True)]:
        future.get(WAIT)
    assert [set(into) for into in mine] == [{n} for n in range(20)]


def test_an_action_bundles_transfers_with_several_owners(owner: Any, fresh: Any, reader: Any) -> None:
    buffers = [fresh.make.call_one("f", 3, 1).get(WAIT), owner.make.call_one("o", 4, 2).get(WAIT)]
    assert reader.read_all.call_one(buffers).get(WAIT) == [b"\1" * 3, b"\2" * 4]


def test_an_action_runs_in_order_for_one_owner_and_again_when_it_is_submitted_again(owner: Any) -> None:
    buffer = owner.make.call_one("again", 3).get(WAIT)
    source, back = bytearray(b"abc"), bytearray(3)
    action = RDMAAction().write_remote(buffer, source).read_remote(back, buffer)
    action.submit().get(WAIT)
    assert back == b"abc"
    source[:] = b"xyz"
    first, second = action.submit(), action.submit()
    second.get(WAIT)
    assert first.done()
    assert back == b"xyz"


def test_a_transfer_goes_on_when_nobody_keeps_its_future(owner: Any, until: Any) -> None:
    buffer = owner.make.call_one("discarded", 3).get(WAIT)
    source = bytearray(b"new")
    buffer.write_from(source)
    until(lambda: owner.holds.call_one("discarded").get(WAIT) == b"new")


def test_nothing_to_do_is_done(session: Any, owner: Any) -> None:
    RDMAAction().submit(timeout=0).get(WAIT)
    owner.make.call_one("empty", 3).get(WAIT).write_from(bytearray()).get(WAIT)


async def _awaited(buffer: RDMABuffer) -> bytes:
    into = bytearray(buffer.size())
    await asyncio.wait_for(buffer.read_into(into), WAIT)
    return bytes(into)


def test_a_transfer_can_be_awaited(owner: Any) -> None:
    assert asyncio.run(_awaited(owner.make.call_one("awaited", 2, 66).get(WAIT))) == b"BB"


# -- what is refused


def test_memory_that_is_not_flat_or_empty_is_refused(session: Any) -> None:
    for data in (
        memoryview(bytearray(16))[::2],
        memoryview(bytearray(16)).cast("B", (4, 4)),
        bytearray(),
        b"bytes are no memory to share",
        [1, 2, 3],
    ):
        with pytest.raises(ValueError, match=r"contiguous|size 0"):
            RDMABuffer(data)  # type: ignore[arg-type]


def test_sizes_are_checked_when_the_transfer_is_asked_for(owner: Any) -> None:
    buffer = owner.make.call_one("ten", 10).get(WAIT)
    with pytest.raises(ValueError, match=r"size \(9\) must be >= remote buffer size \(10\)"):
        buffer.read_into(bytearray(9))
    with pytest.raises(ValueError, match=r"size \(11\) must be <= remote buffer size \(10\)"):
        buffer.write_from(bytearray(11))
    with pytest.raises(ValueError, match="contiguous"):
        buffer.read_into(memoryview(bytearray(40))[::2])


def test_read_only_memory_is_read_and_never_written(owner: Any) -> None:
    constant = owner.constant.call_one(b"fixed").get(WAIT)
    mine = bytearray(5)
    constant.read_into(mine).get(WAIT)
    assert mine == b"fixed"
    with pytest.raises(ValueError, match="read-only in its owner"):
        constant.write_from(mine)
    with pytest.raises(ValueError, match="the destination is read-only"):
        constant.read_into(memoryview(bytes(5)))


def test_a_negative_timeout_and_atomics_are_refused(owner: Any) -> None:
    buffer = owner.make.call_one("timed", 3).get(WAIT)
    with pytest.raises(OverflowError):
        buffer.read_into(bytearray(3), timeout=-1)
    with pytest.raises(NotImplementedError):
        RDMAAction().fetch_add(buffer, bytearray(3), 1)
    with pytest.raises(NotImplementedError):
        RDMAAction().compare_and_swap(buffer, bytearray(3), 1, 2)


def test_no_time_is_too_little(owner: Any) -> None:
    buffer = owner.make.call_one("late", 3).get(WAIT)
    with pytest.raises(Exception, match=r"^RdmaAction.submit failed: .*tcp submit timed out") as caught:
        buffer.read_into(bytearray(3), timeout=0).get(WAIT)
    assert isinstance(caught.value.__cause__, errors.TransferTimeout)


def test_a_buffer_of_another_session_is_refused(session: Any) -> None:
    buffer = RDMABuffer(bytearray(3))
    buffer._sid = "another"
    with pytest.raises(errors.StaleHandle, match="another session"):
        buffer.read_into(bytearray(3))


# -- dropping


def assert_not_found(error: BaseException) -> None:
    # Monarch's programs match the text, and its own tests the class.
    assert type(error) is Exception
    assert str(error).startswith("RdmaAction.submit failed: (Tcp) buffer ")
    assert "not found\n" in str(error)
    assert isinstance(error.__cause__, errors.BufferNotFound)


def test_a_dropped_buffer_is_not_found_and_may_be_dropped_again(owner: Any, reader: Any) -> None:
    buffer = owner.make.call_one("dropped", 3).get(WAIT)
    reader.drop.call_one(buffer).get(WAIT)
    buffer.drop().get(WAIT)
    for transfer in (buffer.read_into(bytearray(3)), buffer.write_from(bytearray(3))):
        with pytest.raises(Exception, match="not found") as caught:
            transfer.get(WAIT)
        assert_not_found(caught.value)


def test_the_place_of_a_dropped_buffer_is_used_again_but_not_found_by_the_old_handle(owner: Any) -> None:
    old = owner.make.call_one("old", 3, 1).get(WAIT)
    old.drop().get(WAIT)
    new = owner.make.call_one("new", 3, 2).get(WAIT)
    assert new._buffer.number == old._buffer.number
    with pytest.raises(Exception, match="not found"):
        old.read_into(bytearray(3)).get(WAIT)
    mine = bytearray(3)
    new.read_into(mine).get(WAIT)
    assert mine == b"\2\2\2"


def test_a_drop_whose_future_nobody_keeps_is_a_drop(session: Any) -> None:
    buffer = RDMABuffer(bytearray(3))
    buffer.drop()
    with pytest.raises(Exception, match="not found") as caught:
        buffer.read_into(bytearray(3)).get(WAIT)
    assert_not_found(caught.value)


def test_dropping_lets_go_of_the_memory(session: Any) -> None:
    mine = bytearray(3)
    buffer = RDMABuffer(mine)
    with pytest.raises(BufferError):
        mine.append(1)  # it may not move while others may write to it
    buffer.drop().get(WAIT)
    mine.append(1)


def test_memory_lives_without_its_handle(reader: Any) -> None:
    import gc

    buffer = RDMABuffer(bytearray(b"kept"))
    data = pickle.dumps(buffer)
    del buffer
    gc.collect()
    assert reader.read.call_one(pickle.loads(data)).get(WAIT) == b"kept"


# -- words


def test_what_is_said_about_the_backend(session: Any) -> None:
    buffer = RDMABuffer(bytearray(3))
    assert get_rdma_backend() == buffer.backend == "tcp"
    assert is_ibverbs_available() is False
    with pytest.warns(DeprecationWarning, match="is_ibverbs_available"):
        assert is_rdma_available() is False


def test_with_tcp_off_nothing_can_be_registered_or_moved(session: Any, owner: Any) -> None:
    buffer = owner.make.call_one("off", 3).get(WAIT)
    with configured(rdma_allow_tcp_fallback=False):
        assert get_rdma_backend() == "none"
        with pytest.raises(RuntimeError, match="RDMA is not available"):
            RDMABuffer(bytearray(3))
        for future in (buffer.read_into(bytearray(3)), buffer.drop()):
            with pytest.raises(errors.RdmaInitError, match="no RDMA backend available"):
                future.get(WAIT)
    buffer.read_into(bytearray(3)).get(WAIT)  # it was not dropped


def test_a_malformed_target_is_an_error(session: Any) -> None:
    with configured(rdma_ibverbs_target="mlx5_0"):
        with pytest.raises(errors.RdmaInitError, match="RDMA_IBVERBS_TARGET"):
            RDMABuffer(bytearray(3))


def test_the_fallback_is_said_with_what_to_do(session: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(RDMATcpFallbackWarning, match="rdma_allow_tcp_fallback") as said:
            RDMABuffer(bytearray(3))
    assert said[0].filename == __file__


def test_a_handle_names_its_owner_and_shows_no_secret(owner: Any, session: Any) -> None:
    first, second = owner.make.call_one("x", 3).get(WAIT), owner.make.call_one("y", 3).get(WAIT)
    assert first.owner == second.owner
    assert f"(pid {owner.pid.call_one().get(WAIT)})" in first.owner
    assert repr(first) == f"<RDMABuffer of 3 bytes of {first.owner}>"
    assert first._buffer.token.hex() not in repr(first._buffer)


def test_memoryviews_need_no_torch(fresh: Any, reader: Any) -> None:
    assert reader.read.call_one(fresh.make.call_one("plain", 3, 1).get(WAIT)).get(WAIT) == b"\1\1\1"
    assert not fresh.torch_is_loaded.call_one().get(WAIT)
    assert not reader.torch_is_loaded.call_one().get(WAIT)
