"""Extents, points, regions and the console notation, against a model made of nested lists."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monarch_kernel.actor._shape import (
    Extent,
    MeshTrait,
    NDSlice,
    Point,
    Region,
    Shape,
    Slice,
    UnknownDimension,
    parse_ranks,
    parse_slice,
    split_target,
)

BOX = Region.row_major(("hosts", "gpus"), (2, 4))


class Mesh(MeshTrait):
    """The smallest mesh there can be."""

    def __init__(self, region: Region) -> None:
        self.region = region

    @property
    def _region(self) -> Region:
        return self.region

    def _with_region(self, region: Region) -> Mesh:
        return Mesh(region)


# The model: a box is nested lists of ranks, one level a dimension.


def nested(sizes: tuple[int, ...]) -> Any:
    numbers = itertools.count()

    def make(left: tuple[int, ...]) -> Any:
        return [make(left[1:]) for _ in range(left[0])] if left else next(numbers)

    return make(sizes)


def take(lists: Any, labels: tuple[str, ...], wanted: Mapping[str, int | slice]) -> Any:
    if not labels:
        return lists
    rest = labels[1:]
    chosen = wanted.get(labels[0], slice(None))
    if isinstance(chosen, slice):
        return [take(inner, rest, wanted) for inner in lists[chosen]]
    return take(lists[chosen], rest, wanted)


def flat(lists: Any) -> list[int]:
    return [rank for inner in lists for rank in flat(inner)] if isinstance(lists, list) else [lists]


def sizes_of(lists: Any) -> tuple[int, ...]:
    return (len(lists), *sizes_of(lists[0])) if isinstance(lists, list) else ()


@st.composite
def boxes(draw: st.DrawFn, min_dims: int = 0) -> tuple[tuple[str, ...], tuple[int, ...]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=min_dims, max_size=4))
    return tuple("abcd"[: len(sizes)]), tuple(sizes)


@st.composite
def choices(draw: st.DrawFn, labels: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, int | slice]:
    wanted: dict[str, int | slice] = {}
    for label, size in zip(labels, sizes, strict=True):
        bound = st.none() | st.integers(-size - 1, size + 1)
        kind = draw(st.sampled_from(["all", "index", "slice"]))
        if kind == "index":
            wanted[label] = draw(st.integers(0, size - 1))
        elif kind == "slice":
            wanted[label] = slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3)))
            assume(range(size)[wanted[label]])
    return wanted


@given(st.data())
def test_slices_of_slices_take_what_nested_lists_take(data: st.DataObject) -> None:
    labels, sizes = data.draw(boxes())
    region, lists = Region.row_major(labels, sizes), nested(sizes)
    for _ in range(data.draw(st.integers(1, 3))):
        wanted = data.draw(choices(region.labels, region.sizes))
        lists = take(lists, region.labels, wanted)
        region = region.sliced(wanted)
        ranks = flat(lists)
        assert region.sizes == sizes_of(lists)
        assert list(region.ranks()) == list(region.slice()) == ranks
        assert len(region) == len(ranks)
        assert region.is_dense == (ranks == list(range(ranks[0], ranks[0] + len(ranks))))
        assert isinstance(region.ranks(), range) or not region.is_dense


@given(st.data())
def test_positions_ranks_and_points_are_inverse_to_each_other(data: st.DataObject) -> None:
    labels, sizes = data.draw(boxes())
    box = Region.row_major(labels, sizes)
    region = box.sliced(data.draw(choices(labels, sizes)))
    places = list(itertools.product(*map(range, region.sizes)))
    for position, (rank, place) in enumerate(zip(region.ranks(), places, strict=True)):
        assert region.rank_at(position) == rank
        assert region.position_of(rank) == position
        assert region.slice().nditem(place) == rank
        assert region.slice().coordinates(rank) == list(place)
        assert dict(region.point(position)) == dict(zip(region.labels, place, strict=True))
        assert region.point_of_base_rank(rank).rank == position
        assert rank in region
    for rank in set(range(-2, len(box) + 3)) - set(region.ranks()):
        assert rank not in region
        with pytest.raises(ValueError):
            region.position_of(rank)


@given(st.data())
def test_a_region_survives_pickling_equal_and_small(data: st.DataObject) -> None:
    labels, sizes = data.draw(boxes())
    region = Region.row_major(labels, sizes).sliced(data.draw(choices(labels, sizes)))
    for original in (region, region.slice(), region.as_shape()):
        packed = pickle.dumps(original, 5)
        back = pickle.loads(packed)
        assert type(back) is type(original)
        assert back == original
        assert hash(back) == hash(original)
        assert len(packed) < 200
    assert pickle.loads(pickle.dumps(region)).ranks() == region.ranks()


@given(st.data())
def test_a_split_keeps_the_ranks_and_makes_the_wanted_sizes(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    outer = data.draw(st.integers(1, 3))
    names = tuple("xyz"[: len(parts)])
    mesh = Mesh(Region.row_major(("outer", "inner"), (outer, math.prod(parts))))
    left_out = data.draw(st.sampled_from([None, *names]))
    given_sizes = {name: size for name, size in zip(names, parts, strict=True) if name != left_out}
    divided = mesh.split(inner=names, **given_sizes)
    assert divided.sizes == {"outer": outer, **dict(zip(names, parts, strict=True))}
    assert list(divided.region.ranks()) == list(mesh.region.ranks())
    assert divided.flatten("all").sizes == {"all": outer * math.prod(parts)}


@given(st.data())
def test_only_a_dense_mesh_can_be_flattened(data: st.DataObject) -> None:
    labels, sizes = data.draw(boxes())
    part = Mesh(Region.row_major(labels, sizes)).slice(**data.draw(choices(labels, sizes)))
    if part.region.is_dense:
        line = part.flatten("rank")
        assert line.sizes == {"rank": len(part)}
        assert list(line.region.ranks()) == list(part.region.ranks())
    else:
        with pytest.raises(ValueError, match="cannot flatten the sparse mesh"):
            part.flatten("rank")


def test_a_slice_is_ranked_anew_from_zero() -> None:
    part = BOX.sliced(hosts=1, gpus=slice(1, 3))
    assert list(part.ranks()) == [5, 6]
    assert [repr(part.point(position)) for position in range(2)] == ["{'gpus': 0/2}", "{'gpus': 1/2}"]
    single = part.sliced(gpus=0)
    assert dict(single.point(0)) == {}
    assert repr(single.point(0)) == "{}"


def test_a_slice_with_a_point_takes_that_one_rank() -> None:
    mesh = Mesh(BOX)
    for rank in range(8):
        one = mesh.slice(**BOX.point(rank))
        assert list(one.region.ranks()) == [rank]
        assert one.sizes == {}
        assert len(one) == 1


@pytest.mark.parametrize(
    ("dims", "error", "text"),
    [
        ({"gpu": 1}, TypeError, "no dimension 'gpu' in this mesh; there is 'hosts', 'gpus'; did you mean 'gpus'"),
        ({"zzz": 1}, TypeError, "no dimension 'zzz' in this mesh; there is 'hosts', 'gpus'$"),
        ({"gpus": 4}, IndexError, "index 4 is out of range for dimension 'gpus' of size 4"),
        ({"gpus": -1}, IndexError, "index -1 is out of range"),
        ({"gpus": slice(2, 1)}, ValueError, "slice 2:1 of dimension 'gpus' of size 4 is empty"),
        ({"gpus": slice(4, 9)}, ValueError, "is empty"),
        ({"gpus": slice(None, None, -1)}, ValueError, "runs backwards"),
        ({"gpus": slice(None, None, 0)}, ValueError, "zero"),
        ({"gpus": "a"}, TypeError, "takes an integer or a slice, not str 'a'"),
        ({"gpus": [0, 2]}, TypeError, "takes an integer or a slice, not list"),
        ({"gpus": slice("a", None)}, TypeError, "must be integers"),
    ],
)
def test_a_wrong_slice_says_what_is_wrong(dims: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Mesh(BOX).slice(**dims)


def test_negative_bounds_of_a_slice_count_from_the_end() -> None:
    assert list(BOX.sliced(gpus=slice(-2, None)).ranks()) == [2, 3, 6, 7]


def test_a_step_that_does_not_divide_the_size_is_fine() -> None:
    part = BOX.sliced(gpus=slice(None, None, 3))
    assert part.ranks() == [0, 3, 4, 7]
    assert [part.position_of(rank) for rank in part.ranks()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ({"gpus": ("a", "b")}, "the sizes of 'a' and 'b' are unknown"),
        ({"gpus": ("a", "b"), "b": 3}, r"cannot be divided into \(a=\?, b=3\)"),
        ({"gpus": ("a", "b"), "a": 2, "b": 3}, r"cannot be divided into \(a=2, b=3\)"),
        ({"gpus": ("a", "b"), "b": 0}, "cannot be divided"),
        ({"gpus": ()}, "cannot be divided"),
        ({"gpus": ("a", "hosts"), "a": 2}, "duplicate dimension name 'hosts'"),
        ({"gpus": ("a", "a"), "a": 2}, "duplicate dimension name 'a'"),
        ({"b": 2}, "no dimension is divided into: b"),
        ({"gpus": ("a", "b"), "b": 2, "z": 3}, "no dimension is divided into: z"),
        ({"gpu": ("a", "b"), "b": 2}, "did you mean 'gpus'"),
        ({"gpus": ("a", "b"), "b": -2}, "cannot be negative"),
    ],
)
def test_a_wrong_split_says_what_is_wrong(dims: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Mesh(BOX).split(**dims)


@pytest.mark.parametrize("parts", ["ab", 5])
def test_a_dimension_is_divided_into_a_sequence_only(parts: object) -> None:
    with pytest.raises(TypeError, match="a sequence of names"):
        Mesh(BOX).split(gpus=parts)


def test_several_dimensions_are_split_in_place_at_once() -> None:
    mesh = Mesh(BOX).split(gpus=("a", "gpus"), hosts=("x", "y"), a=2, y=2)
    assert mesh.sizes == {"x": 1, "y": 2, "a": 2, "gpus": 2}
    assert list(mesh.slice(a=1, gpus=0).region.ranks()) == [2, 6]


def test_dimensions_are_renamed_also_crosswise() -> None:
    mesh = Mesh(BOX)
    assert mesh.rename(gpus="tp").sizes == {"hosts": 2, "tp": 4}
    assert mesh.rename(gpus="hosts", hosts="gpus").sizes == {"gpus": 2, "hosts": 4}
    assert mesh.rename().region == BOX
    with pytest.raises(ValueError, match="duplicate dimension name 'hosts'"):
        mesh.rename(gpus="hosts")
    with pytest.raises(ValueError, match="no dimension 'gpu'"):
        mesh.rename(gpu="tp")
    with pytest.raises(TypeError, match="renamed to a name"):
        mesh.rename(gpus=3)  # type: ignore[arg-type]


def test_sizes_are_told_for_all_one_or_several_dimensions() -> None:
    mesh = Mesh(BOX)
    assert (mesh.size(), len(mesh)) == (8, 8)
    assert mesh.size("gpus") == 4
    assert mesh.size(["hosts", "gpus"]) == 8
    assert mesh.size([]) == 1
    assert mesh.sizes == {"hosts": 2, "gpus": 4}
    assert mesh.extent == Extent(["hosts", "gpus"], [2, 4])
    with pytest.raises(KeyError, match="no dimension 'gpu' in this mesh"):
        mesh.size("gpu")
    with pytest.raises(TypeError, match="name of a dimension"):
        mesh.size(3)  # type: ignore[arg-type]


def test_an_extent_is_an_ordered_mapping_without_a_hash() -> None:
    extent = Extent(["h", "g"], [2, 4])
    assert dict(**extent) == {"h": 2, "g": 4}
    assert (extent.labels, extent.sizes, extent.nelements, repr(extent)) == (["h", "g"], [2, 4], 8, "{h: 2, g: 4}")
    assert extent == pickle.loads(pickle.dumps(extent))
    assert extent != Extent(["g", "h"], [4, 2])
    assert extent != {"h": 2, "g": 4}
    assert "x" not in extent
    assert extent.get("x") is None
    assert extent.region == Region.row_major(["h", "g"], [2, 4])
    assert Extent([], []).nelements == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(extent)
    with pytest.raises(ValueError, match="no dimension 'x'"):
        extent["x"]


@pytest.mark.parametrize(
    ("labels", "sizes", "text"),
    [(["a"], [1, 2], "1 labels for 2 sizes"), (["a", "a"], [1, 2], "duplicate"), (["a"], [-1], "negative")],
)
def test_an_extent_that_cannot_be_is_refused(labels: list[str], sizes: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Extent(labels, sizes)


def test_a_point_is_a_mapping_without_a_hash() -> None:
    point = Point(5, Extent(["h", "g"], [2, 4]))
    assert dict(**point) == {"h": 1, "g": 1}
    assert (point.rank, point.size("g"), point.extent.nelements) == (5, 4, 8)
    assert repr(point) == "{'h': 1/2, 'g': 1/4}"
    assert point == pickle.loads(pickle.dumps(point))
    assert point != Point(5, Extent(["a", "b"], [2, 4]))
    assert point != {"h": 1, "g": 1}
    assert "x" not in point
    with pytest.raises(TypeError, match="unhashable"):
        hash(point)
    with pytest.raises(ValueError, match="no dimension 'x'"):
        point["x"]
    with pytest.raises(ValueError, match="no dimension 'x'"):
        point.size("x")


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_point_outside_its_extent_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=r"out of range: \{h: 2, g: 4\} has 8 ranks"):
        Point(rank, Extent(["h", "g"], [2, 4]))


def test_an_unknown_dimension_of_a_single_rank_says_so() -> None:
    with pytest.raises(UnknownDimension, match="a single rank") as caught:
        Mesh(Region.row_major((), ())).slice(gpus=0)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "strides", "text"),
    [([2], [], "1 sizes for 0 strides"), ([2, 2], [1, 1], "twice"), ([2], [0], "twice"), ([-2], [1], "negative")],
)
def test_a_slice_that_cannot_be_is_refused(sizes: list[int], strides: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        NDSlice(offset=0, sizes=sizes, strides=strides)


@given(st.permutations(range(3)), st.integers(0, 3))
def test_a_transposed_slice_still_finds_its_numbers(order: list[int], offset: int) -> None:
    dense = NDSlice.new_row_major([2, 3, 4])
    turned = NDSlice(
        offset=offset, sizes=[dense.sizes[dim] for dim in order], strides=[dense.strides[dim] for dim in order]
    )
    assert sorted(turned) == list(range(offset, offset + 24))
    assert [turned.index(number) for number in turned] == list(range(24))
    assert turned.is_dense == (order == [0, 1, 2])


def test_an_empty_slice_has_no_numbers() -> None:
    empty = NDSlice(offset=2, sizes=[3, 0], strides=[1, 1])
    assert list(empty) == []
    assert 2 not in empty
    with pytest.raises(IndexError):
        empty[0]


def test_a_shape_answers_as_monarch_does() -> None:
    shape = Shape(["h", "g"], NDSlice.new_row_major([2, 4]))
    assert Slice is NDSlice
    assert shape.labels == ["h", "g"]
    assert (shape.ndslice.offset, shape.ndslice.sizes, shape.ndslice.strides) == (0, [2, 4], [4, 1])
    assert shape.ranks() == list(range(8))
    assert shape.at("h", 1) == Shape(labels=["g"], slice=NDSlice(offset=4, sizes=[4], strides=[1]))
    assert shape.select("h", slice(0, 1)).ranks() == [0, 1, 2, 3]
    assert shape.index(h=1, g=1).ranks() == [5]
    assert shape.coordinates(5) == {"h": 1, "g": 1}
    assert (str(shape), len(shape), str(Shape.unity())) == ("{h=2,g=4}", 8, "{}")
    assert shape.region.as_shape() == shape
    with pytest.raises(ValueError, match="50 is not in"):
        shape.coordinates(50)
    with pytest.raises(TypeError, match="select takes a slice"):
        shape.select("h", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("t", range(8)),
        ("t[2]", [2]),
        ("t[0:2]", [0, 1]),
        ("t[6:]", [6, 7]),
        ("t[:]", range(8)),
        ("t[3,0]", [0, 3]),
        ("t[0, 2:4, 3]", [0, 2, 3]),
        ("t{gpus: 0-3}", range(8)),
        ("t{hosts: 1, gpus: 0-1}", [4, 5]),
        ("t{gpus:1,3}", [1, 3, 5, 7]),
        ("t{hosts: *, gpus: 0}", [0, 4]),
        (" t { gpus : 0 - 1 , hosts : 0 } ", [0, 1]),
    ],
)
def test_the_notation_of_the_console_names_ranks(text: str, ranks: Any) -> None:
    assert parse_ranks(text, ("hosts", "gpus"), (2, 4)) == ("t", list(ranks))


@given(st.data())
def test_a_region_of_the_notation_has_the_ranks_of_the_notation(data: st.DataObject) -> None:
    labels, sizes = data.draw(boxes(min_dims=1))
    parts = []
    for label, size in zip(labels, sizes, strict=True):
        first = data.draw(st.integers(0, size - 1))
        last = data.draw(st.integers(first, size - 1))
        parts.append(data.draw(st.sampled_from([f"{label}: {first}", f"{label}: {first}-{last}"])))
    count = math.prod(sizes)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    for text in ("m{" + ", ".join(parts) + "}", f"m[{first}]", f"m[{first}:{last}]"):
        assert list(parse_slice(text, labels, sizes).ranks()) == parse_ranks(text, labels, sizes)[1]


def test_the_notation_makes_regions_like_slices_do() -> None:
    labels, sizes = ("hosts", "gpus"), (2, 4)
    assert parse_slice("t", labels, sizes) == BOX
    assert parse_slice("t{hosts: 1, gpus: 0-1}", labels, sizes) == BOX.sliced(hosts=1, gpus=slice(0, 2))
    assert parse_slice("t[2]", labels, sizes).sizes == ()
    assert parse_slice("t[2:4]", labels, sizes).labels == ("ranks",)
    assert parse_slice("t[1:3]", ("gpus",), (4,)) == Region.row_major(("gpus",), (4,)).sliced(gpus=slice(1, 3))
    assert list(parse_slice("t[0,3]", ("gpus",), (4,)).ranks()) == [0, 3]
    with pytest.raises(ValueError, match="not evenly spaced"):
        parse_slice("t[0,1,3]", ("gpus",), (4,))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("t[8]", IndexError, "t has no rank 8: its ranks are 0 to 7"),
        ("t[-1]", ValueError, "neither a rank nor a range"),
        ("t[0-2]", ValueError, "neither a rank nor a range like 0:2"),
        ("t[2:2]", ValueError, "takes no rank"),
        ("t[]", ValueError, "neither a rank"),
        ("t{}", ValueError, "no choice like gpus: 0-3"),
        ("t{0-2}", ValueError, "no choice like gpus: 0-3"),
        ("t{gpus: 0:2}", ValueError, "no choice like gpus: 0-3"),
        ("t{gpus: 3-1}", ValueError, "smaller index first"),
        ("t{gpus: 4}", IndexError, "index 4 is out of range"),
        ("t{gpus: 1, gpus: 2}", ValueError, "stands twice"),
        ("t{gpu: 1}", ValueError, "did you mean 'gpus'"),
        ("t[1", ValueError, "is not a mesh or some ranks of one"),
        ("", ValueError, "is not a mesh"),
        ("a b", ValueError, "is not a mesh"),
    ],
)
def test_a_selection_that_cannot_be_says_what_is_wrong(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        parse_ranks(text, ("hosts", "gpus"), (2, 4))


@pytest.mark.parametrize(
    ("text", "parts"),
    [("trainers", ("trainers", "")), ("a~2[0:2]", ("a~2", "[0:2]")), ("procs-1 {gpus: 0}", ("procs-1", "{gpus: 0}"))],
)
def test_a_target_is_a_name_and_a_selection(text: str, parts: tuple[str, str]) -> None:
    assert split_target(text) == parts


@given(st.text(alphabet="ab012:,-*{}[] ", max_size=16))
def test_whatever_is_typed_gives_ranks_or_a_clear_error(text: str) -> None:
    try:
        name, ranks = parse_ranks(text, ("a", "b"), (2, 3))
    except (ValueError, IndexError):
        return  # what the errors say is tested above; here it matters that there is no other kind
    assert name
    assert ranks
    assert ranks == sorted(set(ranks))
    assert set(ranks) <= set(range(6))
