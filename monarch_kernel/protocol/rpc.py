"""gRPC between a controller and its hosts, and between hosts: channels, the secret, and errors that keep their class.

Fact: gRPC's C core reads proxy settings from the environment and would send local calls there; the channels switch
that off. Received sizes are not limited here: records are cut into small units by `frames`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .. import errors
from ..errors import MonarchError
from .faults import error_from_json, error_to_json
from .host_pb2 import Frame
from .links import QueuePipe

# The C core reads this once, when it is loaded. Its fork handlers would do nothing but print, at each fork in a kernel,
# that they do nothing; a forked process uses no channel of ours anyway (see `loop.IOThread.check_process`).
_FORK = "GRPC_ENABLE_FORK_SUPPORT"
_unset = _FORK not in os.environ
os.environ.setdefault(_FORK, "0")
try:
    import grpc
    import grpc.aio

    from . import host_pb2_grpc
finally:
    if _unset:
        del os.environ[_FORK]

SECRET_KEY = "mk-secret"  # noqa: S105  # the name of the entry, not the secret
CLIENT_KEY = "mk-client"
ERROR_KEY = "mk-error"

PATIENCE = 2.0

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_retries", 0),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]


def from_rpc_error(error: grpc.aio.AioRpcError) -> MonarchError:
    """The error of ours that a failed RPC carries; one about the connection when it carries none."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY:
            return error_from_json(value)
    if error.code() == grpc.StatusCode.UNAUTHENTICATED:
        return errors.AccessRefused(error.details() or "the host refused the caller")
    if error.code() == grpc.StatusCode.UNAVAILABLE:  # gRPC's own words name sockets and sub-channels
        return errors.ConnectionLost("its daemon does not answer")
    return errors.ConnectionLost(f"{error.code().name.lower().replace('_', ' ')}: {error.details()}")


class Dialer:
    """Our end towards one host: a channel, the generated stub, and the secret with each RPC.

    Parameters
    ----------
    client
        The caller's number as a controller; by it a host refuses one that was taken over. Left out by a shell and by
        other hosts.
    """

    def __init__(self, address: str, secret: str, client: int | None = None) -> None:
        self.address = address
        self.metadata: tuple[tuple[str, str], ...] = ((SECRET_KEY, secret),)
        if client is not None:
            self.metadata += ((CLIENT_KEY, str(client)),)
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.stub = host_pb2_grpc.HostStub(self.channel)

    async def call(self, method: str, request: Any, timeout: float | None = 30.0, patience: float = PATIENCE) -> Any:
        """One unary RPC; raises errors of ours only.

        Parameters
        ----------
        timeout
            Seconds; None where the peer bounds the work itself.
        patience
            Seconds during which a host that cannot be reached is tried again. A channel remembers a failed connect for
            a while and fails RPCs at once meanwhile, also when the host is up by now. Every RPC may be repeated.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while True:
            try:
                return await getattr(self.stub, method)(request, timeout=timeout, metadata=self.metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or loop.time() > until:
                    raise from_rpc_error(error) from None
            except (grpc.aio.UsageError, asyncio.CancelledError):  # so gRPC says that we have closed the channel
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                raise errors.ConnectionLost("it is not asked any more") from None
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


class Stream:
    """The dialling side of a Messages stream: greeting out, greeting in, then messages until it ends."""

    def __init__(self, dialer: Dialer, loop: asyncio.AbstractEventLoop) -> None:
        self._call = dialer.stub.Messages(metadata=dialer.metadata)
        self.pipe = QueuePipe(loop, self._write, self._call.cancel)

    async def _write(self, data: bytes) -> None:
        await self._call.write(Frame(data=data))

    async def greet(self, words: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Greet and return the host's greeting; raises errors of ours."""
        try:
            async with asyncio.timeout(timeout):
                await self._write(json.dumps(words).encode())
                answer = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
            self.pipe.close()
            if isinstance(error, grpc.aio.AioRpcError):
                raise from_rpc_error(error) from None
            raise errors.ConnectionLost("the host did not answer the greeting") from None
        if answer is grpc.aio.EOF:
            self.pipe.close()
            raise from_rpc_error(await _status(self._call))
        words = json.loads(answer.data)
        if "error" in words:
            self.pipe.close()
            raise error_from_json(answer.data)
        return words

    async def read_into(self, feed: Callable[[bytes], None]) -> None:
        """Hand each message to `feed`; returns when the stream is over, however it ended."""
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                feed(frame.data)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        finally:
            self.pipe.close()


async def _status(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc.aio has no types
    """Refuses every RPC without the session's secret, before its request is even parsed."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Called by gRPC for each RPC."""
        given = next((value for key, value in details.invocation_metadata if key == SECRET_KEY), "")
        if hmac.compare_digest(given.encode(), self._secret):
            return await continuation(details)
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_refuse_stream)
        return grpc.unary_unary_rpc_method_handler(_refuse)


_REFUSED = "wrong session secret: the caller is not of this session"


async def _refuse(request: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSED)


async def _refuse_stream(request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSED)


async def abort(context: Any, error: BaseException) -> None:
    """End an RPC with an error that the caller's `Dialer` raises again."""
    await context.abort(
        grpc.StatusCode.FAILED_PRECONDITION,
        str(error)[:500],
        trailing_metadata=((ERROR_KEY, error_to_json(error).decode("ascii")),),
    )


def server(secret: str, services: Sequence[Any]) -> Any:
    """A gRPC server (not started) behind the gate."""
    made = grpc.aio.server(interceptors=(Gate(secret),), options=OPTIONS)
    for service in services:
        host_pb2_grpc.add_HostServicer_to_server(service, made)
    return made
