"""Results of calls: addressed like the mesh they came from, and shown in bounds."""

from __future__ import annotations

import itertools
import pickle
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.actor._shape import Extent, NDSlice, Region, Shape
from monarch_kernel.actor._valuemesh import ValueMesh

EXTENT = Extent(["hosts", "gpus"], [2, 4])


def mesh_of(*values: Any) -> ValueMesh[Any]:
    return ValueMesh(Extent(["r"], [len(values)]), values)


@given(st.lists(st.integers(1, 4), max_size=3), st.data())
def test_values_follow_their_ranks_through_slices(sizes: list[int], data: st.DataObject) -> None:
    labels = "abc"[: len(sizes)]
    model = {place: f"v{place}" for place in itertools.product(*map(range, sizes))}
    mesh = ValueMesh(Extent(labels, sizes), model.values())
    assert all(mesh.item(**dict(zip(labels, place, strict=True))) == value for place, value in model.items())

    dims: dict[str, Any] = {}
    for label, size in zip(labels, sizes, strict=True):
        start = data.draw(st.integers(0, size - 1))
        stop = data.draw(st.integers(start + 1, size))
        dims[label] = data.draw(st.sampled_from([start, slice(start, stop)]))
    ranges = [range(d.start, d.stop) if isinstance(d, slice) else [d] for d in dims.values()]
    part = mesh.slice(**dims)
    expected = [model[place] for place in itertools.product(*ranges)]
    assert part.values() == [value for _, value in part.items()] == expected
    assert [part.get(rank) for rank in range(len(part))] == expected
    assert [point.rank for point, _ in part] == list(range(len(expected)))
    assert all(part.item(**point) == value for point, value in part)
    back = pickle.loads(pickle.dumps(part))
    assert (back.values(), back.extent) == (part.values(), part.extent)
    # A slice of a slice finds the right values, too.
    for label in part.extent:
        last = part.extent[label] - 1
        assert part.slice(**{label: last}).values() == [value for point, value in part if point[label] == last]


def test_a_sparse_region_of_a_larger_box_keeps_its_own_order() -> None:
    region = Region.row_major(("h", "g"), (2, 4)).sliced(g=slice(1, 4, 2))
    mesh = ValueMesh(region, ["b", "d", "f", "h"])
    assert mesh.item(h=1, g=0) == "f"
    assert mesh.slice(g=1).values() == ["d", "h"]
    assert repr(mesh.slice(h=1)) == "ValueMesh({g: 2}):\n  (({'g': 0/2}, 'f'),\n   ({'g': 1/2}, 'h'))"


def test_dimensions_are_flattened_split_and_renamed() -> None:
    mesh = ValueMesh(EXTENT, range(8))
    assert mesh.flatten("r").slice(r=5).item() == 5
    assert mesh.split(gpus=("a", "b"), b=2).item(hosts=1, a=1, b=0) == 6
    assert mesh.rename(gpus="tp").sizes == {"hosts": 2, "tp": 4}
    assert (len(mesh), mesh.size("gpus")) == (8, 4)
    with pytest.raises(ValueError, match="sparse"):
        mesh.slice(gpus=slice(0, 2)).flatten("r")


def test_it_is_made_from_a_shape_a_region_or_an_extent() -> None:
    shape = Shape(["r"], NDSlice(offset=3, sizes=[2], strides=[1]))
    for where in (shape, shape.region, shape.extent):
        mesh = ValueMesh(where, ["a", "b"])
        assert (mesh.item(r=1), mesh.get(0), mesh.slice(r=1).item()) == ("b", "a", "b")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_values_must_be_that_of_the_ranks(count: int) -> None:
    with pytest.raises(ValueError, match=rf"{count} values for the 2 ranks of \{{r: 2\}}"):
        ValueMesh(Extent(["r"], [2]), [None] * count)


def test_the_list_of_values_is_not_shared_with_the_caller() -> None:
    values = [1, 2]
    mesh = ValueMesh(Extent(["r"], [2]), values)
    values[0] = 9
    mesh.values()[1] = 9
    assert mesh.values() == [1, 2]


