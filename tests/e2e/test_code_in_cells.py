"""Ordinary cells that use a mesh: waiting in every way, errors as a person wants them, faults that nobody waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.parametrize("front_end", [True], indirect=True, ids=["cellId"])

CLASS = """
import enum, numpy
class Kind(enum.Enum):
    A = 1

class Worker(Actor):
    dtype = numpy.dtype("float32")

    def __init__(self):
        self.seen = []

    @endpoint
    def add(self, n):
        self.seen.append(n)
        return n

    @endpoint
    def all(self):
        return self.seen

    @endpoint
    def fail(self, why="no reason"):
        raise LookupError(why)

    @endpoint
    def block(self):
        time.sleep(60)

    @endpoint
    def sleep(self, seconds):
        time.sleep(seconds)

    @endpoint
    def zeros(self, n):
        return numpy.zeros(n, self.dtype), Kind.A

    @endpoint
    def version(self):
        return 1
"""
SPAWN = "procs = mk.hosts().spawn_procs(per_host={'gpus': 2})\nworkers = procs.spawn('workers', Worker)"


@pytest.fixture(scope="module")
def cells(lab):
    """A notebook with two workers that all tests use; `one` is the first of them."""
    lab.ok(CLASS, "class")
    lab.ok(SPAWN, "spawn")
    lab.ok("one = workers.slice(gpus=0)")
    return lab


@pytest.fixture
def victims(cells):
    """The same with two more workers, which may be harmed."""
    spawn = "others = mk.hosts().spawn_procs(per_host={'gpus': 2})\nvictims = others.spawn('victims', Worker)"
    cells.ok(f"{spawn}\nvictim = victims.slice(gpus=0)", "victims")
    yield cells
    cells.ok("others.stop().get(20)")


# -- waiting


@pytest.mark.parametrize(
    "code",
    [
        "one.add.call_one(1).get()",
        "await one.add.call_one(1)",
        "import asyncio\nawait asyncio.wait_for(one.add.call_one(1), 10)",
        "import asyncio\n(await asyncio.gather(one.add.call_one(1), one.add.call_one(2)))[0]",
        "sum([await f for f in workers.add.stream(1)]) // 2",
        "async def ask():\n    return await one.add.call_one(1)\nawait ask()",
        "async def ask():\n    return one.add.call_one(1).get()\nawait ask()",
        "async def ask():\n    await procs.initialized, await workers.initialized\n    return 1\nawait ask()",
        "import asyncio\nasync def a(): return await one.add.call_one(1)\nawait asyncio.to_thread(asyncio.run, a())",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor().submit(one.add.call_one(1).get).result()",
    ],
)
def test_an_answer_can_be_had_in_every_way(cells, code):
    reply = cells.run(code)
    assert (reply.status, reply.result, reply.stderr) == ("ok", "1", ""), reply


def test_twenty_queued_cells_with_blocking_calls_run_in_order(cells):
    before = len(cells.value("one.all.call_one().get()"))
    sent = [cells.submit(f"print(one.add.call_one({number}).get())") for number in range(20)]
    said = [cells.kernel.collect(one, timeout=30) for one in sent[-1:]]
    assert said[0].stdout == "19\n"
    assert cells.value("one.all.call_one().get()")[before:] == list(range(20))


def test_an_interrupt_ends_a_wait_and_nothing_else(victims):
    for wait in ("victim.block.call_one().get()", "await victim.block.call_one()"):
        reply, seconds = victims.kernel.interrupt_when(f"print('begun', flush=True)\n{wait}", "begun")
        assert reply.status == "error"
        assert reply.ename in ("KeyboardInterrupt", "CancelledError")
        assert seconds < 3
        assert "monarch_kernel/" not in reply.traceback
    assert victims.value("victims.slice(gpus=1).add.call_one(5).get()") == 5


# -- errors


def shown(reply):
    """The lines of a traceback that show code of files, by file."""
    return [line for line in reply.traceback.splitlines() if line.startswith(("File ", "Cell "))]


@pytest.mark.parametrize(
    ("line", "name", "text"),
    [
        ("one.fail.call_one('no data').get()", "ActorError", "raised LookupError.\n"),
        ("await one.fail.call_one('no data')", "ActorError", "raised LookupError.\n"),
        ("workers.nope", "AttributeError", "has no endpoint 'nope'"),
        ("workers.ad", "AttributeError", "did you mean add?"),
        ("workers.add.call()", "TypeError", "missing a required argument: 'n'"),
        ("workers.add.call_one(1)", "ValueError", "call_one is for a mesh of one actor"),
        ("workers.add(1)", "TypeError", "is called with an adverb"),
        ("workers.slice(gpus=7)", "IndexOutOfRange", "index 7 is out of range"),
        ("one.sleep.call_one(0.3).get(timeout=0.1)", "TimeoutError", "no answer within 0.1 s"),
        ("one.add.call_one(__import__('threading').Lock())", "TypeError", "cannot pickle"),
        ("procs.spawn('x', int)", "TypeError", "is no actor class"),
        ("procs.spawn('x', Worker, 1, 2)", "TypeError", "too many positional arguments"),
        ("mk.hosts().spawn_procs(per_host={'hosts': 2})", "ValueError", "the hosts have a dimension 'hosts' already"),
        ("mk.attach('nobody')", "NoSuchSession", "no live session 'nobody'"),
        ("mk.up('lab', hosts=3)", "SpecMismatch", "hosts: asked 3, it has 1"),
        ("mk.down('nobody')", "NoSuchSession", "no session 'nobody'"),
    ],
)
def test_an_error_shows_the_users_line_and_the_message(cells, line, name, text):
    reply = cells.fails(f"before = 1\n{line}\nafter = 2")
    assert reply.ename == name
    assert text in reply.evalue
    assert f"----> 2 {line}" in reply.traceback
    assert len(shown(reply)) == 1, reply.traceback
    assert shown(reply)[0].startswith("Cell In[")
    assert text.splitlines()[0] in reply.traceback


def test_an_error_of_an_endpoint_shows_its_own_lines_and_none_of_ours(cells):
    reply = cells.fails("one.fail.call_one('no data').get()")
    assert "raise LookupError(why)" in reply.evalue
    assert "LookupError: no data" in reply.evalue
    assert "monarch_kernel/" not in reply.traceback
    assert "Error" in cells.ok(
        "try:\n    one.fail.call_one().get()\nexcept Exception as e:\n    print(type(e), e.rank)"
    )


def test_frames_of_a_users_library_are_shown(cells, tmp_path):
    (tmp_path / "a_helper_module.py").write_text("def ask(mesh):\n    return mesh.fail.call_one('why').get()\n")
    cells.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules.pop('a_helper_module', None)")
    reply = cells.fails("import a_helper_module\na_helper_module.ask(one)")
    assert [line.partition(":")[0].partition("[")[0] for line in shown(reply)] == [
        "Cell In",
        f"File {tmp_path}/a_helper_module.py",
    ]


def test_a_bug_of_ours_keeps_its_traceback(cells):
    cells.ok("runtime = procs._handle.runtime; kept = runtime.proc_spec; runtime.proc_spec = lambda: {}['x']")
    reply = cells.fails("mk.hosts().spawn_procs()")
    cells.ok("runtime.proc_spec = kept")
    assert reply.ename == "KeyError"
    assert "monarch_kernel/actor/_hosts.py" in reply.traceback


# -- faults that nobody waits for


def run_until_said(cells, timeout: float = 10.0) -> str:
    deadline = time.monotonic() + timeout
    while not (reply := cells.run("time.sleep(0.02)")).stderr:
        assert reply.status == "ok"
        assert time.monotonic() < deadline, "nothing was said"
    return reply.stderr


def test_a_broadcast_that_fails_is_shown_once(victims):
    reply = victims.run("victim.fail.broadcast('nobody hears')")
    assert reply.status == "ok"
    said = reply.stderr or run_until_said(victims)  # it may be there before that cell has ended
    assert said.count("LookupError: nobody hears") <= 2  # in the first line, and at the end of its traceback
    assert "victims, rank 0" in said
    assert "_actor.py" not in said
    assert victims.run("1").stderr == ""
    assert "nobody hears" in victims.fails("victim.add.call_one(1).get()").evalue
    assert victims.run("victims.slice(gpus=1).add.call_one(1).get()").result == "1"


def test_an_idle_actor_that_is_killed_is_shown_at_the_next_cell(victims):
    pid = victims.kernel.pid
    os.kill(int(victims.run("mk.session().find('others')[0].ranks[0].pid").result), 9)
    said = run_until_said(victims)
    assert "rank 0" in said
    assert "SIGKILL" in said
    assert said.count("monarch: ") == 1
    assert victims.run("1").stderr == ""
    assert victims.kernel.pid == pid
    assert Path(f"/proc/{pid}").exists()
    assert "SIGKILL" in victims.fails("victim.add.call_one(1).get()").evalue


def test_a_hook_that_a_cell_has_set_is_called_instead_and_one_that_raises_is_shown(victims):
    victims.ok("import monarch_kernel.actor, threading\nfailures, some = [], threading.Event()")
    victims.ok(
        "def hook(failure):\n    failures.append(failure)\n    some.set()\n"
        "default, monarch_kernel.actor.unhandled_fault_hook = monarch_kernel.actor.unhandled_fault_hook, hook"
    )
    try:
        reply = victims.run("victim.fail.broadcast('for the hook')\nassert some.wait(10)\nfailures[0].mesh_name")
        assert (reply.result, reply.stderr) == ("'victims'", "")
        assert victims.run("len(failures)").result == "1"
        victims.ok("def hook(failure):\n    raise RuntimeError('a hook that fails')")
        victims.ok("monarch_kernel.actor.unhandled_fault_hook = hook")
        reply = victims.run("victims.slice(gpus=1).fail.broadcast('again')")
        assert reply.status == "ok"
        said = reply.stderr or run_until_said(victims)
        assert "a hook that fails" in said
        assert "LookupError: again" in said
    finally:
        victims.ok("monarch_kernel.actor.unhandled_fault_hook = default")


# -- code


def test_types_of_native_modules_at_the_top_of_a_cell_work(cells):
    assert cells.run("array, kind = one.zeros.call_one(3).get()\narray.dtype.name, kind is Kind.A").result == (
        "('float32', True)"
    )


def test_a_function_of_the_same_name_with_another_body_is_another_function(cells):
    cells.ok("class Runner(Actor):\n    @endpoint\n    def run(self, f, x): return f(x)", "runner")
    cells.ok("runner = procs.spawn('runner', Runner).slice(gpus=0)", "spawn-runner")
    for factor in (1, 2, 3):
        cells.ok(f"def f(x): return {factor} * x", "f")
        assert cells.value("runner.run.call_one(f, 10).get()") == 10 * factor


def test_a_large_global_that_is_not_used_stays_at_home_and_one_that_is_used_is_named(cells):
    cells.ok("unused = numpy.zeros(300_000_000, 'u1'); used = numpy.ones(110_000_000, 'u1')")
    cells.ok("class Small(Actor):\n    @endpoint\n    def n(self): return 1", "small")
    began = time.monotonic()
    assert cells.run("procs.slice(gpus=0).spawn('small', Small)", "spawn-small").stderr == ""
    assert time.monotonic() - began < 5
    cells.ok("class Large(Actor):\n    @endpoint\n    def n(self): return len(used)", "large")
    reply = cells.run("large = procs.slice(gpus=0).spawn('large', Large)", "spawn-large")
    assert reply.status == "ok"
    assert "LargeCaptureWarning" in reply.stderr
    assert "used" in reply.stderr
    assert "110" in reply.stderr
