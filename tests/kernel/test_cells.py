"""The extension knows which cell is running."""

from __future__ import annotations

import json

import pytest

from monarch_kernel.kernel.cells import source_hash

PREPARE = """
from monarch_kernel.kernel import loaded
class Log:
    seen = []
    def on_begin(self, e): self.seen.append(("begin", e.cell_id, e.source, e.source_hash, e.count, e.notebook))
    def on_end(self, e, ok): self.seen.append(("end", e.cell_id, ok))
log = Log()
loaded().cells.add(log)
"""
LOOK = "import json; print(json.dumps(log.seen)); log.seen.clear()"


@pytest.fixture
def log(kernel):
    """Everything that was heard since the last look."""
    kernel.run("'log' in globals() or exec('''" + PREPARE + "''', globals())")

    def look():
        seen = [tuple(entry) for entry in json.loads(kernel.run(LOOK).stdout)]
        return [e for e in seen if not (e[0] == "begin" and e[2] == LOOK)]

    look()
    kernel.run("log.seen.clear()")
    return look


def test_a_cell_begins_and_ends(kernel, log):
    kernel.run("x = 1", metadata={"cellId": "abc-1"})
    seen = [entry for entry in log() if entry[1] == "abc-1"]
    begin, end = seen
    assert begin[0] == "begin"
    assert begin[2:4] == ("x = 1", source_hash("x = 1"))
    assert end == ("end", "abc-1", True)


@pytest.mark.parametrize("source", ["1 / 0", "def (", "await asyncio.nothing", "raise KeyboardInterrupt"])
def test_a_cell_that_fails_ends_not_ok(kernel, log, source):
    kernel.run(source, metadata={"cellId": "bad"})
    assert [entry for entry in log() if entry[1] == "bad"][-1] == ("end", "bad", False)


def test_an_asynchronous_cell_that_is_interrupted_ends_not_ok(kernel, log):
    kernel.interrupt_when("import asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(60)", "begun")
    ends = [entry for entry in log() if entry[0] == "end"]
    assert False in [ok for _, _, ok in ends]


def test_a_front_end_without_cell_ids_gives_none(kernel, log):
    kernel.run("y = 2")
    assert ("begin", None, "y = 2") in [entry[:3] for entry in log()]


def test_the_uri_of_vs_code_counts_as_none(kernel, log):
    kernel.run("z = 3", metadata={"cellId": "vscode-notebook-cell:/home/u/n.ipynb#W2sZmlsZQ%3D%3D"})
    assert ("begin", None, "z = 3") in [entry[:3] for entry in log()]


def test_the_count_is_the_number_in_the_prompt(kernel, log):
    kernel.run("'counted'", metadata={"cellId": "counted"})
    (count,) = [entry[4] for entry in log() if entry[:2] == ("begin", "counted")]
    assert kernel.run(f"In[{count}]").result == "\"'counted'\""


def test_silent_executions_are_not_cells(kernel, log):
    kernel.client.execute("quiet = 1", silent=True)
    kernel.client.get_shell_msg(timeout=10)
    assert "quiet = 1" not in [entry[2] for entry in log() if entry[0] == "begin"]


def test_a_cell_run_by_a_cell_belongs_to_it(kernel, log):
    kernel.run(
        "get_ipython().run_cell('inner = 1')\nprint(loaded().cells.current.cell_id)", metadata={"cellId": "outer"}
    )
    seen = log()
    assert "inner = 1" not in [entry[2] for entry in seen if entry[0] == "begin"]
    assert [entry for entry in seen if entry[1] == "outer"][-1] == ("end", "outer", True)


def test_the_running_cell_is_known_in_its_threads_too(kernel, log):
    code = (
        "import threading\nfrom monarch_kernel.kernel import loaded\n"
        "t = threading.Thread(target=lambda: print(loaded().cells.current.cell_id)); t.start(); t.join()"
    )
    assert kernel.run(code, metadata={"cellId": "mine"}).stdout == "mine\n"


def test_a_listener_that_fails_fails_no_cell(kernel, log):
    kernel.run(
        "class Bad(Log):\n    def on_begin(self, e): raise OSError('broken listener')\n"
        "bad = Bad(); loaded().cells.add(bad)"
    )
    reply = kernel.run("'fine'", metadata={"cellId": "fine"})
    kernel.run("loaded().cells.discard(bad)")
    assert (reply.status, reply.result) == ("ok", "'fine'")
    assert reply.stderr == "monarch-kernel: Bad failed at the cell's begin: OSError('broken listener')\n"
    assert ("end", "fine", True) in log()


def test_a_notebook_is_known_by_the_path_its_server_gives(start_kernel):
    named = start_kernel(JPY_SESSION_NAME="/home/u/lab.ipynb")
    ask = "from monarch_kernel.kernel import loaded\nprint(loaded().cells.current.notebook)"
    assert named.run(ask).stdout == "/home/u/lab.ipynb\n"
    named.close()


def test_without_a_server_a_notebook_is_known_by_its_folder(kernel):
    ask = "from monarch_kernel.kernel import loaded\nprint(loaded().cells.current.notebook)"
    first = kernel.run(ask).stdout
    kernel.run("import os; os.chdir('/')")
    assert first.startswith("folder:/")
    assert kernel.run(ask).stdout == first


def test_the_hash_ignores_trailing_white_space_and_nothing_else():
    assert source_hash("a = 1\nb = 2") == source_hash("a = 1  \r\nb = 2\n\n")
    assert source_hash("a = 1") != source_hash(" a = 1")
    assert source_hash("a = 1") != source_hash("a = 2")
