"""What goes wrong inside of endpoints, and what the caller sees of it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mesh_actors import AsyncRunner, Counter, Runner

import monarch_kernel.actor
from monarch_kernel import config
from monarch_kernel.actor import Actor, ActorError, MeshFailure, endpoint
from monarch_kernel.errors import SupervisionError

WAIT = 30


@pytest.fixture(scope="module")
def counters(procs: Any) -> Any:
    mesh = procs.spawn("counters", Counter)
    mesh.value.call().get(timeout=WAIT)
    return mesh


@pytest.fixture(scope="module")
def runner(procs: Any) -> Any:
    return procs.slice(hosts=1, gpus=0).spawn("runner", Runner)


def test_an_actor_error_names_call_rank_and_host_and_shows_the_source(counters):
    with pytest.raises(ActorError) as caught:
        counters.fail.call("no such batch", on=3).get(timeout=WAIT)
    error = caught.value
    text = str(error)
    assert "Actor call counters.fail failed: rank 3 of {hosts: 2, gpus: 2} (host 1) raised ValueError." in text
    assert "mesh_actors.py" in text
    assert "raise ValueError(text)" in text
    assert "ValueError: no such batch" in text
    assert type(error.exception) is ValueError
    assert error.exception.args == ("no such batch",)
    assert (error.mesh, error.rank, error.host) == ("counters", 3, 1)
    assert "_actor.py" not in text
    assert error.exception_formatted.startswith("Traceback")
    assert error.exception_formatted.rstrip().endswith("ValueError: no such batch")


def test_on_a_slice_the_error_names_the_rank_of_the_spawn(counters):
    with pytest.raises(ActorError, match=r"rank 2 of \{hosts: 2, gpus: 2\} \(host 1\)"):
        counters.slice(hosts=1).fail.call("x", on=2).get(timeout=WAIT)


def test_the_actor_goes_on_after_an_error(counters):
    for _ in range(3):
        with pytest.raises(ActorError):
            counters.fail.call("x").get(timeout=WAIT)
    assert len(counters.value.call().get(timeout=WAIT)) == 4


def test_source_lines_of_code_that_only_the_client_has(runner):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    import linecache

    source = "def explode():\n    bits = []\n    return bits[1]  # the very line\n"
    name = "<ipython-input-1-test>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
    with pytest.raises(ActorError, match="return bits\\[1\\]  # the very line"):
        runner.run.call_one(namespace["explode"]).get(timeout=WAIT)


def test_causes_and_notes_come_along(runner):
    def fail() -> None:
        try:
            {}["missing"]
        except KeyError as error:
            problem = RuntimeError("could not load")
            problem.add_note("look at the path")
            raise problem from error

    with pytest.raises(
        ActorError, match=r"(?s)KeyError: 'missing'.*direct cause.*could not load.*look at the path"
    ) as e:
        runner.run.call_one(fail).get(timeout=WAIT)
    assert isinstance(e.value.exception.__cause__, KeyError)
    assert e.value.exception.__notes__ == ["look at the path"]


def test_exceptions_that_cannot_be_pickled(runner):
    class Locked(Exception):
        def __init__(self, text: str) -> None:
            import threading

            super().__init__(text)
            self.lock = threading.Lock()

        def __reduce__(self) -> Any:
            raise TypeError("not me")

    def fail() -> None:
        raise Locked("holds a lock")

    with pytest.raises(ActorError, match=r"(?s)Locked.*holds a lock") as caught:
        runner.run.call_one(fail).get(timeout=WAIT)
    assert "Locked" in type(caught.value.exception).__name__ or "Locked" in str(caught.value.exception)
    assert runner.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_exceptions_that_cannot_be_made_here(runner):
    class Picky(Exception):
        def __init__(self, code: int, *, reason: str) -> None:
            super().__init__(f"{reason} ({code})")
            self.code = code

    class Cursed(Exception):
        def __reduce__(self) -> Any:
            return (int, ("no number",))

    def picky() -> None:
        raise Picky(7, reason="bad luck")

    def cursed() -> None:
        raise Cursed("tricky")

    with pytest.raises(ActorError, match="bad luck \\(7\\)") as caught:
        runner.run.call_one(picky).get(timeout=WAIT)
    assert caught.value.exception.code == 7
    with pytest.raises(ActorError, match=r"(?s)Cursed.*tricky"):
        runner.run.call_one(cursed).get(timeout=WAIT)
    assert runner.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


@pytest.mark.parametrize("actor", [Runner, AsyncRunner])
@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("hook", ["__str__", "__repr__", "__reduce__", "__reduce_ex__", "__getstate__", "__notes__"])
def test_exceptions_that_raise_when_they_are_looked_at_are_errors_at_the_caller(one, actor, kind, hook):
    def fail(kind: type[BaseException], hook: str) -> None:
        def cursed(*args: Any) -> Any:
            raise kind("looked at")

        member: Any = property(cursed) if hook == "__notes__" else cursed
        raise type("Cursed", (Exception,), {hook: member})("tricky")

    mesh = one.spawn("cursed", actor)
    with pytest.raises((ActorError, SupervisionError), match=r"Cursed|looked at"):
        mesh.run.call_one(fail, kind, hook).get(timeout=WAIT)
    mesh.stop().get(timeout=WAIT)


def test_results_that_cannot_be_sent(runner):
    def locked() -> Any:
        import threading

        return {"inner": [threading.Lock()]}

    with pytest.raises(ActorError, match=r"(?s)inner.*_thread\.lock.*could not be sent back"):
        runner.run.call_one(locked).get(timeout=WAIT)
    assert runner.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_arguments_that_cannot_be_loaded_there(runner):
    class Bomb:
        def __reduce__(self) -> Any:
            return (eval, ("1/0",))

    with pytest.raises(ActorError, match=r"(?s)ZeroDivisionError.*arguments could not be loaded"):
        runner.echo.call_one(Bomb()).get(timeout=WAIT)
    assert runner.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_results_that_cannot_be_loaded_here(runner):
    def bomb() -> Any:
        class Bomb:
            def __reduce__(self) -> Any:
                return (eval, ("1/0",))

        return Bomb()

    with pytest.raises(ZeroDivisionError):
        runner.run.call_one(bomb).get(timeout=WAIT)
    assert runner.run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"


def test_a_message_over_the_programs_own_limit_is_refused_and_its_hook_is_told(counters, runner, until, monkeypatch):
    told: list[MeshFailure] = []
    monkeypatch.setattr(monarch_kernel.actor, "unhandled_fault_hook", told.append)
    with config.configured(codec_max_frame_length=2_000_000):
        assert runner.echo.call_one("a" * 1_900_000).get(timeout=WAIT)
        for large in ("a" * 2_000_001, np.zeros(2_000_001, np.uint8)):
            with pytest.raises(SupervisionError, match=r"runner\.echo\(\) failed.* len=\d+ > max=2000000 "):
                runner.echo.call_one(large)
    until(lambda: len(told) == 2)
    assert "CODEC_MAX_FRAME_LENGTH" in told[0].report()
    assert runner.echo.call_one("a" * 2_000_001).get(timeout=WAIT)


def test_an_error_that_passes_through_two_actors_shows_both(procs):
    class Middle(Actor):
        @endpoint
        def go(self, target: Any) -> Any:
            return target.fail.call("deep down").get(timeout=20)

    target = procs.slice(hosts=0).spawn("target", Counter)
    middle = procs.slice(hosts=1, gpus=1).spawn("middle", Middle)
    with pytest.raises(ActorError) as caught:
        middle.go.call_one(target).get(timeout=WAIT)
    text = str(caught.value)
    assert "middle.go failed: rank 0" in text
    assert "target.fail failed: rank" in text
    assert "ValueError: deep down" in text
    assert isinstance(caught.value.exception, ActorError)
    assert isinstance(caught.value.exception.exception, ValueError)


def test_an_unpicklable_argument_is_refused_at_the_call_and_named(counters, runner):
    import threading

    with pytest.raises(TypeError, match=r"args\[0\]\['a'\]\[1\].*lock.*cannot be sent"):
        runner.echo.call_one({"a": [1, threading.Lock()]})
    with pytest.raises(TypeError, match=r"by .*cannot be sent"):
        counters.add.call(by=(n for n in ()))


def test_arguments_are_checked_at_the_call(counters, runner):
    with pytest.raises(TypeError, match=r"counters\.add\(by=\.\.\.\): too many positional arguments"):
        counters.add.call(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'how'"):
        counters.add.broadcast(how=1)
    with pytest.raises(TypeError, match="missing a required argument: 'text'"):
        counters.fail.stream()
    with pytest.raises(TypeError, match="missing a required argument: 'function'"):
        runner.run.choose()


def test_endpoints_that_do_not_exist(counters):
    with pytest.raises(AttributeError, match=r"Counter has no endpoint 'ad'.*did you mean add\?"):
        _ = counters.ad
    with pytest.raises(AttributeError, match=r"Counter\.hidden is no endpoint: mark the method with @endpoint"):
        _ = counters.hidden.call
    with pytest.raises(RuntimeError, match=r"Counter\.hidden is no endpoint.*as_endpoint\(counters\.hidden\)\.call"):
        counters.hidden()
    with pytest.raises(TypeError, match=r"counters\.add\.call\(\.\.\.\)"):
        counters.add(1)
    assert not hasattr(counters, "nothing")


def test_a_broadcast_that_raises_is_reported_once_and_ends_that_actor(session, procs, until):
    seen: list[dict[str, Any]] = []
    listener = seen.append
    session.listeners.append(listener)
    try:
        mesh = procs.spawn("told", Counter)
        mesh.value.call().get(timeout=WAIT)
        mesh.fail.broadcast("nobody waits", on=2)

        def faults() -> list[dict[str, Any]]:
            return [e for e in seen if e.get("record", {}).get("state") in ("failed", "dead") and e["name"] == "told"]

        until(faults, what="a report")
        with pytest.raises(SupervisionError, match=r"(?s)rank 2 .*ValueError in fail.*nobody waits"):
            mesh.value.call().get(timeout=WAIT)
        assert mesh.slice(hosts=0).value.call().get(timeout=WAIT).extent.nelements == 2
        assert mesh.slice(hosts=1, gpus=1).value.call_one().get(timeout=WAIT) == 0
        (fault,) = faults()
        assert fault["rank"] == 2
        assert "nobody waits" in fault["record"]["fault"]["text"]
    finally:
        session.listeners.remove(listener)


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
@pytest.mark.parametrize("actor", [Runner, AsyncRunner])
def test_exits_end_the_actor_with_a_named_error_and_nothing_else(procs, kind, actor):
    def leave(kind: str) -> None:
        import builtins

        raise getattr(builtins, kind)(3)

    part = procs.slice(hosts=0)
    mesh, beside = part.spawn("leaves", actor), part.spawn("beside", Runner)
    began = time.monotonic()
    with pytest.raises(SupervisionError, match=f"(?s)leaves, rank 1 .*{kind} in run ended the actor") as caught:
        mesh.slice(gpus=1).run.call_one(leave, kind).get(timeout=WAIT)
    assert time.monotonic() - began < 3
    assert "getattr(builtins, kind)(3)" in str(caught.value)
    with pytest.raises(SupervisionError, match="ended the actor"):
        mesh.slice(gpus=1).run.call_one(lambda: 1).get(timeout=WAIT)
    assert mesh.slice(gpus=0).run.call_one(lambda: "alive").get(timeout=WAIT) == "alive"
    assert list(beside.run.call(lambda: "alive").get(timeout=WAIT).values()) == ["alive"] * 2
    mesh.stop().get(timeout=WAIT)


def test_an_actor_that_waits_for_itself_is_told_at_once(procs, until):
    class Selfish(Actor):
        @endpoint
        def one(self, me: Any) -> Any:
            return me.two.call_one().get()

        @endpoint
        def all(self, us: Any) -> Any:
            return us.two.call().get()

        @endpoint
        def timed(self, me: Any) -> Any:
            return me.two.call_one().get(timeout=100)

        @endpoint
        def others(self, us: Any) -> Any:
            return us.slice(gpus=1).two.call_one().get(timeout=20)

        @endpoint
        def later(self, me: Any) -> None:
            self.future = me.two.call_one()

        @endpoint
        def later_result(self) -> Any:
            return self.future.get(timeout=20)

        @endpoint
        def counted(self) -> int:
            return getattr(self, "twos", 0)

        @endpoint
        def two(self) -> int:
            self.twos = getattr(self, "twos", 0) + 1
            return 2

    mesh = procs.slice(hosts=0).spawn("selfish", Selfish)
    first = mesh.slice(gpus=0)
    began = time.monotonic()
    for name, argument in (("one", first), ("all", mesh), ("timed", first)):
        with pytest.raises(ActorError, match="would wait for ever: its call of 'two' goes to itself") as caught:
            getattr(first, name).call_one(argument).get(timeout=WAIT)
        assert isinstance(caught.value.exception, SupervisionError)
    assert time.monotonic() - began < 5
    assert first.others.call_one(mesh).get(timeout=WAIT) == 2
    first.later.call_one(first).get(timeout=WAIT)
    until(lambda: first.counted.call_one().get(timeout=WAIT) == 4)  # the three before were made, if not waited for
    assert first.later_result.call_one().get(timeout=WAIT) == 2  # it was handled in between


def test_an_async_actor_that_waits_for_itself_is_told_at_once(one):
    import asyncio

    async def ask(self: Any, me: Any) -> Any:
        return await me.seen.call_one()

    async def block(self: Any, me: Any) -> Any:
        return me.seen.call_one().get()

    async def in_a_task(self: Any, me: Any) -> None:
        async def later() -> Any:
            return await me.seen.call_one()

        self.task = asyncio.create_task(later())

    async def the_tasks_result(self: Any) -> Any:
        return await self.task

    mesh = one.spawn("async", AsyncRunner)
    for function in (ask, block):
        with pytest.raises(ActorError, match="would wait for ever"):
            mesh.with_self.call_one(function, mesh).get(timeout=WAIT)
    mesh.with_self.call_one(in_a_task, mesh).get(timeout=WAIT)
    mesh.seen.call_one().get(timeout=WAIT)
    assert mesh.with_self.call_one(the_tasks_result).get(timeout=WAIT) == []


def test_errors_reach_awaits_inside_actors(procs):
    async def ask(self: Any, target: Any) -> str:
        try:
            await target.fail.call("inner")
        except Exception as error:
            return type(error).__name__
        return "nothing"

    target = procs.spawn("target", Counter)
    mesh = procs.slice(hosts=1, gpus=1).spawn("asks", AsyncRunner)
    assert mesh.with_self.call_one(ask, target).get(timeout=WAIT) == "ActorError"
