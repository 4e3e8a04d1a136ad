"""A cell waits, inside its own execution, for what it started, and fails where that fails."""

from __future__ import annotations

import pytest

PREPARE = """
import asyncio, threading, time
from concurrent.futures import Future
from monarch_kernel.kernel import loaded
pending = []
def source():
    waits = [until(f) for f in pending]
    pending.clear()
    return waits
def until(future):
    def wait(seconds):
        try:
            future.result(seconds)
        except TimeoutError:
            return False
        return True
    return wait
loaded().barrier.add(source)
def start(outcome, seconds=0.2):
    future = Future()
    act = future.set_exception if isinstance(outcome, Exception) else future.set_result
    threading.Timer(seconds, act, [outcome]).start()
    pending.append(future)
    return future
"""
FAILING = "start(RuntimeError('the constructor of rank 2 failed'))\nprint('the code itself ran')"
KINDS = {"with await": "await asyncio.sleep(0)\n", "without await": ""}


@pytest.fixture(autouse=True)
def prepared(kernel):
    assert kernel.run("'start' in globals() or exec('''" + PREPARE + "''', globals())").status == "ok"
    return kernel


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_ends_after_what_it_started(kernel, kind):
    reply = kernel.run(KINDS[kind] + "f = start('done', 0.5)\nf.done()")
    assert (reply.status, reply.result) == ("ok", "False")
    assert kernel.run("f.done()").result == "True"


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_of_what_it_started_fails_the_cell(kernel, kind):
    reply = kernel.run(KINDS[kind] + FAILING)
    assert (reply.status, reply.ename) == ("error", "RuntimeError")
    assert reply.evalue == "the constructor of rank 2 failed"
    assert "the constructor of rank 2 failed" in reply.traceback
    assert "barrier.py" not in reply.traceback
    assert reply.stdout == "the code itself ran\n"
    assert kernel.run("1 + 1").result == "2"


def test_the_first_of_several_failures_is_shown(kernel):
    reply = kernel.run("start(ValueError('first'), 0.3); start(ValueError('second'), 0.1)")
    assert reply.evalue == "first"


@pytest.mark.parametrize("again", range(5))  # at its start is where an interrupt can get lost
@pytest.mark.parametrize("kind", KINDS)
def test_the_wait_can_be_interrupted(kernel, kind, again):
    code = KINDS[kind] + "pending.append(Future())\nprint('begun', flush=True)"
    reply, seconds = kernel.interrupt_when(code, "begun")
    print(f"{kind}: ended {seconds:.2f} s after the interrupt")
    assert (reply.status, reply.ename) == ("error", "KeyboardInterrupt")
    assert seconds < 3
    # Where the interrupt came before the wait began, the cell failed by itself and nobody took its work.
    assert kernel.run("pending.clear()\nawait asyncio.sleep(0, 'next')").result == "'next'"


def test_a_cell_that_failed_by_itself_is_not_kept_waiting(kernel):
    reply = kernel.run("pending.append(Future())\n1 / 0")
    assert reply.ename == "ZeroDivisionError"
    kernel.run("pending.clear()")


def test_the_rest_of_a_queue_of_cells_is_not_run(kernel):
    first = kernel.submit(FAILING)
    second = kernel.submit("reached = True")
    assert kernel.collect(first).status == "error"
    assert kernel.collect(second).status == "aborted"


@pytest.mark.parametrize("name", ["monarch", "plain"])
def test_nbclient_stops_there(kernelspecs, environment, monkeypatch, tmp_path, name):
    import nbclient
    import nbformat

    monkeypatch.setenv("JUPYTER_PATH", str(kernelspecs.parent))
    monkeypatch.setenv("IPYTHONDIR", environment["IPYTHONDIR"])
    monkeypatch.setenv("XDG_STATE_HOME", environment["XDG_STATE_HOME"])
    notebook = nbformat.v4.new_notebook()
    sources = ["%load_ext monarch_kernel", PREPARE, FAILING, "print('must not run')"]
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources[name == "monarch" :]]
    client = nbclient.NotebookClient(
        notebook, kernel_name=name, timeout=30, resources={"metadata": {"path": str(tmp_path)}}
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="the constructor of rank 2 failed"):
        client.execute()
    assert notebook.cells[-1].outputs == []
    assert notebook.cells[-1].execution_count is None
