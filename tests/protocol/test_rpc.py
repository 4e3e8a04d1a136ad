"""gRPC as we use it: the secret first, errors that keep their class, no proxy, and a host that is back is found."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import tempfile

import grpc
import pytest

from monarch_kernel.errors import AccessRefused, ConnectionLost, HostLost, MonarchError, VersionSkew
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol import host_pb2_grpc, rpc
from monarch_kernel.protocol.rpc import Dialer, Stream
from monarch_kernel.session._controller import io_thread

SECRET = "a" * 64
numbers = itertools.count()


class Service(host_pb2_grpc.HostServicer):
    """Writes down what reaches it."""

    def __init__(self):
        self.reached = []
        self.error = None
        self.answer = {"resumed": False, "received": 0}

    async def Handshake(self, request, context):
        self.reached.append(request)
        if self.error is not None:
            await rpc.abort(context, self.error)
        return pb.HandshakeReply(package="it")

    async def Messages(self, requests, context):
        self.reached.append((await context.read()).data)
        await context.write(pb.Frame(data=json.dumps(self.answer).encode()))
        while (frame := await context.read()) is not grpc.aio.EOF:
            await context.write(frame)


@pytest.fixture
def run():
    """Run on the process's one I/O thread: gRPC wants one loop a process."""
    return lambda coroutine: io_thread().run(coroutine, 50)


@pytest.fixture
def address():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield f"unix:{folder}/daemon.sock"


async def serve(service, address, secret=SECRET):
    made = rpc.server(secret, [service])
    made.port = made.add_insecure_port(address)
    await made.start()
    return made


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("secret", ["", "b" * 64, "a" * 63, "ä", SECRET + "a"])
def test_without_the_secret_nothing_is_reached(run, address, tmp_path, secret):
    async def test():
        service = Service()
        server = await serve(service, address)
        channel = grpc.aio.insecure_channel(address, options=rpc.OPTIONS)
        # A request that is no message of ours would be an error of its own, were it read.
        trap = pickle.dumps(Trap(str(tmp_path / "mark")))
        given = ((rpc.SECRET_KEY, secret),) if secret.isascii() else ()
        for method in ("Handshake", "Attach", "Spawn", "Release"):
            with pytest.raises(grpc.aio.AioRpcError) as e:
                await channel.unary_unary(f"/monarch_kernel.v1.Host/{method}")(trap, metadata=given, timeout=10)
            assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
        dialer = Dialer(address, secret if secret.isascii() else "x")
        with pytest.raises(AccessRefused, match="wrong session secret"):
            await dialer.call("Handshake", pb.HandshakeRequest())
        stream = Stream(dialer, asyncio.get_running_loop())
        with pytest.raises(AccessRefused):
            await stream.greet({"role": "controller"}, 5)
        assert service.reached == []
        assert not (tmp_path / "mark").exists()
        await channel.close()
        await dialer.close()
        await server.stop(None)

    run(test())


@pytest.mark.parametrize(
    "error", [VersionSkew("wire 2 and 1"), HostLost("lost ü", mesh="m", rank=3, host=1), AccessRefused("no")]
)
def test_errors_keep_their_class_and_what_they_are_about(run, address, error):
    async def test():
        service = Service()
        service.error = error
        server = await serve(service, address)
        dialer = Dialer(address, SECRET)
        with pytest.raises(type(error)) as e:
            await dialer.call("Handshake", pb.HandshakeRequest())
        assert str(e.value) == str(error)
        assert (e.value.mesh, e.value.rank, e.value.host) == (error.mesh, error.rank, error.host)
        await dialer.close()
        await server.stop(None)

    run(test())


def test_a_host_that_is_restarted_is_found_again_at_once(run, address):
    async def test():
        server = await serve(Service(), address)
        dialer = Dialer(address, SECRET)
        assert (await dialer.call("Handshake", pb.HandshakeRequest())).package == "it"
        for _ in range(3):
            await server.stop(None)
            with pytest.raises(ConnectionLost):
                await dialer.call("Handshake", pb.HandshakeRequest(), patience=0.0)
            server = await serve(Service(), address)
            began = asyncio.get_running_loop().time()
            await dialer.call("Handshake", pb.HandshakeRequest())
            assert asyncio.get_running_loop().time() - began < 2.0
        await dialer.close()
        await server.stop(None)

    run(test())


