"""The pytest plugin of run.py's processes: runs what is wanted and not done, and writes down what became of it.

`COMPAT_WANTED` names a file with one id a line, `COMPAT_RESULTS` the file with one JSON object a line, first
`{"started": id}` and then `{"id": id, "outcome": outcome, "text": text}`; a process that dies leaves the first alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import compat_results
import pytest

RESULTS = Path(os.environ["COMPAT_RESULTS"])
USED = Path(os.environ["COMPAT_USED"])
#: What became of the test that runs, and why.
OUTCOME = pytest.StashKey[tuple[str, str]]()
#: Worse outcomes of a test's three phases outweigh better ones.
ORDER = ("passed", "skipped", "failed")


def write(entry: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def uses() -> int:
    """How many times a placeholder was used until now, by any process."""
    return len(USED.read_text().splitlines()) if USED.exists() else 0


def name(nodeid: str) -> str:
    return nodeid.split("tests/", 1)[-1]


def why(report: pytest.CollectReport | pytest.TestReport) -> str:
    """The error in one line; pytest's own output has the rest."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(report.longrepr).strip().splitlines() if crash is None else crash.message.splitlines()[:1]
    return lines[-1].strip() if lines else ""


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    wanted = compat_results.read_ids(Path(os.environ["COMPAT_WANTED"]))
    done = compat_results.read_results(RESULTS)
    keep, drop = [], []
    for item in items:
        id_ = name(item.nodeid)
        (keep if compat_results.is_wanted(id_, wanted) and id_ not in done else drop).append(item)
    config.hook.pytest_deselected(items=drop)
    items[:] = keep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    item.config.stash[OUTCOME] = ("passed", "")
    before = uses()
    write({"started": name(item.nodeid)})
    ran = yield
    outcome, text = item.config.stash[OUTCOME]
    if outcome == "passed" and uses() > before:
        outcome, text = "failed", f"passed only by the use of {USED.read_text().splitlines()[-1]}, which we lack"
    write({"id": name(item.nodeid), "outcome": outcome, "text": text})
    return ran


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if ORDER.index(report.outcome) > ORDER.index(item.config.stash[OUTCOME][0]):
        item.config.stash[OUTCOME] = (report.outcome, why(report))
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write({"id": f"{name(report.nodeid)}::<collection>", "outcome": "failed", "text": why(report)})
