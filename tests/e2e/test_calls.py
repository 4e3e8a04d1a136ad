"""Calls whose kernel dies: they go on, nothing of them runs twice, and the next kernel has what they brought."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import Counter
from processes import SLACK, daemons, keepers, kill, procs, until

import monarch_kernel as mk
from monarch_kernel import errors

BEGIN = """
import monarch_kernel as mk
from counting import Counter
%monarch up left --hosts 2
counters = mk.hosts().spawn_procs(per_host={"gpus": 2}, name="procs").spawn("counters", Counter)
other = mk.hosts().spawn_procs(name="others").spawn("other", Counter)
counters.add.call(1).get().values()
"""


def ok(kernel: Any, code: str) -> Any:
    reply = kernel.run(code, timeout=30)
    assert reply.status == "ok", reply
    return reply


def test_a_kernel_that_is_killed_in_the_middle_of_calls_costs_none_of_them(
    start_kernel: Callable[[], Any], tmp_path: Path
) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    kernel = start_kernel()
    assert ok(kernel, BEGIN).result == "[1, 1, 1, 1]"
    before = procs("left")
    # One that has ended and one that has failed, whose answers nobody has taken; one that runs, and one behind it.
    ok(kernel, "finished = other.add.call(7)\nfailed = other.slice(hosts=1).fail.call('on purpose')")
    ok(
        kernel,
        f"running = counters.held.call({str(go)!r}, {str(ran)!r}, 'a')\nqueued = counters.slice(hosts=1).add.call(5)",
    )
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 4)
    waiting = kernel.submit("running.get()")
    until(lambda: kernel.client.get_iopub_msg(timeout=20)["header"]["msg_type"] == "execute_input")
    kill(kernel.pid)
    del waiting
    assert procs("left") == before

    kernel.restart(now=True)
    page = ok(kernel, "%monarch attach left").displayed[-1]["text/plain"]
    assert re.search(r"Bound again: .*counters", page)
    assert "still running" in page
    assert "gone since" in page
    listed = ok(kernel, "%monarch calls").displayed[-1]["text/plain"]
    for call in ("counters.held", "counters.add"):
        assert call in listed
    ok(kernel, "import monarch_kernel as mk\ncalls = {(c.mesh, c.endpoint): c for c in mk.session().calls}")
    assert (
        ok(kernel, "calls['counters', 'held'].status, calls['counters', 'add'].status").result
        == "('running', 'running')"
    )
    assert (
        "still runs"
        in ok(
            kernel,
            "try:\n    calls['counters', 'held'].result(0)\nexcept TimeoutError as e:\n    print('still runs:', e)",
        ).stdout
    )
    go.touch()
    assert ok(kernel, "calls['counters', 'held'].result(20).values()").result == repr(
        [f"a done by {n}" for n in range(4)]
    )
    assert ok(kernel, "calls['counters', 'add'].result(20).values()").result == "[106, 106]"
    assert ok(kernel, "{c.status for c in mk.session().calls if c.mesh == 'counters'}").result == "{'finished'}"
    # Every rank ran it once, and each call left one mark on the state.
    assert sorted(ran.read_text().splitlines()) == [f"a.{n}" for n in range(4)]
    assert ok(kernel, "counters.value.call().get().values(), other.value.call().get().values()").result == (
        "([101, 101, 106, 106], [7, 7])"
    )
    assert procs("left") == before
    kernel.close()


def test_a_script_that_is_killed_leaves_finished_failed_and_running_calls(
    script: Callable[..., Any], tmp_path: Path, detached: None
) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    killed = script(
        """
