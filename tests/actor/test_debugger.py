"""``breakpoint()`` in an actor stops it there, and somebody else talks to its pdb."""

from __future__ import annotations

import bdb
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import debug_actors
import pytest

from monarch_kernel.actor import ActorError, debug_controller
from monarch_kernel.actor._debug_client import Breakpoint, Debugger
from monarch_kernel.actor._debug_controller import DebugSessionInfo, _table
from monarch_kernel.errors import ActorStopped, SessionError, SupervisionError

WAIT = 20.0


@pytest.fixture
def debugger(session: Any) -> Iterator[Debugger]:
    made = session.debugger
    yield made
    made.resume()
    assert made.standing() == []


@pytest.fixture
def stops(procs: Any) -> Iterator[Any]:
    made = procs.spawn("stops", debug_actors.Stops)
    yield made
    made.stop().get(timeout=WAIT)


@pytest.fixture
def stops_async(one: Any) -> Iterator[Any]:
    made = one.spawn("stops_async", debug_actors.StopsAsync)
    yield made
    made.stop().get(timeout=WAIT)


@pytest.fixture
def at(until: Callable[..., Any], debugger: Debugger) -> Callable[..., list[Breakpoint]]:
    """Wait until so many ranks stand at a prompt."""

    def wait(number: int) -> list[Breakpoint]:
        def there() -> list[Breakpoint]:
            found = [one for one in debugger.standing() if one.prompt]
            return found if len(found) == number else []

        return until(there, what=f"{number} at a breakpoint")  # type: ignore[no-any-return]

    return wait