def test_a_host_that_is_not_there_is_a_connection_error_of_ours(run, address):
    async def test():
        dialer = Dialer(address, SECRET)
        with pytest.raises(ConnectionLost) as e:
            await dialer.call("Handshake", pb.HandshakeRequest(), patience=0.1)
        assert isinstance(e.value, ConnectionError)
        stream = Stream(dialer, asyncio.get_running_loop())
        with pytest.raises(ConnectionLost):
            await stream.greet({}, 0.5)
        await dialer.close()

    run(test())


def test_a_proxy_in_the_environment_is_not_used(run, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def test():
        server = await serve(Service(), "127.0.0.1:0")
        dialer = Dialer(f"127.0.0.1:{server.port}", SECRET)
        assert (await dialer.call("Handshake", pb.HandshakeRequest(), patience=0.0)).package == "it"
        await dialer.close()
        await server.stop(None)

    run(test())


def test_a_port_that_somebody_has_is_not_shared(run):
    async def test():
        server = await serve(Service(), "127.0.0.1:0")
        with pytest.raises(RuntimeError):
            await serve(Service(), f"127.0.0.1:{server.port}")
        await server.stop(None)

    run(test())


def test_http_1_is_refused(run):
    async def test():
        server = await serve(Service(), "127.0.0.1:0")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            said = await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            said = b""
        assert not said.startswith(b"HTTP/1")
        writer.close()
        await server.stop(None)

    run(test())


def test_a_stream_greets_and_carries_messages_both_ways(run, address):
    async def test():
        server = await serve(Service(), address)
        dialer = Dialer(address, SECRET)
        stream = Stream(dialer, asyncio.get_running_loop())
        assert await stream.greet({"role": "host"}, 5) == {"resumed": False, "received": 0}
        got = []
        reading = asyncio.ensure_future(stream.read_into(got.append))
        sent = [b"small", bytes(5 << 20)]  # no limit of gRPC's is met
        for data in sent:
            while not stream.pipe.room():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            stream.pipe.write(data)
        while len(got) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert got == sent
        await server.stop(None)  # a cut
        await asyncio.wait_for(reading, 10)
        assert not stream.pipe.room()
        await dialer.close()

    run(test())


def test_a_greeting_may_be_answered_with_an_error(run, address):
    async def test():
        service = Service()
        service.answer = {"error": "VersionSkew", "text": "wire 1, not 9"}
        server = await serve(service, address)
        dialer = Dialer(address, SECRET)
        with pytest.raises(VersionSkew, match="wire 1, not 9"):
            await Stream(dialer, asyncio.get_running_loop()).greet({}, 5)
        await dialer.close()
        await server.stop(None)

    run(test())


def test_abandoned_streams_cost_later_calls_nothing(run, address):
    async def test():
        service = Service()
        server = await serve(service, address)
        dialer = Dialer(address, SECRET)
        for _ in range(100):
            stream = Stream(dialer, asyncio.get_running_loop())
            await stream.greet({}, 5)
            stream.pipe.close()
        began = asyncio.get_running_loop().time()
        for _ in range(20):
            await dialer.call("Handshake", pb.HandshakeRequest())
        assert asyncio.get_running_loop().time() - began < 2.0
        await dialer.close()
        await server.stop(None)

    run(test())


def test_the_secret_is_in_no_repr_and_no_error(run, address):
    async def test():
        dialer = Dialer(address, SECRET)
        with pytest.raises(MonarchError) as e:
            await dialer.call("Handshake", pb.HandshakeRequest(), patience=0.0)
        assert SECRET not in repr(dialer) + repr(e.value) + str(e.value)
        await dialer.close()

    run(test())
