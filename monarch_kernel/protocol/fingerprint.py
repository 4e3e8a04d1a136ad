"""What a by-value class or function *is*, as 128 bits.

Two classes with the same fingerprint behave the same, whichever cell, kernel or process they were made in. It decides
whether a re-run cell changed anything, and whether a receiver already has what a message is about.

What counts
    Byte code and constants, names, flags and exception tables, recursively through nested code; defaults; closures;
    annotations (dataclasses, single dispatch and validators act on them); referenced globals; bases, metaclass, and
    the entries of a class: functions, descriptors and what they wrap, immutable constants. By-value functions and
    classes are followed, whatever the cycles; what is importable counts by module and name.
What does not
    File names, line numbers and the order of definition. Docstrings, unless the code reached reads ``__doc__`` or a
    class is made by a metaclass from outside the standard library (there the text may be a prompt). Class attributes
    that are mutable containers. Names that the reached code itself assigns with ``global`` or ``nonlocal``: they are
    state, not code. Other values count by their type only.

The digest is a function of the *unfolding* of the graph (rounds of hashing until they tell nothing new apart), so it
is the same for an object and for its copy in another process even where sharing between lambdas was lost on the way.
"""

from __future__ import annotations

import ctypes
import dataclasses
import dis
import enum
import functools
import hashlib
import re
import struct
import sys
import types
import typing
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle

__all__ = ["Reach", "arguments_digest", "by_value", "code_names", "fingerprint", "holds_code", "reach"]

#: Longer strings and bytes are hashed by their two ends and their length.
_LONG = 16 * 2**20
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range)
_CONTAINERS = (list, dict, set, bytearray)
_BUILTIN = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_WRAPPERS = (
    staticmethod, classmethod, property, functools.partial, functools.partialmethod, functools.cached_property,
    functools._lru_cache_wrapper,
)  # fmt: skip
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_HEAP_TYPE = 1 << 9
_NO_CODE = frozenset(
    {
        "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__annotations__", "__slots__",
        "_abc_impl", "__firstlineno__", "__static_attributes__", "__annotations_cache__", "__annotate_func__",
        "__annotate__", "__dataclass_fields__", "__dataclass_params__", "__hash__", "__builtins__",
    }
)  # fmt: skip


def by_value(obj: type | types.FunctionType) -> bool:
    """Whether a class or function travels by value: it is not an attribute of an importable module.

    That is: made in ``__main__`` (a notebook), inside a function, or in a module registered with
    `cloudpickle.register_pickle_by_value`.
    """
    if isinstance(obj, type) and not obj.__flags__ & _HEAP_TYPE:
        return False
    module_name = getattr(obj, "__module__", None)
    if module_name == "__main__":
        return True
    if not isinstance(module_name, str):
        return True
    module: Any = sys.modules.get(module_name)
    if module is None:
        return True
    found = module
    for part in obj.__qualname__.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            # Extension types and types such as `types.NoneType` give a module that does not list them.
            return not (module_name == "builtins" and isinstance(obj, type))
    if found is not obj:
        return True
    registered: Iterable[str] = cloudpickle.list_registry_pickle_by_value()
    return any(module_name == name or module_name.startswith(name + ".") for name in registered)


def fingerprint(obj: object) -> str:
    """Digest of all that ``obj`` (a class, a function, or a value holding some) reaches by value.

    Returns
    -------
    str
        32 hexadecimal digits, equal in every process and run for equal code.

    Examples
    --------
    >>> def one():
    ...     return 1
    >>> fingerprint(one) == fingerprint(eval("lambda: 1"))
    False
    """
    return reach(obj).digest


