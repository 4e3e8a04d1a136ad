"""Closed by default: who may speak to a daemon, and where its secret is not."""

from __future__ import annotations

import json
import os
import pickle
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from counting import Counter
from processes import daemons, file_of, procs, tree

import monarch_kernel as mk
from monarch_kernel.protocol import WIRE, records
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol.rpc import SECRET_KEY
from monarch_kernel.protocol.sockets import message_socket

NAME = "closed"


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.fixture(scope="module")
def session(place):
    made = mk.up(NAME, lease="20m")
    made.counters = mk.hosts().spawn_procs(per_host={"gpus": 2}).spawn("counters", Counter)
    made.counters.value.call().get(30)
    yield made
    mk.down(NAME)


@pytest.fixture
def address(session):
    return file_of(NAME).members[0].address


def sockets_of(address):
    return address.removeprefix("unix:"), message_socket(address)


def greeting(session, **changes):
    """What a controller of this session says."""
    words = {
        "role": "controller", "id": session.controller.sender, "wire": WIRE, "sid": session.file.sid,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}", "epoch": list(session.epoch), "title": "x",
        "link": 12345, "received": 0, "secret": session.file.secret,
    }  # fmt: skip
    words.update(changes)
    return {key: value for key, value in words.items() if value is not None}


def say(path, *messages, raw=False):
    """Speak to a socket and return all that it says until it hangs up."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(path)
        heard = b""
        s.sendall(b"".join(m if raw else struct.pack("<I", len(m)) + m for m in messages))
        try:
            while data := s.recv(65536):
                heard += data
        except ConnectionError:
            pass
        return heard


def still_ours(session):
    assert session.counters.value.call().get(20).values() == [0, 0]


@pytest.mark.parametrize("secret", [None, "", "0" * 64])
def test_without_the_secret_no_rpc_is_served_and_no_payload_opened(session, address, tmp_path, secret):
    trap = pickle.dumps(Trap(str(tmp_path / "mark")))
    requests = {
        "Handshake": pb.HandshakeRequest(), "Attach": pb.AttachRequest(takeover=True), "Status": pb.StatusRequest(),
        "Spawn": pb.SpawnRequest(record=b"{}", payload=trap), "Release": pb.ReleaseRequest(reason="evil"),
        "Prepare": pb.PrepareRequest(record=b"{}", payload=trap),
    }  # fmt: skip
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        for method, request in requests.items():
            given = [] if secret is None else [(SECRET_KEY, secret)]
            with pytest.raises(grpc.RpcError) as e:
                channel.unary_unary(f"/monarch_kernel.v1.Host/{method}")(
                    request.SerializeToString(), metadata=given, timeout=10
                )
            assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED, method
        stream = channel.stream_stream("/monarch_kernel.v1.Host/Messages")(iter([b"x"]), metadata=given, timeout=10)
        with pytest.raises(grpc.RpcError) as e:
            next(stream)
        assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not (tmp_path / "mark").exists()
    still_ours(session)


@pytest.mark.parametrize("secret", [None, "", "0" * 64, 7])
def test_without_the_secret_the_private_socket_takes_nothing(session, address, tmp_path, secret):
    mesh = int(next(iter(session.controller.caller.routes._roots)))
    ends = records.call_ends(flags=0, sender=99, mesh=mesh, hosts=b"", ranks=b"", endpoint=b"add", region=b"")
    call = records.call_head(ends, 1) + pickle.dumps(Trap(str(tmp_path / "mark")))
    frame = struct.pack("<QQI", 1, 0, len(call)) + call
    heard = say(sockets_of(address)[1], json.dumps(greeting(session, secret=secret)).encode(), frame)
    assert json.loads(heard[4:])["error"] == "AccessRefused"
    assert not (tmp_path / "mark").exists()
    still_ours(session)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wire": WIRE + 1}, [f"wire version {WIRE}", str(WIRE + 1)]),
        ({"wire": None}, [f"wire version {WIRE}", "None"]),
        ({"python": "3.99"}, [f"Python 3.{sys.version_info.minor}", "Python 3.99"]),
    ],
)
def test_other_versions_are_refused_with_both_named(session, address, changes, words):
    heard = json.loads(say(sockets_of(address)[1], json.dumps(greeting(session, **changes)).encode())[4:])
    assert heard["error"] == "VersionSkew"
    assert all(word in heard["text"] for word in words), heard
    asked = {"wire": WIRE, "python": greeting(session)["python"], "sid": session.file.sid, **changes}
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        with pytest.raises(grpc.RpcError) as e:
            channel.unary_unary("/monarch_kernel.v1.Host/Handshake")(
                pb.HandshakeRequest(**{k: v for k, v in asked.items() if v is not None}).SerializeToString(),
                metadata=[(SECRET_KEY, session.file.secret)], timeout=10,
            )  # fmt: skip
    assert words[0] in e.value.details()
    still_ours(session)


def test_a_controller_of_another_session_or_an_older_epoch_is_refused(session, address):
    path = sockets_of(address)[1]
    heard = json.loads(say(path, json.dumps(greeting(session, sid="0" * 16)).encode())[4:])
    assert heard["error"] == "SessionEnded"
    heard = json.loads(say(path, json.dumps(greeting(session, id=4242)).encode())[4:])
    assert heard["error"] == "TakenOver"
    still_ours(session)


@pytest.mark.parametrize(
    "words", [{"proc": "0.0"}, {"role": "king"}, {"epoch": "x"}, {"link": None}, {"id": "x"}, {"received": -1}, {}]
)
def test_greetings_that_make_no_sense_are_refused_and_cost_nothing(session, address, words):
    heard = say(sockets_of(address)[1], json.dumps(words).encode())
    assert "error" in json.loads(heard[4:])
    heard = say(sockets_of(address)[1], json.dumps({**greeting(session), **words}).encode()) if words else heard
    assert "error" in json.loads(heard[4:])
    still_ours(session)


def test_nobody_poses_as_a_rank(session, address):
    """A process is known by the pid that the operating system vouches for."""
    rank = next(iter(procs(NAME))).split()[1]
    words = {"proc": rank, "sender": 1, "link": 5, "received": 0, "actors": [], "created": []}
    heard = json.loads(say(sockets_of(address)[1], json.dumps(words).encode())[4:])
    assert heard["error"] == "StaleHandle"
    still_ours(session)


@pytest.mark.parametrize("which", [0, 1], ids=["gRPC's socket", "the private socket"])
def test_http_1_is_not_spoken(session, address, which):
    heard = say(sockets_of(address)[which], b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x\r\n\r\n", raw=True)
    assert b"HTTP/1" not in heard
    assert session.file.secret.encode() not in heard
    still_ours(session)


def sockets_held(pid):
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry))
        except OSError:
            continue
    return inodes


@pytest.fixture(scope="module", autouse=True)
def held_before():
    """What this process had open before these tests: others may have registered memory in it."""
    return sockets_held(os.getpid())


def test_no_port_is_open(session, held_before):
    inodes = set().union(*(sockets_held(pid) for pid in [os.getpid(), *tree(NAME)])) - held_before
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1])
    assert listening == []


OTHER = """
import json, os, socket, struct, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[2:]:
    try:
        s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(path)
        words = sys.argv[1].encode(); s.sendall(struct.pack("<I", len(words)) + words)
        print(s.recv(65536)[4:].decode(errors="replace"))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused_even_where_modes_were_loosened(session, address):
    grpc_path, path = sockets_of(address)

    def as_somebody_else(*paths):
        words = json.dumps(greeting(session))
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", OTHER, words, *paths], capture_output=True, text=True, timeout=30
        )
        return done.stdout.splitlines()

    assert as_somebody_else(grpc_path, path) == ["PermissionError", "PermissionError"]
    folders = [Path(path).parents[n] for n in range(4)]  # up to the one that the test made
    before = [(p, stat.S_IMODE(p.stat().st_mode)) for p in (*folders, Path(path))]
    try:
        for folder in folders:
            folder.chmod(0o711)
        Path(path).chmod(0o666)
        (heard,) = as_somebody_else(path)
    finally:
        for p, mode in before:
            p.chmod(mode)
    assert json.loads(heard) == {"error": "AccessRefused", "text": "this is another user's session"}
    still_ours(session)


