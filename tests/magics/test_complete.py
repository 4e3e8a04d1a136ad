"""Tab knows the words of %monarch, the sessions, the meshes and their ranks; it asks nobody."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from monarch_kernel.magics import complete as module
from monarch_kernel.magics.complete import complete
from monarch_kernel.session import Session


def offered(shell: Any, code: str) -> list[str]:
    with provisionalcompleter():
        return [code[: found.start] + found.text for found in shell.ip.Completer.completions(code, len(code))]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("re", ["restart", "rerun"]),
        ("up lab --h", ["up lab --hosts"]),
        ("up lab --fresh --ta", ["up lab --fresh --takeover"]),
        ("restart trainers --level ", ["restart trainers --level actor", "restart trainers --level proc"]),
        ("restart trainers --level=p", ["restart trainers --level=proc"]),
        ("rerun ", ["rerun reuse", "rerun replace", "rerun new"]),
        ("help re", ["help restart", "help rerun"]),
        ("attach l", ["attach lab"]),
        ("down ", ["down lab"]),
        ("restart tr", ["restart trainers"]),
        ("restart trainers[", ["restart trainers[0]", "restart trainers[1]"]),
        ("restart trainers[0,", ["restart trainers[0,1]"]),
        ("restart trainers[0] --", ["restart trainers[0] --level"]),
    ],
)
@pytest.mark.parametrize("before", ["%monarch ", "import os\n  %monarch ", "x = %monarch "])
def test_tab(shell: Any, attached: Session, before: str, typed: str, found: list[str]) -> None:
    assert offered(shell, before + typed) == [before + text for text in found]


def test_dead_ranks_come_first(shell: Any, attached: Session) -> None:
    attached.snapshot().lookup("trainers", "actors").ranks[1].state = "dead"
    assert complete("restart trainers[") == ("trainers[", [("trainers[1]", "dead"), ("trainers[0]", "ok")])


def test_ordinary_completion_is_left_alone(shell: Any) -> None:
    shell.ok("monarchs_of_old = 1")
    assert "monarchs_of_old" in offered(shell, "monarchs_o")


def test_a_slow_home_does_not_hold_the_key_press_up(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = module._Bounded(lambda: ["lab"])
    assert quick() == ["lab"]
    monkeypatch.setattr(quick, "_look", lambda: time.sleep(0.6) or ["late"])
    began = time.monotonic()
    assert quick() == ["lab"]
    assert time.monotonic() - began < 0.3
    assert quick._busy is not None
    quick._busy.join(10)
    monkeypatch.setattr(quick, "_look", lambda: ["new"])
    assert quick() == ["new"]


@pytest.mark.usefixtures("home")
def test_without_a_session_there_is_nothing_to_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "current", lambda: None)
    assert complete("restart ") == ("", [("--level", "option")])
    assert complete("attach ")[1] == [("--takeover", "option"), ("--no-bind", "option")]
