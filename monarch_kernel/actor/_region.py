"""A labelled rectangular part of a box of ranks: `Region`, and `Shape`, as Monarch calls it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from monarch_kernel.actor._extent import Extent, Point, no_duplicates, no_such_dimension, row_major_strides, whole
from monarch_kernel.actor._ndslice import IndexOutOfRange, NDSlice, NegativeIndex

__all__ = ["Region", "Shape"]


class Region:
    """A labelled rectangular part of a box of ranks. Hashable, and small when pickled.

    Parameters
    ----------
    labels
        Names of the dimensions that are left, the slowest varying first.
    ndslice
        Which ranks of the box it takes.

    Notes
    -----
    A *rank of the box* is what the mesh was spawned with; a *position* is the rank within this region, from 0.

    Examples
    --------
    >>> box = Region.row_major(["hosts", "gpus"], [2, 4])
    >>> part = box.sliced(gpus=slice(1, 3))
    >>> part.ranks(), part.rank_at(2), part.position_of(5), part.point(2), part.point_of_base_rank(5)
    ([1, 2, 5, 6], 5, 2, {'hosts': 1/2, 'gpus': 0/2}, {'hosts': 1/2, 'gpus': 0/2})
    >>> box.flattened("rank").extent, box.renamed({"gpus": "g"}).extent
    ({rank: 8}, {hosts: 2, g: 4})
    >>> box.split({"gpus": ("dp", "tp"), "tp": 2}).extent
    {hosts: 2, dp: 2, tp: 2}
    """

    __slots__ = ("_extent", "_labels", "_slice")

    def __init__(self, labels: Iterable[str], ndslice: NDSlice) -> None:
        self._labels = tuple(labels)
        self._slice = ndslice
        self._extent: Extent | None = None
        if len(self._labels) != ndslice.ndim:
            raise ValueError(f"{len(self._labels)} labels for {ndslice.ndim} dimensions")
        no_duplicates(self._labels)

    @classmethod
    def row_major(cls, labels: Iterable[str], sizes: Iterable[SupportsIndex]) -> Region:
        """A whole box: all ranks from 0."""
        return cls(labels, NDSlice.new_row_major(sizes))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the dimensions, in order."""
        return self._labels

    @property
    def offset(self) -> int:
        """Its first rank in the box."""
        return self._slice.offset

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the dimensions, in the order of `labels`."""
        return self._slice._sizes

    @property
    def strides(self) -> tuple[int, ...]:
        """By how much the rank grows with one step in each dimension."""
        return self._slice._strides

    @property
    def extent(self) -> Extent:
        """Labels and sizes; one object a region, so that many points share it."""
        if self._extent is None:
            self._extent = Extent(self._labels, self._slice._sizes)
        return self._extent

    @property
    def is_dense(self) -> bool:
        """Whether its ranks are consecutive and in order. Known at once."""
        return self._slice._dense

    def slice(self) -> NDSlice:
        """Offset, sizes and strides in one object (Monarch's name for it)."""
        return self._slice

    def as_shape(self) -> Shape:
        """The same under Monarch's other name."""
        return Shape(self._labels, self._slice)

    def ranks(self) -> Sequence[int]:
        """Its ranks in the box, in order: a range where one describes them, else a list."""
        return self._slice.numbers()

    def rank_at(self, position: SupportsIndex) -> int:
        """Rank in the box of the member at `position`; IndexError outside."""
        return self._slice[position]

    def position_of(self, rank: int) -> int:
        """Position within the region of `rank` of the box; ValueError for one it does not take."""
        return self._slice.index(rank)

    def point(self, position: SupportsIndex) -> Point:
        """Coordinates within the region of the member at `position`."""
        return Point(position, self.extent)

    def point_of_base_rank(self, rank: int) -> Point:
        """Coordinates within the region of `rank` of the box."""
        return Point(self._slice.index(rank), self.extent)

    def sliced(self, dims: Mapping[str, Any] | None = None, /, **more: Any) -> Region:
        """Take an index (drops the dimension) or a Python slice (keeps it) of some dimensions.

        Raises
        ------
        TypeError
            For a dimension that is not there, or something that is neither an integer nor a slice.
        IndexError
            For an index that is negative or too large.
        ValueError
            For a slice that takes nothing, or runs backwards.
        """
        wanted = {**(dims or {}), **more}
        if not wanted:
            return self
        for label in wanted:
            if label not in self._labels:
                no_such_dimension(label, self._labels)
        offset = self._slice.offset
        labels: list[str] = []
        sizes: list[int] = []
        strides: list[int] = []
        for label, size, stride in zip(self._labels, self._slice._sizes, self._slice._strides, strict=True):
            if label not in wanted:
                labels.append(label)
                sizes.append(size)
                strides.append(stride)
                continue
            chosen = wanted[label]
            if isinstance(chosen, slice):
                start, count, step = _bounds(label, size, chosen)
                offset += start * stride
                labels.append(label)
                sizes.append(count)
                strides.append(stride * step)
            else:
                offset += _index(label, size, chosen) * stride
        return Region(labels, NDSlice._make(offset, tuple(sizes), tuple(strides)))

    def flattened(self, name: str) -> Region:
        """All dimensions as one, called `name`; ValueError unless `is_dense`."""
        if not self._slice._dense:
            raise ValueError(
                f"cannot flatten the sparse mesh {self.extent}: its ranks {_some(self.ranks())} are not consecutive; "
                "flatten first, then slice"
            )
        return Region((name,), NDSlice._make(self._slice.offset, (self._slice._nelements,), (1,)))

    def split(self, dims: Mapping[str, Any]) -> Region:
        """Divide dimensions, with the sizes of new ones; see `MeshTrait.split`."""
        parts: dict[str, tuple[str, ...]] = {}
        given: dict[str, int] = {}
        for label, value in dims.items():
            if label in self._labels:
                if isinstance(value, str) or not isinstance(value, Iterable):
                    raise TypeError(f"dimension {label!r} is divided into a sequence of names, not {value!r}")
                parts[label] = tuple(value)
            elif isinstance(value, str) or not hasattr(value, "__index__"):
                no_such_dimension(label, self._labels)
            else:
                given[label] = whole(value, f"the size of {label!r}")
        new = [part for label in parts for part in parts[label]]
        if unused := [label for label in given if label not in new]:
            raise ValueError(f"sizes given for names that no dimension is divided into: {', '.join(unused)}")
        labels: list[str] = []
        sizes: list[int] = []
        strides: list[int] = []
        for label, size, stride in zip(self._labels, self._slice._sizes, self._slice._strides, strict=True):
            inner = parts.get(label, (label,))
            counts = _divide(label, size, inner, given) if label in parts else (size,)
            labels += inner
            sizes += counts
            strides += (stride * step for step in row_major_strides(counts))
        return Region(labels, NDSlice._make(self._slice.offset, tuple(sizes), tuple(strides)))

    def renamed(self, names: Mapping[str, str]) -> Region:
        """The same ranks with other names of dimensions."""
        for label, name in names.items():
            if label not in self._labels:
                no_such_dimension(label, self._labels)
            if not isinstance(name, str):
                raise TypeError(f"dimension {label!r} is renamed to a name, not {name!r}")
        return Region((names.get(label, label) for label in self._labels), self._slice)

    def __len__(self) -> int:
        return self._slice._nelements

    def __contains__(self, rank: object) -> bool:
        return rank in self._slice

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Region):
            return NotImplemented
        return self._labels == other._labels and self._slice == other._slice

    def __hash__(self) -> int:
        return hash((self._labels, self._slice))

    def __repr__(self) -> str:
        ranks = self.ranks()
        return f"Region({self.extent}, ranks {_some(ranks)})"

    def __reduce__(self) -> tuple[object, ...]:
        part = self._slice
        if part.offset == 0 and part._strides == row_major_strides(part._sizes):
            return (_unpickle_region, (self._labels, part._sizes))
        return (_unpickle_region, (self._labels, part._sizes, part.offset, part._strides))