@dataclasses.dataclass(slots=True)
class Reach:
    """What a walk from one object came by.

    Attributes
    ----------
    digest
        The fingerprint.
    functions, classes
        All by-value ones reached, in the order met.
    globals
        Names read from each globals dictionary, by the dictionary's id.
    loose_globals, loose_cells
        Values that count by type only, with the name they are known by (and the globals dictionary they are in): they
        travel, but are not told apart here.
    state
        Names that reached code assigns; their values are never looked at.
    """

    digest: str
    functions: list[types.FunctionType]
    classes: list[type]
    globals: dict[int, tuple[dict[str, Any], frozenset[str]]]
    loose_globals: list[tuple[dict[str, Any], str, Any]]
    loose_cells: list[tuple[str, Any]]
    state: frozenset[str]


def reach(obj: object) -> Reach:
    """Walk all that ``obj`` reaches by value."""
    return _Walk().run(obj)


@dataclasses.dataclass(slots=True)
class _CodeFacts:
    """What one code object says by itself, without its function."""

    label: bytes
    doc: bytes
    reads: tuple[str, ...]
    writes: frozenset[str]
    reads_doc: bool


_code_facts: weakref.WeakKeyDictionary[types.CodeType, _CodeFacts] = weakref.WeakKeyDictionary()
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_WRITES = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_CELL_WRITES = {"STORE_DEREF", "DELETE_DEREF"}


def _facts(code: types.CodeType) -> _CodeFacts:
    known = _code_facts.get(code)
    if known is None:
        known = _code_facts[code] = _read_code(code)
    return known


def code_names(code: types.CodeType) -> tuple[str, ...]:
    """Names that a code object, or one nested in it, reads as globals (class bodies inside functions included)."""
    return _facts(code).reads


def _read_code(code: types.CodeType) -> _CodeFacts:
    out, doc = bytearray(b"code"), bytearray()
    reads: dict[str, None] = {}
    writes: set[str] = set()
    reads_doc = "__doc__" in code.co_names
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS:
            reads[instruction.argval] = None
        elif instruction.opname in _WRITES or (
            instruction.opname in _CELL_WRITES and instruction.argval in code.co_freevars
        ):
            writes.add(instruction.argval)
    consts = list(code.co_consts)
    if consts and isinstance(consts[0], str) and _has_doc(code):
        _put(doc, b"doc", consts[0].encode("utf-8", "surrogatepass"))
        consts[0] = None
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_flags)
    _put(out, b"head", repr(numbers).encode())
    _put(out, b"text", code.co_code)
    _put(out, b"exc", code.co_exceptiontable)
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, (code.co_name,)):
        _put(out, b"names", "\0".join(names).encode())
    for const in consts:
        if isinstance(const, types.CodeType):
            inner = _facts(const)
            _put(out, b"inner", inner.label)
            doc += inner.doc
            reads.update(dict.fromkeys(inner.reads))
            # A cell that an inner function assigns is state only where it is free here as well.
            writes |= {name for name in inner.writes if name not in code.co_cellvars}
            reads_doc = reads_doc or inner.reads_doc
        elif not _constant(const, out):  # pragma: no cover - the compiler makes no other constants
            _put(out, b"odd", repr(const).encode())
    return _CodeFacts(_digest(out), _digest(doc) if doc else b"", tuple(sorted(reads)), frozenset(writes), reads_doc)


def _has_doc(code: types.CodeType) -> bool:
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & 0x4000000)
    # The compiler keeps the first constant of a `def` for its docstring; class bodies and comprehensions have none.
    return bool(code.co_flags & 0x1) and not code.co_name.startswith("<")


