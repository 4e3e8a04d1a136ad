"""An owner that dies, drops its memory in the middle of a transfer, or is not who it should be."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
import time
from typing import Any

import pytest
from monarch_rdma import wire
from monarch_rdma.node import Node

from monarch_kernel import errors
from monarch_kernel.rdma import RDMABuffer
from monarch_kernel.rdma._plane import plane

pytestmark = pytest.mark.filterwarnings("ignore::monarch_kernel.rdma.RDMATcpFallbackWarning")
WAIT = 30.0
HUGE = 512 << 20


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_a_dead_owner_is_an_error_at_once_that_names_it(fresh: Any) -> None:
    buffer = fresh.make.call_one("a", 10, 1).get(WAIT)
    pid = fresh.pid.call_one().get(WAIT)
    buffer.read_into(bytearray(10)).get(WAIT)  # the connection is kept, and is found to be dead
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [], WAIT)
    os.close(descriptor)
    began = time.monotonic()
    with pytest.raises(errors.BufferOwnerGone, match=rf"pid {pid}\).*has ended") as caught:
        buffer.read_into(bytearray(10), timeout=60).get(WAIT)
    assert time.monotonic() - began < 5
    assert isinstance(caught.value, errors.SupervisionError)
    buffer.drop().get(WAIT)  # there is nothing left to let go of


def test_an_owner_that_is_killed_in_the_middle_ends_the_transfer(fresh: Any, until: Any) -> None:
    buffer = fresh.make.call_one("huge", HUGE, 1).get(WAIT)
    pid = fresh.pid.call_one().get(WAIT)
    into = bytearray(HUGE)
    future = buffer.read_into(into, timeout=60)
    until(lambda: into[0] == 1)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped(pid))
    assert not future.done()
    assert into[-1] == 0
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.BufferOwnerGone):
        future.get(10)


def test_an_owner_that_stands_still_costs_the_timeout_and_no_more(fresh: Any, until: Any) -> None:
    buffer = fresh.make.call_one("huge", HUGE, 1).get(WAIT)
    pid = fresh.pid.call_one().get(WAIT)
    into = bytearray(HUGE)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: stopped(pid))
        with pytest.raises(Exception, match="tcp submit timed out"):
            buffer.read_into(into, timeout=0.5).get(10)
    finally:
        os.kill(pid, signal.SIGCONT)
    buffer.read_into(into, timeout=60).get(WAIT)
    assert into[0] == into[-1] == 1


def test_a_drop_in_the_middle_of_a_transfer_ends_it(fresh: Any, until: Any) -> None:
    buffer = fresh.make.call_one("huge", HUGE, 1).get(WAIT)
    into = bytearray(HUGE)
    future = buffer.read_into(into, timeout=60)
    until(lambda: into[0] == 1)
    buffer.drop().get(WAIT)
    ended = future.exception(WAIT)
    assert ended is None or "not found" in str(ended)  # None: it was faster
    with pytest.raises(Exception, match="not found"):
        buffer.read_into(into).get(WAIT)


def test_a_child_that_an_owner_forked_does_not_keep_up_appearances(fresh: Any, until: Any) -> None:
    buffer = fresh.make.call_one("a", 10, 1).get(WAIT)
    buffer.read_into(bytearray(10)).get(WAIT)
    pid = fresh.pid.call_one().get(WAIT)
    child = fresh.fork.call_one().get(WAIT)
    assert os.path.exists(f"/proc/{child}")
    os.kill(pid, signal.SIGKILL)
    until(lambda: isinstance(buffer.read_into(bytearray(10), timeout=60).exception(10), errors.BufferOwnerGone))


# -- who may not


def address_of(buffer: RDMABuffer) -> tuple[str, int]:
    host, _, port = dict(buffer._buffer.ways)["tcp"].rpartition(":")
    return host, int(port)


def test_it_listens_on_the_loopback(fresh: Any) -> None:
    assert address_of(fresh.make.call_one("a", 10).get(WAIT))[0] == "127.0.0.1"


def test_a_caller_without_the_key_is_refused_before_it_has_asked(fresh: Any) -> None:
    buffer = fresh.make.call_one("a", 10).get(WAIT)
    with socket.create_connection(address_of(buffer), timeout=10) as sock:
        hello = sock.recv(wire.HELLO.size, socket.MSG_WAITALL)
        assert wire.HELLO.unpack(hello)[0] == wire.MAGIC
        sock.sendall(bytes(wire.PROOF.size))
        assert sock.recv(64, socket.MSG_WAITALL) == bytes([wire.NOT_ALLOWED])
    assert fresh.holds.call_one("a").get(WAIT) == bytes(10)


def test_a_process_of_another_session_is_refused(session: Any, fresh: Any) -> None:
    buffer = fresh.make.call_one("a", 10).get(WAIT)
    here = plane()
    right = here.node
    here.node = Node(here.io.loop, b"another key", "127.0.0.1")
    try:
        with pytest.raises(errors.AccessRefused, match="key"):
            buffer.read_into(bytearray(10)).get(WAIT)
    finally:
        here.node = right


def test_a_guessed_number_finds_nothing(fresh: Any) -> None:
    buffer = fresh.make.call_one("a", 10, 1).get(WAIT)
    buffer._buffer = dataclasses.replace(buffer._buffer, token=bytes(16))
    with pytest.raises(Exception, match="not found"):
        buffer.read_into(bytearray(10)).get(WAIT)


def test_more_than_there_is_is_refused_by_the_owner(fresh: Any) -> None:
    buffer = fresh.make.call_one("a", 10, 1).get(WAIT)
    buffer._buffer = dataclasses.replace(buffer._buffer, size=11)
    with pytest.raises(errors.AccessRefused, match="less memory"):
        buffer.read_into(bytearray(11)).get(WAIT)
