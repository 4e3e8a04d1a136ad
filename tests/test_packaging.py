"""The package description says what the tree holds."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def listed(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def test_every_package_of_the_three_roots_is_listed(setup: configparser.ConfigParser) -> None:
    roots = dict(line.split(" = ") for line in listed(setup["options"]["package_dir"]))
    packages = set()
    for name, folder in roots.items():
        for path in (ROOT / folder).rglob("__init__.py"):
            packages.add(".".join((name, *path.parent.relative_to(ROOT / folder).parts)))
    assert set(listed(setup["options"]["packages"])) == packages


def test_a_worker_host_needs_nothing_of_jupyter(setup: configparser.ConfigParser) -> None:
    names = {re.split(r"[<>=\[ ]", line)[0] for line in listed(setup["options"]["install_requires"])}
    assert names == {"grpcio", "protobuf", "cloudpickle"}


def test_torch_is_pinned_to_one_version_wherever_it_is_named(setup: configparser.ConfigParser) -> None:
    pins = set(re.findall(r"torch==[\d.]+", (ROOT / "setup.cfg").read_text() + (ROOT / "Makefile").read_text()))
    assert pins == {"torch==2.13.0"}
    assert "torch==2.13.0" in listed(setup["options.extras_require"]["tour"])


def test_every_data_file_of_a_package_is_shipped(setup: configparser.ConfigParser) -> None:
    roots = dict(line.split(" = ") for line in listed(setup["options"]["package_dir"]))
    shipped = set()
    for package, patterns in setup["options.package_data"].items():
        name, *inside = package.split(".")
        for pattern in listed(patterns):
            shipped |= set((ROOT / roots[name]).joinpath(*inside).glob(pattern))
    present = {
        path
        for folder in roots.values()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert present == shipped


def test_generated_stubs_do_not_ask_for_a_newer_runtime_than_is_required(setup: configparser.ConfigParser) -> None:
    required = dict(re.findall(r"(grpcio|protobuf)>=([\d.]+)", setup["options"]["install_requires"]))
    stubs = ROOT / "monarch_kernel" / "protocol"
    (protobuf,) = re.findall(r"^# Protobuf Python Version: ([\d.]+)$", (stubs / "host_pb2.py").read_text(), re.M)
    (grpcio,) = re.findall(r"^GRPC_GENERATED_VERSION = '([\d.]+)'$", (stubs / "host_pb2_grpc.py").read_text(), re.M)
    assert required == {"protobuf": protobuf, "grpcio": grpcio}