def _digest(data: bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _put(out: bytearray, tag: bytes, data: bytes = b"") -> None:
    if len(data) > _LONG:
        data = data[: _LONG // 2] + data[-_LONG // 2 :] + b"%d" % len(data)
    out += b"%d:%b%d:" % (len(tag), tag, len(data))
    out += data


def _constant(value: Any, out: bytearray) -> bool:
    """Write an immutable constant; False, and nothing written, when it is none."""
    kind = type(value)
    if value is None or kind is bool or value is Ellipsis or value is NotImplemented:
        _put(out, b"is", repr(value).encode())
    elif kind is int:
        _put(out, b"int", b"%x" % value)
    elif kind is float:
        _put(out, b"float", struct.pack(">d", value))
    elif kind is complex:
        _put(out, b"complex", struct.pack(">dd", value.real, value.imag))
    elif kind is str:
        _put(out, b"str", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes:
        _put(out, b"bytes", value)
    elif kind is range or kind is slice:
        part = bytearray()
        if not all(_constant(item, part) for item in (value.start, value.stop, value.step)):
            return False
        _put(out, kind.__name__.encode(), bytes(part))
    elif kind is tuple or kind is frozenset:
        parts = []
        for item in value:
            part = bytearray()
            if not _constant(item, part):
                return False
            parts.append(bytes(part))
        if kind is frozenset:
            parts.sort()
        _put(out, kind.__name__.encode(), b"%d;" % len(parts) + b"".join(parts))
    else:
        text = _immutable_text(value)
        if text is None:
            return False
        _put(out, b"immutable", text.encode("utf-8", "surrogatepass"))
    return True


_IMMUTABLE = {
    ("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"), ("datetime", "datetime"), ("datetime", "date"),
    ("datetime", "time"), ("datetime", "timedelta"), ("datetime", "timezone"), ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"), ("pathlib", "WindowsPath"), ("pathlib", "PureWindowsPath"),
    ("pathlib._local", "PosixPath"), ("pathlib._local", "PurePosixPath"), ("zoneinfo", "ZoneInfo"), ("torch", "dtype"),
    ("torch", "device"), ("torch", "Size"), ("torch", "layout"), ("torch", "memory_format"),
}  # fmt: skip


def _immutable_text(value: Any) -> str | None:
    """Type and content of values of well-known immutable types, whose repr says all there is."""
    kind = type(value)
    module = kind.__module__
    if (module, kind.__name__) in _IMMUTABLE:
        return f"{module}.{kind.__name__} {value!r}"
    if isinstance(value, re.Pattern):
        return f"re {value.pattern!r} {value.flags}"
    if module.startswith("numpy"):
        if module == "numpy.dtypes" or kind.__name__ == "dtype":
            return f"numpy dtype {value.descr!r}" if hasattr(value, "descr") else f"numpy dtype {value!r}"
        if hasattr(value, "dtype") and getattr(value, "shape", None) == () and hasattr(kind, "newbyteorder") is False:
            return f"numpy scalar {value.dtype!r} {value!r}" if not hasattr(value, "fill") else None
    return None


class _Walk:
    """One walk: nodes are by-value functions, classes and the instances that hold such."""

    def __init__(self, state: Iterable[str] = ()) -> None:
        self.index: dict[int, int] = {}
        self.objects: list[Any] = []
        self.labels: list[bytes] = []
        self.docs: list[bytes] = []
        self.children: list[list[int]] = []
        self.doc_counts = False
        self.functions: list[types.FunctionType] = []
        self.classes: list[type] = []
        self.globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self.loose_globals: list[tuple[dict[str, Any], str, Any]] = []
        self.loose_cells: list[tuple[str, Any]] = []
        self.state = set(state)
        self.known_state = frozenset(state)

    def run(self, root: object) -> Reach:
        out, kids = bytearray(), list[int]()
        self._value(root, out, kids)
        for obj in self.objects:  # grows while it is walked
            if isinstance(obj, types.FunctionType):
                facts = _facts(obj.__code__)
                self.state |= facts.writes
                self.doc_counts = self.doc_counts or facts.reads_doc
            self._describe(obj)
        if self.state - self.known_state:
            # A name found late to be state may have been read as a value before: walk again, knowing them all.
            return _Walk(self.state).run(root)
        digest = self._refine(bytes(out), kids)
        frozen = {key: (names[0], frozenset(names[1])) for key, names in self.globals.items()}
        loose_globals, loose_cells = self.loose_globals, self.loose_cells
        return Reach(
            digest.hex(), self.functions, self.classes, frozen, loose_globals, loose_cells, frozenset(self.state)
        )

    def _refine(self, label: bytes, kids: list[int]) -> bytes:
        """Hash the smallest graph with the same unfolding, numbered as it is met from the root."""
        labels = [a + (b if self.doc_counts else b"") for a, b in zip(self.labels, self.docs, strict=True)]
        colours, seen = labels, 0
        while seen < (now := len(set(colours))):
            seen = now
            colours = [
                _digest(text + b"".join([colours[kid] for kid in below]))
                for text, below in zip(labels, self.children, strict=True)
            ]
        out, numbers = bytearray(label), dict[bytes, int]()
        met = list(kids)
        for kid in met:  # grows while it is walked
            if colours[kid] not in numbers:
                numbers[colours[kid]] = len(numbers)
                met += self.children[kid]
        written: set[bytes] = set()
        order = [(label, kids), *((labels[kid], self.children[kid]) for kid in met if not _seen(colours[kid], written))]
        for text, below in order:
            out += b"|%b%d:" % (text, len(below))
            out += b",".join(b"%d" % numbers[colours[kid]] for kid in below)
        return _digest(out)

    def _node(self, obj: Any, out: bytearray, kids: list[int]) -> None:
        number = self.index.get(id(obj))
        if number is None:
            number = self.index[id(obj)] = len(self.objects)
            self.objects.append(obj)
        _put(out, b"@")
        kids.append(number)

    def _describe(self, obj: Any) -> None:
        out, doc, kids = bytearray(), bytearray(), list[int]()
        if isinstance(obj, types.FunctionType):
            self.functions.append(obj)
            self._function(obj, out, doc, kids)
        elif isinstance(obj, type):
            self.classes.append(obj)
            self._class(obj, out, doc, kids)
        else:
            self._holder(obj, out, kids)
        self.labels.append(_digest(out))
        self.docs.append(_digest(doc))
        self.children.append(kids)

    # values

    def _value(self, value: Any, out: bytearray, kids: list[int]) -> bool:
        """Write a value as far as it counts; False when only its type did."""
        if _constant(value, out):
            return True
        kind = type(value)
        if isinstance(value, (types.FunctionType, type)):
            if by_value(value):
                self._node(value, out, kids)
            else:
                _put(out, b"ref", f"{value.__module__}:{value.__qualname__}".encode())
        elif isinstance(value, types.ModuleType):
            _put(out, b"module", value.__name__.encode())
        elif isinstance(value, _BUILTIN):
            owner = getattr(value, "__self__", None)
            owner = owner if isinstance(owner, (type, types.ModuleType)) else type(owner)
            _put(out, b"builtin", f"{value.__qualname__} {owner.__name__}".encode())
        elif isinstance(value, types.CodeType):
            _put(out, b"code", _facts(value).label)
        elif isinstance(value, types.MethodType):
            _put(out, b"method")
            self._value(value.__func__, out, kids)
            self._value(value.__self__, out, kids)
        elif isinstance(value, enum.Enum):
            _put(out, b"member", repr(value.name).encode())
            self._value(kind, out, kids)
        elif isinstance(value, (tuple, frozenset)):
            return self._items(value, out, kids)
        elif self._typing(value, out, kids):
            pass
        elif dataclasses.is_dataclass(value) and getattr(kind, "__dataclass_params__").frozen:  # noqa: B009 - not in the stubs
            _put(out, b"frozen")
            self._value(kind, out, kids)
            whole = [self._value(getattr(value, f.name, None), out, kids) for f in dataclasses.fields(value)]
            return all(whole)
        elif holds_code(value):
            self._node(value, out, kids)
        else:
            _put(out, b"type")
            self._value(kind, out, kids)
            return False
        return True

    def _items(self, value: Any, out: bytearray, kids: list[int]) -> bool:
        kind = type(value)
        _put(out, b"items", b"%d" % len(value))
        if kind is not tuple:
            self._value(kind, out, kids)
        if isinstance(value, frozenset):
            # Not all constants, else it had been written above: there is no order to write the rest in.
            return False
        whole = [self._value(item, out, kids) for item in value]
        return all(whole)

    def _typing(self, value: Any, out: bytearray, kids: list[int]) -> bool:
        module = type(value).__module__
        if isinstance(value, (types.GenericAlias, types.UnionType)) or module == "typing":
            parts: tuple[Any, ...]
            if isinstance(value, typing.TypeVar):
                parts = (value.__name__, value.__bound__, value.__constraints__, value.__covariant__)
            elif isinstance(value, typing.ForwardRef):
                parts = (value.__forward_arg__,)
            elif getattr(value, "__args__", None) is not None:
                origin = getattr(value, "__origin__", None)
                parts = (origin if isinstance(origin, type) else repr(type(value)), *value.__args__)
                parts += tuple(getattr(value, "__metadata__", ()))
            else:
                parts = (repr(value),)
            _put(out, b"typing", b"%d" % len(parts))
            for part in parts:
                self._value(_list_as_tuple(part), out, kids)
            return True
        return False

    # nodes

    def _function(self, func: types.FunctionType, out: bytearray, doc: bytearray, kids: list[int]) -> None:
        facts = _facts(func.__code__)
        _put(out, b"function", f"{func.__module__}:{func.__qualname__}".encode())
        _put(out, b"code", facts.label)
        _put(doc, b"doc", facts.doc)
        self._value(func.__defaults__ or (), out, kids)
        for name, default in sorted((func.__kwdefaults__ or {}).items(), key=lambda pair: pair[0]):
            _put(out, b"kw", name.encode())
            self._value(default, out, kids)
        self._annotations(func, out, kids)
        for name in sorted(func.__dict__):
            if name not in _NO_CODE:
                _put(out, b"attr", name.encode())
                self._value(func.__dict__[name], out, kids)
        for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
            _put(out, b"cell", name.encode())
            try:
                content = cell.cell_contents
            except ValueError:
                _put(out, b"empty")
                continue
            if name not in self.state and not self._value(content, out, kids):
                self.loose_cells.append((name, content))
        space = func.__globals__
        names = self.globals.setdefault(id(space), (space, set()))[1]
        for name in facts.reads:
            if name in self.state:
                continue
            if name in space:
                names.add(name)
                _put(out, b"global", name.encode())
                if not self._value(space[name], out, kids):
                    self.loose_globals.append((space, name, space[name]))

    def _annotations(self, obj: Any, out: bytearray, kids: list[int]) -> None:
        try:
            own = obj.__dict__ if isinstance(obj, type) else None
            notes = obj.__annotations__ if own is None or sys.version_info >= (3, 14) else own.get("__annotations__")
        except Exception:  # annotations that name what does not exist fail when they are first asked for
            _put(out, b"unresolved")
            return
        for name, note in (notes or {}).items():
            _put(out, b"note", str(name).encode())
            self._value(note, out, kids)

    def _class(self, cls: type, out: bytearray, doc: bytearray, kids: list[int]) -> None:
        _put(out, b"class", f"{cls.__module__}:{cls.__qualname__}".encode())
        meta = type(cls)
        self._value(meta, out, kids)
        if meta.__module__.partition(".")[0] not in sys.stdlib_module_names and not by_value(meta):
            self.doc_counts = True
        space = vars(cls)
        if isinstance(space.get("__doc__"), str):
            _put(doc, b"doc", space["__doc__"].encode("utf-8", "surrogatepass"))
        for base in cls.__bases__:
            _put(out, b"base")
            self._value(base, out, kids)
        slots = space.get("__slots__")
        if slots is not None:
            _put(out, b"slots", repr((slots,) if isinstance(slots, str) else tuple(slots)).encode())
        self._annotations(cls, out, kids)
        members: Mapping[str, Any] = cls.__members__ if isinstance(cls, enum.EnumMeta) else {}
        for name, member in members.items():
            _put(out, b"member", name.encode())
            self._value(member.value, out, kids)
        for name in sorted(space):
            value = space[name]
            if name in _NO_CODE or name in members or isinstance(value, _DESCRIPTORS):
                continue
            if isinstance(cls, enum.EnumMeta) and name.startswith("_") and not isinstance(value, types.FunctionType):
                continue  # the metaclass's own book-keeping
            if isinstance(value, _CONTAINERS):
                continue
            entry, below = bytearray(), list[int]()
            if self._value(value, entry, below) or below:
                _put(out, b"entry", name.encode())
                out += entry
                kids += below

    def _holder(self, value: Any, out: bytearray, kids: list[int]) -> None:
        _put(out, b"holder")
        self._value(type(value), out, kids)
        foreign = not by_value(type(value))
        for name, item in _held(value):
            if isinstance(item, _CONTAINERS):
                continue
            if foreign and type(item) in (int, float) and name.startswith("_"):
                continue  # as a rule a library's own count of something
            if foreign and holds_code(item) and not isinstance(item, _WRAPPERS):
                continue  # the inside of a library's objects is the library's
            entry, below = bytearray(), list[int]()
            if self._value(item, entry, below) or below:
                _put(out, b"attr", name.encode())
                out += entry
                kids += below
        if isinstance(value, (functools.partial, functools.partialmethod)):
            for name in sorted(value.keywords):
                _put(out, b"kw", name.encode())
                self._value(value.keywords[name], out, kids)


_WRAPPING = ("__wrapped__", "__func__", "fget", "fset", "fdel", "func", "args")


def _held(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an instance, including those that C types keep out of ``__dict__``."""
    if isinstance(value, (staticmethod, classmethod)):
        return [("__func__", value.__func__)]  # their ``__dict__`` repeats what the function says of itself
    found: dict[str, Any] = {}
    try:
        found.update(vars(value))
    except TypeError:
        pass
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        for name in names:
            found.setdefault(name, cls.__dict__[name].__get__(value) if _slot_set(cls, name, value) else None)
    if not by_value(type(value)):
        for name in _WRAPPING:
            if name in type(value).__dict__ or name in found:
                item = getattr(value, name, None)
                if item is not None:
                    found.setdefault(name, item)
        wrapped = getattr(value, "__wrapped__", None) if isinstance(value, functools._lru_cache_wrapper) else None
        if wrapped is not None:
            found["__wrapped__"] = wrapped
            found["cache"] = tuple(value.cache_parameters().values())
    return [(name, found[name]) for name in sorted(found) if name not in _NO_CODE]


def _slot_set(cls: type, name: str, value: Any) -> bool:
    member = cls.__dict__.get(name)
    if not isinstance(member, types.MemberDescriptorType):
        return False
    try:
        member.__get__(value)
    except AttributeError:
        return False
    return True


def holds_code(value: Any) -> bool:
    """Whether an instance is there for the functions in it: a descriptor, a wrapper, a decorated function."""
    if isinstance(value, _WRAPPERS):
        return True
    if isinstance(value, (*_CONTAINERS, *_DESCRIPTORS)):
        return False
    try:
        attributes = vars(value)
    except TypeError:
        kind = type(value)
        if not any("__slots__" in cls.__dict__ for cls in kind.__mro__) or not kind.__flags__ & _HEAP_TYPE:
            return False
        attributes = dict(_held(value))
    return any(isinstance(item, (types.FunctionType, types.MethodType, staticmethod)) for item in attributes.values())


def _list_as_tuple(value: Any) -> Any:
    """Arguments of ``Callable[[int], str]`` hold a list; it is as constant as the rest."""
    return tuple(value) if isinstance(value, list) else value


def _seen(item: bytes, before: set[bytes]) -> bool:
    if item in before:
        return True
    before.add(item)
    return False


# arguments


def arguments_digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Digest of a call's arguments, to tell whether a re-run passes the same ones.

    Compared by content: constants, containers of what can be compared, sets in any order, by-value and importable
    functions and classes, enum members, dataclasses, NumPy arrays and torch tensors (dtype, shape, bytes).

    Returns
    -------
    str or None
        32 hexadecimal digits, or None when some argument cannot be compared reliably.

    Examples
    --------
    >>> arguments_digest((1, [2.0]), {}) == arguments_digest((1, [2.0]), {})
    True
    >>> arguments_digest((object(),), {}) is None
    True
    """
    out = bytearray()
    try:
        if not _argument(args, out, ()) or not _argument(dict(kwargs), out, ()):
            return None
    except Exception:  # whatever a foreign object does while it is looked at only means that it cannot be compared
        return None
    return _digest(out).hex()


def _argument(value: Any, out: bytearray, above: tuple[int, ...]) -> bool:
    if _constant(value, out):
        return True
    if id(value) in above:
        return False  # a container in itself
    above = (*above, id(value))
    kind = type(value)
    if kind in (list, tuple, set, frozenset, dict, bytearray):
        return _container(value, out, above)
    if isinstance(value, (types.FunctionType, type)):
        _put(out, b"code", fingerprint(value).encode())
        return True
    if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
        _put(out, b"name", f"{getattr(value, '__module__', '')}:{value.__name__}".encode())
        return True
    if isinstance(value, enum.Enum):
        _put(out, b"member", f"{fingerprint(kind)}:{value.name}".encode())
        return True
    module = kind.__module__.partition(".")[0]
    if module == "numpy":
        return _array(value, out, above)
    if module == "torch" and hasattr(value, "untyped_storage"):
        return _tensor(value, out)
    if dataclasses.is_dataclass(value):
        _put(out, b"dataclass", fingerprint(kind).encode())
        return all(_argument(getattr(value, field.name), out, above) for field in dataclasses.fields(value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        _put(out, b"named", fingerprint(kind).encode())
        return _argument(tuple(value), out, above)
    if isinstance(value, functools.partial):
        return _argument((value.func, value.args, value.keywords), out, above)
    return False


def _container(value: Any, out: bytearray, above: tuple[int, ...]) -> bool:
    if isinstance(value, bytearray):
        _put(out, b"bytearray", bytes(value))
        return True
    parts = []
    for item in value.items() if isinstance(value, dict) else value:
        part = bytearray()
        sides = item if isinstance(value, dict) else (item,)
        if not all(_argument(side, part, above) for side in sides):
            return False
        parts.append(bytes(part))
    if isinstance(value, (set, frozenset, dict)):
        parts.sort()
    _put(out, type(value).__name__.encode(), b"%d;" % len(parts) + _digest(b"".join(parts)))
    return True


def _array(value: Any, out: bytearray, above: tuple[int, ...]) -> bool:
    if not hasattr(value, "dtype") or not hasattr(value, "tobytes"):
        return False
    if value.dtype.hasobject:
        _put(out, b"objects", repr(value.shape).encode())
        return _argument(value.tolist(), out, above)
    _put(out, b"array", f"{value.dtype!r} {value.shape}".encode())
    contiguous = value if getattr(value, "flags", None) is None or value.flags.c_contiguous else value.copy()
    # Dates have no buffer, and scalars no dimensions.
    data = contiguous.data if contiguous.ndim and value.dtype.kind not in "mM" else contiguous.tobytes()
    _put(out, b"data", hashlib.blake2b(data, digest_size=16).digest())
    return True


def _tensor(value: Any, out: bytearray) -> bool:
    torch: Any = sys.modules["torch"]
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        return False
    _put(out, b"tensor", f"{value.dtype} {tuple(value.shape)} {value.device} {value.requires_grad}".encode())
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().clone()
    storage = flat.untyped_storage()
    data = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()) if storage.nbytes() else b""
    _put(out, b"data", hashlib.blake2b(data, digest_size=16).digest())
    return True