def test_the_secret_is_in_the_state_file_and_nowhere_else(session, place):
    secret = session.file.secret
    session.counters.fail.call("on purpose").exception(20)
    for pid in [os.getpid(), *tree(NAME)]:
        for what in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{pid}/{what}").read_bytes(), (pid, what)
    assert secret not in repr(session) + repr(session.file) + repr(session.__dict__)
    holding = [str(p.relative_to(place)) for p in place.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
    assert holding == [f"monarch-kernel/sessions/{NAME}.json"]


LOOSE = """
import os, sys
os.umask(0)
import monarch_kernel as mk
from counting import Counter
mk.up("loose")
counters = mk.hosts().spawn_procs().spawn("counters", Counter)
print(counters.add.call_one(2).get(30), flush=True)
input()
mk.down("loose")
"""


def test_under_any_umask_and_with_a_proxy_that_is_not_there(session, place):
    dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "grpc_proxy"), "http://192.0.2.1:9")
    with subprocess.Popen(
        [sys.executable, "-c", LOOSE],
        env={**os.environ, **dead},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as script:
        try:
            assert script.stdout.readline() == "2\n"
            sockets = Path(message_socket(file_of("loose").members[0].address)).parents[1]
            found = [place / "monarch-kernel", sockets.parent, sockets]
            found += [*(place / "monarch-kernel").rglob("*"), *sockets.rglob("*")]
            for path in found:
                mode = path.lstat().st_mode
                assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), (path, oct(mode))
            assert any(stat.S_ISSOCK(path.lstat().st_mode) for path in found)
            script.stdin.write("\n")
            script.stdin.flush()
            assert script.wait(30) == 0
        finally:
            script.kill()


def test_daemons_live_through_all_of_this(session):
    log = place_of_logs(session) / "daemon-0.log"
    assert log.read_text().count("starts, Python") == 1
    assert len(daemons(NAME)) == 1
    assert "Traceback" not in log.read_text()


def place_of_logs(session):
    from monarch_kernel.protocol import statefile

    return statefile.logs_dir(session.name)
