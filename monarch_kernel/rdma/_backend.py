"""By what bytes travel, as configured: the questions that programs ask, and the warnings."""

from __future__ import annotations

import re
import warnings

from ..actor._config import get_global_config
from ..errors import RdmaInitError

_TARGET = re.compile(r"(cpu:\d+|gpu:\d+|nic:.+)?")


class RDMATcpFallbackWarning(Warning):
    """There is no verbs device, so memory is transferred over TCP, which is slower. Shown once a process."""


class RDMAReadTransferWarning(Warning):
    """Monarch's; never issued here."""


class RDMAWriteTransferWarning(Warning):
    """Monarch's; never issued here."""


# Behind whatever the program itself has set.
warnings.filterwarnings("once", category=RDMATcpFallbackWarning, append=True)


def is_ibverbs_available() -> bool:
    """Whether a verbs device can be used. There is no transport for one in this version: always False."""
    return False


def is_rdma_available() -> bool:
    """The same; deprecated, as in Monarch, because there are several backends."""
    warnings.warn(
        "is_rdma_available says only whether a verbs device can be used; ask is_ibverbs_available() or "
        "get_rdma_backend()",
        DeprecationWarning,
        stacklevel=2,
    )
    return is_ibverbs_available()


def get_rdma_backend() -> str:
    """By what memory is transferred: "tcp", or "none" where ``rdma_allow_tcp_fallback`` is off."""
    if is_ibverbs_available():
        return "ibverbs"
    return "tcp" if get_global_config()["rdma_allow_tcp_fallback"] else "none"


def warn_of_fallback(stacklevel: int) -> None:
    """Say once that this is not what verbs would be."""
    warnings.warn(
        "no verbs device: memory is transferred over TCP, which is slower. To have an error instead: "
        "monarch_kernel.config.configure(rdma_allow_tcp_fallback=False)",
        RDMATcpFallbackWarning,
        stacklevel=stacklevel + 1,
    )


def check_settings() -> None:
    """Raise RdmaInitError if nothing can be transferred as things are configured."""
    target = get_global_config()["rdma_ibverbs_target"]
    if not _TARGET.fullmatch(target):
        raise RdmaInitError(
            f"invalid RDMA_IBVERBS_TARGET (`rdma_ibverbs_target` in Python) value {target!r}: it must be `cpu:<numa>`, "
            "`gpu:<ordinal>` or `nic:<name>`"
        )
    if get_rdma_backend() == "none":
        raise RdmaInitError(
            "no RDMA backend available: there is no verbs device, and `rdma_allow_tcp_fallback` is off. Set it with "
            "monarch_kernel.config.configure(rdma_allow_tcp_fallback=True)"
        )
