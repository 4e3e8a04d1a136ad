"""Real kernels, started through jupyter_client from kernelspecs of our own."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from monarch_kernel.kernel import specs

READY = 30.0  # seconds; a kernel takes 1 on an idle machine
CELL = 20.0


@dataclass
class Reply:
    """What came of one cell."""

    status: str = ""
    ename: str = ""
    evalue: str = ""
    traceback: str = ""
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    displayed: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class Kernel:
    """One kernel process and a client on it."""

    def __init__(self, specs_folder: Path, name: str, home: Path, environment: dict[str, str]) -> None:
        self.log = home / "kernel.log"
        self.manager = KernelManager(
            kernel_name=name,
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(specs_folder)], ensure_native_kernel=False),
            connection_file=str(home / "connection.json"),
        )
        self._log = self.log.open("ab")  # kept open: a restart uses it again
        self.manager.start_kernel(env=environment, cwd=str(home), stdout=self._log, stderr=self._log)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=READY)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def submit(self, code: str, *, metadata: dict[str, Any] | None = None) -> str:
        """Send a cell, as JupyterLab does, with metadata such as its ``cellId``."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def collect(self, sent: str, on_output: Callable[[str], None] | None = None, timeout: float = CELL) -> Reply:
        """Wait for the end of a cell; ``on_output`` is called with all its standard output at each piece of it."""
        reply, began = Reply(), time.monotonic()
        deadline = began + timeout
        idle = False
        while not idle:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the cell did not end within {timeout} s; so far: {reply}") from None
            if message["parent_header"].get("msg_id") != sent:
                continue
            content = message["content"]
            match message["header"]["msg_type"]:
                case "status":
                    idle = content["execution_state"] == "idle"
                case "stream":
                    setattr(reply, content["name"], getattr(reply, content["name"]) + content["text"])
                    if on_output is not None and content["name"] == "stdout":
                        on_output(reply.stdout)
                case "execute_result":
                    reply.result = content["data"]["text/plain"]
                case "display_data":
                    reply.displayed.append(content["data"])
                case "error":
                    reply.traceback = "\n".join(content["traceback"])
        while True:
            message = self.client.get_shell_msg(timeout=max(1.0, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") == sent:
                break
        reply.status = message["content"]["status"]
        reply.ename = message["content"].get("ename", "")
        reply.evalue = message["content"].get("evalue", "")
        reply.seconds = time.monotonic() - began
        return reply

    def run(self, code: str, *, metadata: dict[str, Any] | None = None, timeout: float = CELL) -> Reply:
        """Run a cell to its end."""
        return self.collect(self.submit(code, metadata=metadata), timeout=timeout)

    def interrupt_when(self, code: str, said: str, *, asleep: bool = False) -> tuple[Reply, float]:
        """Run a cell, interrupt it once it has printed a word, and return its reply and the seconds from there on.

        ``asleep``: only once its main thread sleeps, for cells that block in C. CPython may lose a signal that arrives
        between its last look and the system call.
        """
        interrupted: list[float] = []

        def on_output(text: str) -> None:
            if said in text and not interrupted:
                if asleep:
                    self._wait_asleep()
                interrupted.append(time.monotonic())
                self.manager.interrupt_kernel()

        reply = self.collect(self.submit(code), on_output)
        return reply, time.monotonic() - interrupted[0]

    def _wait_asleep(self) -> None:
        before, deadline = "", time.monotonic() + CELL
        while time.monotonic() < deadline:
            fields = Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text().rpartition(")")[2].split()
            now = " ".join([fields[0], *fields[11:13]])  # state, and CPU time
            if now == before and now.startswith("S"):
                return
            before = now
            time.sleep(0.05)
        raise AssertionError("the cell did not come to rest")

    def restart(self, *, now: bool = False) -> None:
        """Restart as Jupyter does, and wait until it answers."""
        self.manager.restart_kernel(now=now)
        self.client.wait_for_ready(timeout=READY)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self._log.close()


@pytest.fixture(scope="session")
def kernelspecs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of kernelspecs: ours, and ipykernel's own for the same interpreter."""
    folder = tmp_path_factory.mktemp("specs") / "kernels"
    folder.mkdir()
    specs.write(folder / specs.NAME)
    write_kernel_spec(
        folder / "plain", {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    )
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a kernel: this one, with no session, profile or notebook of this user in it."""
    import os

    home = tmp_path_factory.mktemp("home")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "JUPYTER_", "MPL"))}
    return {**kept, "XDG_STATE_HOME": str(home / "state"), "IPYTHONDIR": str(home / "ipython")}


@pytest.fixture(scope="session")
def start_kernel(
    kernelspecs: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Kernel]]:
    """Start a kernel by the name of its spec; all end with the test run at the latest."""
    started: list[Kernel] = []

    def start(name: str = specs.NAME, **more: str) -> Kernel:
        kernel = Kernel(kernelspecs, name, tmp_path_factory.mktemp(name), {**environment, **more})
        started.append(kernel)
        return kernel

    yield start
    for kernel in started:
        kernel.close()


@pytest.fixture(scope="module")
def monarch(start_kernel: Callable[..., Kernel]) -> Iterator[Kernel]:
    """Our kernel, one a module."""
    kernel = start_kernel()
    yield kernel
    kernel.close()


@pytest.fixture(scope="module", params=["monarch", "load_ext"])
def kernel(request: pytest.FixtureRequest, start_kernel: Callable[..., Kernel]) -> Iterator[Kernel]:
    """Our kernel, and a plain one that says ``%load_ext monarch_kernel``: each test runs with both."""
    if request.param == "monarch":
        running = start_kernel()
    else:
        running = start_kernel("plain")
        loaded = running.run("%load_ext monarch_kernel")
        assert loaded.status == "ok", loaded
    yield running
    running.close()
