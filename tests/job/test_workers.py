"""Jobs with real workers: started, found again, killed, gone; and commands on their hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lent_actors import Place, start_loop
from processes import SLACK, gone, until

import monarch_kernel as mk
from monarch_kernel.actor import Channel
from monarch_kernel.job import (
    BashActor,
    LocalJob,
    LoginJob,
    ProcessJob,
    ProcessState,
    exec_command,
    hosts_from_config,
    job_loads,
)

WAIT = 60.0


@pytest.fixture(scope="module")
def session(place: Path) -> Any:
    return mk.up("jobs")


@pytest.fixture(scope="module")
def job(session: Any) -> Iterator[ProcessJob]:
    made = ProcessJob({"trainers": 2, "loaders": 1}, env={"JOB_SAYS": "hello"})
    yield made
    made.kill()


@pytest.fixture(scope="module")
def state(job: ProcessJob) -> Any:
    return job.state(cached_path=None)


def test_a_process_job_has_the_hosts_that_it_was_asked_for(state: Any) -> None:
    assert state.trainers.sizes == {"hosts": 2}
    places = state.trainers.spawn_procs().spawn("places", Place)
    assert places.variable.call("JOB_SAYS").get(timeout=WAIT).values() == ["hello"] * 2
    other = state.loaders.spawn_procs().spawn("other", Place)
    assert other.ask.call(places).get(timeout=WAIT).values()[0] == list(places.pid.call().get(timeout=WAIT).values())


def test_it_is_found_again_while_its_workers_live(job: ProcessJob, state: Any) -> None:
    again = job_loads(job.dumps())
    assert again.can_run(ProcessJob({"trainers": 2, "loaders": 1}))
    assert not again.can_run(ProcessJob({"trainers": 3}))
    assert not again.can_run(LocalJob())
    hosts = again.state(cached_path=None).loaders
    assert hosts.initialized.get(timeout=WAIT)
    hosts.stop().get(timeout=WAIT)


def test_killing_it_leaves_nothing(session: Any) -> None:
    job = ProcessJob({"hosts": 1})
    hosts = job.state(cached_path=None).hosts
    actor: Any = hosts.spawn_procs().spawn("place", Place)
    pid = actor.pid.call_one().get(timeout=WAIT)
    worker, folder = job._host_to_pid["hosts_0"].pid, job._tmpdir
    assert folder is not None
    job.kill()
    assert gone(worker)
    until(lambda: gone(pid), timeout=5 * SLACK, what="the end of the host")
    assert not Path(folder).exists()
    assert not job.active


def test_one_whose_worker_was_killed_says_so(session: Any) -> None:
    job = ProcessJob({"hosts": 1})
    job.apply()
    worker = job._host_to_pid["hosts_0"].pid
    os.kill(worker, signal.SIGKILL)
    until(lambda: gone(worker))
    assert not job.can_run(job)
    with pytest.raises(RuntimeError, match="lost connection"):
        job.state(cached_path=None)
    job.kill()


def test_workers_that_do_not_end_when_asked_are_killed_with_all_below_them() -> None:
    code = textwrap.dedent("""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setpgid(0, 0)
            print(os.getpid(), flush=True)
        time.sleep(600)
        """)
    worker = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    job = ProcessJob({"hosts": 1})
    job._add("hosts_0", ProcessState(worker.pid, "ipc:///nowhere"))
    job._kill()
    assert worker.wait(WAIT) == -signal.SIGKILL
    until(lambda: gone(child))
    worker.stdout.close()


class FakeLogin(LoginJob):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def _start_host(self, host: str) -> ProcessState:
        address = f"ipc://{self.folder}/{host}"
        started.append(start_loop(address))
        return ProcessState(started[-1].pid, address)


started: list[subprocess.Popen[str]] = []


def test_a_login_job_reaches_hosts_by_name(session: Any, tmp_path: Path) -> None:
    job = FakeLogin(tmp_path)
    job.add_mesh("hosts", ["gpu-7", "gpu-8"])
    hosts = job.state(cached_path=None).hosts
    pids = hosts.spawn_procs().spawn("places", Place).pid.call().get(timeout=WAIT).values()
    assert len(set(pids)) == 2
    job.kill()
    until(lambda: all(map(gone, pids)), timeout=5 * SLACK)
    for process in started:
        process.communicate(timeout=WAIT)


def test_a_local_job_is_this_machine_under_every_name(session: Any) -> None:
    state = LocalJob(["a", "b"]).state(cached_path=None)
    assert repr(state.a) == repr(state.b)
    assert LocalJob().state(cached_path=None).hosts is not None


def test_a_program_may_be_the_client_of_a_local_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(
        "from monarch_kernel.job import LocalJob\n"
        "state = LocalJob().state()\n"
        "print(hasattr(state, 'launched'), hasattr(state, 'hosts'), flush=True)\n"
    )
    job = LocalJob(["launched"])
    with pytest.raises(ValueError, match="no local batch job"):
        job.process  # noqa: B018
    job.apply(client_script=str(script))
    assert job.process.wait(WAIT) == 0
    assert Path(str(job._log_dir), "stdout.log").read_text() == "True False\n"


def test_hosts_from_config_are_those_of_the_session_of_that_name(place: Path) -> None:
    mk.session().detach()
    hosts = hosts_from_config("configured")
    assert hosts.sizes == {"hosts": 2}
    assert hosts_from_config("configured").sizes == {"hosts": 2}
    mk.session().release()
    mk.attach("jobs")


# -- commands


def test_a_command_runs_on_every_host_and_says_its_worst_exit_code(session: Any, capfd: Any) -> None:
    hosts = mk.hosts()
    asked = exec_command(hosts, ["bash", "-c", "echo I am $MONARCH_RANK_hosts of $MONARCH_SIZE_hosts; exit 3"])
    assert asked.get(timeout=WAIT) == 3
    assert capfd.readouterr().out == "I am 0 of 1\n"
    program = Path(os.environ["PYTHONPATH"].split(os.pathsep)[-1]) / "lent_actors.py"
    assert exec_command(hosts, [str(program)]).get(timeout=WAIT) == 0


def test_a_program_runs_as_the_main_one_and_its_failure_is_told(session: Any, tmp_path: Path, capfd: Any) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys\nassert __name__ == '__main__'\nos.system('echo from below')\n"
        "print(sys.argv[1:], os.environ['K'])\nsys.exit(int(sys.argv[1]))\n"
    )
    asked = exec_command(
        mk.hosts(), [str(program), "4", "x"], env={"K": "v"}, per_host={"gpus": 2}, workdir=str(tmp_path)
    )
    assert asked.get(timeout=WAIT) == 4
    out = capfd.readouterr().out
    assert out.count("['4', 'x'] v\n") == 2
    assert out.count("from below\n") == 2
    folder = tmp_path / "out"
    assert exec_command(mk.hosts(), [str(program), "no"], env={"K": "v"}, output_dir=f"{folder}/$SUBDIR").get(WAIT) == 1
    assert "ValueError" in (folder / "hosts_0" / "stderr.txt").read_text()
    assert capfd.readouterr().out == ""


def test_lines_of_a_script_come_as_they_are_written(session: Any) -> None:
    actors: Any = mk.hosts().spawn_procs(per_host={"gpus": 2}).spawn("bash", BashActor)
    port, receiver = Channel[str].open()
    asked = actors.run_streaming.call("echo one; echo two >&2; exit 5", port, [1])
    found = []
    while sum(":rc:" in line or line.startswith("skip") for line in found) < 2:
        found.append(receiver.recv().get(timeout=WAIT))
    asked.get(timeout=WAIT)
    assert sorted(found) == ["1:err:two\n", "1:out:one\n", "1:rc:5", "skip:0"]
