"""Meshes are sliced like arrays: whatever is done to a mesh and to a NumPy array of its ranks has the same answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.actor import Extent, ValueMesh

LABELS = ("a", "b", "c", "d")


def both(sizes: list[int]) -> tuple[ValueMesh[int], Any, list[str]]:
    """A mesh, the array of the same values, and the names of the dimensions of both."""
    labels = list(LABELS[: len(sizes)])
    count = int(np.prod(sizes, dtype=int))
    return ValueMesh(Extent(labels, sizes), range(count)), np.arange(count).reshape(sizes), labels


def same(mesh: ValueMesh[int], array: Any, labels: list[str]) -> None:
    assert mesh.extent.labels == labels
    assert mesh.extent.sizes == list(array.shape)
    assert mesh.values() == array.reshape(-1).tolist()
    # Points are ranked anew, row-major, as NumPy's own indices of the result are.
    for (point, value), index in zip(mesh.items(), np.ndindex(*array.shape), strict=True):
        assert tuple(point.values()) == index
        assert point.rank == (np.ravel_multi_index(index, array.shape) if index else 0)
        assert array[index] == value


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def part_of(draw: st.DrawFn, size: int) -> int | slice:
    """An index, or a slice that takes something."""
    if draw(st.booleans()):
        return draw(st.integers(0, size - 1))
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = draw(st.none() | st.integers(1, size + 1))
    made = slice(draw(bound), draw(bound), step)
    return made if range(size)[made] else slice(None, None, step)


def cut(data: st.DataObject, mesh: ValueMesh[int], array: Any, labels: list[str]) -> tuple[Any, Any, list[str]]:
    dims = {
        label: data.draw(part_of(size), label=label)
        for label, size in zip(labels, array.shape, strict=True)
        if data.draw(st.booleans(), label=f"cut {label}?")
    }
    array = array[tuple(dims.get(label, slice(None)) for label in labels)]
    return mesh.slice(**dims), array, [label for label in labels if not isinstance(dims.get(label), int)]


@given(sizes, st.data())
def test_slices_and_slices_of_slices_take_what_numpy_takes(shape: list[int], data: st.DataObject) -> None:
    mesh, array, labels = both(shape)
    for _ in range(data.draw(st.integers(1, 3), label="cuts")):
        mesh, array, labels = cut(data, mesh, array, labels)
        same(mesh, array, labels)


@given(sizes, st.data())
def test_flatten_is_a_view_exactly_where_the_ranks_are_consecutive(shape: list[int], data: st.DataObject) -> None:
    mesh, array, _ = cut(data, *both(shape))
    flat = array.reshape(-1)
    if flat.size == 1 or (np.diff(flat) == 1).all():
        same(mesh.flatten("all"), flat, ["all"])
    else:
        try:
            mesh.flatten("all")
        except ValueError:
            pass
        else:
            raise AssertionError(f"flatten of ranks {flat.tolist()} should have been refused")


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_split_is_numpys_reshape(parts: list[list[int]], data: st.DataObject) -> None:
    """Each dimension is divided into parts, with one size of each to be inferred or all of them given."""
    mesh, array, labels = both([int(np.prod(part)) for part in parts])
    names = {
        label: [f"{label}{number}" for number in range(len(part))] for label, part in zip(labels, parts, strict=True)
    }
    given_sizes: dict[str, int] = {}
    for label, part in zip(labels, parts, strict=True):
        inferred = data.draw(st.none() | st.sampled_from(names[label]), label=f"inferred of {label}")
        given_sizes |= {n: size for n, size in zip(names[label], part, strict=True) if n != inferred}
    made = mesh.split(**names, **given_sizes)
    same(made, array.reshape([size for part in parts for size in part]), [n for label in labels for n in names[label]])


@given(sizes, st.data())
def test_rename_leaves_the_array_as_it_is(shape: list[int], data: st.DataObject) -> None:
    mesh, array, labels = cut(data, *both(shape))
    to = data.draw(st.permutations(["w", "x", "y", "z"]))
    names = dict(zip(labels, to, strict=False))
    same(mesh.rename(**names), array, [names[label] for label in labels])
