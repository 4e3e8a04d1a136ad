"""Addresses of worker loops, and the proof that both ends know a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_kernel.errors import AccessRefused
from monarch_kernel.protocol.workers import check_proof, parse_worker_address, proof, secret_of

SECRET = b"sixteen bytes of it"


@pytest.mark.parametrize(
    ("text", "kind", "host", "port"),
    [
        ("tcp://gpu-7:4444", "tcp", "gpu-7", 4444),
        ("tcp://[::1]:4444", "tcp", "::1", 4444),
        ("ipc:///tmp/worker", "ipc", "/tmp/worker", 0),
        ("ipc://worker", "ipc", "\0worker", 0),
        ("service<2MuAHeDj>@tcp://gpu-7:4444", "tcp", "gpu-7", 4444),
        ("service@ipc:///tmp/worker", "ipc", "/tmp/worker", 0),
    ],
)
def test_addresses_read_as_monarch_writes_them(text: str, kind: str, host: str, port: int) -> None:
    found = parse_worker_address(text)
    assert (found.kind, found.host, found.port, found.bind_host) == (kind, host, port, "")


def test_an_alias_is_reached_at_one_address_and_listens_at_another() -> None:
    found = parse_worker_address("service<2MuAHeDj>@tcp://gpu-7:4444@tcp://0.0.0.0:5555")
    assert (found.host, found.port, found.bind_host, found.bind_port) == ("gpu-7", 4444, "0.0.0.0", 5555)
    assert str(found) == "tcp://gpu-7:4444"


@pytest.mark.parametrize(
    "text",
    ["", "gpu-7:4444", "tcp://gpu-7", "tcp://:4444", "tcp://gpu-7:70000", "ipc://", "zmq://gpu-7:1",
     "tcp://gpu-7:1@ipc:///x", "tcp://a:1@tcp://b:1@tcp://c:1", f"ipc:///{'x' * 200}"],
)  # fmt: skip
def test_what_is_no_address_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_worker_address(text)


@pytest.mark.parametrize("text", ["tcp://*:4444", "metatls://gpu-7:4444", "inproc://3423"])
def test_a_transport_that_is_not_offered_is_refused_by_name(text: str) -> None:
    with pytest.raises(NotImplementedError, match=r"tcp://"):
        parse_worker_address(text)


def test_a_secret_comes_from_bytes_or_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    assert secret_of(SECRET) == secret_of(file) == SECRET
    assert secret_of("trust_all_connections") == b""
    file.chmod(0o640)
    with pytest.raises(AccessRefused, match="0600"):
        secret_of(file)


def test_a_secret_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="16 or more"):
        secret_of(b"hunter2")


@pytest.mark.parametrize("ca", [b"-----BEGIN CERTIFICATE-----\n", None, "trust_me"])
def test_what_stands_for_no_secret_is_refused(ca: object) -> None:
    with pytest.raises(NotImplementedError, match="trust_all_connections"):
        secret_of(ca)


def test_a_proof_holds_for_one_end_one_secret_and_one_greeting() -> None:
    made = proof(SECRET, "worker", "1", "2")
    assert check_proof(made, SECRET, "worker", "1", "2")
    for secret, who, client, worker in (
        (SECRET, "client", "1", "2"),
        (SECRET, "worker", "1", "3"),
        (SECRET, "worker", "2", "2"),
        (b"another secret of us", "worker", "1", "2"),
    ):
        assert not check_proof(made, secret, who, client, worker)
    assert not check_proof(None, SECRET, "worker", "1", "2")
