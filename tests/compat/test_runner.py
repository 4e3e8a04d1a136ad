"""What `make compat` makes of results, and what its shim does; neither needs Monarch's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE))

import compat_results  # noqa: E402
import run  # noqa: E402
from compat_results import Result  # noqa: E402


def test_the_fast_share_and_the_differences_are_of_the_list() -> None:
    listed = compat_results.read_ids(HERE / "listed.txt")
    fast = compat_results.read_ids(HERE / "fast.txt")
    assert len(listed) == len(set(listed))
    assert set(fast) < set(listed)
    assert set(compat_results.by_file(fast)) == set(compat_results.by_file(listed))
    assert set(compat_results.read_differences(HERE / "differs.txt")) <= set(listed)


def test_a_difference_needs_a_reason(tmp_path: Path) -> None:
    (tmp_path / "differs.txt").write_text("# why not\n\ntest_a.py::test_one | it is different here\n")
    assert compat_results.read_differences(tmp_path / "differs.txt") == {"test_a.py::test_one": "it is different here"}
    (tmp_path / "differs.txt").write_text("test_a.py::test_one\n")
    with pytest.raises(ValueError, match="has no reason"):
        compat_results.read_differences(tmp_path / "differs.txt")


@pytest.mark.parametrize("wanted", ["test_a.py", "test_a.py::test_one", "test_a.py::test_one[1]"])
def test_an_id_stands_for_all_that_is_in_it(wanted: str) -> None:
    assert compat_results.is_wanted("test_a.py::test_one[1]", [wanted])
    assert not compat_results.is_wanted("test_a.py::test_one_more", ["test_a.py::test_one"])
    assert not compat_results.is_wanted("test_a.py::test_one[10]", ["test_a.py::test_one[1]"])


def test_a_test_that_was_started_and_never_ended_has_crashed(tmp_path: Path) -> None:
    file = tmp_path / "results"
    entries = [
        {"started": "a::one"},
        {"id": "a::one", "outcome": "failed", "text": "assert 1 == 2"},
        {"started": "a::two"},
        {"started": "a::three"},
        {"id": "a::three", "outcome": "passed", "text": ""},
    ]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    results = compat_results.read_results(file)
    assert [result.outcome for result in results.values()] == ["failed", "crashed", "passed"]
    assert results["a::one"].text == "assert 1 == 2"
    assert compat_results.read_results(tmp_path / "none") == {}


def test_what_was_wanted_and_never_ran_is_a_failure() -> None:
    results = compat_results.with_missing({"a::one[1]": Result("a::one[1]", "passed")}, ["a::one", "a::two"])
    assert [(result.id, result.outcome) for result in results] == [("a::one[1]", "passed"), ("a::two", "missing")]
    assert compat_results.counts(results) == "1 passed, 1 failed"


def test_only_a_listed_difference_that_fails_is_explained() -> None:
    outcomes = ["passed", "skipped", "failed", "failed", "crashed", "hung", "missing"]
    results = [Result(f"a::{number}", outcome) for number, outcome in enumerate(outcomes)]
    explained = {f"a::{number}": "on purpose" for number in (2, 4, 5, 6)}
    assert [result.id for result in compat_results.unexplained(results, explained)] == ["a::3", "a::4", "a::5", "a::6"]
    assert compat_results.counts(results) == "1 passed, 5 failed, 1 skipped"


def test_it_says_what_it_needs_where_that_is_not_installed(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(HERE / "run.py"), "--fast", "--wheel-python", str(tmp_path / "python")],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("make compat needs torchmonarch")


def test_a_crash_costs_one_test_and_the_rest_is_run(tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    for folder in (source, work):
        folder.mkdir()
    (source / "test_a.py").write_text(
        "import os\n"
        "def test_before(): pass\n"
        "def test_crash(): os._exit(3)\n"
        "def test_after(): assert 'left' == 'right'\n"
        "def test_unwanted(): pass\n"
    )
    wanted = [f"test_a.py::test_{name}" for name in ("before", "crash", "after", "gone")]
    results = run.Runner(work, source, timeout=30).run("test_a.py", wanted)
    assert [result.id for result in results] == wanted
    assert [result.outcome for result in results] == ["passed", "crashed", "failed", "missing"]
    assert results[2].text == "AssertionError: assert 'left' == 'right'"


def through_shim(program: str, tmp_path: Path) -> tuple[str, list[str]]:
    """What a module prints that imports `monarch`, and which uses of placeholders were written down."""
    (tmp_path / "program.py").write_text(program)
    path = [HERE / "monarch_shim", HERE, tmp_path, ROOT, ROOT / "worker", ROOT / "rdma"]
    used = tmp_path / "used"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "COMPAT_USED": str(used)}
    command = [sys.executable, "-c", "import program; program.main()"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, used.read_text().splitlines() if used.exists() else []


def test_names_of_monarch_are_ours_and_assignments_go_through(tmp_path: Path) -> None:
    program = """
import monarch.actor
from monarch._src.actor.actor_mesh import Actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
import monarch_kernel.actor as ours
import cloudpickle

def main():
    assert monarch.actor.Actor is Actor is ours.Actor
    assert SupervisionError is ours.SupervisionError
    assert monarch.this_host is ours.this_host
    monarch.actor.unhandled_fault_hook = main
    assert ours.unhandled_fault_hook is main
    assert cloudpickle.loads(cloudpickle.dumps(monarch.actor)) is monarch.actor
    print("done")
"""
    assert through_shim(program, tmp_path) == ("done\n", [])


def test_what_is_missing_does_no_harm_before_it_is_used(tmp_path: Path) -> None:
    program = """
from monarch._src.actor.nowhere import Gone, gone
from monarch.actor import no_such_name

@gone(1)
@gone
def decorated() -> Gone[int] | None: ...

class Derived(Gone):
    value = gone.something(2)

def attempt(what):
    try:
        what()
    except Exception:
        print("swallowed")
    except BaseException as error:
        print(type(error).__name__, error)

def main():
    assert decorated() is None
    attempt(lambda: gone(1))
    attempt(lambda: no_such_name.attribute)
    attempt(Derived)
    attempt(lambda: isinstance(1, Gone))
"""
    printed, used = through_shim(program, tmp_path)
    assert printed.splitlines() == [f"NotProvidedError {use.replace(' (', ' is not provided (', 1)}" for use in used]
    assert [use.partition(" ")[0] for use in used] == [
        "monarch._src.actor.nowhere:gone",
        "monarch.actor:no_such_name",
        "monarch._src.actor.nowhere:Gone",
        "monarch._src.actor.nowhere:Gone",
    ]


def test_every_difference_is_named_in_the_documentation() -> None:
    page = (HERE.parents[1] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    differences = compat_results.read_differences(HERE / "differs.txt")
    assert differences
    assert [name for name in differences if name not in page] == []
