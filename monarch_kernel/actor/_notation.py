"""How a person writes some ranks of a mesh at the console: ``NAME``, ``NAME[ranks]``, ``NAME{dimension: indices}``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from monarch_kernel.actor._region import Region

__all__ = ["parse_ranks", "parse_slice", "split_target"]

_TARGET = re.compile(r"\s*([^\s\[\]{}]+)\s*(\[[^\[\]{}]*\]|\{[^\[\]{}]*\})?\s*")
_RANK_ITEM = re.compile(r"(\d+)|(\d*)\s*:\s*(\d*)")
_DIM_ITEM = re.compile(r"(?:([^\s:,{}]+)\s*:\s*)?(?:(\d+)\s*(?:-\s*(\d+))?|(\*))")
_HOW = "write NAME, NAME[2], NAME[0:2], NAME[0,3] or NAME{gpus: 0-3}"


def split_target(text: str) -> tuple[str, str]:
    """Divide what a person typed into the name of a mesh and the selection of ranks ("" for all).

    >>> split_target("trainers{hosts: 1, gpus: 0-1}")
    ('trainers', '{hosts: 1, gpus: 0-1}')
    """
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ValueError(f"{text.strip()!r} is not a mesh or some ranks of one: {_HOW}")
    return match[1], match[2] or ""


def parse_ranks(text: str, labels: Sequence[str], sizes: Sequence[int]) -> tuple[str, list[int]]:
    """Name of the mesh and the ranks that `text` means in a mesh of these dimensions, in order, each once.

    In ``[…]`` stand ranks and half-open ranges, as in Python; in ``{…}`` indices and closed ranges (``0-3``) of named
    dimensions, those left out being whole.

    Raises
    ------
    ValueError
        If it cannot be read, or takes nothing. (An unknown dimension is one, too.)
    IndexError
        If a rank or index does not exist.

    Examples
    --------
    >>> parse_ranks("trainers{gpus: 0-1}", ("hosts", "gpus"), (2, 4))
    ('trainers', [0, 1, 4, 5])
    """
    name, selection = split_target(text)
    box = Region.row_major(labels, sizes)
    if not selection:
        return name, list(box.ranks())
    if selection[0] == "[":
        return name, sorted(_listed_ranks(name, selection, len(box)))
    found: list[Region] = [box]
    for label, indices in _chosen_indices(name, selection, box).items():
        # A slice of length one, not an index, so that the labels stay for the next dimension.
        found = [part.sliced({label: slice(index, index + 1)}) for part in found for index in indices]
    return name, sorted({rank for part in found for rank in part.ranks()})


def parse_slice(text: str, labels: Sequence[str], sizes: Sequence[int]) -> Region:
    """The region that `text` means in a mesh of these dimensions; see `parse_ranks` for the notation.

    One rank or index drops its dimension, as in `MeshTrait.slice`. Ranks in ``[…]`` of a mesh with several dimensions
    give one dimension called ``ranks``.

    Raises
    ------
    ValueError
        As `parse_ranks`, and if the ranks are not evenly spaced: such a choice is no region.
    IndexError
        If a rank or index does not exist.
    """
    name, selection = split_target(text)
    box = Region.row_major(labels, sizes)
    if not selection:
        return box
    if selection[0] == "[":
        ranks = sorted(_listed_ranks(name, selection, len(box)))
        line = box if len(box.labels) == 1 else box.flattened("ranks")
        return line.sliced({line.labels[0]: _even(ranks, text, single="," not in selection and ":" not in selection)})
    chosen = _chosen_indices(name, selection, box)
    return box.sliced({label: _even(indices, text, single=len(indices) == 1) for label, indices in chosen.items()})


def _even(numbers: Sequence[int], text: str, *, single: bool) -> int | slice:
    if single:
        return numbers[0]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if list(range(numbers[0], numbers[-1] + 1, step)) != list(numbers):
        raise ValueError(f"the ranks of {text.strip()!r} are not evenly spaced, so they make no mesh of their own")
    return slice(numbers[0], numbers[-1] + 1, step)


def _listed_ranks(name: str, selection: str, count: int) -> set[int]:
    ranks: set[int] = set()
    for item in selection[1:-1].split(","):
        match = _RANK_ITEM.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{item.strip()!r} in {name}{selection} is neither a rank nor a range like 0:2; {_HOW}")
        first, last = (int(match[1]), int(match[1]) + 1) if match[1] else (int(match[2] or 0), int(match[3] or count))
        if last > count:
            raise IndexError(f"{name} has no rank {last - 1}: its ranks are 0 to {count - 1}")
        if first >= last:
            raise ValueError(f"{item.strip()!r} in {name}{selection} takes no rank")
        ranks.update(range(first, last))
    return ranks


def _chosen_indices(name: str, selection: str, box: Region) -> dict[str, list[int]]:
    chosen: dict[str, list[int]] = {}
    label = None
    for item in selection[1:-1].split(","):
        match = _DIM_ITEM.fullmatch(item.strip())
        label = match[1] or label if match else None
        if match is None or label is None:
            raise ValueError(f"{item.strip()!r} in {name}{selection} is no choice like gpus: 0-3; {_HOW}")
        if match[1] and label in chosen:
            raise ValueError(f"dimension {label!r} stands twice in {name}{selection}")
        size = box.extent[label]
        first, last = (0, size - 1) if match[4] else (int(match[2]), int(match[3] or match[2]))
        if first > last:
            raise ValueError(f"{item.strip()!r} in {name}{selection} takes nothing: write the smaller index first")
        if last >= size:
            raise IndexError(f"index {last} is out of range for dimension {label!r} of size {size} (0 to {size - 1})")
        chosen[label] = sorted({*chosen.get(label, ()), *range(first, last + 1)})
    return chosen
