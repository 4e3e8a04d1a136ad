"""monarch-kernel, through its actor API."""

from __future__ import annotations

from monarch_kernel.actor import Actor, endpoint, this_host

__all__ = ["NAME", "PACKAGES", "Echo", "this_host"]

NAME = "monarch-kernel"
PACKAGES = ("monarch-kernel", "grpcio")


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value
