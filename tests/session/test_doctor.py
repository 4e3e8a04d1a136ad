"""The doctor on made-up machines."""

import dataclasses
import json
import os
import resource
import sys

import pytest

from monarch_kernel.errors import LaunchError
from monarch_kernel.protocol import statefile
from monarch_kernel.session import doctor
from monarch_kernel.session.doctor import Finding, System, diagnose

GIB = 1 << 30


@pytest.fixture
def system(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for folder in ("proc/self", "sys", "shm"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")

    class NoDriver:
        def devices(self):
            return None

    return System(
        proc=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        shm=tmp_path / "shm",
        root=tmp_path,
        environ={},
        user="alice",
        limits=lambda which: (1024, resource.RLIM_INFINITY),
        statvfs=lambda path: os.statvfs_result((4096, 4096, 64 * GIB // 4096, 0, 64 * GIB // 4096, 0, 0, 0, 0, 255)),
        probe=NoDriver(),
    )


def disk(system, size):
    found = os.statvfs_result((4096, 4096, size // 4096, 0, size // 4096, 0, 0, 0, 0, 255))
    return dataclasses.replace(system, statvfs=lambda path: found)


def test_this_machine_is_looked_at_without_a_trace(system):
    findings = diagnose()
    assert [f.topic for f in findings][:4] == ["python", "kernel", "lifetime", "sockets"]
    assert all(isinstance(f, Finding) and f.level in ("ok", "note", "warning", "problem") for f in findings)
    assert not statefile.runtime_dir("doctor00").rmdir()  # was not there, or not empty otherwise


def test_a_check_that_fails_does_not_hide_the_others(system):
    def broken(path):
        raise OSError("stale file handle")

    findings = {f.topic: f for f in diagnose(dataclasses.replace(system, statvfs=broken))}
    assert "stale file handle" in findings["shared memory"].what
    assert findings["open files"].level == "ok"


def test_an_old_python_is_a_problem(system):
    assert doctor.python(dataclasses.replace(system, python=(3, 10))).level == "problem"
    assert doctor.python(system).level == "ok"


@pytest.mark.parametrize(
    ("cgroup", "level", "words"),
    [
        ("0::/", "ok", "ends with the machine"),
        ("12:pids:/\n1:name=systemd:/user.slice/user-1000.slice/session-4.scope", "ok", "logging out"),
        ("0::/user.slice/user-1000.slice/session-c2.scope", "ok", "logging out"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-term.scope", "warning", "enable-linger"),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope", "warning", "enable-linger"),
        ("0::/system.slice/jupyterhub.service", "warning", "jupyterhub.service is stopped or restarted"),
        ("0::/system.slice/jupyter-alice-singleuser.service", "warning", "KillMode"),
        ("0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-abc.scope", "warning", "container"),
        ("4:memory:/docker/0123abc\n0::/", "warning", "container"),
        ("0::/system.slice/slurmstepd.scope/job_77/step_0", "note", "ends with the job"),
        ("9:cpuset:/slurm/uid_1000/job_77/step_batch", "note", "ends with the job"),
        ("nonsense", "ok", ""),
    ],
)
def test_what_a_session_would_die_with(system, cgroup, level, words):
    (system.proc / "self/cgroup").write_text(cgroup + "\n")
    found = doctor.lifetime(system)
    assert (found.level, words in found.what + found.follows) == (level, True), found


def test_a_container_without_a_telling_cgroup_is_seen_by_its_mark(system):
    (system.root / ".dockerenv").touch()
    assert "container" in doctor.lifetime(system).what


def test_logout_kills_where_logind_says_so_and_lingering_helps(system):
    (system.proc / "self/cgroup").write_text("0::/user.slice/user-1.slice/session-4.scope\n")
    (system.root / "etc/systemd/logind.conf.d").mkdir(parents=True)
    (system.root / "etc/systemd/logind.conf").write_text("[Login]\n#KillUserProcesses=no\nKillUserProcesses=no\n")
    assert doctor.lifetime(system).level == "ok"
    (system.root / "etc/systemd/logind.conf.d/x.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    found = doctor.lifetime(system)
    assert (found.level, "KillUserProcesses" in found.follows) == ("warning", True)
    (system.proc / "self/cgroup").write_text("0::/user.slice/user-1.slice/user@1.service/x.scope\n")
    (system.root / "var/lib/systemd/linger").mkdir(parents=True)
    (system.root / "var/lib/systemd/linger/alice").touch()
    assert doctor.lifetime(system).level == "ok"


def test_a_socket_directory_that_cannot_be_had_is_a_problem(system, monkeypatch):
    def refuse(sid):
        raise PermissionError("/tmp/monarch-kernel-0 belongs to uid 7, not to us")

    monkeypatch.setattr(doctor.statefile, "runtime_dir", refuse)
    found = doctor.sockets(system)
    assert (found.level, "uid 7" in found.what) == ("problem", True)


@pytest.mark.parametrize(("size", "level"), [(1 << 20, "problem"), (GIB // 2, "warning"), (8 * GIB, "ok")])
def test_room_for_state_and_logs(system, size, level):
    assert doctor.state(disk(system, size)).level == level


@pytest.mark.parametrize(("size", "level"), [(64 << 20, "warning"), (8 * GIB, "ok")])
def test_the_size_of_dev_shm(system, size, level):
    assert doctor.shared_memory(disk(system, size)).level == level


def test_a_low_hard_limit_of_open_files(system):
    low = dataclasses.replace(system, limits=lambda which: (256, 1024))
    assert doctor.descriptors(low).level == "warning"
    assert doctor.descriptors(system).level == "ok"


def test_locked_memory_matters_with_rdma_devices(system):
    low = dataclasses.replace(system, limits=lambda which: (8 << 20, 8 << 20))
    assert doctor.locked_memory(low).level == "ok"
    (system.sysfs / "class/infiniband").mkdir(parents=True)
    assert doctor.locked_memory(low).level == "warning"
    assert doctor.locked_memory(system).level == "ok"


def test_rdma_devices_with_and_without_a_port_up(system):
    assert doctor.verbs(system).level == "note"
    state = system.sysfs / "class/infiniband/mlx5_0/ports/1/state"
    state.parent.mkdir(parents=True)
    state.write_text("1: DOWN\n")
    assert doctor.verbs(system).level == "warning"
    state.write_text("4: ACTIVE\n")
    assert doctor.verbs(system) == Finding("rdma devices", "ok", "mlx5_0:1")


def test_gpus_there_hidden_and_broken(system):
    class Two:
        def devices(self):
            return ("0", "1")

    class Broken:
        def devices(self):
            raise LaunchError("nvidia-smi -L failed: driver/library version mismatch")

    assert doctor.gpus(dataclasses.replace(system, probe=Two())).what == "2 (0, 1)"
    assert doctor.gpus(dataclasses.replace(system, probe=Broken())).level == "problem"
    assert doctor.gpus(system).level == "note"
    hidden = dataclasses.replace(system, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert "hides" in doctor.gpus(hidden).what


def test_the_kernelspec_is_missing_foreign_or_ours(system, tmp_path, monkeypatch):
    # Only there: the environment of the tests may well have the kernel installed.
    monkeypatch.setattr("jupyter_client.kernelspec.jupyter_path", lambda *at: [str(tmp_path.joinpath("jupyter", *at))])
    assert "monarch-kernel install" in doctor.kernelspec(system).follows
    folder = tmp_path / "jupyter/kernels/monarch"
    folder.mkdir(parents=True)
    for argv, level in ((["/usr/bin/other-python"], "warning"), ([sys.executable], "ok"), (["python"], "ok")):
        doc = {"argv": argv, "display_name": "Monarch", "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(doc))
        assert doctor.kernelspec(system).level == level


def test_a_worker_host_has_no_jupyter_and_needs_none(system, monkeypatch):
    monkeypatch.setitem(sys.modules, "jupyter_client.kernelspec", None)
    assert doctor.kernelspec(system).level == "note"