def _unpickle_region(
    labels: tuple[str, ...], sizes: tuple[int, ...], offset: int = 0, strides: tuple[int, ...] | None = None
) -> Region:
    region = Region.__new__(Region)
    region._labels = labels
    region._slice = NDSlice._make(offset, sizes, row_major_strides(sizes) if strides is None else strides)
    region._extent = None
    return region


def _some(ranks: Sequence[int], limit: int = 8) -> str:
    """Ranks in one short line."""
    if isinstance(ranks, range) and len(ranks) > 2 and ranks.step == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    shown = ", ".join(map(str, ranks[:limit]))
    return shown + (f", … {ranks[-1]}" if len(ranks) > limit else "")


def _index(label: str, size: int, chosen: Any) -> int:
    try:
        index = operator.index(chosen)
    except TypeError:
        raise TypeError(
            f"dimension {label!r} takes an integer or a slice, not {type(chosen).__name__} {chosen!r}"
        ) from None
    if not 0 <= index < size:
        kind = NegativeIndex if index < 0 else IndexOutOfRange
        raise kind(f"index {index} is out of range for dimension {label!r} of size {size} (0 to {size - 1})")
    return index


def _bounds(label: str, size: int, chosen: slice) -> tuple[int, int, int]:
    """Start, count and step of a Python slice of a dimension."""
    try:
        start, stop, step = chosen.indices(size)
    except TypeError:
        raise TypeError(f"the bounds of a slice of dimension {label!r} must be integers: {chosen!r}") from None
    shown = ":".join("" if part is None else str(part) for part in (chosen.start, chosen.stop, chosen.step)).rstrip(":")
    if step < 0:
        raise ValueError(f"slice {shown} of dimension {label!r} runs backwards; ranks keep their order")
    count = len(range(start, stop, step))
    if count == 0:
        raise ValueError(f"slice {shown or ':'} of dimension {label!r} of size {size} is empty")
    return start, count, step


