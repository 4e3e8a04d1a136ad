"""A real IPython shell in this process, with the extension and the magics, and a session that a script has left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from monarch_kernel import magics
from monarch_kernel.errors import NotAttached
from monarch_kernel.kernel.extension import MonarchExtension
from monarch_kernel.protocol import statefile
from monarch_kernel.session import Session, down, session

ROOT = Path(__file__).resolve().parents[2]

#: Starts a session, calls its actors, and is killed while a second call runs.
SCRIPT = """
import os, sys, time
import monarch_kernel as mk
from monarch_kernel.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, number):
        return number + 1

    @endpoint
    def wait_for(self, path):
        while not os.path.exists(path):
            time.sleep(0.02)
        return "seen"

mk.up("lab", hosts=2, lease="20m")
procs = mk.hosts().spawn_procs(per_host={"gpus": 1}, name="procs")
trainers = procs.spawn("trainers", Trainer)
trainers.step.call(1).get()
waiting = trainers.wait_for.call(sys.argv[1])
while not all(status.calls for status in mk.session().statuses().values()):
    time.sleep(0.02)
os.kill(os.getpid(), 9)
"""


@dataclass
class Ran:
    """What came of one cell."""

    error: BaseException | None
    text: str
    html: str


class Shell:
    """A shell whose cells are run and read."""

    def __init__(self, ip: InteractiveShell) -> None:
        self.ip = ip

    def run(self, code: str) -> Ran:
        with capture_output() as captured:
            result = self.ip.run_cell(code)
        pages = [output.data for output in captured.outputs]
        text = "\n".join([*(p["text/plain"] for p in pages), captured.stdout, captured.stderr])
        return Ran(
            result.error_before_exec or result.error_in_exec, text, "".join(p.get("text/html", "") for p in pages)
        )

    def ok(self, code: str) -> Ran:
        ran = self.run(code)
        assert ran.error is None, ran.text
        return ran


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State, and IPython's own files, in a place of this module's; all sessions in it end with it."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / part) for part in ("", "worker", "rdma")))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield folder
        for file in statefile.load_all():
            if statefile.written_here(file):
                down(file.name)


@pytest.fixture(scope="module")
def shell(home: Path) -> Iterator[Shell]:
    """An IPython shell with the extension and the magics."""
    config = Config()
    config.HistoryManager.enabled = False
    ip = InteractiveShell.instance(config=config)
    extension = MonarchExtension(ip)
    extension.install()
    magics.register(ip, extension)
    yield Shell(ip)
    try:
        session().detach()
    except NotAttached:
        pass
    magics.unregister(ip)
    extension.remove()
    InteractiveShell.clear_instance()


@pytest.fixture(scope="module")
def left_behind(home: Path) -> Iterator[Path]:
    """Session ``lab`` of two hosts, left by a script that was killed in a call until this file exists."""
    script = home / "left.py"
    script.write_text(SCRIPT)
    go = home / "go"
    ended = subprocess.run([sys.executable, script, go], timeout=40)
    assert ended.returncode == -9
    yield go
    go.touch()


@pytest.fixture
def attached(shell: Shell, left_behind: Path) -> Session:
    """The shell attached to ``lab``, at the beginning of the test."""
    shell.ok("%monarch attach lab --takeover")
    return session()
