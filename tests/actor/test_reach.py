"""enable_transport and attach: each in a program of its own, because both are said once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from lent_actors import start_loop


def run(code: str, folder: Path) -> str:
    """What a program prints, one line for each error that it catches."""
    head = """
        from monarch_kernel.actor import *
        from monarch_kernel.config import configure, get_global_config
        def told(call, *args):
            try:
                call(*args)
                print("fine")
            except Exception as error:
                print(type(error).__name__, error)
        class Echo(Actor):
            @endpoint
            def echo(self, what): return what
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_transport_is_enabled_before_there_is_a_session(tmp_path: Path) -> None:
    lines = run(
        """
        told(enable_transport, "metatls")
        told(enable_transport, "carrier pigeon")
        told(enable_transport, 3)
        told(enable_transport, "tcp")
        told(enable_transport, ChannelTransport.TcpWithHostname)
        print(get_global_config()["default_transport"])
        told(enable_transport, "ipc")
        this_host()
        told(enable_transport, "tcp")
        """,
        tmp_path,
    ).splitlines()
    assert lines[0].startswith("NotImplementedError")
    assert lines[1].startswith("ValueError")
    assert lines[2].startswith("TypeError")
    assert lines[3:6] == ["fine", "fine", "tcp"]
    assert "Only one transport type may be enabled at one time" in lines[6]
    assert lines[7] == "fine"


def test_a_transport_is_not_enabled_once_there_is_a_session(tmp_path: Path) -> None:
    said = run("this_host()\ntold(enable_transport, 'tcp')", tmp_path)
    assert said.startswith("RuntimeError `enable_transport()` must be called before any other calls")


def test_a_client_attaches_by_way_of_a_loop_once_and_asks_it_over_that_connection(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/loop"
    loop = start_loop(address)
    try:
        said = run(
            f"""
            import os
            attach({address!r})
            told(attach, {address!r})
            told(attach, "tcp://elsewhere:1")
            os.unlink({str(tmp_path / "loop")!r})       # nobody can connect there any more
            hosts = attach_to_workers(ca="trust_all_connections", workers=[{address!r}])
            echo = hosts.spawn_procs().spawn("echo", Echo)
            print(echo.echo.call_one("hello").get(timeout=60))
            here = this_host().spawn_procs().spawn("here", Echo)
            print(here.echo.call_one("here").get(timeout=60))
            hosts.shutdown().get(timeout=60)
            """,
            tmp_path,
        ).splitlines()
        assert loop.wait(60) == 0
    finally:
        loop.kill()
        loop.communicate(timeout=60)
    assert said[0] == "fine"
    assert said[1].startswith("SessionError client is already attached through")
    assert said[2:] == ["hello", "here"]


def test_a_client_with_a_session_and_a_loop_that_is_not_there_are_refused(tmp_path: Path) -> None:
    said = run(
        f"""
        configure(mesh_attach_config_timeout="300ms")
        told(attach, "ipc://{tmp_path}/nobody")
        told(attach, "nonsense")
        this_host()
        told(attach, "ipc://{tmp_path}/nobody")
        """,
        tmp_path,
    ).splitlines()
    assert said[0].startswith("ConnectionLost nothing answered there within 0.3 s")
    assert said[1].startswith("ValueError")
    assert said[2].startswith("SessionError client was initialized without a remote attachment")
