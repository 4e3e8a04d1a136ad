"""Monarch's parameter server: trainers read weights and write gradients that a server owns."""

from __future__ import annotations

import torch

from monarch_kernel.actor import Actor, endpoint
from monarch_kernel.rdma import RDMABuffer


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8).flatten()


class ParameterServer(Actor):
    def __init__(self) -> None:
        self.weights = torch.zeros(64, 64)
        self.gradient = torch.zeros(64, 64)

    @endpoint
    async def buffers(self) -> tuple[RDMABuffer, RDMABuffer]:
        return RDMABuffer(as_bytes(self.weights)), RDMABuffer(as_bytes(self.gradient))

    @endpoint
    async def step(self) -> None:
        self.weights -= 0.5 * self.gradient

    @endpoint
    async def total(self) -> float:
        return float(self.weights.sum())


class Trainer(Actor):
    def __init__(self, server: ParameterServer) -> None:
        self.server = server
        self.weights = torch.empty(64, 64)

    @endpoint
    async def train(self) -> float:
        weights, gradient = await self.server.buffers.call_one()
        await weights.read_into(as_bytes(self.weights))
        await gradient.write_from(as_bytes(self.weights - 2.0))
        await self.server.step.call_one()
        await weights.read_into(as_bytes(self.weights))
        return float(self.weights.sum())

    @endpoint
    async def refuses(self) -> list[str]:
        """What is said of tensors that are no flat memory."""
        said = []
        for tensor in (
            torch.zeros(5, 5),
            torch.zeros(10)[::2],
            torch.zeros(0),
            torch.zeros(4, device="meta"),
            torch.zeros(4).to_sparse(),
        ):
            try:
                RDMABuffer(tensor)
            except ValueError as error:
                said.append(str(error))
        return said

    @endpoint
    async def keeps(self, kind: str) -> bool:
        """A tensor of any type arrives, also when its owner has let go of it."""
        made = torch.arange(6).to(getattr(torch, kind))
        expected = made.clone()
        buffer = RDMABuffer(made[1:5])
        del made
        into = torch.zeros(4, dtype=expected.dtype)
        await buffer.read_into(into)
        return bool(torch.equal(into, expected[1:5]))
