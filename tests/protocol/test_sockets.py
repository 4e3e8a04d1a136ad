"""The stream on a unix socket: messages out of any chunks, strangers hung up on, and nobody who must be waited for."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_kernel.protocol.sockets import SocketPipe, message_socket

numbers = itertools.count()


def message(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


class Served:
    """A socket that takes one kind of greeting, and everything after it."""

    def __init__(self, folder):
        self.path = f"{folder}/s{next(numbers)}"
        self.got, self.lost, self.pipes = [], 0, []

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.server = await loop.create_unix_server(lambda: SocketPipe(self.greeted, self.gone), self.path)
        return self

    async def __aexit__(self, *exc):
        self.server.close()
        for pipe in self.pipes:
            pipe.close()
        await asyncio.sleep(0)

    def greeted(self, pipe, words):
        self.pipes.append(pipe)
        if words != {"hello": 1}:
            pipe.greet({"error": "AccessRefused"})
            return None
        pipe.greet({"welcome": 1})
        return lambda data: self.got.append(bytes(data))

    def gone(self, pipe):
        self.lost += 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 50) | st.integers(65_500, 65_560) | st.integers(130_000, 300_000), max_size=8),
    st.lists(st.integers(1, 20) | st.integers(1, 200_000), min_size=1, max_size=10),
)
def test_messages_come_out_of_any_chunks(wire, folder, sizes, chunks):
    async def test():
        choose = random.Random(len(sizes))
        sent = [choose.randbytes(size) for size in sizes]
        data = message(b'{"hello": 1}') + b"".join(map(message, sent))
        async with Served(folder) as served:
            reader, writer = await asyncio.open_unix_connection(served.path)
            at = 0
            for chunk in itertools.cycle(chunks):
                size = max(chunk, len(data) // 100)
                writer.write(data[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
                at += size
                if at >= len(data):
                    break
            assert await reader.readexactly(4 + 14) == message(b'{"welcome": 1}')
            await wire.until(lambda: len(served.got) == len(sent))
            assert served.got == sent
            writer.close()
            await wire.until(lambda: served.lost == 1)

    wire.run(test())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /monarch.Host/Attach HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]),
        message(b"not JSON"),
        message(b"\xff\xfe"),
        message(b"[1, 2]"),
        message(b"null"),
    ],
    ids=["GET", "POST", "HTTP/2", "TLS", "no JSON", "no text", "a list", "null"],
)
def test_who_does_not_speak_our_way_is_hung_up_on_without_a_word(wire, folder, said):
    async def test():
        async with Served(folder) as served:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            reader, writer = await asyncio.open_unix_connection(served.path)
            writer.write(said)
            try:
                assert await asyncio.wait_for(reader.read(), 5) == b""
            except ConnectionResetError:
                pass
            assert served.pipes == []
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
            writer.close()

    wire.run(test())


def test_who_is_refused_hears_why(wire, folder):
    async def test():
        async with Served(folder) as served:
            reader, writer = await asyncio.open_unix_connection(served.path)
            writer.write(message(b'{"hello": 2}'))
            data = await asyncio.wait_for(reader.read(), 5)
            assert json.loads(data[4:]) == {"error": "AccessRefused"}
            writer.close()

    wire.run(test())


def test_the_operating_system_says_who_is_there(wire, folder):
    async def test():
        async with Served(folder) as served:
            _, writer = await asyncio.open_unix_connection(served.path)
            writer.write(message(b'{"hello": 1}'))
            await wire.until(lambda: served.pipes)
            assert served.pipes[0].peer() == (os.getpid(), os.getuid())
            writer.close()

    wire.run(test())


def test_a_peer_that_does_not_read_is_not_waited_for(wire, folder):
    """One that is stopped would otherwise hold the end of its stream up for ever."""

    async def test():
        async with Served(folder) as served:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.setblocking(False)
                await asyncio.get_running_loop().sock_connect(peer, served.path)
                await asyncio.get_running_loop().sock_sendall(peer, message(b'{"hello": 1}'))
                (pipe,) = await wire.until(lambda: served.pipes)
                while pipe.room():
                    pipe.write(bytes(1 << 17))
                assert not pipe.quiet()
                pipe.close()
                await wire.until(lambda: served.lost == 1)

    wire.run(test())


def test_a_write_of_another_thread_to_a_stream_that_is_over_is_no_error(wire, folder):
    async def test():
        async with Served(folder) as served:
            _, writer = await asyncio.open_unix_connection(served.path)
            writer.write(message(b'{"hello": 1}'))
            (pipe,) = await wire.until(lambda: served.pipes)
            assert pipe.quiet()
            writer.transport.abort()
            await wire.until(lambda: served.lost == 1)
            assert not pipe.quiet()
            assert not pipe.write_from(b"late")
            pipe.write(b"late")
            pipe.close()

    wire.run(test())


def test_only_a_host_of_this_machine_has_a_message_socket():
    assert message_socket("unix:/run/x/host0/daemon.sock") == "/run/x/host0/messages.sock"
    assert message_socket("127.0.0.1:1234") is None
