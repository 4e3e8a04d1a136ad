"""What run.py and its plugin agree on: lists of ids, and what became of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What became of one id: passed, skipped, failed, crashed (its process died), hung (was ended), or missing.

    `text` is one line that says why.
    """

    id: str
    outcome: str
    text: str = ""

    @property
    def bad(self) -> bool:
        return self.outcome not in ("passed", "skipped")


def read_ids(path: Path) -> list[str]:
    """The ids of a list: one a line; empty lines, and those that begin with #, are for readers."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def read_differences(path: Path) -> dict[str, str]:
    """Id to reason, from lines `id | reason`."""
    rows = [line.partition(" | ") for line in read_ids(path)]
    for id_, bar, reason in rows:
        if not bar or not reason.strip():
            raise ValueError(f"{path.name}: {id_!r} has no reason: write `id | reason`")
    return {id_.strip(): reason.strip() for id_, _, reason in rows}


def by_file(ids: list[str]) -> dict[str, list[str]]:
    """Test file to its ids, in the order of the list."""
    files: dict[str, list[str]] = {}
    for one in ids:
        files.setdefault(one.partition("::")[0], []).append(one)
    return files


def is_wanted(id_: str, wanted: list[str]) -> bool:
    """Whether a list names this test: by itself, by its function for all parameters, or by its class or file."""
    return any(id_ == one or id_.startswith((f"{one}[", f"{one}::")) for one in wanted)


def read_results(path: Path) -> dict[str, Result]:
    """What a results file says; an id that was started and never ended is `crashed`."""
    results: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        if "started" in entry:
            results[entry["started"]] = Result(entry["started"], "crashed", "the process ended in it")
        else:
            results[entry["id"]] = Result(entry["id"], entry["outcome"], entry["text"])
    return results


def with_missing(results: dict[str, Result], wanted: list[str]) -> list[Result]:
    """The results, and one more for each wanted id that no test answers to."""
    missing = [one for one in wanted if not any(is_wanted(id_, [one]) for id_ in results)]
    return [
        *results.values(),
        *(Result(one, "missing", "no such test, or never reached") for one in missing),
    ]


def counts(results: list[Result]) -> str:
    passed = sum(result.outcome == "passed" for result in results)
    skipped = sum(result.outcome == "skipped" for result in results)
    text = f"{passed} passed, {len(results) - passed - skipped} failed"
    return text + (f", {skipped} skipped" if skipped else "")


def unexplained(results: list[Result], differences: dict[str, str]) -> list[Result]:
    """What must not be: a failure that no listed difference explains, and whatever crashed, hung or is missing."""
    return [result for result in results if result.bad and (result.outcome != "failed" or result.id not in differences)]
