"""What a call brings back: one value a rank, addressed like the mesh it came from."""

from __future__ import annotations

import html
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, Generic, SupportsIndex, TypeVar

from monarch_kernel.actor._shape import Extent, MeshTrait, Point, Region, Shape, UnknownDimension

__all__ = ["ValueMesh"]

T = TypeVar("T")

_HEAD, _TAIL = 24, 4  # ranks shown of a mesh with more than both together
_ROWS, _COLUMNS = 32, 16  # likewise in a notebook


class ValueMesh(MeshTrait, Generic[T]):
    """One value a rank.

    Parameters
    ----------
    shape
        The ranks it covers: a `Shape`, a `Region` or an `Extent`.
    values
        Their values, in rank order.

    Raises
    ------
    ValueError
        If there are more or fewer values than ranks.

    Examples
    --------
    >>> losses = ValueMesh(Extent(["hosts", "gpus"], [2, 2]), [0.5, 0.25, 0.75, 1.0])
    >>> losses.item(hosts=1, gpus=0), losses.slice(hosts=0).values()
    (0.75, [0.5, 0.25])
    >>> [point["gpus"] for point, loss in losses if loss > 0.6]
    [0, 1]
    """

    __slots__ = ("_covered", "_values")

    def __init__(self, shape: Shape | Region | Extent, values: Iterable[T]) -> None:
        self._covered = shape if isinstance(shape, Region) else shape.region
        self._values: list[T] = list(values)
        if len(self._values) != len(self._covered):
            raise ValueError(f"{len(self._values)} values for the {len(self._covered)} ranks of {self._covered.extent}")

    @classmethod
    def from_indexed(cls, shape: Shape | Region | Extent, indexed: Iterable[tuple[SupportsIndex, T]]) -> ValueMesh[T]:
        """Make one from (rank, value) pairs in any order, each rank of `shape` counted from 0.

        Raises
        ------
        ValueError
            A rank has no value, or there is no such rank.

        Examples
        --------
        >>> ValueMesh.from_indexed(Extent(["gpus"], [2]), [(1, "b"), (0, "a")]).values()
        ['a', 'b']
        """
        region = shape if isinstance(shape, Region) else shape.region
        found = {rank.__index__(): value for rank, value in indexed}
        wanted = range(len(region))
        if unknown := sorted(found.keys() - wanted):
            raise ValueError(f"{region.extent} has no rank {unknown[0]}: its ranks are 0 to {len(region) - 1}")
        if missing := [rank for rank in wanted if rank not in found]:
            raise ValueError(
                f"expected {len(region)} values, one a rank; the mesh contains {len(found)}: rank {missing[0]} has none"
            )
        return cls(region, (found[rank] for rank in wanted))

    @property
    def _region(self) -> Region:
        return self._covered

    def _with_region(self, region: Region) -> ValueMesh[T]:
        position_of = self._covered.position_of
        return ValueMesh(region, [self._values[position_of(rank)] for rank in region.ranks()])

    def item(self, **coordinates: SupportsIndex) -> T:
        """The value at one place: one index for every dimension, none without dimensions.

        Raises
        ------
        KeyError
            If a dimension is missing or not there.
        IndexError
            For an index that is negative or too large.
        """
        region = self._covered
        if missing := [label for label in region.labels if label not in coordinates]:
            raise UnknownDimension(f"item needs an index for every dimension: {', '.join(map(repr, missing))} missing")
        one = region.sliced({label: index.__index__() for label, index in coordinates.items()})
        return self._values[region.position_of(one.offset)]

    def get(self, rank: SupportsIndex) -> T:
        """The value of the rank-th member, counted from 0; ValueError outside.

        >>> ValueMesh(Extent(["gpus"], [2]), "ab").get(1)
        'b'
        """
        number = rank.__index__()
        if not 0 <= number < len(self._values):
            raise ValueError(f"rank {number} is out of range: {self.extent} has {len(self._values)} ranks")
        return self._values[number]

    def values(self) -> list[T]:
        """All values, in rank order."""
        return list(self._values)

    def items(self) -> Iterator[tuple[Point, T]]:
        """Pairs of a `Point`, ranked within this mesh, and its value, in rank order."""
        extent = self._covered.extent
        for rank, value in enumerate(self._values):
            yield Point(rank, extent), value

    def __iter__(self) -> Iterator[tuple[Point, T]]:
        return self.items()

    def __reduce__(self) -> tuple[object, ...]:
        return (ValueMesh, (self._covered, self._values))

    def __repr__(self) -> str:
        extent, count = self._covered.extent, len(self._values)
        skipped = count - _HEAD - _TAIL
        lines = [
            f"({Point(rank, extent)!r}, {_short(self._values[rank])})"
            for rank in range(count)
            if skipped <= 0 or rank < _HEAD or rank >= count - _TAIL
        ]
        if skipped > 0:
            lines.insert(_HEAD, f"… {skipped} more …")
        return f"ValueMesh({extent}):\n  (" + ",\n   ".join(lines) + ")"

    def _repr_html_(self) -> str:
        """A table of bounded size in the page's own colours; of several dimensions the last runs across."""
        extent = self._covered.extent
        across = extent.sizes[-1] if len(extent) > 1 else 1
        down_labels = extent.labels[:-1] if len(extent) > 1 else extent.labels
        down = len(self._values) // across if across else 0
        columns = range(min(across, _COLUMNS))
        title = html.escape(extent.labels[-1]) if len(extent) > 1 else ""
        head = "".join(f"<th>{title} {column}</th>" for column in columns) if title else ""
        rows = []
        for row in range(min(down, _ROWS)):
            place = Point(row * across, extent)
            name = ", ".join(f"{label} {place[label]}" for label in down_labels)
            cells = "".join(
                f"<td>{html.escape(_short(self._values[row * across + column]))}</td>" for column in columns
            )
            rows.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
        hidden = down * across - min(down, _ROWS) * len(columns)
        rest = f"<div>… {hidden} more</div>" if hidden else ""
        return (
            f'<div style="{_PLAIN}"><div>ValueMesh {html.escape(repr(extent))}</div>'
            f'<table style="{_PLAIN}; text-align: left">'
            f"<thead>{head and f'<tr><th></th>{head}</tr>'}</thead><tbody>{''.join(rows)}</tbody></table>{rest}</div>"
        )


# Colours and cell lines come from the page, so that a dark theme stays dark.
_PLAIN = "color: inherit; background: transparent"


class _Short(reprlib.Repr):
    """A repr of bounded length that never makes a long one first where the type lets us see it."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120
        self.maxlevel = 3

    def repr_bytes(self, value: bytes, level: int) -> str:
        if len(value) <= self.maxother // 4:
            return repr(value)
        return f"{value[: self.maxother // 4]!r}… ({len(value)} bytes)"

    def repr_bytearray(self, value: bytearray, level: int) -> str:
        return f"bytearray({self.repr_bytes(bytes(value[: self.maxother]), level)})"


_repr = _Short()


def _short(value: Any) -> str:
    try:
        text = _repr.repr(value)
    except Exception as error:  # a value whose repr fails must not hide those of the other ranks
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return text if len(text) <= 240 else text[:239] + "…"
