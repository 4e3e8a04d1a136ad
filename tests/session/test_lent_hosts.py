"""Hosts that worker loops lend: real loops, over TCP and unix sockets, that are shut down, killed, or not there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lent_actors import FOREVER, Place, start_loop
from processes import SLACK, alive, gone, until

import monarch_kernel as mk
from monarch_kernel.actor import attach_to_workers, returns_future, this_host
from monarch_kernel.config import configured
from monarch_kernel.errors import NotAttached, SpawnError, SupervisionError
from monarch_kernel.protocol.keeper import KeeperClient

TRUST: Any = "trust_all_connections"
WAIT = 60.0


@pytest.fixture(scope="module")
def session(place: Path) -> Any:
    return mk.up("lent")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[..., tuple[str, subprocess.Popen[str]]]]:
    """Start worker loops; those that a test leaves are ended."""
    made: list[subprocess.Popen[str]] = []

    def start(*more: str, address: str = "", **options: Any) -> tuple[str, subprocess.Popen[str]]:
        address = address or f"ipc://{tmp_path}/{len(made)}"
        made.append(start_loop(address, *more, **options))
        return address, made[-1]

    yield start
    for process in made:
        process.terminate()
        process.communicate(timeout=WAIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_meshes_of_lent_hosts_and_of_this_machine_reach_each_other(session: Any, loop: Any) -> None:
    port = free_port()
    near, _ = loop()
    far, _ = loop(address=f"tcp://127.0.0.1:{port}@tcp://0.0.0.0:{port}")
    hosts = attach_to_workers(ca=TRUST, workers=[near, far], name="workers")
    assert hosts.initialized.get(timeout=WAIT) is True
    assert hosts.sizes == {"hosts": 2}
    there: Any = hosts.spawn_procs(per_host={"gpus": 2}).spawn("there", Place)
    here: Any = session.hosts.spawn_procs().spawn("here", Place)
    pids = list(there.pid.call().get(timeout=WAIT).values())
    assert len(set(pids)) == 4
    assert here.ask.call_one(there).get(timeout=WAIT) == pids
    assert there.slice(hosts=0).ask.call(there.slice(hosts=1)).get(timeout=WAIT).item(gpus=0) == pids[2:]
    assert there.slice(hosts=1).ask.call(there.slice(hosts=0)).get(timeout=WAIT).item(gpus=1) == pids[:2]
    own = here.pid.call_one().get(timeout=WAIT)
    assert list(there.ask.call(here).get(timeout=WAIT).values()) == [[own]] * 4
    assert len(there.slice(hosts=1, gpus=0).spawn_there.call_one(hosts).get(timeout=WAIT)) == 2
    hosts.shutdown().get(timeout=WAIT)
    assert all(map(gone, pids))


def test_registered_memory_is_read_between_hosts_that_are_not_on_one_loopback(session: Any, loop: Any) -> None:
    address, _ = loop(address=f"tcp://127.0.0.2:{free_port()}")
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    assert hosts.initialized.get(timeout=WAIT)
    there: Any = hosts.spawn_procs().spawn("there", Place)
    here: Any = session.hosts.spawn_procs().spawn("here", Place)
    assert here.read.call_one(there.lend.call_one(b"there").get(timeout=WAIT)).get(timeout=WAIT) == b"there"
    assert there.read.call_one(here.lend.call_one(b"here").get(timeout=WAIT)).get(timeout=WAIT) == b"here"
    hosts.shutdown().get(timeout=WAIT)


def test_processes_run_as_the_loop_was_started(session: Any, loop: Any, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    address, _ = loop(env={**os.environ, "WORKER_SAYS": "hello"}, cwd=folder)
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    actor: Any = hosts.spawn_procs().spawn("place", Place)
    assert actor.variable.call_one("WORKER_SAYS").get(timeout=WAIT) == "hello"
    assert actor.folder.call_one().get(timeout=WAIT) == str(folder)
    hosts.shutdown().get(timeout=WAIT)


def test_a_loop_that_starts_late_and_an_address_that_comes_late_are_waited_for(session: Any, loop: Any) -> None:
    told = threading.Event()

    @returns_future
    async def address() -> str:
        told.wait(WAIT)
        return where

    where, process = loop()
    process.terminate()
    process.wait(WAIT)
    hosts = attach_to_workers(ca=TRUST, workers=[address(), where])
    with pytest.raises(TimeoutError):
        hosts.initialized.get(timeout=0.1)
    told.set()
    start_again = loop(address=where)
    assert hosts.initialized.get(timeout=WAIT) is True
    hosts.shutdown().get(timeout=WAIT)
    assert start_again[1].wait(WAIT) == 0


def test_shutdown_lets_the_loop_return_and_leaves_nothing(session: Any, loop: Any) -> None:
    address, process = loop()
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    procs = hosts.spawn_procs()
    actor: Any = procs.spawn("place", Place)
    pid = actor.pid.call_one().get(timeout=WAIT)
    members = [member for member in session.file.members if member.worker]
    hosts.shutdown()  # nobody waits for it: nothing happens
    assert actor.pid.call_one().get(timeout=WAIT) == pid
    hosts.shutdown().get(timeout=WAIT)
    assert process.communicate(timeout=WAIT)[0] == "returned\n"
    assert process.returncode == 0
    assert gone(pid)
    assert [m for m in session.file.members if m.worker == address] == []
    assert not Path(members[-1].keeper_socket).parent.exists()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        hosts.spawn_procs()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        hosts.shutdown().get(timeout=WAIT)
    with pytest.raises(SupervisionError):
        actor.pid.call_one().get(timeout=WAIT)


def test_shutdown_ends_a_process_with_a_loop_in_the_background(session: Any, loop: Any) -> None:
    address, process = loop(script=FOREVER)
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    pid = hosts.spawn_procs().spawn("place", Place).pid.call_one().get(timeout=WAIT)
    hosts.shutdown().get(timeout=WAIT)
    assert process.communicate(timeout=WAIT)[0] == "goes on"
    assert process.returncode == 0
    assert gone(pid)


def test_stop_keeps_the_loop_for_the_next(session: Any, loop: Any) -> None:
    address, process = loop()
    first = attach_to_workers(ca=TRUST, workers=[address])
    actor: Any = first.spawn_procs().spawn("place", Place)
    pid = actor.pid.call_one().get(timeout=WAIT)
    first.stop().get(timeout=WAIT)
    assert gone(pid)
    assert process.poll() is None
    second = attach_to_workers(ca=TRUST, workers=[address])
    again: Any = second.spawn_procs().spawn("place", Place)
    assert again.pid.call_one().get(timeout=WAIT) != pid
    first.stop().get(timeout=WAIT)
    first.shutdown().get(timeout=WAIT)  # what was stopped has no hosts to shut down
    assert again.pid.call_one().get(timeout=WAIT) != pid


def test_the_loop_that_is_killed_takes_its_host_along_and_nothing_else(session: Any, loop: Any) -> None:
    kept, _ = loop()
    killed, process = loop()
    hosts = attach_to_workers(ca=TRUST, workers=[kept, killed])
    actors: Any = hosts.spawn_procs().spawn("places", Place)
    pids = list(actors.pid.call().get(timeout=WAIT).values())
    process.kill()
    until(lambda: gone(pids[1]), timeout=5 * SLACK, what="the end of the host")
    with pytest.raises(SupervisionError, match="host"):
        actors.slice(hosts=1).pid.call_one().get(timeout=5 * SLACK)
    assert actors.slice(hosts=0).pid.call_one().get(timeout=WAIT) == pids[0]
    hosts.shutdown().get(timeout=WAIT)


def test_a_daemon_of_a_lent_host_that_is_killed_comes_back_as_it_was(session: Any, loop: Any) -> None:
    port = free_port()
    address, _ = loop(address=f"tcp://127.0.0.1:{port}")
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    actor: Any = hosts.spawn_procs().spawn("place", Place)
    here: Any = session.hosts.spawn_procs().spawn("here", Place)
    pid = actor.pid.call_one().get(timeout=WAIT)
    member = session.file.members[-1]
    with KeeperClient(member.keeper_socket) as keeper:
        os.kill(keeper.list()["daemon"]["pid"], signal.SIGKILL)
    assert actor.pid.call_one().get(timeout=WAIT) == pid
    assert here.ask.call_one(actor).get(timeout=WAIT) == [pid]
    assert actor.ask.call_one(here).get(timeout=WAIT) == [here.pid.call_one().get(timeout=WAIT)]
    hosts.shutdown().get(timeout=WAIT)


def test_a_worker_that_is_not_there_is_named_the_same_each_time(session: Any, tmp_path: Path) -> None:
    with configured(mesh_attach_config_timeout="300ms"):
        hosts = attach_to_workers(ca=TRUST, workers=[f"ipc://{tmp_path}/nobody"])
    found = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="attach failed: config push failed during attach") as caught:
            hosts.initialized.get(timeout=10)
        found.append(str(caught.value))
        assert type(caught.value) is RuntimeError
    assert found[0] == found[1]
    assert f"{tmp_path}/nobody" in found[0]
    with pytest.raises(SpawnError, match="nobody"):
        hosts.spawn_procs().initialized.get(timeout=10)
    hosts.shutdown().get(timeout=10)


def test_where_one_worker_is_not_there_the_others_are_given_back(session: Any, loop: Any, tmp_path: Path) -> None:
    address, process = loop()
    with configured(mesh_attach_config_timeout="4s"):
        hosts = attach_to_workers(ca=TRUST, workers=[address, f"ipc://{tmp_path}/nobody"])
        with pytest.raises(RuntimeError, match="nobody"):
            hosts.initialized.get(timeout=WAIT)
    assert [member for member in session.file.members if member.worker == address] == []
    assert process.poll() is None
    again = attach_to_workers(ca=TRUST, workers=[address])
    assert again.initialized.get(timeout=WAIT)
    again.shutdown().get(timeout=WAIT)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x02\x00\x00\x00{}"])
def test_what_is_no_worker_loop_is_told_in_time(session: Any, says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:

        def answer() -> None:
            caller, _ = server.accept()
            stack.callback(caller.close)
            caller.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with configured(mesh_attach_config_timeout="1s"):
            hosts = attach_to_workers(ca=TRUST, workers=[address])
        with pytest.raises(RuntimeError, match=address):
            hosts.initialized.get(timeout=WAIT)
        assert time.monotonic() - began < 2 * SLACK


def test_only_who_knows_the_secret_gets_the_host(session: Any, loop: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"the two of us know this")
    file.chmod(0o600)
    address, _ = loop(str(file))
    for wrong in (TRUST, b"this is what I would guess"):
        hosts = attach_to_workers(ca=wrong, workers=[address])
        with pytest.raises(RuntimeError, match="secret"):
            hosts.initialized.get(timeout=WAIT)
    hosts = attach_to_workers(ca=file, workers=[address])
    assert hosts.initialized.get(timeout=WAIT)
    hosts.shutdown().get(timeout=WAIT)


def test_a_part_and_a_reference_end_nothing(session: Any, loop: Any) -> None:
    (one, process), (two, _) = loop(), loop()
    hosts = attach_to_workers(ca=TRUST, workers=[one, two])
    for end in (hosts.slice(hosts=1).shutdown, hosts.slice(hosts=slice(0, 1)).stop):
        with pytest.raises(RuntimeError, match="reference instead of owned"):
            end().get(timeout=WAIT)
    assert hosts.initialized.get(timeout=WAIT)
    assert process.poll() is None
    hosts.shutdown().get(timeout=WAIT)


def test_a_block_shuts_the_hosts_down(session: Any, loop: Any) -> None:
    import asyncio

    address, process = loop()

    async def block() -> int:
        async with attach_to_workers(ca=TRUST, workers=[address]) as hosts:
            actor: Any = hosts.spawn_procs().spawn("place", Place)
            return int(await actor.pid.call_one())

    pid = asyncio.run(block())
    assert process.wait(WAIT) == 0
    assert gone(pid)


def test_the_end_of_a_session_gives_its_hosts_back(place: Path, loop: Any) -> None:
    mk.session().detach()
    session = mk.up("short")
    address, process = loop()
    actor: Any = attach_to_workers(ca=TRUST, workers=[address]).spawn_procs().spawn("place", Place)
    pid = actor.pid.call_one().get(timeout=WAIT)
    assert alive(pid)
    session.release()
    assert gone(pid)
    assert process.poll() is None
    with this_host_of_another():
        hosts = attach_to_workers(ca=TRUST, workers=[address])
        assert hosts.initialized.get(timeout=WAIT)
        hosts.shutdown().get(timeout=WAIT)


@contextlib.contextmanager
def this_host_of_another() -> Iterator[None]:
    this_host()
    try:
        yield
    finally:
        mk.session().release()


def test_who_attaches_to_the_session_finds_the_lent_hosts(place: Path, loop: Any) -> None:
    session = mk.up("found")
    address, _ = loop()
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    actor: Any = hosts.spawn_procs(name="far").spawn("place", Place)
    pid = actor.pid.call_one().get(timeout=WAIT)
    session.detach()
    again = mk.attach("found")
    assert again.actors["place"].pid.call_one().get(timeout=WAIT) == pid
    again.release()
    assert gone(pid)


def test_an_actor_does_not_attach_by_itself_and_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no address"):
        attach_to_workers(ca=TRUST, workers=["nowhere"])
    with pytest.raises(ValueError, match="one worker loop at least"):
        attach_to_workers(ca=TRUST, workers=[])
    with pytest.raises(NotImplementedError, match="TLS"):
        attach_to_workers(private_key=b"key", ca=TRUST, workers=["ipc://x"])


# -- a loop whose processes this one cannot see, as on another machine


@pytest.fixture
def far(loop: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A worker loop in a process namespace of its own, over TCP: pids there mean nothing here."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespaces here")
    address = f"tcp://127.0.0.1:{free_port()}"
    process = loop(address=address, before=apart)[1]
    yield address, process
    process.kill()  # unshare does not pass SIGTERM on


def anew(name: str) -> Any:
    """This process's session is one of that name."""
    with contextlib.suppress(NotAttached):
        mk.session().detach()
    return mk.up(name)


