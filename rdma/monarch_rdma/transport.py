"""Transport: the seam between what is to be moved and how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from .memory import Memory


@dataclass(frozen=True)
class Buffer:
    """Registered memory as other processes know it: what a pickled handle holds.

    Attributes
    ----------
    node
        The process that owns it, by a number made when it first registered something.
    number, generation, token
        Which of its registrations, see `registry.Slot`.
    size
        Bytes.
    writable
        Whether it may be written.
    ways
        For each transport by which the owner is reached, what that transport needs to know: ``{"tcp": "HOST:PORT"}``.
    """

    node: bytes
    number: int
    generation: int
    token: bytes
    size: int
    writable: bool
    ways: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"<Buffer {self.number}: {self.size} bytes>"  # the token is for nobody's log


class Transport(ABC):
    """One way to move bytes between this process and the owner of a buffer.

    A `Node` holds its transports in the order in which it prefers them and uses the first that reaches the owner. All
    methods but `way` are called on the node's event loop. Nothing may block it: what takes longer than some 100 µs is
    done by a thread, or in pieces.

    The node has checked sizes and rights before it calls `read` or `write`, and it bounds them in time by cancelling
    them. When one returns, raises or was cancelled, it must not touch the memory any more: the user may free it then.
    """

    name: ClassVar[str]
    """By it the owner's `way` is found in a buffer."""

    def way(self) -> str | None:
        """What others need to know to reach memory of this process; None if they cannot by this transport.

        Called from any thread when the process first registers memory, once. From its return on, requests may come.
        """
        return None

    @abstractmethod
    def reaches(self, there: Buffer) -> bool:
        """Whether the owner can be reached. Called before each transfer; must be cheap."""

    @abstractmethod
    async def read(self, source: Buffer, into: Memory) -> None:
        """Copy the whole buffer to the start of `into`, which is at least as long.

        Raises
        ------
        NotFound
            It was dropped, be it in the middle of the transfer.
        OwnerGone
            Its owner has ended. Raised as soon as that can be known, not at some deadline.
        NotAllowed
            The owner refuses this process.
        """

    @abstractmethod
    async def write(self, target: Buffer, source: Memory) -> None:
        """Copy all of `source` to the start of the buffer, which is at least as long. Raises as `read`."""

    @abstractmethod
    async def drop(self, target: Buffer) -> None:
        """Have the owner forget the buffer; done once its owner touches the memory no more for anybody."""

    @abstractmethod
    async def close(self) -> None:
        """Stop serving and close all that is open. Called once; nothing is called afterwards."""
