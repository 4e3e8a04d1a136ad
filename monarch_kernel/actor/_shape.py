"""How ranks are laid out: extents, points, regions, and what every mesh can do with them.

A mesh is an n-dimensional box of ranks in row-major order. A *region* is a rectangular part of such a box: labels, and
an `NDSlice` (offset, sizes, strides) that says which ranks of the box it takes. Slicing a mesh makes a smaller region;
its members are ranked anew from 0, while the region still knows their ranks in the box it came from.

>>> box = Region.row_major(("hosts", "gpus"), (2, 4))
>>> part = box.sliced(gpus=slice(1, 3))
>>> part.extent, part.ranks()
({hosts: 2, gpus: 2}, [1, 2, 5, 6])
>>> part.point(2)
{'hosts': 1/2, 'gpus': 0/2}

Nothing here knows about processes or messages, and everything is immutable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from monarch_kernel.actor._extent import Extent, Point, UnknownDimension
from monarch_kernel.actor._ndslice import NDSlice, Slice
from monarch_kernel.actor._notation import parse_ranks, parse_slice, split_target
from monarch_kernel.actor._region import Region, Shape

__all__ = [
    "Extent",
    "MeshTrait",
    "NDSlice",
    "Point",
    "Region",
    "Shape",
    "ShapeExt",
    "Slice",
    "UnknownDimension",
    "parse_ranks",
    "parse_slice",
    "split_target",
]

_Mesh = TypeVar("_Mesh", bound="MeshTrait")


class MeshTrait:
    """What host, proc, actor and value meshes have in common: named dimensions, and ways to take a part.

    A subclass says which region it covers and makes itself again over another one: with `_region` and `_with_region`,
    or with Monarch's `_labels`, `_ndslice` and `_new_with_shape`. Every operation is local and at once.
    """

    __slots__ = ()

    @property
    def _region(self) -> Region:
        """The ranks it covers. Called by every operation here."""
        return Region(self._labels, self._ndslice)

    def _with_region(self: _Mesh, region: Region) -> _Mesh:
        """The same mesh over `region`, whose ranks are a subset of those of `_region` (in other dimensions, maybe)."""
        return self._new_with_shape(region.as_shape())

    @property
    def _labels(self) -> Iterable[str]:
        raise NotImplementedError(f"{type(self).__name__} is a mesh, but has neither _region nor _labels")

    @property
    def _ndslice(self) -> NDSlice:
        raise NotImplementedError(f"{type(self).__name__} is a mesh, but has neither _region nor _ndslice")

    def _new_with_shape(self: _Mesh, shape: Shape) -> _Mesh:
        raise NotImplementedError(f"{type(self).__name__} has neither _with_region nor _new_with_shape")

    def slice(self: _Mesh, **dims: Any) -> _Mesh:
        """Take a part of the mesh; its members are ranked anew from 0.

        Parameters
        ----------
        **dims
            An integer takes that index and drops the dimension; a Python slice keeps it.

        Raises
        ------
        TypeError
            For a dimension that is not there, or something that is neither an integer nor a slice.
        IndexError
            For an index that is negative or too large.
        ValueError
            For a slice that takes nothing, or runs backwards.

        Examples
        --------
        >>> from monarch_kernel.actor import ValueMesh
        >>> mesh = ValueMesh(Extent(["hosts", "gpus"], [2, 3]), "abcdef")
        >>> mesh.slice(hosts=1).values(), mesh.slice(gpus=slice(0, 3, 2)).values()
        (['d', 'e', 'f'], ['a', 'c', 'd', 'f'])
        """
        return self._with_region(self._region.sliced(dims))

    def flatten(self: _Mesh, name: str) -> _Mesh:
        """Make one dimension `name` of all.

        Raises
        ------
        ValueError
            If the ranks are not consecutive, as in a slice of an inner dimension.

        Examples
        --------
        >>> from monarch_kernel.actor import ValueMesh
        >>> ValueMesh(Extent(["hosts", "gpus"], [2, 3]), "abcdef").flatten("rank").extent
        {rank: 6}
        """
        return self._with_region(self._region.flattened(name))

    def split(self: _Mesh, **dims: Any) -> _Mesh:
        """Divide dimensions into several of new names.

        Parameters
        ----------
        **dims
            For a dimension there is, the names of those to make of it, the slowest varying first; for a new name, its
            size. One size a divided dimension may be left out.

        Raises
        ------
        ValueError
            If the sizes do not multiply to that of the dimension, more than one is missing, one belongs to nothing,
            or a name would stand twice.

        Examples
        --------
        >>> from monarch_kernel.actor import ValueMesh
        >>> ValueMesh(Extent(["gpus"], [6]), "abcdef").split(gpus=("dp", "tp"), tp=2).extent
        {dp: 3, tp: 2}
        """
        return self._with_region(self._region.split(dims))

    def rename(self: _Mesh, **names: str) -> _Mesh:
        """Give dimensions other names.

        Raises
        ------
        ValueError
            For a dimension that is not there, or a name that is taken.

        Examples
        --------
        >>> from monarch_kernel.actor import ValueMesh
        >>> ValueMesh(Extent(["gpus"], [2]), "ab").rename(gpus="tp").extent
        {tp: 2}
        """
        return self._with_region(self._region.renamed(names))

    def size(self, dim: str | Iterable[str] | None = None) -> int:
        """How many ranks there are along `dim`, along several together, or (None) in all.

        Raises
        ------
        KeyError
            For a dimension that is not there.

        Examples
        --------
        >>> from monarch_kernel.actor import ValueMesh
        >>> mesh = ValueMesh(Extent(["hosts", "gpus"], [2, 3]), "abcdef")
        >>> mesh.size(), mesh.size("gpus"), mesh.size(["hosts", "gpus"])
        (6, 3, 6)
        """
        region = self._region
        if dim is None:
            return len(region)
        extent = region.extent
        if isinstance(dim, str):
            return extent[dim]
        if not isinstance(dim, Iterable):
            raise TypeError(f"size takes the name of a dimension, several names, or nothing, not {dim!r}")
        return math.prod(extent[label] for label in dim)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each dimension, by name."""
        return dict(self._region.extent)

    @property
    def extent(self) -> Extent:
        """Names and sizes of the dimensions."""
        return self._region.extent

    def __len__(self) -> int:
        return len(self._region)


class ShapeExt:
    """The operations of meshes for a bare `Shape`, under Monarch's name for them."""

    @staticmethod
    def slice(shape: Shape, **dims: Any) -> Shape:
        """`MeshTrait.slice` of a shape.

        Examples
        --------
        >>> ShapeExt.slice(Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 4])), hosts=1).ranks()
        [4, 5, 6, 7]
        """
        return shape.region.sliced(dims).as_shape()
