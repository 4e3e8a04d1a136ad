"""PyTorch Monarch, through its actor API."""

from __future__ import annotations

from monarch.actor import Actor, endpoint, this_host

__all__ = ["NAME", "PACKAGES", "Echo", "this_host"]

NAME = "torchmonarch"
PACKAGES = ("torchmonarch", "torch")


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value
