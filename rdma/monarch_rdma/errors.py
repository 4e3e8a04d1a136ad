"""What can go wrong with a transfer. The face translates these into the errors that users see."""

from __future__ import annotations


class TransferError(Exception):
    """Base of what is raised here; `number` is the buffer's, `node` its owner's (set by the `Node` that asked)."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number
        self.node = b""


class NotFound(TransferError, LookupError):
    """The buffer was dropped, before the transfer or in the middle of it."""


class OwnerGone(TransferError, ConnectionError):
    """The process that owns the buffer has ended, or cannot be reached."""


class NotAllowed(TransferError, PermissionError):
    """The two ends do not hold the same key, or the memory is read-only."""
