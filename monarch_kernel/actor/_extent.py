"""Named sizes (`Extent`) and one place in them (`Point`), and the error for a dimension that is not there."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn, SupportsIndex

if TYPE_CHECKING:
    from monarch_kernel.actor._region import Region

__all__ = ["Extent", "Point", "UnknownDimension", "no_duplicates", "no_such_dimension", "row_major_strides", "whole"]


class UnknownDimension(KeyError, ValueError, TypeError):
    """A dimension was named that is not there; the text lists those that are.

    It is all three builtins because Monarch raises a ValueError for a look-up, a TypeError for a slice and a KeyError
    for a size; code written against any of them keeps working, and so do `in` and `get` of a Mapping.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message  # KeyError would show the text in quotes


def no_such_dimension(label: object, labels: Sequence[str]) -> NoReturn:
    """Raise the `UnknownDimension` for `label`, with the dimensions there are and the nearest of them."""
    import difflib  # only ever needed for a mistake

    near = difflib.get_close_matches(label, labels, n=1, cutoff=0.5) if isinstance(label, str) else []
    there = ", ".join(map(repr, labels)) or "none (the mesh is a single rank)"
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownDimension(f"no dimension {label!r} in this mesh; there is {there}{hint}")


def no_duplicates(labels: Sequence[str]) -> None:
    """ValueError if a label stands twice."""
    for position, label in enumerate(labels):
        if label in labels[:position]:
            raise ValueError(f"duplicate dimension name {label!r} in ({', '.join(labels)})")


def whole(value: SupportsIndex, what: str) -> int:
    """`value` as an int that is not negative; TypeError or ValueError naming `what` otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {type(value).__name__} {value!r}") from None
    if number < 0:
        raise ValueError(f"{what} cannot be negative: {number}")
    return number


def row_major_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense layout, the last dimension varying fastest."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Extent(Mapping[str, int]):
    """The named sizes of a mesh: a mapping from dimension to size, in order.

    Parameters
    ----------
    labels
        Names of the dimensions, the slowest varying first.
    sizes
        Their sizes, one a label.

    Examples
    --------
    >>> extent = Extent(["hosts", "gpus"], [2, 4])
    >>> extent["gpus"], extent.nelements, extent
    (4, 8, {hosts: 2, gpus: 4})
    """

    __slots__ = ("_labels", "_nelements", "_sizes", "_strides")
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as Monarch's

    def __init__(self, labels: Iterable[str], sizes: Iterable[SupportsIndex]) -> None:
        self._labels = tuple(labels)
        self._sizes = tuple(whole(size, "a size") for size in sizes)
        if len(self._labels) != len(self._sizes):
            raise ValueError(f"{len(self._labels)} labels for {len(self._sizes)} sizes")
        no_duplicates(self._labels)
        self._strides = row_major_strides(self._sizes)
        self._nelements = math.prod(self._sizes)

    @property
    def labels(self) -> list[str]:
        """Names of the dimensions, in order."""
        return list(self._labels)

    @property
    def sizes(self) -> list[int]:
        """Sizes of the dimensions, in the order of `labels`."""
        return list(self._sizes)

    @property
    def nelements(self) -> int:
        """How many ranks there are (1 without dimensions)."""
        return self._nelements

    @property
    def region(self) -> Region:
        """All of it, as a region with ranks from 0."""
        from monarch_kernel.actor._region import Region  # a region knows its extent: one of the two must wait

        return Region.row_major(self._labels, self._sizes)

    def __getitem__(self, label: str) -> int:
        try:
            return self._sizes[self._labels.index(label)]
        except ValueError:
            no_such_dimension(label, self._labels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Extent):
            return NotImplemented
        return self._labels == other._labels and self._sizes == other._sizes

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k}: {n}" for k, n in zip(self._labels, self._sizes, strict=True)) + "}"

    def __reduce__(self) -> tuple[object, ...]:
        return (Extent, (self._labels, self._sizes))


class Point(Mapping[str, int]):
    """One place in an extent: a mapping from dimension to index, so that ``mesh.slice(**point)`` is that one rank.

    Parameters
    ----------
    rank
        Number of the place in row-major order, from 0.
    extent
        The extent it lies in.

    Raises
    ------
    ValueError
        If `rank` lies outside.

    Examples
    --------
    >>> point = Point(5, Extent(["hosts", "gpus"], [2, 4]))
    >>> point, point["gpus"], dict(point)
    ({'hosts': 1/2, 'gpus': 1/4}, 1, {'hosts': 1, 'gpus': 1})
    """

    __slots__ = ("_extent", "_rank")
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as Monarch's

    def __init__(self, rank: SupportsIndex, extent: Extent) -> None:
        number = operator.index(rank)
        if not 0 <= number < extent._nelements:
            raise ValueError(f"rank {number} is out of range: {extent} has {extent._nelements} ranks")
        self._rank = number
        self._extent = extent

    @property
    def rank(self) -> int:
        """Number of the place in row-major order."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """The extent it lies in."""
        return self._extent

    def size(self, label: str) -> int:
        """Size of the dimension `label`; KeyError for one that is not there.

        >>> Point(5, Extent(["hosts", "gpus"], [2, 4])).size("gpus")
        4
        """
        return self._extent[label]

    def __getitem__(self, label: str) -> int:
        extent = self._extent
        try:
            dim = extent._labels.index(label)
        except ValueError:
            no_such_dimension(label, extent._labels)
        return self._rank // extent._strides[dim] % extent._sizes[dim]

    def __iter__(self) -> Iterator[str]:
        return iter(self._extent._labels)

    def __len__(self) -> int:
        return len(self._extent._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self._rank == other._rank and self._extent == other._extent

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k!r}: {self[k]}/{n}" for k, n in self._extent.items()) + "}"

    def __reduce__(self) -> tuple[object, ...]:
        return (Point, (self._rank, self._extent))
