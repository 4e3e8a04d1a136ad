"""Whether code has changed since it was fingerprinted, in a few microseconds."""

from __future__ import annotations

import itertools
import operator
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from monarch_kernel.protocol.fingerprint import Reach, arguments_digest, holds_code

__all__ = ["Loose", "Watch", "edition_of", "is_code", "size_of"]

#: Larger values are not compared by content.
_EDITION = 2**20

_PARTS = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CONTENT = operator.attrgetter("cell_contents")


class Watch:
    """Whether anything that a fingerprint was made of has been rebound since, in a few microseconds."""

    def __init__(self, found: Reach) -> None:
        self.functions = found.functions
        self.parts = list(itertools.chain.from_iterable(map(_PARTS, found.functions)))
        loose_names = {name for _, name, _ in found.loose_globals}
        self.globals: list[tuple[dict[str, Any], list[str], list[Any]]] = []
        for space, names in found.globals.values():
            firm = [name for name in names if name not in loose_names]
            self.globals.append((space, firm, [space.get(name) for name in firm]))
        self.cells, self.contents = _firm_cells(found)
        self.classes = [_ClassWatch(cls) for cls in found.classes]
        self.loose_cells = [(name, _Grip(value)) for name, value in found.loose_cells]
        self.loose: list[Loose] = []

    def same(self) -> bool:
        """Whether all that the fingerprint was made of is still bound to the same objects."""
        try:
            parts = itertools.chain.from_iterable(map(_PARTS, self.functions))
            if not all(map(operator.is_, parts, self.parts)):
                return False
            for space, names, values in self.globals:
                if not all(map(operator.is_, map(space.get, names), values)):
                    return False
            if self.cells and not all(map(operator.is_, map(_CONTENT, self.cells), self.contents)):
                return False
        except ValueError:  # a cell was emptied
            return False
        return all(watch.same() for watch in self.classes)

    def rebound(self) -> bool:
        """Whether a loose global has been rebound; its edition is another then."""
        changed = False
        for loose in self.loose:
            if not loose.grip.holds(loose.space.get(loose.name)):
                loose.bind(loose.space.get(loose.name))
                changed = True
        return changed


class _ClassWatch:
    """Watches the functions and descriptors of one class; its data may be rebound freely."""

    def __init__(self, cls: type) -> None:
        space = self.space = vars(cls)
        self.size = len(space)
        self.names = [name for name, value in space.items() if is_code(value)]
        self.values = [space[name] for name in self.names]
        self.data = [name for name, value in space.items() if not is_code(value)]
        self.types = [type(space[name]) for name in self.data]

    def same(self) -> bool:
        space = self.space
        if not all(map(operator.is_, map(space.get, self.names), self.values)):
            return False
        if len(space) == self.size and all(map(operator.is_, map(type, map(space.get, self.data)), self.types)):
            return True
        known = set(self.names)
        if any(is_code(value) for name, value in list(space.items()) if name not in known):
            return False
        self.size = len(space)
        self.data = [name for name in space if name not in known]
        self.types = [type(space[name]) for name in self.data]
        return True


def is_code(value: Any) -> bool:
    """Whether a class attribute is code (a function, a class, a descriptor) and not data."""
    return isinstance(value, (types.FunctionType, type, types.BuiltinFunctionType)) or holds_code(value)


class _Grip:
    """Tells whether a value is still the same object, without keeping large ones alive."""

    __slots__ = ("held", "ref")

    def __init__(self, value: Any) -> None:
        self.ref: Callable[[], Any] | None = None
        self.held: Any = None
        try:
            self.ref = weakref.ref(value)
        except TypeError:
            # Containers have no weak references; small ones are held, of large ones only the address is known.
            self.held = value if size_of(value) < 4096 else id(value)

    def holds(self, value: Any) -> bool:
        if self.ref is not None:
            return self.ref() is value
        return self.held is value or (type(self.held) is int and self.held == id(value))


class Loose:
    """One global of the sender that counts by its type only, and which edition of it this is."""

    __slots__ = ("edition", "grip", "name", "space")

    def __init__(self, space: dict[str, Any], name: str) -> None:
        self.space = space
        self.name = name
        self.bind(space[name])

    def bind(self, value: Any) -> None:
        """Take a new value, and with it an edition."""
        self.grip = _Grip(value)
        self.edition = edition_of([(self.name, value)])


def edition_of(values: list[tuple[str, Any]]) -> str:
    """Equal for equal values where they can be compared, so that a new kernel resets nothing without need."""
    small = sum(size_of(value) for _, value in values) <= _EDITION
    return ((arguments_digest(tuple(values), {}) if small else None) or uuid.uuid4().hex)[:16]


def _firm_cells(found: Reach) -> tuple[list[types.CellType], list[Any]]:
    loose = {id(value) for _, value in found.loose_cells}
    cells, contents = [], []
    for func in found.functions:
        for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if name not in found.state and id(content) not in loose:
                cells.append(cell)
                contents.append(content)
    return cells, contents


def size_of(value: Any) -> int:
    """Bytes of arrays, tensors, texts and containers of such, about."""
    size = getattr(value, "nbytes", None)
    if type(size) is int:
        return size
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return 8 * len(value) + sum(getattr(item, "nbytes", 0) for item in value if not isinstance(item, type))
    if isinstance(value, dict):
        return 100 * len(value) + sum(getattr(item, "nbytes", 0) for item in value.values())
    return 0
