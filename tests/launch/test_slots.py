"""Devices: found without a CUDA context, divided over hosts, never replaced by CPUs in silence."""

import pytest

from monarch_kernel.errors import LaunchError, NotEnoughSlots
from monarch_kernel.launch.slots import NvidiaProbe, Slots, divide

TWO = "GPU 0: NVIDIA H100 (UUID: GPU-aaaa-1)\nGPU 1: NVIDIA H100 (UUID: GPU-bbbb-2)\n"
MIG = TWO.replace(
    "\nGPU 1", "\n  MIG 1g.10gb     Device  0: (UUID: MIG-c1)\n  MIG 1g.10gb     Device  1: (UUID: MIG-c2)\nGPU 1"
)


@pytest.fixture
def probe(tmp_path):
    def make(output="", code=0, driver=True, smi=True, visible=None, gpus=2, delay=0):
        if driver:
            for i in range(gpus):
                (tmp_path / f"driver/gpus/0000:{i:02d}:00.0").mkdir(parents=True)
            (tmp_path / "driver").mkdir(exist_ok=True)
        if smi:
            (tmp_path / "output").write_text(output)
            (tmp_path / "smi").write_text(f"#!/bin/sh\nsleep {delay}\ncat {tmp_path}/output\nexit {code}\n")
            (tmp_path / "smi").chmod(0o755)
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return NvidiaProbe(tmp_path / "driver", str(tmp_path / "smi"), environ, timeout=0.5 if delay else 10)

    return make


def test_without_a_driver_there_are_no_devices(probe):
    assert probe(driver=False, smi=False).devices() is None


def test_tools_without_a_driver_are_no_driver(probe):
    assert probe("NVIDIA-SMI has failed", code=9, driver=False).devices() is None


def test_devices_are_counted_in_the_drivers_order(probe):
    assert probe(TWO).devices() == ("0", "1")


def test_a_divided_device_gives_its_instances(probe):
    assert probe(MIG).devices() == ("MIG-c1", "MIG-c2", "1")


def test_a_container_may_lack_the_tool(probe):
    assert probe(smi=False).devices() == ("0", "1")


@pytest.mark.parametrize(
    "broken",
    [
        {"output": "Failed to initialize NVML: Driver/library version mismatch", "code": 18},
        {"output": "", "code": 0},
        {"smi": False, "gpus": 0},
        {"output": TWO, "delay": 30},
    ],
)
def test_a_driver_that_is_there_but_broken_is_an_error_and_no_fallback(probe, broken):
    with pytest.raises(LaunchError, match="driver is there"):
        probe(**broken).devices()


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        ("1", ("1",)),
        ("1,0", ("1", "0")),
        ("GPU-bbbb-2", ("GPU-bbbb-2",)),
        ("GPU-bbbb", ("GPU-bbbb",)),
        (" 0 , 1 ", ("0", "1")),
        ("", None),
        ("-1", None),
        ("NoDevFiles", None),
    ],
)
def test_what_the_user_hid_stays_hidden(probe, visible, devices):
    assert probe(TWO, visible=visible).devices() == devices


def test_a_device_that_is_not_there_is_named(probe):
    with pytest.raises(LaunchError, match="names '7', but the driver has 0, 1"):
        probe(TWO, visible="0,7").devices()


def test_hosts_divide_what_there_is():
    eight = tuple("01234567")
    assert [s.gpus for s in divide(eight, 2, None)] == [tuple("0123"), tuple("4567")]
    assert [s.gpus for s in divide(eight, 3, None)] == [("0", "1"), ("2", "3"), ("4", "5")]
    assert [s.gpus for s in divide(eight, 2, 1)] == [("0",), ("1",)]
    assert divide(("0",), 2, None) == [Slots("cuda", (), 0)] * 2  # two hosts on a laptop with one GPU
    assert divide(eight, 1, 0) == [Slots("cuda", (), 0)]


def test_cpu_slots_are_capped_only_where_a_number_was_given():
    assert divide(None, 2, None) == [Slots("cpu", (), None)] * 2
    assert divide(None, 1, 4) == [Slots("cpu", (), 4)]


def test_more_than_there_is_names_asked_there_and_free():
    with pytest.raises(NotEnoughSlots, match=r"asked for 6 GPUs \(2 hosts with 3 each\).* has 4, 4 of them free"):
        divide(tuple("0123"), 2, 3)


@pytest.mark.parametrize(("hosts", "gpus"), [(0, None), (-1, 1), (1, -1)])
def test_numbers_that_make_no_sense(hosts, gpus):
    with pytest.raises(ValueError, match="at least one host"):
        divide(None, hosts, gpus)
