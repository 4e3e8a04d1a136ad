"""Cells that are run again: what is kept, replaced, made, stopped and orphaned, in a real kernel."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from processes import alive, gone, until

from monarch_kernel.kernel import specs

CLASS = """
class Worker(Actor):
    calls = 0

    def __init__(self, start=0):
        self.n = start

    @endpoint
    def add(self):
        self.n += 1
        return self.n

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def count(self):
        Worker.calls += 1
        return Worker.calls
"""
SPAWN = 'procs = mk.hosts().spawn_procs(per_host={"gpus": 2})\nworkers = procs.spawn("workers", Worker)'
PIDS = "workers.pid.call().get().values()"
ADD = "workers.add.call().get().values()"
LIVE = "sorted([*mk.session().procs, *mk.session().actors])"


def begin(notebook: Any) -> list[int]:
    """Define the class and spawn; returns the pids."""
    notebook.ok(CLASS, "class")
    assert notebook.ok(SPAWN, "spawn") == "monarch: made procs (2), workers\n"
    pids = notebook.value(PIDS)
    assert len(set(pids)) == 2
    return pids


def test_a_spawn_cell_run_again_keeps_processes_and_state(notebook):
    pids = begin(notebook)
    assert notebook.value(ADD) == [1, 1]
    for _ in range(2):
        assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2), workers\n"
    assert notebook.value(PIDS) == pids
    assert notebook.value(ADD) == [2, 2]
    assert notebook.value(LIVE) == ["procs", "workers"]


def test_an_unchanged_class_run_again_is_the_same_class_everywhere(notebook):
    code = (
        CLASS
        + """
    @endpoint
    def make(self):
        return Reading(3), Colour.RED

    @endpoint
    def check(self, reading, colour):
        return isinstance(reading, Reading), colour is Colour.RED
