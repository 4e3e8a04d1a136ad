"""What meshes are called: by the notebook's variables, by the names given, and by older ones of a name."""

from __future__ import annotations

import re

import pytest

CLASS = """
class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
"""
NAMES = "sorted(mk.session().procs), sorted(mk.session().actors)"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("pool = mk.hosts().spawn_procs()", "pool"),
        ("pool: object = mk.hosts().spawn_procs(\n    per_host={'gpus': 1},\n).slice(gpus=0)", "pool"),
        ("pool = mk.hosts().spawn_procs(name='given')", "given"),
        ("def make():\n    inner = mk.hosts().spawn_procs()\n    return inner\npool = make()", "inner"),
        ("pool = (await (other := mk.hosts().spawn_procs()).initialized)", "other"),
        ("%%time\n\npool = mk.hosts().spawn_procs()", "pool"),
        ("%time pool = mk.hosts().spawn_procs()", "pool"),
        ("first, second = mk.hosts().spawn_procs(), 2", "first"),
    ],
    ids=["plain", "sliced", "given", "in-a-function", "walrus", "timed-cell", "timed-line", "tuple"],
)
def test_processes_are_called_after_their_variable(notebook, code, name):
    assert f"monarch: made {name} (1)" in notebook.ok(code, "spawn").splitlines()
    assert notebook.value(NAMES) == ([name], [])
    assert f"monarch: kept {name} (1)" in notebook.ok(code, "spawn").splitlines()


def test_what_nobody_names_is_numbered(notebook):
    code = "pools = [mk.hosts().spawn_procs(), mk.hosts().spawn_procs()]"
    said = notebook.ok(code, "spawn")
    numbers = [int(number) for number in re.findall(r"procs-(\d+) \(1\)", said)]
    assert numbers == [numbers[0], numbers[0] + 1], said
    assert notebook.value(NAMES) == ([f"procs-{number}" for number in numbers], [])
    assert notebook.ok(code, "spawn") == said.replace("made", "kept")


def test_a_name_is_the_latest_and_older_ones_are_numbered(notebook):
    notebook.ok(CLASS, "class")
    # Two spawns of one name in one cell are two meshes.
    code = "procs = mk.hosts().spawn_procs()\na = procs.spawn('w', Worker)\nb = procs.spawn('w', Worker)"
    said = notebook.ok(code, "spawn")
    assert said == "monarch: made procs (1), w~2, w (the one from before stays, as w~2)\n"
    assert notebook.value(NAMES) == (["procs"], ["w", "w~2"])
    assert notebook.value("mk.session().actors['w'] == b, mk.session().actors['w~2'] == a") == (True, True)
    assert notebook.ok(code, "spawn") == "monarch: kept procs (1), w~2, w\n"
    assert notebook.value("mk.session().actors['w'] == b, mk.session().actors['w~2'] == a") == (True, True)
    notebook.ok("await b.stop()")
    assert notebook.value("mk.session().actors['w'] == a") is True


def test_a_name_may_be_used_again_after_its_mesh_was_stopped(notebook):
    notebook.ok("procs = mk.hosts().spawn_procs()", "spawn")
    notebook.ok("procs.stop().get(10)")
    assert notebook.value(NAMES) == ([], [])
    assert notebook.ok("procs = mk.hosts().spawn_procs()", "spawn") == "monarch: made procs (1)\n"
    assert notebook.value(NAMES) == (["procs"], [])


def test_attach_binds_the_variables_again_and_overwrites_none(notebook):
    notebook.ok(CLASS, "class")
    notebook.ok("procs = mk.hosts().spawn_procs(per_host={'gpus': 2})\nworkers = procs.spawn('w', Worker)", "spawn")
    notebook.ok("second = workers.slice(gpus=1)\nalias = workers")
    pids = notebook.value("workers.pid.call().get().values()")
    notebook.ok("%monarch detach")
    notebook.ok("del procs, workers, second\nalias = 'mine'")
    assert "monarch: bound again: procs, second, workers" in notebook.ok("session = mk.attach('lab')").replace(
        "workers, second", "second, workers"
    )
    assert notebook.value("workers.pid.call().get().values()") == pids
    assert notebook.value("second.pid.call().get().values()") == pids[1:]
    assert notebook.value("alias") == "mine"