def _divide(label: str, size: int, inner: Sequence[str], given: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes of the parts that a dimension is divided into, at most one of them inferred."""
    no_duplicates(inner)
    unknown = [name for name in inner if name not in given]
    if len(unknown) > 1:
        raise ValueError(
            f"the sizes of {' and '.join(map(repr, unknown))} are unknown: give all but one of the parts of "
            f"{label!r}, e.g. {unknown[-1]}={size}"
        )
    known = math.prod(given[name] for name in inner if name in given)
    if (known == 0 or size % known) if unknown else known != size:
        shown = ", ".join(f"{name}={given.get(name, '?')}" for name in inner)
        raise ValueError(f"dimension {label!r} of size {size} cannot be divided into ({shown})")
    return tuple(given[name] if name in given else size // known for name in inner)


class Shape:
    """A region as Monarch's users know it: labels and an `NDSlice`, with lists where `Region` has tuples and ranges.

    Parameters
    ----------
    labels
        Names of the dimensions.
    slice
        Which ranks it takes.

    Examples
    --------
    >>> shape = Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 4]))
    >>> shape.at("hosts", 1).ranks(), shape.select("gpus", slice(0, 4, 2)).ranks()
    ([4, 5, 6, 7], [0, 2, 4, 6])
    """

    __slots__ = ("_region",)

    def __init__(self, labels: Iterable[str], slice: NDSlice) -> None:  # noqa: A002  # Monarch's name
        self._region = Region(labels, slice)

    @classmethod
    def unity(cls) -> Shape:
        """One rank, no dimensions."""
        return cls((), NDSlice.new_row_major(()))

    @property
    def labels(self) -> list[str]:
        """Names of the dimensions, in order."""
        return list(self._region._labels)

    @property
    def ndslice(self) -> NDSlice:
        """Which ranks it takes."""
        return self._region._slice

    @property
    def extent(self) -> Extent:
        """Labels and sizes."""
        return self._region.extent

    @property
    def region(self) -> Region:
        """The same as a `Region`."""
        return self._region

    def at(self, label: str, index: SupportsIndex) -> Shape:
        """Take one index of a dimension, which goes; ValueError for one too large, OverflowError for a negative one."""
        return self._region.sliced({label: operator.index(index)}).as_shape()

    def select(self, label: str, part: slice) -> Shape:
        """Take a slice of a dimension, which stays."""
        if not isinstance(part, slice):
            raise TypeError(f"select takes a slice, not {part!r}; `at` takes an index")
        return self._region.sliced({label: part}).as_shape()

    def index(self, **indices: SupportsIndex) -> Shape:
        """Take one index of each dimension named; the dimensions go.

        >>> Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 4])).index(hosts=1, gpus=2).ranks()
        [6]
        """
        return self._region.sliced({label: operator.index(index) for label, index in indices.items()}).as_shape()

    def ranks(self) -> list[int]:
        """Its ranks, in order."""
        return list(self._region.ranks())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of `rank` in each dimension; ValueError for a rank it does not take.

        >>> Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 4])).coordinates(5)
        {'hosts': 1, 'gpus': 1}
        """
        return dict(zip(self._region._labels, self._region._slice.coordinates(rank), strict=True))

    def __len__(self) -> int:
        return len(self._region)

    def __eq__(self, other: object) -> bool:
        return self._region == other._region if isinstance(other, Shape) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._region)

    def __repr__(self) -> str:
        labels = ", ".join(f'"{label}"' for label in self.labels)
        return f"Shape {{ labels: [{labels}], slice: {self.ndslice!r} }}"

    def __str__(self) -> str:
        return "{" + ",".join(f"{label}={size}" for label, size in self.extent.items()) + "}"

    def __reduce__(self) -> tuple[object, ...]:
        return (Region.as_shape, (self._region,))
