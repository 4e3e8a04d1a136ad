"""Tensors: the parameter server that Monarch's documentation shows, over two hosts."""

from __future__ import annotations

from typing import Any

import pytest

WAIT = 50.0


@pytest.fixture(scope="module")
def trainers(procs: Any) -> Any:
    from training import ParameterServer, Trainer

    server = procs.slice(hosts=0, gpus=0).spawn("server", ParameterServer)
    return procs.slice(gpus=1).spawn("trainers", Trainer, server), server


def test_trainers_read_weights_and_write_gradients_of_a_server(trainers: Any) -> None:
    trainers, server = trainers
    for host, value in ((0, 1.0), (1, 1.5)):  # half of the way to 2 in each step
        found = trainers.slice(hosts=host).train.call_one().get(WAIT)
        assert found == server.total.call_one().get(WAIT) == 64 * 64 * value


def test_tensors_that_are_no_flat_memory_are_refused(trainers: Any) -> None:
    said = trainers[0].slice(hosts=0).refuses.call_one().get(WAIT)
    assert len(said) == 5
    assert said[2] == "Cannot create RDMABuffer with size 0."
    assert "meta" in said[3]


@pytest.mark.parametrize("kind", ["uint8", "float32", "bfloat16", "float16", "int64", "complex64", "bool"])
def test_a_slice_of_a_tensor_of_any_type_arrives(trainers: Any, kind: str) -> None:
    assert trainers[0].slice(hosts=0).keeps.call_one(kind).get(WAIT)
