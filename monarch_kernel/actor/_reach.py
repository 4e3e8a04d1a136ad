"""How a client and hosts reach each other, where a program says so: `enable_transport` and `attach`."""

from __future__ import annotations

import importlib
import threading

from ..protocol.workers import parse_worker_address
from ._config import configure
from ._provider import known_runtime
from ._transport import BindSpec, ChannelTransport

_OFFERED = {ChannelTransport.Unix, ChannelTransport.TcpWithLocalhost, ChannelTransport.TcpWithHostname}

_lock = threading.Lock()
_enabled: BindSpec | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Say by which transport this program means to reach its hosts. Before anything else.

    Here the addresses of worker loops decide that, ``tcp://`` or ``ipc://``, and both may be used at once; hosts of
    this machine are reached over unix sockets in any case. So this checks what is asked for, and keeps it as
    ``default_transport`` of `monarch_kernel.config`.

    Parameters
    ----------
    transport
        A `ChannelTransport`; one of ``tcp`` and ``ipc``; or an address such as ``tcp://127.0.0.1:8080``.

    Raises
    ------
    NotImplementedError
        A transport that is not offered: ``tls``, ``metatls``, ``quic``, those within one process.
    RuntimeError
        Another one was enabled before, or this process has a session already.
    TypeError, ValueError
        It is none of these.

    Examples
    --------
    >>> enable_transport("tcp")     # doctest: +SKIP
    """
    global _enabled
    spec = BindSpec(transport)
    if spec.address is not None:
        parse_worker_address(spec.address)
    elif spec.transport not in _OFFERED:
        raise NotImplementedError(f"this version has no transport {spec}; it has: tcp, ipc")
    with _lock:
        if _enabled == spec:
            return
        if known_runtime() is not None:
            raise RuntimeError(
                "`enable_transport()` must be called before any other calls in the monarch API: this process has a "
                "session already"
            )
        if _enabled is not None:
            raise RuntimeError(
                "Only one transport type may be enabled at one time. "
                f"Currently enabled transport type is `{_enabled}`. Attempted to enable transport type `{spec}`."
            )
        configure(default_transport=spec)
        _enabled = spec


def attach(addr: str) -> None:
    """Start this program's session by connecting to a worker loop, over a connection that stays.

    Later, `attach_to_workers` asks that loop over this connection. As everywhere here, hosts elsewhere never dial this
    machine: it need not be reachable from them. `this_host` is this machine all the same.

    Parameters
    ----------
    addr
        Of the loop, which trusts all connections: ``tcp://HOST:PORT`` or ``ipc://PATH``.

    Raises
    ------
    RuntimeError
        This process has a session already, or is attached by way of another loop; or none answered within
        ``mesh_attach_config_timeout``.
    ValueError, NotImplementedError
        It is no address, or of a transport that is not offered.

    Examples
    --------
    >>> attach("tcp://gateway:4444")        # doctest: +SKIP
    """
    where = parse_worker_address(addr)
    importlib.import_module("monarch_kernel.session").start_through(where)


__all__ = ["attach", "enable_transport"]