def test_every_rank_that_stops_is_listed_with_where_it_stands(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    called = stops.work.call(1)
    found = at(4)
    assert [(one.name, one.rank, one.host) for one in found] == [("stops", rank, rank // 2) for rank in range(4)]
    assert [one.coordinates for one in found] == [{"hosts": h, "gpus": g} for h in range(2) for g in range(2)]
    with open(debug_actors.__file__) as source:
        line = next(n for n, text in enumerate(source, 1) if text.strip() == "number += rank")
    for one in found:
        assert (one.endpoint, one.function, one.file, one.line) == (
            "work", "Stops.work", debug_actors.__file__, line,
        )  # fmt: skip
    assert len({one.pid for one in found}) == 4
    debugger.resume()
    assert called.get(timeout=WAIT).values() == [10, 20, 30, 40]


def test_the_commands_of_pdb_work(stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]) -> None:
    called = stops.slice(hosts=1, gpus=0).work.call_one(1)
    (one,) = at(1)
    first = debugger.read(one)
    assert first.prompt
    assert "-> number += rank" in first.output
    assert debugger.send(one, "p number, rank").output == "(1, 0)\n"
    with pytest.raises(SessionError, match="no breakpoint"):
        debugger.find("stops", 0)
    said = debugger.send(debugger.find("stops", 2), "n")
    assert "-> number = helper(number)" in said.output
    assert said.at.line == one.line + 1
    said = debugger.send(said.at, "s")
    assert "--Call--" in said.output
    assert "def helper" in said.output
    where = debugger.send(said.at, "bt").output
    assert "debug_actors.py" in where
    assert "_actor.py" not in where
    assert "threading.py" not in where
    assert "number * 10" in debugger.send(debugger.find("stops", 2), "l").output
    debugger.send(debugger.find("stops", 2), "r")
    debugger.send(debugger.find("stops", 2), "n")
    debugger.send(debugger.find("stops", 2), "number = 77")
    said = debugger.send(debugger.find("stops", 2), "c")
    assert said.ended
    assert called.get(timeout=WAIT) == 77


def test_stepping_off_the_end_of_an_endpoint_lets_it_go_on(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    one = stops.slice(hosts=0, gpus=0)
    called = one.last.call_one()
    said = debugger.read(at(1)[0])
    assert "--Return--" in said.output
    said = debugger.send(said.at, "n")
    assert said.ended
    assert called.get(timeout=WAIT) is None
    assert one.ping.call_one().get(timeout=WAIT) > 0


def test_quit_fails_the_endpoint_and_the_actor_lives(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    one = stops.slice(hosts=0, gpus=1)
    called = one.work.call_one(1)
    assert debugger.send(at(1)[0], "q").ended
    with pytest.raises(ActorError) as failed:
        called.get(timeout=WAIT)
    assert isinstance(failed.value.exception, bdb.BdbQuit)
    assert one.ping.call_one().get(timeout=WAIT) > 0


def test_an_exception_after_a_breakpoint_is_looked_at_where_it_was_raised(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    called = stops.slice(hosts=0, gpus=0).work.call_one(-5)
    debugger.send(at(1)[0], "c")
    said = debugger.read(at(1)[0])
    assert "ValueError: bad number" in said.output
    assert said.at.function == "helper"
    assert debugger.send(said.at, "p number").output == "-5\n"
    assert "-> number = helper(number)" in debugger.send(debugger.find("stops", 0), "u").output
    assert debugger.send(debugger.find("stops", 0), "c").ended
    with pytest.raises(ActorError) as failed:
        called.get(timeout=WAIT)
    assert isinstance(failed.value.exception, ValueError)


def test_an_endpoint_without_a_breakpoint_fails_without_a_prompt(one: Any, debugger: Debugger) -> None:
    made = one.spawn("plain", debug_actors.Stops)
    with pytest.raises(ActorError):
        made.fails.call_one().get(timeout=WAIT)
    assert debugger.standing() == []
    made.stop().get(timeout=WAIT)


def test_breakpoints_of_pdbs_own_hold_within_the_message(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    one = stops.slice(hosts=0, gpus=0)
    called = one.work.call_one(3)
    said = debugger.send(at(1)[0], "b debug_actors.helper")
    assert "Breakpoint" in said.output
    said = debugger.send(said.at, "c")
    assert said.prompt
    assert said.at.function == "helper"
    assert debugger.send(said.at, "clear").prompt
    assert debugger.send(debugger.find("stops", 0), "c").ended
    assert called.get(timeout=WAIT) == 30


def test_breakpoints_one_after_the_other_each_stop(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    called = stops.slice(hosts=0, gpus=0).twice.call_one()
    assert debugger.send(at(1)[0], "c").ended
    said = debugger.send(at(1)[0], "p found")
    assert said.output == "[0]\n"
    assert debugger.send(said.at, "c").ended
    assert called.get(timeout=WAIT) == [0, 1]


def test_set_trace_of_pdb_stops_too(stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]) -> None:
    called = stops.slice(hosts=0, gpus=0).set_trace.call_one()
    assert "went on" in debugger.read(at(1)[0]).output
    debugger.send(at(1)[0], "c")
    assert called.get(timeout=WAIT) == "went on"


def test_a_breakpoint_in_a_constructor_and_in_a_thread_of_the_users_own(
    one: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    made = one.spawn("constructed", debug_actors.Stops, True)
    (there,) = at(1)
    assert there.endpoint == "__init__"
    assert debugger.send(there, "n").prompt
    debugger.resume()
    called = made.from_thread.call_one()
    (there,) = at(1)
    assert there.function.endswith("run")
    debugger.send(there, "c")
    assert called.get(timeout=WAIT) == ["thread"]
    made.stop().get(timeout=WAIT)


def test_the_other_actors_of_the_process_answer_meanwhile(
    one: Any, stops_async: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    neighbour = one.spawn("neighbour", debug_actors.Stops)
    called = stops_async.work.call_one(1)
    (there,) = at(1)
    assert neighbour.ping.call_one().get(timeout=WAIT) == there.pid
    said = debugger.send(there, "n")
    assert "-> number += 1" in said.output or debugger.send(said.at, "n").prompt
    debugger.resume()
    assert called.get(timeout=WAIT) == 2
    neighbour.stop().get(timeout=WAIT)


def test_a_breakpoint_in_a_task_of_an_async_actor(
    stops_async: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    called = stops_async.in_task.call_one()
    (there,) = at(1)
    for _ in range(10):
        said = debugger.send(there, "n")
        if said.ended:
            break
        assert "asyncio" not in said.at.file
        there = said.at
    assert said.ended
    assert called.get(timeout=WAIT) == "inner"


def test_a_line_that_comes_twice_is_taken_once(
    stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    called = stops.slice(hosts=0, gpus=0).work.call_one(1)
    (there,) = at(1)
    first = debugger.send(there, "number += 1")
    again = debugger.send(there, "number += 1")
    assert again.prompt
    assert again.at.prompt == first.at.prompt
    assert debugger.send(first.at, "p number").output == "2\n"
    debugger.resume()
    assert called.get(timeout=WAIT) == 20


def test_a_line_is_cast_to_some_ranks(stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]) -> None:
    called = stops.work.call(0)
    at(4)
    said = debugger.cast("stops", {"gpus": 1}, "p rank")
    assert [(one.at.rank, one.output) for one in said] == [(1, "1\n"), (3, "3\n")]
    assert [one.ended for one in debugger.cast("stops", range(2), "c")] == [True, True]
    assert [one.rank for one in at(2)] == [2, 3]
    with pytest.raises(SessionError, match="these do: stops 2, stops 3"):
        debugger.cast("stops", 0, "c")
    debugger.resume()
    assert called.get(timeout=WAIT).values() == [0, 10, 20, 30]


def test_a_mesh_that_is_stopped_leaves_its_breakpoint(
    one: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]], until: Callable[..., Any]
) -> None:
    made = one.spawn("doomed", debug_actors.Stops)
    called = made.last.call_one()
    at(1)
    made.stop().get(timeout=WAIT)
    with pytest.raises((ActorError, ActorStopped, SupervisionError)):
        called.get(timeout=WAIT)
    until(lambda: not debugger.standing())


def test_a_process_that_dies_at_a_breakpoint_stands_there_no_more(
    fresh: Callable[..., Any], debugger: Debugger, at: Callable[..., list[Breakpoint]], until: Callable[..., Any]
) -> None:
    made = fresh(gpus=1).spawn("killed", debug_actors.Stops)
    called = made.slice(hosts=1).last.call_one()
    (there,) = at(1)
    os.kill(there.pid, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        called.get(timeout=WAIT)
    until(lambda: not debugger.standing())


def test_a_breakpoint_outlives_the_daemon_and_the_controller(
    session: Any, stops: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]], until: Callable[..., Any]
) -> None:
    called = stops.slice(hosts=1, gpus=1).work.call_one(1)
    (there,) = at(1)
    os.kill(session.statuses()[1].pid, signal.SIGKILL)
    until(lambda: debugger.standing() == [there], timeout=WAIT)
    assert "-> number += rank" in debugger.read(there).output
    debugger.send(there, "c")
    assert called.get(timeout=WAIT) == 10


def test_a_breakpoint_waits_for_the_next_controller(tmp_path: Any) -> None:
    code = """
import os, sys
import monarch_kernel as mk
from debug_actors import Stops
session = mk.up("waits", lease="2m")
stops = mk.hosts().slice(hosts=0).spawn_procs(per_host={"gpus": 1}).spawn("stops", Stops)
stops.last.call_one()
while not session.debugger.standing():
    pass
os._exit(0)
"""
    again = """
import monarch_kernel as mk
session = mk.attach("waits")
(there,) = session.debugger.standing()
print(there.name, there.rank, session.debugger.send(there, "p 6 * 7").output.strip())
session.debugger.resume()
print(session.calls[0].result())
session.release()
"""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), os.path.dirname(__file__)])
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", again], env=env, check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[0] == "stops 0 42"


def test_the_debug_controller_knows_them_as_in_monarch(
    stops: Any, one: Any, debugger: Debugger, at: Callable[..., list[Breakpoint]]
) -> None:
    controller = debug_controller()
    assert controller.list.call_one(print_output=False).get(timeout=WAIT) == []
    waits = controller.wait_pending_session.call_one()
    with pytest.raises(TimeoutError):
        waits.get(timeout=0.5)
    called = stops.work.call(1)
    waits.get(timeout=WAIT)
    at(4)
    found = controller.list.call_one(print_output=False).get(timeout=WAIT)
    assert [(info.actor_name, info.rank, info.coords) for info in found] == [
        ("stops", 2 * h + g, {"hosts": h, "gpus": g}) for h in range(2) for g in range(2)
    ]
    assert {(info.function, info.hostname) for info in found} == {("Stops.work", socket.gethostname())}
    # From an actor of any process it is the same one.
    asks = one.spawn("asks", debug_actors.Asks)
    assert asks.standing.call_one().get(timeout=WAIT) == found
    debugger.resume()
    called.get(timeout=WAIT)


def test_the_debug_controller_prints_a_table() -> None:
    info = DebugSessionInfo("trainers", 12, {"gpus": 12}, "node-7", "Trainer.step", 33)
    lines = _table([info]).splitlines()
    assert lines[0].split() == ["Actor", "Name", "Rank", "Coords", "Hostname", "Function", "Line", "No."]
    assert lines[1].split() == ["trainers", "12", "{'gpus':", "12}", "node-7", "Trainer.step", "33"]
