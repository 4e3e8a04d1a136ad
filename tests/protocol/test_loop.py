"""One I/O thread with one loop: jobs in order from any thread, and no way to wait for oneself."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from monarch_kernel.errors import MonarchError
from monarch_kernel.protocol.loop import Batch, IOThread


@pytest.fixture
def io():
    made = IOThread("test")
    made.start()
    yield made
    made.stop()


def finish(io):
    """Wait until everything posted before has run."""
    done = threading.Event()
    io.post(done.set)
    assert done.wait(10)


def test_jobs_of_each_thread_run_in_its_order(io):
    ran = []
    threads = [
        threading.Thread(target=lambda t=t: [io.post(ran.append, (t, n)) for n in range(2000)]) for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(io)
    assert len(ran) == 8000
    for t in range(4):
        assert [n for thread, n in ran if thread == t] == list(range(2000))


def test_a_job_that_fails_is_reported_and_the_next_ones_run(io):
    said, ran = [], []
    io.loop.call_soon_threadsafe(io.loop.set_exception_handler, lambda loop, context: said.append(context["exception"]))
    for job in (ran.append, 1), (lambda n: 1 / 0, 2), (ran.append, 3):
        io.post(*job)
    finish(io)
    assert ran == [1, 3]
    assert [type(error) for error in said] == [ZeroDivisionError]


def test_what_a_burst_causes_is_written_once(io):
    written, gate = [], threading.Event()
    batch = Batch.of(io.loop)
    io.post(gate.wait)

    def job(n):
        batch.add(lambda: written.append((n, threading.current_thread().name)))

    for n in range(5):
        io.post(job, n)
    io.post(lambda: written.append("all jobs have run"))
    gate.set()
    finish(io)
    assert written[0] == "all jobs have run"
    assert written[1:] == [(n, "monarch-io-test") for n in range(5)]


def test_outside_of_an_event_a_batch_is_written_in_the_next_turn():
    async def test():
        batch, written = Batch.of(asyncio.get_running_loop()), []
        batch.add(lambda: written.append(1))
        with batch:
            batch.add(lambda: written.append(2))
            with batch:
                pass
            assert written == []
        assert written == [1, 2]
        batch.add(lambda: written.append(3))
        await asyncio.sleep(0)
        assert written == [1, 2, 3]

    asyncio.run(test())


def test_waiting_has_a_result_an_error_or_a_time_out_that_cancels(io):
    cancelled = threading.Event()

    async def value():
        return 42

    async def wrong():
        raise KeyError("x")

    async def long():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def own_timeout():
        raise TimeoutError("of its own")

    assert io.run(value()) == 42
    with pytest.raises(KeyError):
        io.run(wrong())
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        io.run(long(), 0.05)
    assert cancelled.wait(5)
    with pytest.raises(TimeoutError, match="of its own"):
        io.run(own_timeout(), 5)


def test_waiting_on_the_thread_itself_is_refused(io):
    async def nothing():
        pass

    said = []

    def wait():
        try:
            io.run(nothing())
        except MonarchError as error:
            said.append(str(error))

    io.post(wait)
    finish(io)
    assert "wait for itself" in said[0]


def test_a_fork_is_told_instead_of_hanging(io):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            io.check_process()
            os.write(write, b"no error")
        except MonarchError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert "forked" in said.read()
    assert os.waitpid(pid, 0)[1] == 0
    io.check_process()


def test_after_the_end_nothing_that_is_said_is_an_error(io):
    io.stop()
    io.post(print, "nobody hears")
    io.stop()
    assert not any(t.name == "monarch-io-test" for t in threading.enumerate())
