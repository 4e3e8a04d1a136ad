"""Run the tests that torchmonarch brings with it, those of listed.txt, against this project.

Their files are copied out of the installed wheel for the time of the run. Each file gets a process of its own, with
the import shim of monarch_shim/ in front; a test in which that process dies or hangs is named, and the rest of the file
is run by another. Ends with 0 when every test that failed is one of differs.txt, and none crashed, hung or is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import compat_results
from compat_results import Result

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSION = "0.7.0"

WHERE = """
import importlib.metadata
wheel = importlib.metadata.distribution("torchmonarch")
print(wheel.version, wheel.locate_file("tests"))
"""
UNWANTED = shutil.ignore_patterns("__pycache__", "conftest.py", "simulator")
INI = """
[pytest]
markers =
    oss_skip: of Monarch's own CI
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""
#: Ends what sessions a process left behind, where it had no process namespace to end them with it.
SWEEP = """
from monarch_kernel.protocol import statefile
from monarch_kernel.session import down
for file in statefile.load_all():
    down(file.name)
"""


def tests_of_wheel(python: str) -> Path:
    """The folder of tests in the environment of this interpreter."""
    if os.sep in python:
        python = os.path.abspath(python)  # and not resolved: the link of an environment is what makes it one
    try:
        found = subprocess.run([python, "-c", WHERE], capture_output=True, text=True, cwd="/", check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"make compat needs torchmonarch {VERSION}, whose tests it runs, and {python} does not have it.")
    version, _, folder = found.strip().partition(" ")
    if version != VERSION:
        sys.exit(f"make compat needs the tests of torchmonarch {VERSION}; {python} has {version}.")
    return Path(folder)


def namespace() -> list[str]:
    """What to put before a command so that all its descendants end with it, where that is allowed."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        subprocess.run([*command, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return command


class Runner:
    """Runs the wanted tests of one file after the other, in a folder of this run's."""

    def __init__(self, work: Path, source: Path, timeout: float) -> None:
        self.work = work
        self.timeout = timeout
        self._patience = 1.5 * timeout + 20  # pytest's own limit does not end a test that blocks its signal
        self.before = namespace()
        shutil.copytree(source, work / "tests", ignore=UNWANTED)
        (work / "pytest.ini").write_text(INI)
        (work / "run").mkdir(mode=0o700)
        path = [HERE / "monarch_shim", HERE, work / "tests", ROOT, ROOT / "worker", ROOT / "rdma"]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(work),
            "XDG_STATE_HOME": str(work / "state"),
            "XDG_RUNTIME_DIR": str(work / "run"),
            "COMPAT_USED": str(work / "used"),
            "LC_ALL": "C",
        }

    def run(self, file: str, wanted: list[str]) -> list[Result]:
        """What became of these ids, all of one file."""
        stem = self.work / file.replace("/", "_")
        results, list_ = stem.with_suffix(".jsonl"), stem.with_suffix(".wanted")
        list_.write_text("\n".join(wanted))
        environment = {**self.environment, "COMPAT_RESULTS": str(results), "COMPAT_WANTED": str(list_)}
        hung: set[str] = set()
        seen = 0
        while True:
            ended = self._process(file, environment, results, stem.with_suffix(".log"))
            found = compat_results.read_results(results)
            crashed = [id_ for id_, result in found.items() if result.outcome == "crashed"]
            if not ended:
                hung.update(crashed[seen:] or [f"{file}::<outside of any test>"])
            if len(crashed) == seen:  # this process died in none
                break
            seen = len(crashed)
        found |= {id_: Result(id_, "hung", f"wrote nothing for {self._patience:.0f} s") for id_ in hung}
        return compat_results.with_missing(found, wanted)

    def _process(self, file: str, environment: dict[str, str], results: Path, log: Path) -> bool:
        """One process over what is not done yet; whether it ended by itself."""
        command = [*self.before, sys.executable, "-m", "pytest", str(self.work / "tests" / file), "-q"]
        command += ["-p", "compat_plugin", "-p", "no:cacheprovider", f"--timeout={self.timeout:g}"]
        command += ["-c", str(self.work / "pytest.ini"), "--rootdir", str(self.work)]
        with log.open("a") as output:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return self._watch(process, results)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not self.before:
                    subprocess.run([sys.executable, "-c", SWEEP], env=environment, stdout=output, stderr=output)

    def _watch(self, process: subprocess.Popen[bytes], results: Path) -> bool:
        """Wait for its end; False when it wrote nothing for longer than pytest's own time limit should take."""
        size, since = -1, time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                return True
            now = results.stat().st_size if results.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > self._patience:
                return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="as in listed.txt; a file or function stands for all of it")
    parser.add_argument("--fast", action="store_true", help="the share of listed.txt that is in fast.txt")
    parser.add_argument("--wheel-python", default=str(ROOT / ".venv-peers" / "bin" / "python"), metavar="PYTHON")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="for each test")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run, with pytest's output")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    wanted = options.ids or compat_results.read_ids(HERE / ("fast.txt" if options.fast else "listed.txt"))
    differences = compat_results.read_differences(HERE / "differs.txt")
    source = tests_of_wheel(options.wheel_python)
    work = Path(tempfile.mkdtemp(prefix="compat-", dir="/tmp"))  # short, for the sockets in it
    everything: list[Result] = []
    try:
        runner = Runner(work, source, options.timeout)
        for file, ids in compat_results.by_file(wanted).items():
            start = time.monotonic()
            results = runner.run(file, ids)
            everything += results
            print(f"{file}: {compat_results.counts(results)}  [{time.monotonic() - start:.0f} s]", flush=True)
            for result in results:
                if result.bad:
                    why = f"differs: {differences[result.id]}" if result.id in differences else result.text[:300]
                    print(f"   {result.outcome} {result.id} | {why}", flush=True)
    finally:
        if options.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    wrong = compat_results.unexplained(everything, differences)
    for result in everything:
        if result.id in differences and not result.bad:
            print(f"{result.id} passes now: take it off differs.txt")
    print(f"{len(wrong)} not explained by differs.txt" if wrong else "every failure is explained by differs.txt")
    print(compat_results.counts(everything))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