def test_a_host_of_another_machine_works_and_is_given_back(place: Path, far: Any) -> None:
    address, process = far
    session = anew("lent")
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    there: Any = hosts.spawn_procs(per_host={"gpus": 2}).spawn("there", Place)
    here: Any = session.hosts.spawn_procs().spawn("here", Place)
    pids = list(there.pid.call().get(timeout=WAIT).values())
    assert session.file.members[-1].keeper_pid == 0  # what is not known here is not signalled here
    assert here.ask.call_one(there).get(timeout=WAIT) == pids
    assert there.slice(gpus=0).ask.call_one(here).get(timeout=WAIT) == [here.pid.call_one().get(timeout=WAIT)]
    hosts.stop().get(timeout=WAIT)
    again = attach_to_workers(ca=TRUST, workers=[address])
    actor: Any = again.spawn_procs().spawn("again", Place)
    assert actor.pid.call_one().get(timeout=WAIT)
    again.shutdown().get(timeout=WAIT)
    assert process.wait(WAIT) == 0


def test_the_end_of_a_session_ends_its_hosts_on_other_machines(place: Path, far: Any) -> None:
    session = anew("elsewhere")
    address, process = far
    actor: Any = attach_to_workers(ca=TRUST, workers=[address]).spawn_procs().spawn("place", Place)
    assert actor.pid.call_one().get(timeout=WAIT)
    keepers = set(keepers_of("elsewhere"))
    assert len(keepers) == 2
    session.release()
    until(lambda: not keepers & set(keepers_of("elsewhere")), timeout=5 * SLACK, what="the end of the far host")
    assert process.poll() is None


