"""Actors that send to ports and answer through them, for tests; importable in their processes."""

from __future__ import annotations

import os
from typing import Any

from mesh_actors import Counter

from monarch_kernel.actor import Actor, Channel, Port, _calls, endpoint, send


class Sender(Actor):
    @endpoint
    def count(self, port: Port[int], to: int) -> None:
        for number in range(to):
            port.send(number)

    @endpoint
    def pass_on(self, other: Any, port: Port[Any], value: Any) -> Port[Any]:
        other.put.call_one(port, value).get(30)
        return port

    @endpoint
    def put(self, port: Port[Any], value: Any) -> None:
        port.send(value)

    @endpoint
    def ask(self, other: Any, value: Any) -> Any:
        port, receiver = Channel[Any].open()
        other.put.broadcast(port, value)
        return receiver.recv().get(30)

    @endpoint
    def let_answer(self, counters: Any, port: Port[Any]) -> None:
        send(counters.value, (), {}, port=port)

    @endpoint
    def let_fail(self, counters: Any, port: Port[Any]) -> None:
        send(counters.fail, ("on purpose",), {}, port=port, selection="choose")

    @endpoint
    def die(self) -> None:
        os._exit(3)


class Keeper(Actor):
    """Opens a channel and keeps the receiver."""

    @endpoint
    def open(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    def receive(self) -> Any:
        return self.receiver.recv().get(30)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Announcing(Actor):
    """Sends a mesh that it has just spawned from its constructor."""

    def __init__(self, procs: Any, port: Port[Any]) -> None:
        port.send(procs.spawn("announced", Counter, 42))

    @endpoint
    def never(self) -> None:
        """Nothing."""


class Answering(Actor):
    """Answers through ports, now, later, twice, or never."""

    def __init__(self) -> None:
        self.kept: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def add(self, port: Port[int], a: int, b: int = 1) -> None:
        port.send(a + b)

    @endpoint(explicit_response_port=True)
    def refuse(self, port: Port[int], text: str) -> None:
        port.exception(LookupError(text))

    @endpoint(explicit_response_port=True)
    def twice(self, port: Port[int]) -> None:
        port.send(1)
        port.send(2)

    @endpoint(explicit_response_port=True)
    def never(self, port: Port[int]) -> None:
        """Drops its port."""

    @endpoint(explicit_response_port=True)
    def fails(self, port: Port[int]) -> None:
        raise ValueError("on purpose")

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int]) -> None:
        self.kept.append(port)

    @endpoint
    def answer(self, value: Any) -> int:
        for port in self.kept:
            port.send(value)
        count = len(self.kept)
        self.kept.clear()
        return count

    @endpoint
    def drop(self) -> None:
        self.kept.clear()

    @endpoint(explicit_response_port=True)
    def hand_over(self, port: Port[Any], other: Any) -> None:
        other.take.broadcast(port)

    @endpoint
    def take(self, port: Port[Any]) -> None:
        self.kept.append(port)

    @endpoint
    def holds(self) -> int:
        return len(self.kept)

    @endpoint
    def hand_on(self, other: Any) -> None:
        other.take.call_one(self.kept.pop()).get(30)

    @endpoint(explicit_response_port=True)
    def let_answer(self, port: Port[Any], counters: Any) -> None:
        send(counters.value, (), {}, port=port)

    @endpoint(explicit_response_port=True)
    def by_channel(self, port: Port[Any], to: Port[Any]) -> None:
        to.send(port)

    @endpoint
    def keep_ports_no_longer_than_needed(self) -> None:
        """In this process: those that are on their way to somebody."""
        _calls.CLAIM_WITHIN = 0.0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os._exit(4)

    def plain(self, value: int) -> int:
        return value + 1

    def plain_with_port(self, port: Port[int], value: int) -> None:
        port.send(value + 2)