"""
    )
    code = (
        "import enum\nclass Colour(enum.Enum):\n    RED = 1\nclass Reading:\n    def __init__(self, v): self.v = v\n"
        + code
    )
    notebook.ok(code, "class")
    notebook.ok(SPAWN, "spawn")
    assert notebook.value("workers.count.call().get().values()") == [1, 1]
    look = "[(isinstance(r, Reading), c is Colour.RED) for r, c in workers.make.call().get().values()]"
    ask = "workers.check.call(Reading(1), Colour.RED).get().values()"
    for _ in range(2):
        assert notebook.value(look) == [(True, True)] * 2
        assert notebook.value(ask) == [(True, True)] * 2
        notebook.ok(code, "class")
        assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2), workers\n"
    # What was set on the class over there is not reset by sending it again.
    assert notebook.value("workers.count.call().get().values()") == [2, 2]
    assert notebook.value("workers.check.call(Reading(1), Colour.RED).get().values()") == [(True, True)] * 2
    assert notebook.value("workers.count.call().get().values()") == [3, 3]


def test_an_edited_class_replaces_the_actors_on_the_same_processes(notebook):
    pids = begin(notebook)
    notebook.value(ADD)
    notebook.ok(CLASS.replace("+= 1\n        return self.n", "+= 10\n        return self.n"), "class")
    assert notebook.value(ADD) == [2, 2]  # until the spawn is run again, what lives keeps the code that it has
    assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2); replaced workers (its code changed)\n"
    assert notebook.value(ADD) == [10, 10]
    assert notebook.value(PIDS) == pids
    assert notebook.value(LIVE) == ["procs", "workers"]


def test_an_edited_helper_of_the_class_replaces_the_actors(notebook):
    using = CLASS.replace("self.n += 1", "self.n = helper(self.n)")
    notebook.ok("def helper(n):\n    return n + 1", "helper")
    notebook.ok(using, "class")
    notebook.ok(SPAWN, "spawn")
    assert notebook.value(ADD) == [1, 1]
    notebook.ok("def helper(n):\n    return n + 100", "helper")
    assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2); replaced workers (its code changed)\n"
    assert notebook.value(ADD) == [100, 100]


def test_comments_blank_lines_and_docstrings_are_no_changes(notebook):
    pids = begin(notebook)
    notebook.value(ADD)
    edited = CLASS.replace("class Worker(Actor):\n", '\n\n# a word\nclass Worker(Actor):\n    """Counts."""\n\n')
    edited = edited.replace("self.n += 1", "# one more\n\n        self.n += 1")
    notebook.ok(edited, "class")
    assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2), workers\n"
    assert notebook.value(ADD) == [2, 2]
    assert notebook.value(PIDS) == pids


def test_an_edited_class_that_does_not_start_leaves_the_old_actors(notebook):
    begin(notebook)
    notebook.value(ADD)
    notebook.ok(CLASS.replace("self.n = start", "self.n = start / 0"), "class")
    reply = notebook.fails(SPAWN, "spawn")
    assert reply.ename == "ConstructorFailed"
    first, *_, last = reply.evalue.splitlines()
    assert first.startswith("Worker(...) of workers, rank ")
    assert first.endswith("raised ZeroDivisionError: division by zero")
    assert last == "ZeroDivisionError: division by zero"
    assert "self.n = start / 0" in reply.evalue
    assert '----> 2 workers = procs.spawn("workers", Worker)' in reply.traceback
    assert "monarch_kernel/" not in reply.traceback
    assert "monarch_worker/" not in reply.traceback
    assert reply.stdout.splitlines() == [
        "monarch: kept procs (2)",
        "monarch: the workers from before is as it was; the variable workers holds it again",
    ]
    assert notebook.value(ADD) == [2, 2]
    assert notebook.value(LIVE) == ["procs", "workers"]
    # Mended, it takes their place.
    notebook.ok(CLASS.replace("self.n += 1", "self.n += 5"), "class")
    assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2); replaced workers (its code changed)\n"
    assert notebook.value(ADD) == [5, 5]


def test_a_constructor_that_raises_fails_the_cell_and_leaves_no_mesh(notebook):
    notebook.ok(CLASS.replace("self.n = start", "raise LookupError('no data')"), "class")
    reply = notebook.fails(SPAWN, "spawn")
    assert reply.ename == "ConstructorFailed"
    assert "raised LookupError: no data" in reply.evalue.splitlines()[0]
    assert reply.stdout == "monarch: made procs (2)\n"
    assert notebook.value(LIVE) == ["procs"]
    assert "raised LookupError: no data" in notebook.fails(ADD).evalue  # the handle says it too
    notebook.ok(CLASS, "class")
    assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2); made workers\n"


def test_a_module_that_is_missing_over_there_fails_the_cell_once(notebook):
    notebook.ok(CLASS.replace("self.n = start", "import a_module_that_is_not_there"), "class")
    began = time.monotonic()
    reply = notebook.fails(SPAWN, "spawn")
    assert "ModuleNotFoundError: No module named 'a_module_that_is_not_there'" in reply.evalue
    assert time.monotonic() - began < 10


def test_changed_arguments_replace_and_what_cannot_be_compared_is_kept_and_said(notebook):
    notebook.ok(CLASS, "class")
    spawn = SPAWN.replace("Worker)", "Worker, START)")
    notebook.ok("START = 1")
    assert notebook.ok(spawn, "spawn") == "monarch: made procs (2), workers\n"
    assert notebook.ok(spawn, "spawn") == "monarch: kept procs (2), workers\n"
    notebook.ok("START = 7")
    assert notebook.ok(spawn, "spawn") == "monarch: kept procs (2); replaced workers (its arguments changed)\n"
    assert notebook.value(ADD) == [8, 8]
    notebook.ok("class Odd:\n    pass\nSTART = Odd()")
    assert notebook.ok(spawn, "spawn") == (
        "monarch: kept procs (2), workers (its arguments cannot be compared and count as the same)\n"
    )


def test_two_equal_cells_are_two_meshes_where_cells_have_ids(notebook):
    begin(notebook)
    notebook.value(ADD)
    said = notebook.ok(SPAWN, "spawn-2")
    if notebook.ids:
        assert said == (
            "monarch: made procs (2; the one from before stays, as procs~2), "
            "workers (the one from before stays, as workers~2)\n"
        )
        assert notebook.value(ADD) == [1, 1]
        assert notebook.value(LIVE) == ["procs", "procs~2", "workers", "workers~2"]
        # Each cell finds its own again.
        assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs~2 (2), workers~2\n"
        assert notebook.value(ADD) == [2, 2]
        assert notebook.ok(SPAWN, "spawn-2") == "monarch: kept procs (2), workers\n"
        assert notebook.value(ADD) == [2, 2]
    else:
        # Without ids, cells of equal source are one cell.
        assert said == "monarch: kept procs (2), workers\n"
        assert notebook.value(LIVE) == ["procs", "workers"]


def test_a_changed_shape_of_processes_says_what_it_stops(notebook):
    notebook.ok("N = 2\n" + CLASS, "class")
    spawn = SPAWN.replace('"gpus": 2', '"gpus": N')
    notebook.ok(spawn, "spawn")
    pids = notebook.value(PIDS)
    notebook.ok("N = 1")
    first, *rest = notebook.ok(spawn, "spawn").splitlines()
    assert first.startswith("monarch: procs is replaced: its placement changed")
    assert first.endswith("; with it ends workers")
    assert len(rest) == 1
    assert "replaced procs (1; " in rest[0]
    until(lambda: all(map(gone, pids)))
    assert len(notebook.value(PIDS)) == 1
    assert notebook.value(LIVE) == ["procs", "workers"]


def test_processes_are_kept_while_they_start_in_the_same_way(notebook):
    bootstrap = "def prepare():\n    os.environ['PREPARED'] = 'once'\n"
    notebook.ok(CLASS, "class")
    spawn = bootstrap + SPAWN.replace("}", "}, bootstrap=prepare")
    notebook.ok(spawn, "spawn")
    pids = notebook.value(PIDS)
    assert notebook.ok(spawn, "spawn") == "monarch: kept procs (2), workers\n"
    assert notebook.value(LIVE) == ["procs", "workers"]
    edited = spawn.replace("once", "again")
    assert "monarch: procs is replaced" in notebook.ok(edited, "spawn")
    until(lambda: all(map(gone, pids)))
    assert set(notebook.value(PIDS)).isdisjoint(pids)


def test_a_bootstrap_that_raises_fails_the_cell_and_leaves_no_processes(notebook):
    notebook.ok(CLASS, "class")
    bootstrap = "def prepare():\n    raise LookupError('no data set')\n"
    reply = notebook.fails(bootstrap + SPAWN.replace("}", "}, bootstrap=prepare"), "spawn")
    assert "no data set" in reply.traceback
    until(lambda: notebook.value(LIVE) == [])


def test_what_a_library_spawns_is_new_each_time_and_stopped_when_its_cell_is_run_again(notebook, tmp_path):
    (tmp_path / "a_library.py").write_text(
        "import monarch_kernel as mk\n"
        "def pool(Class):\n"
        "    procs = mk.hosts().spawn_procs(per_host={'gpus': 1})\n"
        "    return procs.spawn('pool', Class)\n"
    )
    notebook.ok(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules.pop('a_library', None)\nimport a_library"
    )
    notebook.ok(CLASS, "class")
    one = "workers = a_library.pool(Worker)"
    assert notebook.ok(one, "one").startswith("monarch: made procs")
    (first,) = notebook.value(PIDS)
    notebook.ok("workers = a_library.pool(Worker)  # another cell", "two")
    (second,) = notebook.value(PIDS)
    said = notebook.ok(one, "one")
    assert "stopped procs" in said
    assert "made procs" in said
    (third,) = notebook.value(PIDS)
    assert len({first, second, third}) == 3
    until(lambda: gone(first))
    assert alive(second)


def test_what_a_cell_no_longer_spawns_is_orphaned_once_it_succeeds(notebook):
    notebook.ok(CLASS, "class")
    both = "procs = mk.hosts().spawn_procs()\na = procs.spawn('a', Worker)\nb = procs.spawn('b', Worker)"
    if not notebook.ids:
        both = both.replace("\nb =", "\nif PART: raise SystemError('half way')\nif MORE: b =")
        notebook.ok("PART, MORE = False, True")
    less = both if not notebook.ids else both.partition("\nb =")[0]
    assert notebook.ok(both, "both") == "monarch: made procs (1), a, b\n"
    if notebook.ids:
        failing = less + "\nraise SystemError('half way')"
    else:
        failing = less
        notebook.ok("PART = True")
    assert notebook.fails(failing, "both").stdout == "monarch: kept procs (1), a\n"
    notebook.ok("PART, MORE = False, False")
    assert notebook.ok(less, "both") == "monarch: kept procs (1), a; no longer spawned: b (orphaned by re-run)\n"
    assert notebook.ok(less, "both") == "monarch: kept procs (1), a\n"
    assert notebook.value("b.add.call().get().values()") == [1]  # it lives on
    assert notebook.value(LIVE) == ["a", "b", "procs"]


def test_the_policies(notebook):
    pids = begin(notebook)
    assert "Re-run policy: reuse" in str(notebook.run("%monarch rerun").displayed)
    notebook.ok("%monarch rerun replace")
    said = notebook.ok(SPAWN, "spawn")
    assert "replaced procs (2; the re-run policy is 'replace'" in said
    until(lambda: all(map(gone, pids)))
    pids = notebook.value(PIDS)
    assert notebook.value(LIVE) == ["procs", "workers"]
    notebook.ok("%monarch rerun new")
    said = notebook.ok(SPAWN, "spawn")
    assert said == (
        "monarch: made procs (2; the one from before stays, as procs~2), "
        "workers (the one from before stays, as workers~2); "
        "no longer spawned: procs~2, workers~2 (orphaned by re-run)\n"
    )
    assert not set(pids) & set(notebook.value(PIDS))
    assert notebook.value(LIVE) == ["procs", "procs~2", "workers", "workers~2"]


def test_an_edited_cell_finds_its_meshes(notebook):
    """Without an id the edited cell is another one: it finds what nobody else holds by its name."""
    pids = begin(notebook)
    said = notebook.ok(SPAWN + "\nprint('edited')", "spawn")
    found = "kept" if notebook.ids else "found by name"
    assert said == f"edited\nmonarch: {found} procs (2), workers\n"
    assert notebook.value(PIDS) == pids


def test_an_interrupt_while_a_constructor_runs_loses_nothing(notebook, tmp_path):
    gate = tmp_path / "gate"
    notebook.ok(CLASS.replace("self.n = start", f"""self.n = start
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.02)"""), "class")  # fmt: skip
    sent = notebook.submit(SPAWN + "\nprint('asked', flush=True)", "spawn")
    interrupted = []

    def on_output(text: str) -> None:
        if "asked" in text and not interrupted:
            interrupted.append(time.monotonic())
            notebook.kernel.manager.interrupt_kernel()

    reply = notebook.kernel.collect(sent, on_output, timeout=30)
    assert (reply.status, reply.ename) == ("error", "KeyboardInterrupt"), reply
    assert time.monotonic() - interrupted[0] < 3
    assert "monarch_kernel/" not in reply.traceback
    assert "still starting, and not waited for: " in reply.stdout
    began = time.monotonic()
    assert notebook.value("1 + 1") == 2  # the next cell does not wait for it
    assert time.monotonic() - began < 3
    # The same cell finds what it has started, and waits for it again.
    sent = notebook.submit(SPAWN + "\nprint('asked', flush=True)", "spawn")
    reply = notebook.kernel.collect(sent, lambda text: gate.touch() if "asked" in text else None, timeout=30)
    assert reply.status == "ok", reply
    assert reply.stdout.splitlines()[-1] == "monarch: kept procs (2), workers"
    assert notebook.value(ADD) == [1, 1]
    assert notebook.value(LIVE) == ["procs", "workers"]


def test_an_edit_replaces_what_is_still_starting(notebook, tmp_path):
    gate = tmp_path / "gate"
    waiting = f"""self.n = start
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.02)"""
    notebook.ok(CLASS.replace("self.n = start", waiting), "class")
    assert notebook.fails(SPAWN + "\n1 / MORE", "spawn").ename == "NameError"
    notebook.ok(CLASS + "\nMORE = 1", "class")
    said = notebook.ok(SPAWN + "\n1 / MORE", "spawn")
    assert said == "monarch: kept procs (2); replaced workers (its code changed)\n"
    assert notebook.value(ADD) == [1, 1]
    gate.touch()
    assert notebook.ok(SPAWN + "\n1 / MORE", "spawn") == "monarch: kept procs (2), workers\n"
    assert notebook.value(ADD) == [2, 2]
    until(lambda: notebook.value(LIVE) == ["procs", "workers"])


def test_a_spawn_that_nobody_waits_for_is_heard_of_when_it_fails(notebook, tmp_path):
    gate = tmp_path / "gate"
    notebook.ok(CLASS.replace("self.n = start", f"""
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.02)
        raise LookupError('no data')"""), "class")  # fmt: skip
    not_waiting = SPAWN.replace("procs.spawn", "procs.options(wait=False).spawn")
    began = time.monotonic()
    said = notebook.ok(not_waiting, "spawn")
    assert time.monotonic() - began < 5
    assert said.splitlines() == [
        "monarch: made procs (2), workers",
        "monarch: still starting, and not waited for: workers",
    ]
    gate.touch()
    deadline = time.monotonic() + 10
    while not (reply := notebook.run("time.sleep(0.05)")).stderr:
        assert time.monotonic() < deadline
    assert "raised LookupError: no data" in reply.stderr
    assert reply.status == "ok"
    assert notebook.run("1").stderr == ""  # said once


def test_a_cell_whose_own_code_fails_leaves_nothing_to_wait_for(notebook, tmp_path):
    gate = tmp_path / "gate"
    notebook.ok(CLASS.replace("self.n = start", f"""self.n = start
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.02)"""), "class")  # fmt: skip
    began = time.monotonic()
    reply = notebook.fails(SPAWN + "\n1 / 0", "spawn")
    assert reply.ename == "ZeroDivisionError"
    assert notebook.value("1 + 1") == 2
    assert time.monotonic() - began < 5
    gate.touch()
    assert notebook.value(ADD) == [1, 1]


def test_kept_meshes_with_a_dead_rank_say_how_to_bring_it_back(notebook):
    pids = begin(notebook)
    os.kill(pids[1], 9)
    states = "[r.state for r in mk.session().find('workers')[0].ranks.values()]"
    until(lambda: notebook.value(states) == ["ok", "dead"])
    said = notebook.ok(SPAWN, "spawn").splitlines()
    assert said[0] == "monarch: kept procs (2), workers"
    assert "monarch: workers: rank 1 is not alive; bring it back with %monarch restart workers[1]" in said
    notebook.ok("%monarch restart workers[1]")
    assert notebook.ok(SPAWN, "spawn") == "monarch: kept procs (2), workers\n"
    assert notebook.value(PIDS)[0] == pids[0]


# -- whole notebooks, by nbclient, which sends no ids


def whole(session: str) -> Any:
    sources = [
        "import os, monarch_kernel as mk\nfrom monarch_kernel.actor import Actor, endpoint",
        f"%monarch up {session}",
        CLASS,
        SPAWN,
        f"print({ADD}, {PIDS})",
    ]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def printed(notebook: Any, cell: int) -> str:
    return "".join(output.get("text", "") for output in notebook.cells[cell].outputs)


async def run_all(kernelspecs: Path, folder: Path, notebook: Any, restarts: list[bool]) -> list[tuple[str, str]]:
    """Run a whole notebook, and again after each restart; returns what the spawning and the last cell printed."""
    manager = AsyncKernelManager(
        kernel_name=specs.NAME,
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(kernelspecs)], ensure_native_kernel=False),
    )
    await manager.start_kernel(cwd=str(folder))
    client = nbclient.NotebookClient(notebook, km=manager, timeout=60)
    said = []
    try:
        await client.async_execute()
        said.append((printed(notebook, 3), printed(notebook, 4)))
        for now in restarts:
            await manager.restart_kernel(now=now)
            await client.kc.wait_for_ready(timeout=30)
            await client.async_execute()
            said.append((printed(notebook, 3), printed(notebook, 4)))
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
        await manager.shutdown_kernel(now=True)
    return said


@pytest.fixture
def ended(home: Path) -> Iterator[str]:
    """A session's name; it is released after the test."""
    yield "whole"
    import monarch_kernel as mk

    mk.down("whole")


def test_restart_and_run_all_finds_everything(home, kernelspecs, tmp_path, ended):
    notebook = whole(ended)
    made, *again = asyncio.run(run_all(kernelspecs, tmp_path, notebook, [False, True]))
    # A kernel of its own each time, as a batch job has.
    again += asyncio.run(run_all(kernelspecs, tmp_path, notebook, []))
    assert made[0] == "monarch: made procs (2), workers\n"
    assert made[1].startswith("[1, 1] ")
    for number, (kept, counted) in enumerate(again, 2):
        assert kept == "monarch: kept procs (2), workers\n"
        assert counted == made[1].replace("[1, 1]", f"[{number}, {number}]")


def test_run_all_stops_where_a_constructor_fails(home, kernelspecs, tmp_path, ended):
    notebook = whole(ended)
    notebook.cells[2].source = CLASS.replace("self.n = start", "self.n = start / 0")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ConstructorFailed"):
        asyncio.run(run_all(kernelspecs, tmp_path, notebook, []))
    assert notebook.cells[3].outputs
    assert not notebook.cells[4].outputs