def keepers_of(session: str) -> list[int]:
    """Keepers of a session as this namespace sees them: it is the one above."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "comm").read_text() == "monarch-keeper\n" and session.encode() in open_logs(entry):
                    found.append(int(entry.name))
    return found


def open_logs(process: Path) -> bytes:
    return os.fsencode(os.readlink(process / "fd" / "2"))


def test_a_client_that_is_killed_leaves_the_loop_to_the_next(place: Path, loop: Any) -> None:
    address, process = loop()
    code = (
        "import os, sys\n"
        "from monarch_kernel.actor import attach_to_workers\n"
        "from lent_actors import Place\n"
        "hosts = attach_to_workers(ca='trust_all_connections', workers=[sys.argv[1]])\n"
        "place = hosts.spawn_procs().spawn('place', Place)\n"
        "print(place.pid.call_one().get(timeout=60), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    client = subprocess.run(
        [sys.executable, "-c", code, address], capture_output=True, text=True, check=False, timeout=WAIT
    )
    pid = int(client.stdout)
    anew("lent")
    until(lambda: gone(pid), timeout=30 * SLACK, what="the end of what the client had")
    assert process.poll() is None
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    assert hosts.initialized.get(timeout=WAIT)
    hosts.shutdown().get(timeout=WAIT)
