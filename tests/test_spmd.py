"""Programs for torchrun on a mesh: the environment of each rank, process groups, and whole scripts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from monarch_worker.procs import device_env

import monarch_kernel as mk
from monarch_kernel.actor import Actor, ActorError, endpoint
from monarch_kernel.spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async

WAIT = 60.0
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_WORLD_SIZE")  # fmt: skip


class Rank(Actor):
    @endpoint
    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def set(self, **values: str) -> None:
        os.environ.update(values)

    @endpoint
    def all_reduce(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        mine = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(mine)
        dist.destroy_process_group()
        return float(mine)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.syspath_prepend(str(Path(__file__).parent))
        session = mk.up(f"spmd-{os.getpid()}", hosts=2)
        try:
            yield session.hosts
        finally:
            session.release()


def test_every_rank_over_two_hosts_has_its_place_and_they_reduce(hosts: Any) -> None:
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    setup_torch_elastic_env(procs)
    ranks = procs.spawn("ranks", Rank)
    found = ranks.environment.call(*NAMES).get(timeout=WAIT).values()
    assert found == [
        [str(rank), str(rank % 2), "4", "2", str(rank // 2), "2", str(rank), "4"] for rank in range(4)
    ]  # fmt: skip
    masters = ranks.environment.call("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME").get(timeout=WAIT).values()
    assert len({tuple(master) for master in masters}) == 1
    assert int(masters[0][1]) > 0
    assert ranks.all_reduce.call().get(timeout=WAIT).values() == [10.0] * 4
    assert "_SPMDActor" not in mk.session().actors
    procs.stop().get(timeout=WAIT)


def test_it_can_be_awaited_and_told_the_master(hosts: Any) -> None:
    procs = hosts.slice(hosts=0).spawn_procs(per_host={"gpus": 1})
    ranks = procs.spawn("ranks", Rank)

    async def run() -> list[str | None]:
        await setup_torch_elastic_env_async(procs, "somewhere", 4321)
        return await ranks.environment.call_one("MASTER_ADDR", "MASTER_PORT")  # type: ignore[no-any-return]

    assert asyncio.run(run()) == ["somewhere", "4321"]
    for one in ({"master_addr": "somewhere"}, {"master_port": 1}):
        with pytest.raises(ValueError, match="both of master_addr and master_port"):
            setup_torch_elastic_env(procs, **one)  # type: ignore[arg-type]
    setup_torch_elastic_env(procs, use_ipaddr=True)
    address, port = ranks.environment.call_one("MASTER_ADDR", "MASTER_PORT").get(timeout=WAIT)
    assert address.count(".") == 3 or ":" in address
    assert port != "4321"
    with pytest.raises(ActorError, match="use_ipaddr is None, True, 'IPv4' or 'IPv6'"):
        setup_torch_elastic_env(procs, use_ipaddr="IPv5")
    procs.stop().get(timeout=WAIT)


def test_a_mesh_of_one_process_a_host_has_one_local_rank_on_each(hosts: Any) -> None:
    procs = hosts.spawn_procs()
    setup_torch_elastic_env(procs)
    found = procs.spawn("ranks", Rank).environment.call(*NAMES).get(timeout=WAIT).values()
    assert found == [[str(rank), "0", "2", "1", str(rank), "2", str(rank), "2"] for rank in range(2)]
    procs.stop().get(timeout=WAIT)


def test_a_script_runs_as_the_main_program_of_each_rank(hosts: Any, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def where(rank):\n    return f'rank-{rank}'\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "from beside import where\n"
        "if __name__ == '__main__':\n"
        "    pathlib.Path(sys.argv[1], where(os.environ['RANK'])).write_text(' '.join(sys.argv[2:]))\n"
        "    sys.exit(int(sys.argv[2]))\n"
    )
    procs = hosts.spawn_procs(per_host={"gpus": 1})
    ranks: Any = procs.spawn("scripts", SPMDActor)
    address, port = ranks.slice(hosts=0, gpus=0).get_host_port.call_one(None).get(timeout=WAIT)
    ran = ranks.main.call(address, port, [str(script), str(tmp_path), "0", "x"]).get(timeout=WAIT)
    assert ran.values() == [True, True]
    assert (tmp_path / "rank-1").read_text() == "0 x"
    with pytest.raises(ActorError, match="ended with exit code 3"):
        ranks.main.call(address, port, [str(script), str(tmp_path), "3"]).get(timeout=WAIT)
    with pytest.raises(ActorError, match="names nothing to run"):
        ranks.main.call(address, port, []).get(timeout=WAIT)
    module = ranks.main.call(address, port, ["-m", "this"]).get(timeout=WAIT)
    assert module.values() == [True, True]
    procs.stop().get(timeout=WAIT)


@pytest.mark.parametrize(
    ("devices", "own", "place", "seen"),
    [
        ("4,5,6,7", "6", {"local_rank": 2, "local_world_size": 4}, "4,5,6,7"),
        ("4,5,6,7", "6", {"local_rank": 0, "local_world_size": 2}, "6,7"),  # of the slice gpus=2:4
        ("4,5,6,7", "4", {"local_rank": 2, "local_world_size": 4}, "4"),
        ("", "6", {"local_rank": 0, "local_world_size": 1}, "6"),
        ("GPU-a,GPU-b", "GPU-b", {"local_rank": 1, "local_world_size": 2}, "GPU-a,GPU-b"),
    ],
)
def test_a_rank_sees_the_devices_of_its_node_by_local_rank(
    monkeypatch: pytest.MonkeyPatch, devices: str, own: str, place: dict[str, int], seen: str
) -> None:
    monkeypatch.setenv("MONARCH_KERNEL_DEVICES", devices)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    rank = object.__new__(SPMDActor)
    rank.__dict__.update(place)
    rank._show_devices()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_a_process_sees_its_own_device_and_knows_those_of_its_mesh() -> None:
    record: Any = SimpleNamespace(spec={"per_host": {"gpus": 2}, "slots": [1, 3]})
    slots = {"kind": "cuda", "gpus": ["0", "1", "2", "5"]}
    found: Any = device_env(slots, record, 1)
    assert found == {"CUDA_VISIBLE_DEVICES": "5", "MONARCH_KERNEL_DEVICES": "1,5"}


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, monarch_kernel.spmd; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