@given(st.permutations(range(4)))
def test_indexed_values_may_come_in_any_order(order: list[int]) -> None:
    assert ValueMesh.from_indexed(Extent(["r"], [4]), [(i, i * i) for i in order]).values() == [0, 1, 4, 9]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0, 2], "expected 3 values, one a rank; the mesh contains 2: rank 1"),
        ([0, 1, 2, 3], "no rank 3: its ranks are 0 to 2"),
    ],
)
def test_indexed_values_must_cover_every_rank(ranks: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ValueMesh.from_indexed(Extent(["r"], [3]), [(rank, None) for rank in ranks])


@pytest.mark.parametrize(
    ("coordinates", "error", "text"),
    [
        ({"hosts": 1}, KeyError, "an index for every dimension: 'gpus' missing"),
        ({}, KeyError, "'hosts', 'gpus' missing"),
        ({"hosts": 1, "gpus": 4}, IndexError, "index 4 is out of range for dimension 'gpus' of size 4"),
        ({"hosts": 1, "gpus": -1}, IndexError, "out of range"),
        ({"hosts": 1, "gpus": 1, "gpu": 1}, KeyError, "did you mean 'gpus'"),
    ],
)
def test_a_wrong_item_says_what_is_wrong(coordinates: dict[str, int], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ValueMesh(EXTENT, range(8)).item(**coordinates)


@pytest.mark.parametrize("rank", [-1, 8])
def test_get_outside_is_a_value_error(rank: int) -> None:
    with pytest.raises(ValueError, match="has 8 ranks"):
        ValueMesh(EXTENT, range(8)).get(rank)


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_repr_shows_all_of_a_small_mesh_and_the_ends_of_a_large_one() -> None:
    small, large = mesh_of(*range(8)), mesh_of(*range(1000))
    assert repr(small).count("\n") == 8
    assert repr(large).count("\n") == 29
    assert "… 972 more …" in repr(large)
    assert "({'r': 999/1000}, 999))" in repr(large)
    assert repr(small.slice(r=3)) == "ValueMesh({}):\n  (({}, 3))"


@pytest.mark.parametrize(
    "value", ["x" * 10**6, b"x" * 10**6, bytearray(10**6), list(range(10**6)), [["y" * 500] * 9] * 9]
)
def test_a_large_value_is_shown_short(value: Any) -> None:
    mesh = mesh_of(value, 1)
    assert len(repr(mesh)) < 400
    assert len(mesh._repr_html_()) < 2000


def test_a_value_whose_repr_fails_does_not_hide_the_others() -> None:
    assert "Broken" in repr(mesh_of(Broken(), 42))
    assert "42" in repr(mesh_of(Broken(), 42))


class Page(HTMLParser):
    """Reads a page back: its cells, and whether every tag that opens closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_the_notebook_table_has_the_last_dimension_across() -> None:
    page = Page(ValueMesh(Extent(["h", "g"], [2, 2]), [1.5, "<b>", None, 4])._repr_html_())
    assert page.cells == ["", "g 0", "g 1", "h 0", "1.5", "'<b>'", "h 1", "None", "4"]
    assert page.open == []


def test_a_single_dimension_runs_down() -> None:
    assert Page(mesh_of(7, 8)._repr_html_()).cells == ["r 0", "7", "r 1", "8"]
    assert Page(mesh_of(7).slice(r=0)._repr_html_()).cells == ["", "7"]


def test_the_notebook_table_is_bounded_and_says_what_it_leaves_out() -> None:
    text = ValueMesh(Extent(["h", "g"], [100, 100]), range(10_000))._repr_html_()
    page = Page(text)
    assert len(page.cells) == 17 * 33
    assert f"… {10_000 - 32 * 16} more" in text
    assert page.open == []


def test_the_notebook_table_brings_no_colours_of_its_own() -> None:
    text = mesh_of(1, 2)._repr_html_()
    assert "#" not in text
    assert "color: inherit" in text
