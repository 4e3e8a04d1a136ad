"""What takes long says so in one line, to a person only."""

from __future__ import annotations

import io
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_kernel.magics import progress
from monarch_kernel.magics.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def until(terminal: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in terminal.getvalue():
        assert time.monotonic() < deadline, terminal.getvalue()
        time.sleep(0.005)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(progress, "PATIENCE", 0.02)
    return made


def test_a_terminal_gets_one_line_that_is_written_over(terminal: Terminal) -> None:
    assert Progress(SimpleNamespace()).run("starting", lambda: until(terminal, "starting …") or 7) == 7
    said = terminal.getvalue()
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert said.rpartition("\r")[2].startswith("starting: ")


def test_what_is_quick_says_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    assert Progress(SimpleNamespace()).run("starting", lambda: 7) == 7
    assert terminal.getvalue() == ""


def test_nobody_is_told_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=quiet))
    monkeypatch.setattr(progress, "PATIENCE", 0.005)
    Progress(SimpleNamespace()).run("starting", lambda: time.sleep(0.05))
    assert quiet.getvalue() == ""


def test_the_line_of_what_failed_says_so(terminal: Terminal) -> None:
    def fail() -> None:
        until(terminal, "starting …")
        raise KeyError("x")

    with pytest.raises(KeyError):
        Progress(SimpleNamespace()).run("starting", fail)
    assert "starting: failed after" in terminal.getvalue()


def test_an_interrupt_leaves_what_must_end_to_its_end() -> None:
    begun, ended = threading.Event(), threading.Event()
    release: Any = threading.Event()

    def work() -> None:
        begun.set()
        release.wait(10)
        ended.set()

    def interrupt() -> None:
        begun.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        Progress(SimpleNamespace()).run("releasing", work, to_the_end=True)
    assert not ended.is_set()
    release.set()
    assert ended.wait(10)
    helper.join()
