"""The monarch-kernel command, run as a person or a script runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Run ``monarch-kernel`` in a home of its own; at the end nothing of it is left."""
    home = tmp_path_factory.mktemp("home")
    roots = [str(ROOT / root) for root in ("", "worker", "rdma")]
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(home / "state"),
        "JUPYTER_DATA_DIR": str(home / "jupyter"),
        "PYTHONPATH": os.pathsep.join(filter(None, [*roots, os.environ.get("PYTHONPATH")])),
    }

    def run(*words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "monarch_kernel.cli", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            env={**environment, **more},
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    yield run
    for one in json.loads(run("ps", "--json").stdout):
        if one["state"] == "live":
            run("down", one["name"], "--yes")


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}"


def test_a_session_goes_up_is_listed_and_comes_down(command, name):
    assert "2 hosts" in command("up", name, "--hosts", "2", "--lease", "30m").stdout
    (one,) = [one for one in json.loads(command("ps", "--json").stdout) if one["name"] == name]
    assert (one["state"], one["hosts"], one["lease"], one["controller"]) == ("live", 2, 1800.0, None)
    assert "secret" not in json.dumps(one)
    assert name in command("ps").stdout
    assert json.loads(command("calls", name, "--json").stdout) == []
    assert "live already" in command("up", name).stdout
    command("down", name)  # asks nobody: there is no terminal
    (one,) = [one for one in json.loads(command("ps", "--json").stdout) if one["name"] == name]
    assert one["state"] == "ended"
    assert "it ended" in command("calls", name, code=1).stderr


def test_another_spec_is_refused_in_one_paragraph(command, name):
    command("up", name)
    refused = command("up", name, "--hosts", "3", code=1)
    assert "asked 3, it has 1" in refused.stderr
    command("up", name, "--hosts", "2", "--fresh")
    command("down", name, "--yes")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("calls", "nobody"), "no session 'nobody'"),
        (("down", "nobody"), "no session 'nobody'"),
        (("up", "a b"), "cannot name a session"),
        (("up", "x", "--lease", "soon"), "soon"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_paragraph(command, words, says):
    refused = command(*words, code=1)
    assert refused.stderr.splitlines()[-1].startswith(f"monarch-kernel {words[0]}: ")
    assert says in refused.stderr


def test_a_wrong_command_line_is_code_2(command):
    assert "usage:" in command("up", code=2).stderr
    assert "whole number" in command("up", "x", "--hosts", "0", code=2).stderr
    assert "usage:" in command(code=2).stderr


def test_the_kernelspec_is_installed_and_removed(command, tmp_path):
    prefix = str(tmp_path / "env")
    command("install", "--prefix", prefix)
    folder = tmp_path / "env" / "share" / "jupyter" / "kernels" / "monarch"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    assert spec["display_name"] == "Monarch (Python)"
    command("install", "--prefix", prefix)  # again: replaced
    command("uninstall", "--prefix", prefix)
    assert not folder.exists()
    assert "no kernelspec of ours" in command("uninstall", "--prefix", prefix, code=1).stderr


def test_it_installs_for_one_user(command):
    where = command("install", "--user").stdout.split()[-1]
    assert Path(where, "kernel.json").is_file()
    assert where in command("uninstall", "--user").stdout
    assert not Path(where).exists()


def test_somebody_elses_kernelspec_of_that_name_is_left_alone(command, tmp_path):
    folder = tmp_path / "share" / "jupyter" / "kernels" / "monarch"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["other"]}')
    command("uninstall", "--prefix", str(tmp_path), code=1)
    assert folder.exists()


def test_the_doctor_says_what_it_finds(command):
    findings = json.loads(command("doctor", "--json").stdout)
    assert {"topic", "level", "what", "follows"} == set(findings[0])
    text = command("doctor").stdout
    assert all(finding["what"] in text for finding in findings if finding["topic"] in {"python", "gpus"})
