"""What every job does, with one that starts nothing."""

from __future__ import annotations

import logging
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_kernel.job import (
    JobState,
    JobTrait,
    LocalJob,
    job_load,
    job_loads,
    load_current_job,
    set_current_job,
)


class Told(JobTrait):
    def __init__(self, *hosts: str, serves: bool = True) -> None:
        super().__init__()
        self.hosts, self.serves = hosts, serves
        self.did: list[str] = []

    def _state(self) -> JobState:
        mesh: Any = object
        return JobState(dict.fromkeys(self.hosts, mesh))

    def _create(self, client_script: str | None) -> None:
        self.did.append(f"create {client_script}")

    def can_run(self, spec: JobTrait) -> bool:
        return self.serves

    def _kill(self) -> None:
        self.did.append("kill")


class Undying(Told):
    def _kill(self) -> None:
        raise RuntimeError("the scheduler does not answer")


def test_a_job_is_started_once_until_it_is_killed() -> None:
    job = Told("trainers")
    assert not job.active
    assert job.apply_id is None
    job.apply()
    first = job.apply_id
    job.apply("train.py")
    assert job.did == ["create None"]
    assert job.apply_id == first
    job.kill()
    assert not job.active
    job.apply("train.py")
    assert job.did == ["create None", "kill", "create train.py"]
    assert job.apply_id != first


def test_the_meshes_are_attributes_and_a_wrong_name_says_which_there_are() -> None:
    state = Told("trainers", "loaders").state(cached_path=None)
    assert state.trainers is not None
    assert {"trainers", "loaders"} <= set(dir(state))
    with pytest.raises(AttributeError, match="loaders, trainers"):
        state.actors  # noqa: B018
    assert state.telemetry_url is None


def test_a_job_that_runs_is_found_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "job.pkl"
    first = Told("trainers")
    first.state(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = Told("others")
    assert second.state(str(path)).trainers is not None
    assert second.did == []
    assert second.apply_id == first.apply_id
    loaded = job_load(str(path))
    assert isinstance(loaded, Told)
    assert job_loads(loaded.dumps()).apply_id == first.apply_id


def test_one_that_does_not_serve_is_ended_and_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "job.pkl")
    Told("trainers", serves=False).state(path)
    new = Told("others")
    assert new.state(path).others is not None
    assert new.did == ["create None"]
    assert job_load(path).apply_id == new.apply_id


def test_one_that_cannot_be_ended_does_not_keep_the_new_one_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "job.pkl")
    Undying("trainers", serves=False).state(path)
    with caplog.at_level(logging.WARNING, "monarch_kernel.job"):
        assert Told("others").state(path).others is not None
    assert "Undying" in caplog.text


def test_a_file_that_is_a_link_stays_one(tmp_path: Path) -> None:
    link, there = tmp_path / "job_state.pkl", tmp_path / "default" / "state.pkl"
    link.symlink_to(there)
    Told("trainers").state(str(link))
    assert link.is_symlink()
    assert there.exists()


def test_a_pickle_of_something_else_is_no_job(tmp_path: Path) -> None:
    import pickle

    with pytest.raises(TypeError, match="dict"):
        job_loads(pickle.dumps({}))
    with pytest.raises(FileNotFoundError):
        job_load(str(tmp_path / "none"))


def test_the_current_job_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cluster_of_ours.py").write_text(
        "from monarch_kernel.job import LocalJob\njob = LocalJob()\nnothing = 3\n"
    )
    with pytest.raises(FileNotFoundError, match="set_current_job"):
        load_current_job()
    (tmp_path / ".monarch").mkdir()
    (tmp_path / ".monarch" / "job_state.pkl").write_bytes(b"an older one")
    set_current_job("cluster_of_ours.job")
    assert (tmp_path / ".monarch" / "default" / "state.pkl").read_bytes() == b"an older one"
    assert isinstance(load_current_job(), LocalJob)
    for wrong, error in (
        ("job", ValueError),
        ("cluster_of_ours.other", AttributeError),
        ("cluster_of_ours.nothing", TypeError),
    ):
        set_current_job(wrong)
        with pytest.raises(error):
            load_current_job()
    sys.modules.pop("cluster_of_ours")
