"""The same work with every peer, side by side: ``python run.py --ours PYTHON --torchmonarch PYTHON``.

Rounds are interleaved, A B A B, each one a process of its own, so that whatever else the machine does falls on all
peers alike. Printed are medians over the rounds, and the median of the rounds' ratios: the figures of one machine on
one day say little, their ratios hold. Nothing passes or fails here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workloads import WORK, Work

HERE = Path(__file__).resolve().parent


def once(peer: str, python: str, work: str, scale: float, timeout: float) -> dict[str, Any]:
    """One round of one peer; what went wrong stands under "error"."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    command = [python, str(HERE / "workloads.py"), peer, "--work", work, "--scale", str(scale)]
    # Files, not pipes: what a round leaves running may hold its output open for ever.
    with tempfile.TemporaryFile("w+") as out_file, tempfile.TemporaryFile("w+") as err_file:
        # A group of its own, so that a round that hangs is ended with all that it started in the group.
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=out_file, stderr=err_file, start_new_session=True
        )
        late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out_file.seek(0)
        err_file.seek(0)
        out, err = out_file.read(), err_file.read()
    if late:
        return {"error": f"no result after {timeout:g} s", "stderr": err[-2000:]}
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        return {"error": f"ended with code {process.returncode}", "stderr": err[-2000:]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def machine() -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    cpu = memory = None
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory = round(int(line.split()[1]) / 2**20, 1)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu or platform.machine(),
        "memory_gib": memory,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def summary(rounds: dict[str, list[dict[str, Any]]], keys: list[str]) -> dict[str, Any]:
    """Medians, ranges and the ratio of the first peer to each other one."""
    lines: dict[str, Any] = {}
    for work in WORK:
        if work.key not in keys:
            continue
        series = {peer: [r.get("values", {}).get(work.key) for r in results] for peer, results in rounds.items()}
        entry: dict[str, Any] = {"title": work.title, "unit": work.unit, "better": work.better, "peers": {}}
        for peer, values in series.items():
            good = [value for value in values if value is not None]
            if good:
                entry["peers"][peer] = {"median": statistics.median(good), "min": min(good), "max": max(good)}
        first, *others = series
        for other in others:
            pairs = [a / b for a, b in zip(series[first], series[other], strict=True) if a is not None and b]
            if pairs:
                entry.setdefault("ratio", {})[other] = statistics.median(pairs)
        lines[work.key] = entry
    return lines


def told(result: dict[str, Any]) -> str:
    """The versions of one peer in words."""
    return ", ".join([f"Python {result['python']}", *(f"{name} {text}" for name, text in result["versions"].items())])


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def cell(work: Work, entry: dict[str, Any], peer: str) -> str:
    found = entry["peers"].get(peer)
    if found is None:
        return "–"
    return f"{shown(found['median'])} {work.unit} ({shown(found['min'])}–{shown(found['max'])})"


def table(lines: dict[str, Any], peers: list[str]) -> str:
    """The summary as Markdown."""
    first, *others = peers
    head = ["", *peers, *(f"{first} ÷ {other}" for other in others)]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for work in WORK:
        if work.key in lines:
            entry = lines[work.key]
            ratios = [entry.get("ratio", {}).get(other) for other in others]
            row = [
                work.title,
                *(cell(work, entry, peer) for peer in peers),
                *(f"{shown(ratio)}× ({work.better} is better)" if ratio else "–" for ratio in ratios),
            ]
            rows.append("| " + " | ".join(row) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ours", metavar="PYTHON", help="an interpreter that has monarch-kernel")
    parser.add_argument("--torchmonarch", metavar="PYTHON", help="an interpreter that has torchmonarch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", default=",".join(work.key for work in WORK), help="keys, with commas between")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the amount of work; 0.1 for a quick look")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one round of one peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, each round included")
    options = parser.parse_args()
    keys = options.work.split(",")
    if unknown := set(keys) - {work.key for work in WORK}:
        parser.error(f"no such work: {', '.join(sorted(unknown))}; there is {', '.join(work.key for work in WORK)}")
    pythons = {peer: getattr(options, peer) for peer in ("ours", "torchmonarch") if getattr(options, peer)}
    if not pythons:
        parser.error("give at least one of --ours and --torchmonarch")

    where = machine()
    rounds: dict[str, list[dict[str, Any]]] = {peer: [] for peer in pythons}
    for number in range(options.rounds):
        for peer, python in pythons.items():
            result = once(peer, python, options.work, options.scale, options.timeout)
            rounds[peer].append(result)
            said = result.get("error") or ", ".join(f"{key} {shown(value)}" for key, value in result["values"].items())
            print(f"round {number + 1} of {options.rounds}, {peer}: {said}", file=sys.stderr)
            if "error" in result:
                print(result["stderr"], file=sys.stderr)

    lines = summary(rounds, keys)
    versions = {
        peer: next((told(r) for r in results if "error" not in r), "no result") for peer, results in rounds.items()
    }
    print(f"\n{where['cores']} cores of {where['cpu']}, {where['memory_gib']} GiB, {where['system']}, {where['time']}")
    print(f"load before: {where['load_before']}; medians of {options.rounds} interleaved rounds (lowest–highest)")
    if options.scale != 1:
        print(f"only {options.scale:g} of the work: not the counts that the table names, and noisier")
    print()
    print(table(lines, list(pythons)), end="\n\n")
    for peer, text in versions.items():
        print(f"{peer}: {text}")
    document = {"machine": where, "scale": options.scale, "summary": lines, "rounds": rounds}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    else:
        print("\n" + json.dumps({"machine": where, "summary": lines}))


if __name__ == "__main__":
    main()
