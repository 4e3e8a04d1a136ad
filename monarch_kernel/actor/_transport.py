"""By what means hosts reach each other, under Monarch's names; ours are unix sockets and TCP."""

from __future__ import annotations

import enum
import re

__all__ = ["BindSpec", "ChannelTransport"]


class ChannelTransport(enum.Enum):
    """Monarch's transports. Only `Unix` and the two of TCP have a counterpart here; the others are refused in use.

    Examples
    --------
    >>> enable_transport(ChannelTransport.TcpWithHostname)      # doctest: +SKIP
    """

    Unix = "unix"
    TcpWithLocalhost = "tcp-localhost"
    TcpWithHostname = "tcp"
    MetaTlsWithHostname = "metatls-hostname"
    MetaTlsWithIpV6 = "metatls"
    MetaQuicWithHostname = "metaquic-hostname"
    MetaQuicWithIpV6 = "metaquic"
    Quic = "quic"
    Tls = "tls"
    Local = "local"

    def __repr__(self) -> str:
        return f"ChannelTransport.{self.name}"


_SHORT = {
    "tcp": ChannelTransport.TcpWithHostname,
    "ipc": ChannelTransport.Unix,
    "unix": ChannelTransport.Unix,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
    "tls": ChannelTransport.Tls,
}
_URL = re.compile(r"(tcp|ipc|inproc|tls|metatls|quic|metaquic)://(\S+)")


class BindSpec:
    """Where to listen: by a transport, wherever that is, or at an address such as ``tcp://127.0.0.1:8080``.

    Parameters
    ----------
    spec
        A transport, one of the short names ``tcp``, ``ipc``, ``metatls``, ``metatls-hostname`` and ``tls``, or an
        address.

    Raises
    ------
    TypeError, ValueError
        It is none of these.

    Examples
    --------
    >>> BindSpec("ipc") == BindSpec(ChannelTransport.Unix)
    True
    """

    __slots__ = ("address", "transport")

    def __init__(self, spec: BindSpec | ChannelTransport | str) -> None:
        self.transport: ChannelTransport | None = None
        self.address: str | None = None
        if isinstance(spec, BindSpec):
            self.transport, self.address = spec.transport, spec.address
        elif isinstance(spec, ChannelTransport):
            self.transport = spec
        elif not isinstance(spec, str):
            raise TypeError(f"expected ChannelTransport enum, BindSpec, or str; got {spec!r}")
        elif spec in _SHORT:
            self.transport = _SHORT[spec]
        elif _URL.fullmatch(spec):
            self.address = spec
        else:
            raise ValueError(
                f"invalid bind spec: {spec!r} is no address as 'tcp://HOST:PORT' and none of {', '.join(_SHORT)}"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BindSpec):
            return NotImplemented
        return (self.transport, self.address) == (other.transport, other.address)

    def __hash__(self) -> int:
        return hash((self.transport, self.address))

    def __str__(self) -> str:
        return self.address or (self.transport.value if self.transport is not None else "")

    def __repr__(self) -> str:
        return f"BindSpec({str(self)!r})"