import os, sys, time
import monarch_kernel as mk
from counting import Counter
session = mk.up("away", hosts=2, lease="20m")
procs = mk.hosts().spawn_procs(per_host={"gpus": 1}, name="procs")
a, b = procs.spawn("a", Counter), procs.spawn("b", Counter)
a.value.call().get(), b.value.call().get()
held = a.held.call(sys.argv[1], sys.argv[2], "a")
# Both at once, and the end of this process before it can say that it has the answers.
done, failed = b.add.call(3), b.slice(hosts=1).fail.call("on purpose")
while not os.path.exists(sys.argv[2]) or len(open(sys.argv[2]).readlines()) < 2:
    time.sleep(0.01)
done.exception(), failed.exception()
os.kill(os.getpid(), 9)
""",
        go,
        ran,
    )
    assert killed.end() == -9
    session = mk.attach("away")
    calls = {(call.mesh, call.endpoint): call for call in session.calls}
    assert calls["a", "held"].status == "running"
    go.touch()
    assert calls["a", "held"].result(20).values() == ["a done by 0", "a done by 1"]
    # What it had taken may be forgotten by now; what is there is right.
    if ("b", "add") in calls:
        assert calls["b", "add"].result(20).values() == [3, 3]
    if ("b", "fail") in calls:
        assert calls["b", "fail"].status == "failed"
        with pytest.raises(errors.ActorError, match="on purpose"):
            calls["b", "fail"].result(20)
    print(f"left behind: {session.calls}")
    assert session.actors["b"].value.call().get(20).values() == [3, 3]
    assert sorted(ran.read_text().splitlines()) == ["a.0", "a.1"]
    session.release()


# -- the link; from here on this process is the controller


@pytest.fixture
def two(home: Path) -> Iterator[mk.Session]:
    session = mk.up("two", hosts=2, lease="20m")
    yield session
    mk.down("two")


def test_answers_that_were_taken_are_kept_on_no_host(two: mk.Session) -> None:
    """Several calls are given back at once, of which the last one went to the first host only."""
    counters = mk.hosts().spawn_procs(name="procs").spawn("counters", Counter)
    counters.value.call().get(30)
    for _ in range(3):
        counters.add.call(1).get(20)
        counters.slice(hosts=0).add.call(1).get(20)
    until(lambda: not any(status.calls for status in two.statuses().values()), 1.0 * SLACK)


def test_a_network_that_stands_still_during_a_call_costs_time_only(two: mk.Session, tmp_path: Path) -> None:
    """Stopped daemons are what a cut network looks like from outside: nothing goes through, and nothing ends."""
    counters = mk.hosts().spawn_procs(name="procs").spawn("counters", Counter)
    go, ran = tmp_path / "go", tmp_path / "ran"
    call = counters.held.call(str(go), str(ran), "a")
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    stopped = daemons("two")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        go.touch()
        behind = counters.add.call(1)
        with pytest.raises(TimeoutError):
            call.get(2.0)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    began = time.monotonic()
    assert call.get(20).values() == ["a done by 0", "a done by 1"]
    print(f"answered {time.monotonic() - began:.2f} s after it went on")
    assert behind.get(20).values() == [101, 101]
    assert daemons("two") == stopped


def test_a_host_that_is_lost_is_named_with_the_time_and_the_others_go_on(two: mk.Session, tmp_path: Path) -> None:
    counters = mk.hosts().spawn_procs(name="procs").spawn("counters", Counter)
    assert counters.add.call(1).get(30).values() == [1, 1]
    go, ran = tmp_path / "go", tmp_path / "ran"
    call = counters.held.call(str(go), str(ran), "a")
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    began = time.monotonic()
    os.kill(keepers("two")[1], 9)
    with pytest.raises(errors.SupervisionError) as caught:
        call.get(20)
    print(f"{type(caught.value).__name__} after {time.monotonic() - began:.2f} s: {caught.value}")
    assert time.monotonic() - began < 2.5 * SLACK
    assert isinstance(caught.value, errors.HostLost)
    assert caught.value.host == 1
    assert re.search(r"host 1 of session 'two' since \d\d:\d\d:\d\d", str(caught.value))
    go.touch()
    assert counters.slice(hosts=0).add.call(1).get(20).values() == [102]
