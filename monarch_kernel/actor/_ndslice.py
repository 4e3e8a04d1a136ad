"""The arithmetic of rectangular selections: offset, sizes and strides."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex

from monarch_kernel.actor._extent import row_major_strides, whole

__all__ = ["IndexOutOfRange", "NDSlice", "NegativeIndex", "Slice"]


class IndexOutOfRange(IndexError, ValueError):
    """An index that a dimension does not have: an `IndexError` for meshes, a `ValueError` for Monarch's shapes."""


class NegativeIndex(IndexOutOfRange, OverflowError, TypeError):
    """A negative index. Ranks are unsigned in Monarch, whose shapes raise `OverflowError` and `TypeError` for it."""


class NDSlice:
    """Which numbers a rectangular selection takes: ``offset + sum(index * stride)``, in row-major order of the indices.

    Parameters
    ----------
    offset
        The first number.
    sizes
        How many indices each dimension has.
    strides
        By how much the number grows with one step in each dimension.

    Raises
    ------
    ValueError
        If sizes and strides differ in length, one is negative, or two index tuples could name the same number.

    Examples
    --------
    >>> columns = NDSlice(offset=1, sizes=[2, 2], strides=[4, 2])
    >>> list(columns), columns.nditem((1, 0)), columns.coordinates(5), columns.index(5)
    ([1, 3, 5, 7], 5, [1, 0], 2)
    >>> list(NDSlice.new_row_major([2, 2]))
    [0, 1, 2, 3]
    """

    __slots__ = ("_dense", "_nelements", "_sizes", "_strides", "offset")

    offset: int

    def __init__(
        self, *, offset: SupportsIndex, sizes: Iterable[SupportsIndex], strides: Iterable[SupportsIndex]
    ) -> None:
        self.offset = whole(offset, "an offset")
        self._sizes = tuple(whole(size, "a size") for size in sizes)
        self._strides = tuple(whole(stride, "a stride") for stride in strides)
        if len(self._sizes) != len(self._strides):
            raise ValueError(f"{len(self._sizes)} sizes for {len(self._strides)} strides")
        span = 0  # the largest number that the dimensions with smaller strides reach
        for stride, size in sorted(zip(self._strides, self._sizes, strict=True)):
            if size > 1 and stride <= span:
                raise ValueError(f"strides {list(self._strides)} with sizes {list(self._sizes)} name a number twice")
            span += stride * max(size - 1, 0)
        self._measure()

    @classmethod
    def _make(cls, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDSlice:
        # For what follows from a checked one, and for unpickling: the checks would cost more than the rest.
        self = cls.__new__(cls)
        self.offset, self._sizes, self._strides = offset, sizes, strides
        self._measure()
        return self

    def _measure(self) -> None:
        count, dense = 1, True
        for size, stride in zip(reversed(self._sizes), reversed(self._strides), strict=True):
            if size != 1:
                dense = dense and stride == count
                count *= size
        self._nelements = count
        self._dense = dense or count <= 1

    @classmethod
    def new_row_major(cls, sizes: Iterable[SupportsIndex]) -> NDSlice:
        """All numbers from 0, laid out row-major over `sizes`."""
        checked = tuple(whole(size, "a size") for size in sizes)
        return cls._make(0, checked, row_major_strides(checked))

    @classmethod
    def from_list(cls, numbers: Iterable[SupportsIndex]) -> list[NDSlice]:
        """One-dimensional slices that take the given numbers, in order: as long as possible, first come first.

        Examples
        --------
        >>> [list(part) for part in NDSlice.from_list([1, 2, 4, 5, 6])]
        [[1, 2], [4, 5, 6]]
        """
        left, found = [whole(number, "a number") for number in numbers], []
        while left:
            step = left[1] - left[0] if len(left) > 1 else 1
            count = 1
            while step > 0 and count < len(left) and left[count] - left[count - 1] == step:
                count += 1
            found.append(cls(offset=left[0], sizes=[count], strides=[max(step, 1)]))
            left = left[count:]
        return found

    @property
    def sizes(self) -> list[int]:
        """How many indices each dimension has."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """By how much the number grows with one step in each dimension."""
        return list(self._strides)

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return len(self._sizes)

    @property
    def is_dense(self) -> bool:
        """Whether it takes consecutive numbers, in order. Known at once."""
        return self._dense

    def numbers(self) -> Sequence[int]:
        """All numbers in order: a range where one describes them, else a list."""
        if self._dense:
            return range(self.offset, self.offset + self._nelements)
        wide = [(size, stride) for size, stride in zip(self._sizes, self._strides, strict=True) if size != 1]
        if len(wide) == 1:
            size, stride = wide[0]
            return range(self.offset, self.offset + size * stride, stride)
        found = [self.offset]
        for size, stride in wide:
            found = [number + index * stride for number in found for index in range(size)]
        return found

    def nditem(self, coordinates: Sequence[int]) -> int:
        """The number at the given index in each dimension; IndexError for an index that is not there."""
        if len(coordinates) != len(self._sizes):
            raise ValueError(f"{len(coordinates)} coordinates for {len(self._sizes)} dimensions")
        number = self.offset
        for index, size, stride in zip(coordinates, self._sizes, self._strides, strict=True):
            if not 0 <= index < size:
                raise IndexOutOfRange(f"index {index} is out of range for a dimension of size {size}")
            number += index * stride
        return number

    def coordinates(self, number: int) -> list[int]:
        """Index in each dimension of `number`; the inverse of `nditem`. ValueError for one it does not take."""
        left, found = number - self.offset, [0] * len(self._sizes)
        # The larger strides first: what the smaller ones reach together is less than one step of a larger one.
        order = range(len(found)) if self._dense else sorted(range(len(found)), key=lambda dim: -self._strides[dim])
        for dim in order:
            if self._sizes[dim] > 1 and left >= 0:
                found[dim], left = divmod(left, self._strides[dim])
        if left or self._nelements == 0 or any(index >= size for index, size in zip(found, self._sizes, strict=True)):
            raise ValueError(f"{number} is not in {self!r}")
        return found

    def index(self, number: int) -> int:
        """Position of `number` among `numbers()`; ValueError for one it does not take."""
        if self._dense and 0 <= number - self.offset < self._nelements:
            return number - self.offset
        position = 0
        for index, size in zip(self.coordinates(number), self._sizes, strict=True):
            position = position * size + index
        return position

    def __getitem__(self, position: SupportsIndex) -> int:
        left = operator.index(position)
        if left < 0:
            raise NegativeIndex(f"index {left} is negative: positions count from 0 to {self._nelements - 1}")
        if left >= self._nelements:
            raise IndexOutOfRange(f"index {left} is out of range: there are {self._nelements}")
        if self._dense:
            return self.offset + left
        number = self.offset
        for size, stride in zip(reversed(self._sizes), reversed(self._strides), strict=True):
            left, index = divmod(left, size)
            number += index * stride
        return number

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers())

    def __len__(self) -> int:
        return self._nelements

    def __contains__(self, number: object) -> bool:
        try:
            self.coordinates(number)  # type: ignore[arg-type]  # anything else fails in the arithmetic
        except (TypeError, ValueError):
            return False
        return True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NDSlice):
            return NotImplemented
        return (self.offset, self._sizes, self._strides) == (other.offset, other._sizes, other._strides)

    def __hash__(self) -> int:
        return hash((self.offset, self._sizes, self._strides))

    def __repr__(self) -> str:
        return f"Slice {{ offset: {self.offset}, sizes: {list(self._sizes)}, strides: {list(self._strides)} }}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_unpickle_slice, (self.offset, self._sizes, self._strides))


Slice = NDSlice


def _unpickle_slice(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDSlice:
    return NDSlice._make(offset, sizes, strides)
