"""What ranks print and log comes to the controller, as it was asked for."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from typing import Any

import pytest
from mesh_actors import Runner

from monarch_kernel.actor import config, context


class Screen:
    """What the controller shows."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []

    def __call__(self, stream: str, text: str) -> None:
        self.shown.append((stream, text))

    def text(self, stream: str = "out") -> str:
        return "".join(text for to, text in list(self.shown) if to == stream)


@pytest.fixture
def screen(session: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Instead of this process's own output."""
    screen = Screen()
    monkeypatch.setattr(session.controller.logs, "write", screen)
    yield screen
    session.controller.flush_logs().get(timeout=10)


def say(text: str, times: int = 1, stream: str = "stdout") -> None:
    for _ in range(times):
        print(text, file=getattr(sys, stream), flush=True)


def log(level: int, text: str, *args: Any) -> None:
    logging.getLogger("a.library").log(level, text, *args)


def flood(seconds: float) -> int:
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(100):
            print("a line of a rank that prints as fast as it can", n)
            n += 1
    return n


def test_a_script_prints_lines_as_its_processes_do(fresh, screen, session):
    runners = fresh(gpus=1).spawn("runners", Runner)
    runners.run.call(say, "hello").get(timeout=30)
    runners.run.call(say, "trouble", stream="stderr").get(timeout=30)
    session.controller.flush_logs().get(timeout=10)
    assert screen.text("out") == "hello\n" * 2
    assert screen.text("err") == "trouble\n" * 2


def test_a_streamed_line_names_its_mesh_and_rank(fresh, screen):
    async def main() -> None:
        procs = fresh(gpus=2)
        runners = procs.spawn("runners", Runner)
        await procs.logging_option(stream_to_client=True)
        await runners.run.call(say, "hello")
        await procs._logging_manager.flush_async()

    asyncio.run(main())
    found = re.findall(r"\[[^\]]+\] \[(\d)\] hello", screen.text())
    assert sorted(found) == ["0", "1", "2", "3"]


def test_similar_lines_of_all_ranks_become_one(fresh, screen):
    async def main() -> None:
        procs = fresh(gpus=2)
        runners = procs.spawn("runners", Runner)
        await procs.logging_option(stream_to_client=True, aggregate_window_sec=60)
        await runners.run.call(say, "hello", 5)
        await procs._logging_manager.flush_async()

    asyncio.run(main())
    assert re.fullmatch(r"\[[^\]]+\] \[20 similar log lines\] hello\n", screen.text())


def test_a_window_that_ends_shows_its_lines_by_itself(fresh, screen, until):
    procs = fresh(gpus=1)
    asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=0.2))
    procs.spawn("runners", Runner).run.call(say, "hello").get(timeout=30)
    until(lambda: "[2 similar log lines] hello" in screen.text() or screen.text().count("hello") == 2)


def test_processes_log_from_the_level_that_was_set(fresh, screen):
    async def main() -> None:
        procs = fresh(gpus=1)
        runners = procs.slice(hosts=0).spawn("runners", Runner)
        await procs.logging_option(level=logging.ERROR)
        await runners.run.call(log, logging.WARNING, "not this")
        await runners.run.call(log, logging.ERROR, "but this")
        await procs._logging_manager.flush_async()

    asyncio.run(main())
    assert "but this" in screen.text("err")
    assert "not this" not in screen.text("err")


def test_a_log_record_says_which_actor_wrote_it(fresh, screen, session):
    runners = fresh(gpus=1).slice(hosts=0).spawn("runners", Runner)
    runners.run.call(log, logging.ERROR, "%d%% done", 5).get(timeout=30)
    session.controller.flush_logs().get(timeout=10)
    assert re.fullmatch(r"\[actor=.*Runner runners.*\] 5% done\n", screen.text("err"))


def handlers_see(text: str) -> str:
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    logger = logging.getLogger("traces")
    logger.addHandler(Handler())
    logger.error(text)
    return seen[0]


def test_a_record_of_the_program_itself_says_so_unless_it_is_told_not_to(one, monkeypatch):
    assert handlers_see("begun") == "[actor=<root>] begun"
    monkeypatch.setattr(config, "prefix_python_logs_with_actor", False)
    assert handlers_see("begun") == "begun"


def test_an_empty_message_stays_empty(one):
    assert one.spawn("runner", Runner).run.call_one(handlers_see, "").get(timeout=30) == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"level": -1}, "level"),
        ({"level": 256}, "level"),
        ({"aggregate_window_sec": 3}, "stream_to_client"),
        ({"stream_to_client": True, "aggregate_window_sec": 0}, "above 0"),
        ({"stream_to_client": True, "aggregate_window_sec": float("inf")}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(procs, options, says):
    with pytest.raises(ValueError, match=says):
        asyncio.run(procs.logging_option(**options))


def test_flushes_that_overlap_all_end(procs, screen):
    async def main() -> None:
        await asyncio.gather(*(procs._logging_manager.flush_async() for _ in range(20)))

    asyncio.run(main())
    procs._logging_manager.flush()


def test_a_flush_has_a_future_of_its_own_for_who_asks_as_monarch_does(procs, screen):
    flushed = procs._logging_manager._logging_mesh_client.flush(context().actor_instance._as_rust())
    assert flushed.get(timeout=30) is None


def test_a_screen_that_takes_nothing_holds_up_no_call(fresh, session, monkeypatch):
    import threading

    stuck, go = threading.Event(), threading.Event()

    def write(stream: str, text: str) -> None:
        stuck.set()
        go.wait(60)

    runners = fresh(gpus=2).spawn("runners", Runner)
    runners.run.call(say, "ready").get(timeout=30)
    session.controller.flush_logs().get(timeout=10)
    monkeypatch.setattr(session.controller.logs, "write", write)
    try:
        flooding = runners.run.call(flood, 1.0)
        assert stuck.wait(30)
        flooding.get(timeout=30)
        for _ in range(20):
            runners.run.call(len, "abc").get(timeout=10)
        assert len(session.controller.logs._jobs) < 1000  # bounded by what hosts send unconfirmed
    finally:
        monkeypatch.undo()
        monkeypatch.setattr(session.controller.logs, "write", lambda stream, text: None)
        go.set()
    session.controller.flush_logs().get(timeout=30)


def test_an_actor_may_set_how_its_own_processes_log(one, screen):
    def set_level() -> None:
        from monarch_kernel.actor import this_host

        async def main() -> None:
            procs = this_host().spawn_procs(per_host={"gpus": 1})
            await procs.logging_option(level=logging.ERROR)
            with pytest.raises(NotImplementedError):
                await procs.logging_option(stream_to_client=True, aggregate_window_sec=1)

        asyncio.run(main())

    one.spawn("runner", Runner).run.call_one(set_level).get(timeout=30)
