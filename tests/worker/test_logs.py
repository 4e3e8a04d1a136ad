"""The files of the ranks of a host: read as fast as the controller shows them, and never without end."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from monarch_worker import logs
from monarch_worker.logs import Logs, err_of, tail


async def turns(logs):
    """Until it has looked at all files anew, twice."""
    turn = logs._turn
    while logs._turn < turn + 3:  # a thread, which has no event for it
        logs._wake.set()
        await asyncio.sleep(0)


class Host:
    """The reading side of one rank, and a controller that confirms only what it is told to."""

    def __init__(self, folder, loop):
        self.folder = folder
        self.log = str(folder / "rank-r0.log")
        self.sent = []
        self._loop = loop
        self._came = asyncio.Event()
        self.logs = Logs(self._take)
        self.logs.attach(1)

    def _take(self, what, payload):
        if "lines" in what:
            lines = payload.decode().split("\n") if what["lines"] else []
            assert len(lines) == what["lines"]
            what = {**what, "lines": lines}
        self.sent.append(what)
        self._came.set()

    def start(self, *, again=False):
        self.logs.add(7, "rank", 0, self.log, again=again)

    def write(self, data, path=None):
        with open(path or self.log, "ab") as file:
            file.write(data)

    @contextlib.contextmanager
    def looking_away(self):
        """The thread looks at nothing for the time of a block."""
        away, back = threading.Event(), threading.Event()
        self.logs._do(lambda: (away.set(), back.wait()))
        assert away.wait(10)
        try:
            yield
        finally:
            back.set()

    @property
    def lines(self):
        return [line for what in self.sent for line in what.get("lines", ())]

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                self._came.clear()
                await self._came.wait()

    async def flushed(self, token=5):
        self.logs.heard({"link": 1, "flush": token})
        await self.until(lambda: {"flushed": token, "link": 1} in self.sent)


@pytest.fixture
def run(tmp_path):
    """Run a test's coroutine with a host; the loop stays open while its thread may use it."""

    def run(test):
        async def main():
            await test(Host(tmp_path, asyncio.get_running_loop()))

        asyncio.run(main())

    return run


def test_lines_of_output_and_errors_are_sent_as_they_come(run):
    async def test(host):
        host.start()
        host.write(b"one\ntwo\n")
        host.write(b"bad\n", err_of(host.log))
        await host.until(lambda: len(host.lines) == 3)
        streams = {line: what["stream"] for what in host.sent for line in what["lines"]}
        assert streams == {"one": "out", "two": "out", "bad": "err"}

    run(test)


def test_a_flush_is_answered_after_all_that_was_there(run):
    async def test(host):
        host.start()
        host.write(b"x\n" * 5000 + b"no end of the line")
        await host.flushed()
        assert host.lines == ["x"] * 5000 + ["no end of the line"]

    run(test)


def test_nothing_is_read_ahead_of_what_is_shown(run, monkeypatch):
    monkeypatch.setattr(logs, "CREDIT", 100_000)

    async def test(host):
        host.logs.attach(2)  # begins with the smaller credit
        host.start()
        host.write(b"x" * 99 + b"\n")
        host.write((b"x" * 99 + b"\n") * 10_000)
        await host.until(lambda: len(host.lines) > 600)
        await turns(host.logs)
        sent = sum(what["cost"] for what in host.sent)
        assert sent < 100_000 + logs.CHUNK + 1000
        host.logs.heard({"link": 2, "shown": sent})
        await host.until(lambda: sum(what["cost"] for what in host.sent) > 1.5 * sent)

    run(test)


def test_who_is_too_far_behind_gets_the_end_and_a_count(run, monkeypatch):
    monkeypatch.setattr(logs, "BEHIND", 1 << 18)

    async def test(host):
        host.write(b"x\n" * (1 << 18) + b"the last\n")
        host.start()
        await host.until(lambda: "the last" in host.lines)
        left_out = sum(what["left_out"] for what in host.sent)
        assert left_out > 0
        assert len(host.lines) + left_out == (1 << 18) + 1

    run(test)


def test_a_file_begins_anew_before_it_is_too_large_and_no_line_is_shown_twice(run, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 20_000)
    monkeypatch.setattr(logs, "KEPT", 5_000)

    async def test(host):
        host.start()
        for n in range(5):
            with host.looking_away():  # a write that is half done when the file begins anew loses its other half
                host.write(b"".join(b"%d %d\n" % (n, i) for i in range(3000)))
            await host.until(lambda n=n: f"{n} 2999" in host.lines)
            await turns(host.logs)
        assert len(host.lines) == len(set(host.lines)) == 15_000
        assert host.logs._files[host.log].size() < 50_000
        assert len((host.folder / "rank-r0.log.1").read_bytes()) == 5_000
        assert tail(host.log, 3).endswith("4 2998\n4 2999")

    run(test)


def test_what_could_not_be_sent_before_a_file_begins_anew_is_counted(run, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 200_000)
    monkeypatch.setattr(logs, "KEPT", 5_000)
    monkeypatch.setattr(logs, "CREDIT", 50_000)

    async def test(host):
        host.logs.attach(2)
        host.write(b"a line\n" * 40_000)
        host.start()
        await turns(host.logs)
        host.logs.heard({"link": 2, "shown": 100_000})
        await host.until(lambda: any(what.get("left_out") for what in host.sent))
        assert len(host.lines) + sum(what.get("left_out", 0) for what in host.sent) == 40_000

    run(test)


def test_a_mesh_that_nobody_wants_to_see_sends_nothing(run):
    async def test(host):
        host.start()
        host.logs.stream(7, False)
        host.write(b"hidden\n")
        await host.flushed(1)
        host.logs.stream(7, True)
        await host.flushed(2)
        host.write(b"seen\n")
        await host.until(lambda: host.lines == ["seen"])

    run(test)


def test_a_controller_that_comes_hears_how_much_it_missed(run):
    async def test(host):
        host.start()
        host.write(b"seen\n")
        await host.until(lambda: host.lines == ["seen"])
        host.logs.attach(0)
        host.write(b"a\nb\nc\n")
        await turns(host.logs)
        host.logs.attach(2)
        await host.until(lambda: {"missed": {"rank": 3}, "link": 2} in host.sent)
        assert host.lines == ["seen"]

    run(test)


def test_a_daemon_that_is_new_goes_on_where_the_one_before_stopped(run):
    async def test(host):
        host.write(b"seen\nnew\n")
        host.start(again=True)
        host.logs.heard({"link": 1, "positions": {host.log: 5}, "quiet": []})
        await host.until(lambda: host.lines == ["new"])

    run(test)


def test_what_a_rank_printed_last_is_sent_though_it_ended(run):
    async def test(host):
        host.start()
        host.write(b"no end of the line")
        host.logs.ended(7, 0)
        await host.until(lambda: host.lines == ["no end of the line"])

    run(test)


def test_there_is_one_thread_for_all_ranks(run):
    async def test(host):
        before = threading.active_count()
        for rank in range(50):
            host.logs.add(7, "rank", rank, host.log + str(rank))
        await host.flushed()
        assert threading.active_count() == before

    run(test)
