"""The main job, end to end: the tour in a real kernel, which is killed in the middle of a call (`make demo`)."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def load_demo():
    spec = importlib.util.spec_from_file_location("demo", NOTEBOOKS / "demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo


demo = load_demo()


def processes_of(folder):
    """Every process, but this one, that was started with something of this folder in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in environment and demo.start_time(int(entry.name)) is not None:
                found.append(int(entry.name))
    return found


def wait_until(condition, seconds):
    limit = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)
    return value


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A temporary folder that all processes of the demo carry in their environment."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.timeout(240)
def test_a_kernel_killed_in_the_middle_of_a_call_costs_nothing(scratch):
    run = subprocess.run([sys.executable, NOTEBOOKS / "demo.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""

    result = json.loads(run.stdout.splitlines()[-1])
    assert list(result) == [
        "session",
        "pids_before",
        "pids_after",
        "start_times_equal",
        "steps_before",
        "steps_without_kernel",
        "steps_total",
        "accuracy",
        "same_as_uninterrupted",
        "seconds",
    ]
    assert len(set(result["pids_before"])) == 4
    assert result["pids_after"] == result["pids_before"]
    assert result["start_times_equal"]
    assert 0 < result["steps_before"] < result["steps_before"] + result["steps_without_kernel"] < result["steps_total"]
    assert result["steps_without_kernel"] > 0
    assert result["accuracy"] >= 0.95
    assert result["same_as_uninterrupted"]
    assert result["seconds"] < 180
    assert processes_of(scratch) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("heading", "there"),
    [
        ("1. Hosts", False),  # the session is just being started
        ("4. Calls and slices", True),  # hosts, processes and a first actor are there
    ],
)
def test_the_demo_releases_what_it_started_when_it_is_interrupted(scratch, heading, there):
    with subprocess.Popen(
        [sys.executable, "-u", NOTEBOOKS / "demo.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            for line in run.stdout:
                if heading in line:
                    break
            started = processes_of(scratch)
            run.send_signal(signal.SIGINT)
            printed, complaint = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130
    if there:
        assert len(started) >= 4  # more than the demo and its kernel
        assert "is released" in printed
    assert complaint.strip() == "Interrupted; releasing what was started."
    assert processes_of(scratch) == []


@pytest.mark.timeout(240)
def test_the_tour_runs_from_top_to_bottom_twice_and_keeps_its_processes(scratch):
    session = f"tour-{os.getpid()}"
    notebook = nbformat.read(NOTEBOOKS / "01-tour.ipynb", as_version=4)
    sources = {name: source for name, _, source in demo.cells_of_the_tour(session)}
    for cell in notebook.cells:
        cell.source = sources.get(cell.id, cell.source)

    def run():
        """A new kernel each time: restart and run all."""
        nbclient.NotebookClient(notebook, kernel_name="monarch", timeout=120).execute()
        printed = {
            cell.id: "".join(output.get("text", "") for output in cell.outputs)
            for cell in notebook.cells
            if cell.cell_type == "code"
        }
        assert "same as undisturbed: True" in printed["resume"]
        assert "same losses: True" in printed["compare"]
        assert "same state:  True" in printed["compare"]
        figures = [output for cell in notebook.cells if cell.id == "train" for output in cell.outputs]
        assert any("image/png" in output.get("data", {}) for output in figures)
        return [int(pid) for pid in re.findall(r"^\{.*\} (\d+)$", printed["call"], flags=re.MULTILINE)]

    import monarch_kernel as mk

    try:
        first, second = run(), run()
    finally:
        mk.down(session)
    assert len(first) == len(second) == 4
    # Rank 2 is the one that the tour kills and brings back.
    assert [first[rank] == second[rank] for rank in range(4)] == [True, True, False, True]
    wait_until(lambda: not processes_of(scratch), 10)


def test_the_tour_is_kept_without_outputs_and_with_readable_cell_ids():
    notebook = nbformat.read(NOTEBOOKS / "01-tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert re.fullmatch(r"[a-z]+(-text)?", cell.id)
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


def test_only_the_name_of_the_session_is_replaced_for_the_demo():
    sources = {name: source for name, _, source in demo.cells_of_the_tour("demo-1")}
    assert sources["up"] == "%monarch up demo-1 --hosts 2"
    assert sources["attach"] == "%monarch attach demo-1"
    assert sources["status"] == "%monarch status"


def test_a_result_that_is_not_as_promised_is_said_in_words():
    result = {
        "pids_before": [1, 2],
        "pids_after": [1, 3],
        "start_times_equal": True,
        "steps_without_kernel": 100,
        "accuracy": 0.94,
        "same_as_uninterrupted": True,
        "seconds": 60.0,
    }
    with pytest.raises(demo.NotAsPromised, match=r"not the same processes; fewer than 95 %"):
        demo.check(result)
