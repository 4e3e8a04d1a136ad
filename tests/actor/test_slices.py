"""Slices of live meshes: what is refused, and where their calls go."""

from __future__ import annotations

from typing import Any

import pytest
from mesh_actors import Counter

WAIT = 30


@pytest.fixture(scope="module")
def counters(procs: Any) -> Any:
    return procs.spawn("counters", Counter)


def test_a_call_on_a_slice_reaches_its_ranks_only(procs):
    mesh = procs.spawn("part", Counter)
    mesh.slice(hosts=1).add.call(1).get(timeout=WAIT)
    mesh.slice(gpus=0).add.call(10).get(timeout=WAIT)
    mesh.slice(hosts=0, gpus=1).add.call_one(100).get(timeout=WAIT)
    assert list(mesh.value.call().get(timeout=WAIT).values()) == [10, 100, 11, 1]


def test_a_slice_of_a_slice(counters):
    half = counters.slice(hosts=1)
    seen = half.slice(gpus=1).where.call_one().get(timeout=WAIT)
    assert seen[3] == {"hosts": 1, "gpus": 1}
    assert half.slice(gpus=slice(1, None)).where.call().get(timeout=WAIT).item(gpus=0)[0] == {"gpus": 0}


def test_slices_out_of_range_are_refused_at_once(counters, procs, session):
    for mesh in (counters, procs):
        with pytest.raises(IndexError):
            mesh.slice(gpus=2)
        with pytest.raises(IndexError):
            mesh.slice(gpus=-1)
        with pytest.raises(ValueError, match="empty"):
            mesh.slice(gpus=slice(2, 2))
        with pytest.raises(TypeError, match="layers"):
            mesh.slice(layers=0)
    with pytest.raises(IndexError):
        session.hosts.slice(hosts=2)


def test_negative_bounds_count_from_the_end(counters):
    assert [v[3] for v in counters.slice(gpus=slice(-1, None)).where.call().get(timeout=WAIT).values()] == [
        {"hosts": 0, "gpus": 1},
        {"hosts": 1, "gpus": 1},
    ]


def test_a_value_mesh_of_a_slice_slices_on(counters):
    values = counters.slice(hosts=slice(0, 2)).where.call().get(timeout=WAIT)
    assert values.slice(hosts=1, gpus=0).item()[3] == {"hosts": 1, "gpus": 0}


def test_a_mesh_says_what_it_is(counters, procs, session):
    assert repr(counters) == "<Counter actors 'counters' {hosts: 2, gpus: 2}>"
    assert repr(counters.slice(hosts=0)) == "<Counter actors 'counters' {gpus: 2}>"
    assert repr(procs.slice(hosts=0, gpus=0)).startswith("<processes 'procs-")
    assert repr(session.hosts).startswith("<hosts of session 'actors-")
    assert len(counters) == 4
    assert counters.sizes == (2, 2) or counters.size() == 4
    assert "add" in dir(counters)
