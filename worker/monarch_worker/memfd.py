"""Memory as a descriptor: sealed memfds. Standard library only: the keeper imports it."""

from __future__ import annotations

import fcntl
import os

FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memory(name: str, data: bytes) -> int:
    """A sealed memfd that holds `data`."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FIXED_SIZE | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return fd


def contents(fd: int, limit: int) -> bytes:
    """All of a memfd, by pread: descriptors that crossed a socket share one file position."""
    size = os.fstat(fd).st_size
    if size > limit:
        raise ValueError(f"{size} bytes are more than the {limit} allowed here")
    out = b""
    while len(out) < size and (part := os.pread(fd, size - len(out), len(out))):
        out += part
    return out
