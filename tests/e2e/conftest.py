"""Real kernels, scripts and sessions in a place of their own, and the real signals that end them."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_kernel.errors import NotAttached
from monarch_kernel.kernel import specs
from monarch_kernel.protocol import statefile
from monarch_kernel.session import down, session

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(__file__).resolve().parent / "modules"
sys.path.append(str(MODULES))


def _kernels() -> Any:
    """The driver of kernels belongs to the kernel's own tests; conftest files cannot be imported by name."""
    spec = importlib.util.spec_from_file_location("kernels", ROOT / "tests" / "kernel" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    return module


kernels = _kernels()
kernelspecs = kernels.kernelspecs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State, sockets and IPython's own files in a place of this module's; all sessions in it end with it."""
    folder = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("JPY_", "JUPYTER_", "MPL"))]:
            patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_RUNTIME_DIR", sockets)
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([*(str(ROOT / part) for part in ("", "worker", "rdma")), str(MODULES)])
        )
        yield folder
        leave()
        for file in statefile.load_all():
            down(file.name)
        assert list(Path(sockets).glob("monarch-kernel/*")) == []


def leave() -> None:
    """Detach this very process, if it is attached."""
    try:
        session().detach()
    except NotAttached:
        pass


@pytest.fixture
def detached(home: Path) -> Iterator[None]:
    """This process may attach to a session; it is detached from it after the test."""
    yield
    leave()


@pytest.fixture(scope="module")
def start_kernel(
    home: Path, kernelspecs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Any]]:
    """Start one of our kernels; all end with the module at the latest."""
    started: list[Any] = []

    def start(**more: str) -> Any:
        kernel = kernels.Kernel(kernelspecs, specs.NAME, tmp_path_factory.mktemp("kernel"), {**os.environ, **more})
        started.append(kernel)
        return kernel

    yield start
    for kernel in started:
        kernel.close()


class Script:
    """A Python program of its own that talks over its standard output.

    Attributes
    ----------
    stderr
        What it complained of, once it has ended.
    """

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", "import sys; sys.argv[0] = 'a_script.py'\n" + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stderr = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line that it prints."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended with {self.end()}: {self.stderr}")
        return line.rstrip("\n")

    def say(self, text: str = "") -> None:
        """Answer its `input()`."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self, with_signal: int = 9) -> int:
        self.process.send_signal(with_signal)
        return self.end()

    def end(self, timeout: float = 30.0) -> int:
        """Wait for its end; returns its exit code."""
        _, self.stderr = self.process.communicate(timeout=timeout)
        return self.process.returncode


@pytest.fixture
def script(home: Path) -> Iterator[Callable[..., Script]]:
    """Start a script; all end with the test at the latest."""
    started: list[Script] = []

    def start(code: str, *arguments: object) -> Script:
        started.append(Script(code, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
        for pipe in (one.process.stdin, one.process.stdout, one.process.stderr):
            pipe.close()


class Notebook:
    """A notebook in one kernel: cells by name, sent with their names as their ids or without ids.

    Attributes
    ----------
    ids
        Whether the front end sends ``cellId``.
    """

    def __init__(self, kernel: Any, *, ids: bool) -> None:
        self.kernel = kernel
        self.ids = ids

    def submit(self, code: str, cell: str = "") -> str:
        """Send a cell and wait for nothing."""
        return str(self.kernel.submit(code, metadata={"cellId": cell} if self.ids and cell else None))

    def run(self, code: str, cell: str = "", timeout: float = 30.0) -> Any:
        """Run a cell, whatever comes of it. What it says has no colours."""
        return plain(self.kernel.collect(self.submit(code, cell), timeout=timeout))

    def ok(self, code: str, cell: str = "") -> str:
        """Run a cell that must succeed; returns what it prints."""
        reply = self.run(code, cell)
        assert reply.status == "ok", reply
        return str(reply.stdout)

    def fails(self, code: str, cell: str = "") -> Any:
        """Run a cell that must fail."""
        reply = self.run(code, cell)
        assert reply.status == "error", reply
        return reply

    def value(self, expression: str) -> Any:
        """What an expression is in the kernel, as a literal."""
        reply = self.run(expression)
        assert reply.status == "ok", reply
        return ast.literal_eval(reply.result)


def plain(reply: Any) -> Any:
    """A reply without the colours of its traceback."""
    reply.traceback = re.sub(r"\x1b\[[0-9;]*m", "", reply.traceback)
    return reply


@pytest.fixture(scope="module", params=[True, False], ids=["cellId", "no-id"])
def front_end(request: pytest.FixtureRequest, start_kernel: Callable[..., Any]) -> Iterator[Notebook]:
    """A kernel under a front end that sends cell ids, and under one that does not."""
    kernel = start_kernel(JPY_SESSION_NAME=f"/home/u/notebook-{request.param}.ipynb")
    yield Notebook(kernel, ids=request.param)
    kernel.close()


_BEGIN = "import os, time, monarch_kernel as mk\nfrom monarch_kernel.actor import Actor, endpoint"
_END = """
%monarch rerun reuse
for mesh in mk.session().procs.values():
    mesh.stop().get(20)
%reset -f
"""


@pytest.fixture(scope="module")
def lab(front_end: Notebook) -> Iterator[Notebook]:
    """That notebook, with a session ``lab`` of one host."""
    front_end.ok(_BEGIN)
    front_end.ok("%monarch up lab")
    yield front_end
    front_end.ok("%monarch down lab")


@pytest.fixture
def notebook(lab: Notebook) -> Iterator[Notebook]:
    """That notebook, without meshes and variables of an earlier test."""
    lab.ok(_BEGIN)
    yield lab
    lab.ok(_END)
