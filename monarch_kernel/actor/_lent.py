"""Hosts that worker loops lend: `attach_to_workers`, and the loops themselves."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from ..errors import MonarchError, NotOwner, SessionEnded, SpawnError
from ..protocol.workers import WorkerAddress, parse_worker_address, secret_of
from ._context import context
from ._future import Future
from ._handle import Awaited, mention
from ._hosts import HostMesh
from ._ndslice import NDSlice
from ._region import Region
from ._returns import returns_future
from ._runtime import Runtime

CA = bytes | Path | Literal["trust_all_connections"]
PrivateKey = bytes | Path | None


class Lent:
    """What all slices of one mesh of lent hosts share.

    Attributes
    ----------
    hosts
        Their indices in the session.
    ready
        Done once all of them have joined; fails with a RuntimeError, as Monarch's does, when one has not.
    joined
        The same for what waits for it; fails with an error of ours.
    ended
        How the mesh was ended, once it was.
    """

    def __init__(self, growth: Any, hosts: range, ready: Future[bool], name: str | None) -> None:
        self._growth = growth
        self.hosts = hosts
        self.ready = ready
        self.name = name
        self.ended: Literal["stop", "shutdown"] | None = None
        self.joined: Future[bool] = Future()
        ready._when_done(lambda: self.joined._resolve(self._there))

    def _there(self) -> bool:
        try:
            return self.ready.get(0)
        except RuntimeError as error:
            raise SpawnError(str(error)) from error

    async def end(self, how: Literal["stop", "shutdown"]) -> None:
        """Give the hosts back, and with ``shutdown`` end their worker loops. A mesh that was stopped has none."""
        before, self.ended = self.ended, how
        try:
            await self.ready
        except (RuntimeError, MonarchError, ValueError, TypeError):
            return  # nothing has joined
        if before is None:
            await self._growth.give_back(self.hosts, shut_down=how == "shutdown")


class LentHosts(HostMesh):
    """A mesh of hosts that worker loops lend. What its parts and copies do not do, is end it."""

    def __init__(
        self,
        runtime: Runtime,
        region: Region,
        opts: Mapping[str, Any] | None = None,
        *,
        lent: Lent,
    ) -> None:
        super().__init__(runtime, region, opts)
        self._lent = lent

    def _like(self, region: Region, opts: Mapping[str, Any]) -> HostMesh:
        return LentHosts(self._runtime, region, opts, lent=self._lent)

    def _waits(self) -> list[Future[Any]]:
        self._there()
        return [self._lent.joined]

    @property
    def initialized(self) -> Future[bool]:
        """Done once all workers have joined; a RuntimeError that names those that have not."""
        future: Future[bool] = Future()
        ready = self._lent.ready
        ready._when_done(lambda: future._resolve(lambda: ready.get(0)))
        return future

    def _there(self) -> None:
        if self._lent.ended == "shutdown":
            raise SessionEnded("HostMesh has already been shut down: its worker loops have ended")
        if self._lent.ended is not None:
            raise SessionEnded("HostMesh has been stopped: attach to its workers again")

    def _owned(self, what: str) -> None:
        if self._lent.hosts != range(*self._ranks()):
            raise NotOwner(f"cannot {what} `HostMesh` that is a reference instead of owned: {self!r} is a part of one")
        if context().actor_instance.mesh:
            raise NotOwner(f"cannot {what} `HostMesh` that is a reference instead of owned: it is the client's")

    def _ranks(self) -> tuple[int, int]:
        ranks = self._covered.ranks()
        return (ranks[0], ranks[-1] + 1) if len(ranks) == len(self._lent.hosts) else (0, 0)

    @returns_future
    async def stop(self) -> None:
        """End all that runs on the hosts, and give them back: the worker loops stay, to be attached to again.

        Nothing happens until the future is waited for. May be said again.

        Raises
        ------
        RuntimeError
            It is a part of a mesh, or a reference.
        """
        self._owned("stop")
        await self._lent.end("stop" if self._lent.ended is None else self._lent.ended)

    @returns_future
    async def shutdown(self) -> None:
        """End all that runs on the hosts, and their worker loops.

        Nothing happens until the future is waited for.

        Raises
        ------
        RuntimeError
            It was shut down before, is a part of a mesh, or a reference.
        """
        self._owned("shut down")
        if self._lent.ended == "shutdown":
            self._there()
        await self._lent.end("shutdown")

    async def __aenter__(self) -> HostMesh:
        self._there()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._lent.ended is None:
            await self.shutdown()

    def __reduce__(self) -> Any:
        if not self._lent.ready.done():
            mention(Awaited(self._lent.joined))
        return super().__reduce__()

    def __repr__(self) -> str:
        name = f" {self._lent.name!r}" if self._lent.name else ""
        return f"<lent hosts{name} of session {self._runtime.session!r} {self.extent!r}>"


def attach_to_workers(
    *,
    private_key: PrivateKey = None,
    ca: CA,
    workers: Sequence[str | Future[str]],
    name: str | None = None,
) -> HostMesh:
    """Have the hosts of worker loops join this process's session; returns at once.

    Without a session a private one is started on this machine, as by `this_host`. The hosts belong to the session from
    then on: its meshes reach each other, whoever attaches to it finds them, and its end gives them back.

    Parameters
    ----------
    private_key
        TLS is not offered: None.
    ca
        What the loops were started with: ``"trust_all_connections"``, or a secret that both sides know, as bytes or as
        the path of a file with mode 0600.
    workers
        Where the loops are: ``tcp://HOST:PORT``, ``ipc://PATH``, or futures that bring such a text.
    name
        What the mesh is called when it is shown.

    Returns
    -------
    HostMesh
        Of dimension ``hosts``, in the order of `workers`. ``initialized`` tells whether all have joined: a RuntimeError
        names those that did not answer within ``mesh_attach_config_timeout`` (see `monarch_kernel.config`), and then
        none has. Its `stop` gives the hosts back, its `shutdown` also ends the loops.

    Raises
    ------
    ValueError, TypeError
        An address is none, or there are none.
    NotImplementedError
        TLS, a transport that is not offered, or an actor's process: only a client attaches.

    Examples
    --------
    >>> hosts = attach_to_workers(ca="trust_all_connections", workers=["tcp://gpu-7:4444"])     # doctest: +SKIP
    >>> procs = hosts.spawn_procs(per_host={"gpus": 8})                                        # doctest: +SKIP
    """
    secret = _checked(private_key, ca)
    workers = list(workers)
    if not workers:
        raise ValueError("workers names the address of one worker loop at least")
    for worker in workers:
        if not isinstance(worker, Future):
            parse_worker_address(worker)
    if context().actor_instance.mesh:
        raise NotImplementedError(
            "an actor cannot attach to workers in this version: attach in the client, and pass it"
        )
    growth = importlib.import_module("monarch_kernel.session").growing()
    hosts = growth.reserve(len(workers))
    lent = Lent(growth, hosts, growth.attach(hosts, workers, secret), name)
    region = Region(("hosts",), NDSlice(offset=hosts[0], sizes=(len(hosts),), strides=(1,)))
    return LentHosts(growth.runtime, region, lent=lent)


def _checked(private_key: PrivateKey, ca: CA) -> bytes:
    if private_key is not None:
        raise NotImplementedError("TLS is not offered: leave private_key out, and give both sides one secret as ca")
    return secret_of(ca)


# -- the loops


def _loop(private_key: PrivateKey, ca: CA, address: str) -> Any:
    secret, where = _checked(private_key, ca), parse_worker_address(address)
    if not secret:
        _warn(where)
    loop = importlib.import_module("monarch_kernel.session").worker_loop(where, secret)
    loop.bind()
    return loop


_HERE = {"localhost", "127.0.0.1", "::1"}


def _warn(where: WorkerAddress) -> None:
    if where.kind == "tcp" and (where.bind_host or where.host) not in _HERE:
        print(
            f"{where} takes work from whoever can reach it, who may then run code as this user; with a secret as ca it "
            "takes it from those only who know that",
            file=sys.stderr,
            flush=True,
        )


def start_worker_loop_forever(*, private_key: PrivateKey = None, ca: CA, address: str) -> Future[None]:
    """Wait in the background for clients that attach to this machine, and lend it to them.

    When this returns the loop listens, and goes on whether or not the future is kept. A client that shuts the loop down
    ends this process, whatever else it does: code on exit does not run. `run_worker_loop_until_shutdown` returns
    instead. The future is never done; waiting for it keeps a program here. Each session that joins gets a host of its
    own here, a keeper and a daemon, which end with it, with the loop, or with this process, whichever is first.

    Parameters
    ----------
    private_key
        TLS is not offered: None.
    ca
        ``"trust_all_connections"``: whoever reaches the address may run code as this user. Or a secret that clients
        have to know, 16 bytes or more: as bytes, or as the path of a file with mode 0600. Nothing is encrypted either
        way.
    address
        Where to listen, and how others reach it: ``tcp://HOST:PORT``, ``ipc://PATH`` or ``ipc://NAME``. Behind an ``@``
        the address to listen at, where that is another one: ``tcp://HOST:PORT@tcp://0.0.0.0:PORT``. Over TCP the host's
        daemon listens on the same interface, at a port of its own.

    Raises
    ------
    ValueError, NotImplementedError
        The address is none, or of a transport that is not offered.
    OSError
        It is in use, or none of this machine.

    Examples
    --------
    >>> start_worker_loop_forever(ca="trust_all_connections", address="tcp://gpu-7:4444")      # doctest: +SKIP
    """
    loop = _loop(private_key, ca, address)
    over: Future[None] = Future()

    def serve() -> None:
        try:
            loop.serve()
        except BaseException as error:
            over._fail(error)
        else:
            # Not by an exception or a signal: the main thread may be anywhere, and have handlers of its own.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(0)

    threading.Thread(target=serve, name="monarch-worker-loop", daemon=True).start()
    return over


def run_worker_loop_forever(*, private_key: PrivateKey = None, ca: CA, address: str) -> None:
    """Wait for clients until one shuts the loop down, and end this process then.

    Parameters and errors as of `start_worker_loop_forever`. SIGTERM and SIGINT end it, and what it lends, too.

    Examples
    --------
    >>> run_worker_loop_forever(ca=b"a secret of ours", address="tcp://gpu-7:4444")     # doctest: +SKIP
    """
    run_worker_loop_until_shutdown(private_key=private_key, ca=ca, address=address)
    raise SystemExit(0)


def run_worker_loop_until_shutdown(*, private_key: PrivateKey = None, ca: CA, address: str) -> None:
    """The same, but return when the loop is over.

    Examples
    --------
    >>> run_worker_loop_until_shutdown(ca=b"a secret of ours", address="ipc:///tmp/worker")     # doctest: +SKIP
    """
    loop = _loop(private_key, ca, address)
    with _ending(loop):
        loop.serve()


class _ending(AbstractContextManager[None]):  # noqa: N801  # reads as a verb
    """SIGTERM ends a worker loop and what it lends, instead of the process at once."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._loop.stop())

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


__all__ = [
    "Lent",
    "LentHosts",
    "attach_to_workers",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]
