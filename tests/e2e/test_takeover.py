"""Two controllers and one session: who has it, who is told, and what each of them can do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import SLACK, procs, until

import monarch_kernel as mk
from monarch_kernel import errors

BEGIN = """
import monarch_kernel as mk
from counting import Counter
%monarch up shared --hosts 2
counters = mk.hosts().spawn_procs(per_host={"gpus": 1}, name="procs").spawn("counters", Counter)
counters.add.call(1).get().values()
"""


#: Ways to use a session besides calls.
USES = ("mk.hosts().spawn_procs(name='x')", "mk.session().procs", "mk.session().statuses()")
SPAWN = "counters = mk.hosts().spawn_procs(name='y').spawn('c', Counter)\ncounters.add.call(1).get().values()"


def ok(kernel: Any, code: str) -> Any:
    reply = kernel.run(code, timeout=30)
    assert reply.status == "ok", reply
    return reply


@pytest.fixture(scope="module")
def first(start_kernel: Callable[..., Any]) -> Any:
    """The kernel of notebook one.ipynb; it has session ``shared``."""
    kernel = start_kernel(JPY_SESSION_NAME="/notes/one.ipynb")
    assert ok(kernel, BEGIN).result == "[1, 1]"
    return kernel


@pytest.fixture(scope="module")
def second(start_kernel: Callable[..., Any]) -> Any:
    """The kernel of notebook two.ipynb."""
    kernel = start_kernel(JPY_SESSION_NAME="/notes/two.ipynb")
    ok(kernel, "import monarch_kernel as mk")
    return kernel


@pytest.mark.parametrize("how", ["%monarch attach shared", "%monarch up shared", "mk.attach('shared')"])
def test_a_session_that_another_kernel_has_is_refused_and_its_controller_named(
    first: Any, second: Any, how: str
) -> None:
    refused = second.run(how, timeout=30)
    assert refused.ename == "ControllerPresent"
    assert f"kernel {first.pid} of one.ipynb" in refused.evalue
    assert "--takeover" in refused.evalue
    assert ok(first, "counters.add.call(0).get().values()").result == "[1, 1]"


def test_a_takeover_tells_the_old_kernel_and_its_calls_fail_with_the_reason(
    first: Any, second: Any, tmp_path: Path
) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    ok(first, f"running = counters.held.call({str(go)!r}, {str(ran)!r}, 'first')")
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    waiting = first.submit("running.get()")  # a cell that waits while the session is taken away
    before = procs("shared")
    page = ok(second, "%monarch attach shared --takeover").displayed[-1]["text/plain"]
    assert "Bound again: counters" in page
    began = time.monotonic()
    told = first.collect(waiting)
    print(f"the waiting cell ended {time.monotonic() - began:.2f} s after the takeover")
    assert told.ename == "TakenOver"
    who = f"kernel {second.pid} of two.ipynb"
    assert who in told.evalue
    assert re.search(r"at \d\d:\d\d:\d\d", told.evalue)
    # It is said once, by that cell or by the next one.
    after = ok(first, "'a cell of its own'")
    assert (told.stderr + after.stderr).count(who) == 1
    assert ok(first, "1").stderr == ""
    for code in ("counters.add.call(1).get()", "running.get()", *USES):
        refused = first.run(code, timeout=30)
        assert refused.ename == "TakenOver", (code, refused)
        assert who in refused.evalue
    # What ran goes on for the new one, which can have what it brings.
    assert procs("shared") == before
    go.touch()
    assert ok(second, "[c.result(20).values() for c in mk.session().calls if c.endpoint == 'held']").result == (
        "[['first done by 0', 'first done by 1']]"
    )
    assert ok(second, "counters.add.call(0).get().values()").result == "[101, 101]"
    assert sorted(ran.read_text().splitlines()) == ["first.0", "first.1"]


def test_it_can_be_taken_back(first: Any, second: Any) -> None:
    ok(first, "%monarch attach shared --takeover")
    assert ok(first, "counters.add.call(0).get().values()").result == "[101, 101]"
    told = until(lambda: ok(second, "1").stderr, what="the second kernel is told")
    assert f"kernel {first.pid} of one.ipynb" in told
    assert second.run("counters.add.call(1).get()", timeout=30).ename == "TakenOver"


def test_a_script_is_refused_and_takes_over_alike(first: Any, script: Callable[..., Any]) -> None:
    other = script(
        "import monarch_kernel as mk\n"
        "try:\n    mk.attach('shared')\nexcept mk.errors.ControllerPresent as error:\n    print(error)\n"
        "mk.attach('shared', takeover=True)\n"
        "print(mk.session().actors['counters'].add.call(0).get().values())\n"
    )
    assert f"kernel {first.pid} of one.ipynb" in other.line()
    assert other.line() == "[101, 101]"
    assert other.end() == 0
    assert other.stderr == ""
    refused = first.run("counters.add.call(1).get()", timeout=30)
    assert refused.ename == "TakenOver"
    assert "script " in refused.evalue
    assert "a_script.py" in refused.evalue
    # The script has left: nobody is there to take it over from.
    ok(first, "%monarch attach shared")


def test_a_session_that_is_stopped_from_a_shell_is_a_clear_error_in_the_kernel(
    first: Any, script: Callable[..., Any], tmp_path: Path
) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    ok(first, f"running = counters.held.call({str(go)!r}, {str(ran)!r}, 'first')")
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    waiting = first.submit("running.get()")
    shell = script("import monarch_kernel as mk\nmk.down('shared')\nprint('down')")
    assert shell.line() == "down"
    began = time.monotonic()
    ended = first.collect(waiting)
    print(f"the waiting cell ended {time.monotonic() - began:.2f} s after `down`")
    assert ended.status == "error"
    assert ended.seconds < 3.0 * SLACK
    assert issubclass(getattr(errors, ended.ename), errors.MonarchError), ended
    assert "shared" in ended.evalue
    for code in ("counters.add.call(1).get()", *USES):
        refused = first.run(code, timeout=30)
        assert refused.ename == "SessionEnded", (code, refused)
        assert "released" in refused.evalue
        assert refused.seconds < 3.0 * SLACK
    assert ok(first, "1 + 1").result == "2"
    # And it is as if there had been none.
    ok(first, "%monarch up shared")
    assert ok(first, SPAWN).result == "[1]"
    mk.down("shared")
