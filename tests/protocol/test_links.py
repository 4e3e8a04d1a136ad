"""Links over real streams: everything arrives once and in order, wherever the streams are cut and whoever writes."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_kernel.protocol.frames import UNIT_BYTES
from monarch_kernel.protocol.links import QueuePipe, ResumableLink

numbers = itertools.count()


def payloads(seed: int, sizes: list[int], tag: bytes) -> list[bytes]:
    choose = random.Random(seed)
    return [tag + b"%d " % index + choose.randbytes(size) for index, size in enumerate(sizes)]


SIZES = st.lists(
    st.integers(0, 300) | st.integers(30_000, 140_000) | st.integers(UNIT_BYTES - 40, 3 * UNIT_BYTES), max_size=12
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES, SIZES, st.lists(st.integers(1, 400) | st.integers(1, 4 * UNIT_BYTES), max_size=6), st.integers(0, 99))
def test_a_stream_may_be_cut_after_any_byte(wire, folder, there, back, cuts, seed):
    async def test():
        name = f"{folder}/{next(numbers)}"
        acceptor = wire.Acceptor(name)
        proxy = wire.Proxy(name + "p", name, cuts)
        await acceptor.start()
        await proxy.start()
        # A first cut may fall before the greeting was answered: the silence after it must not be waited out.
        dialled = wire.Dialled(proxy.path, replace(wire.QUICK, greeting=2.0))
        to, fro = payloads(seed, there, b"to "), payloads(seed + 1, back, b"fro ")
        for one, other in itertools.zip_longest(to, fro):
            if one is not None:
                dialled.send(one[: len(one) // 3], one[len(one) // 3 :])
            if other is not None:
                acceptor.send(other)
            await asyncio.sleep(0)
        await wire.until(lambda: len(acceptor.got) >= len(to) and len(dialled.got) >= len(fro), 30)
        assert acceptor.got == to
        assert dialled.got == fro
        assert dialled.told == []
        await dialled.close()
        acceptor.stop()
        await proxy.stop()

    wire.run(test())


@pytest.mark.parametrize("cuts", [[], [200_000, 1_000_000, 50, 3_000_000]], ids=["uncut", "cut"])
def test_threads_that_write_themselves_and_the_loop_do_not_get_into_each_others_messages(wire, folder, cuts):
    """With small socket buffers and a reader that pauses, so that writes are often taken in part or not at all."""
    count, threads = 250, 3

    async def test():
        name = f"{folder}/{next(numbers)}"
        acceptor = wire.Acceptor(name)
        proxy = wire.Proxy(name + "p", name, cuts)
        await acceptor.start()
        await proxy.start()
        dialled = wire.Dialled(proxy.path)
        await dialled.ready.wait()
        choose = random.Random(1)
        sizes = [[choose.choice([10, 100, 5_000, 40_000, 70_000]) for _ in range(count)] for _ in range(threads)]
        narrowed = None

        def write(thread: int) -> None:
            for size, record in zip(sizes[thread], payloads(thread, sizes[thread], b"%d " % thread), strict=True):
                dialled.send_from(record[: size // 2], record[size // 2 :])

        started = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
        for thread in started:
            thread.start()
        sent = 0
        while any(thread.is_alive() for thread in started) or sent < count:
            pipe = dialled.link.link._pipe
            if pipe is not None and pipe is not narrowed and pipe.transport is not None:
                pipe.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
                narrowed = pipe
            if sent < count:
                dialled.send(b"loop %d " % sent)
                sent += 1
            reading = acceptor.pipe and acceptor.pipe.transport
            if reading and sent % 50 == 0:
                reading.pause_reading()
                await asyncio.sleep(0.005)
                if not reading.is_closing():
                    reading.resume_reading()
            await asyncio.sleep(0)
        await wire.until(lambda: len(acceptor.got) >= count * (threads + 1), 30)
        for thread in range(threads):
            mine = payloads(thread, sizes[thread], b"%d " % thread)
            assert [record for record in acceptor.got if record.startswith(b"%d " % thread)] == mine
        assert [r for r in acceptor.got if r.startswith(b"loop")] == [b"loop %d " % n for n in range(count)]
        acceptor.link.pulse()
        await wire.until(lambda: dialled.link.link.state.idle)  # acknowledged, too
        await dialled.close()
        acceptor.stop()
        await proxy.stop()

    wire.run(test())


def test_a_lone_message_of_another_thread_does_not_wake_the_loop(wire, folder):
    async def test():
        acceptor = wire.Acceptor(f"{folder}/{next(numbers)}")
        await acceptor.start()
        dialled = wire.Dialled(acceptor.path, replace(wire.QUICK, heartbeat=60.0, suspect=70.0, silent=80.0, lost=90.0))
        await dialled.ready.wait()
        thread = threading.Thread(target=dialled.send_from, args=(b"lone",))
        thread.start()
        thread.join()
        assert not dialled.link.link.state.can_write()  # while this loop waited, nobody else can have written it
        await wire.until(lambda: acceptor.got == [b"lone"])
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_what_one_event_causes_leaves_in_one_frame(wire):
    async def test():
        written = []

        class Plain:
            on_room = None

            def write(self, data):
                written.append(data)

            def room(self):
                return True

            def close(self):
                pass

        link = ResumableLink(asyncio.get_running_loop(), lambda batch: None, 1)
        link.up(Plain(), 0)
        for _ in range(10):
            link.send(b"x")
        assert written == []
        await asyncio.sleep(0)
        assert len(written) == 1

    wire.run(test())


def test_a_stream_that_takes_no_more_is_asked_again_when_it_does(wire):
    """gRPC's way: one write at a time is awaited."""

    async def test():
        loop = asyncio.get_running_loop()
        written, gate = [], asyncio.Event()

        async def write(data):
            written.append(data)
            await gate.wait()

        ended = []
        pipe = QueuePipe(loop, write, lambda: ended.append(True))
        link = ResumableLink(loop, lambda batch: None, 1)
        link.up(pipe, 0)
        for _ in range(3):
            link.send(b"x")
            await asyncio.sleep(0.001)
        assert len(written) == 1
        gate.set()
        await wire.until(lambda: len(written) == 2)  # what had to wait is one frame
        link.close()
        assert ended == [True]
        assert not pipe.room()
        await asyncio.sleep(0)

    wire.run(test())


def test_a_write_that_fails_closes_the_stream_for_more_and_nothing_is_lost(wire):
    async def test():
        loop = asyncio.get_running_loop()

        async def broken(data):
            raise OSError("broken")

        link = ResumableLink(loop, lambda batch: None, 1)
        first = QueuePipe(loop, broken, lambda: None)
        link.up(first, 0)
        link.send(b"x")
        await wire.until(lambda: not first.room())
        link.send(b"y")
        written = []

        async def write(data):
            written.append(data)

        second = QueuePipe(loop, write, lambda: None)
        link.up(second, 0)
        await wire.until(lambda: b"".join(written).count(b"x") == 1 and b"".join(written).count(b"y") == 1)
        assert not link.down(first)  # the end of an earlier stream is no news
        assert link.connected
        link.close()
        await asyncio.sleep(0)

    wire.run(test())
