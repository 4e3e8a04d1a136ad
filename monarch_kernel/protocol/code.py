"""Code that travels: by-value classes and functions, each made once per process.

A message never carries a class as such but `_resolve(module, qualname, key, blob, loose)`: the receiver looks the key
up and opens the blob, a standalone pickle, only when it has no such object yet. The key is the fingerprint (and, for
local classes, an edition of what they close over that a fingerprint does not tell apart). So `isinstance`, enum members
and class state hold over re-sends, re-run cells and new kernels; a changed body has another key, and the old one lives
on beside it for whoever still uses it.

A class travels as it was when it was first sent. Setting a *function* on it later, or on anything it reaches, makes
another version; setting data on it does not, because class attributes are state of each process. Globals that a
fingerprint does not tell apart (lists, arrays, handles) are *loose*: they travel beside the blob, each with an edition.
They persist in the receiver from call to call; rebinding one in the sender rebinds it in the receiver with the next
message that needs it, as in one notebook; changing one in place does not.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import io
import itertools
import linecache
import os
import pickle
import site
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar

import cloudpickle
import cloudpickle.cloudpickle as _cp

from monarch_kernel.protocol.fingerprint import Reach, by_value, code_names, reach
from monarch_kernel.protocol.watch import Loose, Watch, edition_of, is_code, size_of

__all__ = ["CannotTravel", "CodePickler", "CodeRegistry", "LargeCaptureWarning", "registry"]

_Code = type | types.FunctionType
_Key = tuple[str, str, str]
#: Versions of one name that are kept for sure; older ones live as long as somebody uses them.
_VERSIONS = 16
#: Versions of one name whose watch and blob are kept ready.
_READY = 4
_BLOB_KEPT = 8 * 2**20
_LARGE = 100 * 10**6
_SOURCE = 256 * 2**10


class LargeCaptureWarning(UserWarning):
    """Code that travels by value drags a large value along; pass it as an argument, or keep it in an actor."""


@dataclasses.dataclass(slots=True)
class _Entry:
    ref: weakref.ref[Any]
    fingerprint: str
    key: str
    watch: Watch | None = None
    blob: bytes | None = None
    loose: bytes | None = None
    received: bool = False
    applied: bytes = b""
    loose_names: set[str] = dataclasses.field(default_factory=set)


class CodeRegistry:
    """The by-value classes and functions of this process, by what they are.

    Parameters
    ----------
    namespace
        In a controller: the variables of ``__main__`` (or a function that returns them). What is bound there now wins
        over what was registered, when it is the same code. None in a proc, where the first registered wins.
    """

    def __init__(self, namespace: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None) -> None:
        self.namespace = namespace
        self._lock = threading.RLock()
        self._entries: dict[int, _Entry] = {}
        self._ready: dict[tuple[str, str], collections.OrderedDict[int, None]] = {}
        self._kept: dict[tuple[str, str], collections.OrderedDict[str, Any]] = {}
        self._others: weakref.WeakValueDictionary[_Key, Any] = weakref.WeakValueDictionary()
        self._making: dict[_Key, Any] = {}
        self._fresh: dict[int, Any] = {}
        self._depth = 0
        self._sending: list[int] = []
        self._cut = False

    def fingerprint(self, obj: _Code) -> str:
        """`fingerprint.fingerprint` as of when the object was first seen or its code last changed."""
        return self._entry(obj).fingerprint

    def key(self, obj: _Code) -> str:
        """The fingerprint, with the edition of values that it does not tell apart."""
        return self._entry(obj).key

    def edition(self, obj: _Code) -> str:
        """Digest of the loose globals that an object reaches, as last bound; empty when it reaches none."""
        watch = self._entry(obj).watch
        assert watch is not None
        watch.rebound()
        return "".join(loose.edition for loose in watch.loose)

    def ticket(self, obj: _Code) -> tuple[str, str, str, bytes, bytes]:
        """Arguments of `_resolve` for an object that travels by value."""
        entry = self._entry(obj)
        watch = entry.watch
        assert watch is not None
        if entry.blob is not None and entry.loose is not None and not (watch.loose and watch.rebound()):
            return obj.__module__, obj.__qualname__, entry.key, entry.blob, entry.loose
        with self._lock:
            if id(obj) in self._sending:
                # Reached again from its own loose globals: the receiver has it by the time that it reads them.
                self._cut = True
                return obj.__module__, obj.__qualname__, entry.key, b"", b""
            self._sending.append(id(obj))
            try:
                blob = entry.blob if entry.blob is not None else _blob(obj, {loose.name for loose in watch.loose})
                loose = _loose_blob(watch.loose)
            except Exception as error:
                raise _blame(obj, error) from error
            finally:
                self._sending.pop()
            entry.blob = blob if len(blob) <= _BLOB_KEPT else None
            # What was cut short for one message is no use in another.
            entry.loose = loose if len(loose) <= _BLOB_KEPT and not (self._cut and self._sending) else None
            if not self._sending:
                self._cut = False
        return obj.__module__, obj.__qualname__, entry.key, blob, loose

    def find(self, module: str, qualname: str, key: str) -> Any:
        """The object of that name and key in this process, or None."""
        current = self._bound(module, qualname)
        if current is not None and self._entry(current).key == key:
            return current
        versions = self._kept.get((module, qualname))
        found = None if versions is None else versions.get(key)
        return self._others.get((module, qualname, key)) if found is None else found

    def load(self, module: str, qualname: str, key: str, blob: bytes, loose: bytes = b"") -> Any:
        """Find an object, or make it from its blob; what it reaches is found or made likewise."""
        obj = self.find(module, qualname, key)
        if obj is None:
            # One at a time: half-made classes are seen only by the thread that makes them.
            with self._lock:
                obj = self._build(blob)
        if loose:
            entry = self._entries.get(id(obj))
            if entry is not None and entry.received and entry.applied != loose:
                with self._lock:
                    entry.applied = loose  # first, for what the values refer to may come here again
                    try:
                        _rebind(obj, pickle.loads(loose))
                    except BaseException:
                        entry.applied = b""
                        raise
        return obj

    def _build(self, blob: bytes) -> Any:
        self._depth += 1
        try:
            obj = pickle.loads(blob)
            if self._depth == 1:
                for (module, qualname, key), made in self._making.items():
                    self._adopt(module, qualname, key, made)
        finally:
            self._depth -= 1
            if not self._depth:
                self._making.clear()
                self._fresh.clear()
        return obj

    def note(self, *objects: Any) -> None:
        """Take the fingerprints of classes and functions now, before their data attributes change."""
        for obj in objects:
            if isinstance(obj, (type, types.FunctionType)) and by_value(obj):
                self._entry(obj)

    # inside

    def _bound(self, module: str, qualname: str) -> Any:
        space = self.namespace
        if space is None or module != "__main__" or "<" in qualname:
            return None
        first, *rest = qualname.split(".")
        found = (space() if callable(space) else space).get(first)
        for part in rest:
            found = getattr(found, part, None)
        if not isinstance(found, (type, types.FunctionType)) or (found.__module__, found.__qualname__) != (
            module,
            qualname,
        ):
            return None
        return found

    def _entry(self, obj: _Code) -> _Entry:
        entry = self._entries.get(id(obj))
        if entry is not None and entry.ref() is obj:
            if entry.watch is not None and entry.watch.same():
                return entry
        else:
            entry = None
        with self._lock:
            return self._renew(obj, entry)

    def _renew(self, obj: _Code, old: _Entry | None) -> _Entry:
        found = reach(obj)
        watch = Watch(found)
        if old is not None and old.received and old.watch is None:
            # Received: what it was called where it was made still holds, and its globals are this process's own.
            old.watch = watch
            self._keep_ready(obj)
            return old
        named: dict[tuple[int, str], Loose] = {}
        for space, name, value in found.loose_globals:
            if not isinstance(value, _OWN):
                named.setdefault((id(space), name), Loose(space, name))
        watch.loose = list(named.values())
        key = found.digest
        if found.loose_cells and (isinstance(obj, types.FunctionType) or "<locals>" in obj.__qualname__):
            key += "." + self._cell_edition(found, old)
        if old is not None and old.key == key:
            old.watch, old.loose = watch, None
            if {loose.name for loose in watch.loose} != old.loose_names:
                old.blob, old.loose_names = None, {loose.name for loose in watch.loose}
            self._keep_ready(obj)
            return old
        number = id(obj)
        entry = _Entry(weakref.ref(obj, lambda _: self._entries.pop(number, None)), found.digest, key, watch)
        entry.loose_names = {loose.name for loose in watch.loose}
        self._entries[number] = entry
        self._keep_ready(obj)
        # What this process sends comes back under the name that it was sent by.
        self._keep(obj.__module__, obj.__qualname__, key, obj, replace=self.namespace is not None)
        return entry

    def _cell_edition(self, found: Reach, old: _Entry | None) -> str:
        if old is not None and old.watch is not None and old.fingerprint == found.digest:
            before = old.watch.loose_cells
            if [name for name, _ in before] == [name for name, _ in found.loose_cells] and all(
                grip.holds(value) for (_, grip), (_, value) in zip(before, found.loose_cells, strict=True)
            ):
                return old.key.partition(".")[2]
        return edition_of(found.loose_cells)

    def _keep_ready(self, obj: _Code) -> None:
        # A watch refers to what refers to the class: bounded, so that old versions can go.
        ready = self._ready.setdefault((obj.__module__, obj.__qualname__), collections.OrderedDict())
        ready[id(obj)] = None
        ready.move_to_end(id(obj))
        while len(ready) > _READY:
            entry = self._entries.get(ready.popitem(last=False)[0])
            if entry is not None:
                entry.watch = entry.blob = None

    def _keep(self, module: str, qualname: str, key: str, obj: Any, *, replace: bool = False) -> None:
        kept = self._kept.setdefault((module, qualname), collections.OrderedDict())
        if replace or key not in kept:
            kept[key] = obj
        kept.move_to_end(key)
        while len(kept) > _VERSIONS:
            name, oldest = kept.popitem(last=False)
            self._others[module, qualname, name] = oldest

    def _adopt(self, module: str, qualname: str, key: str, obj: Any) -> None:
        number = id(obj)
        ref = weakref.ref(obj, lambda _: self._entries.pop(number, None))
        self._entries[number] = _Entry(ref, key.partition(".")[0], key, received=True)
        self._keep(module, qualname, key, obj)

    def make(self, name: _Key, maker: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Inside a blob: find an object or begin to make it."""
        found = self._making.get(name)
        if found is None:
            found = self.find(*name)
        if found is None:
            found = self._making[name] = maker(*args)
            self._fresh[id(found)] = found
        return found

    def fill(self, obj: Any, state: Any) -> None:
        """Inside a blob: finish an object, unless it was there before: its state is its own then."""
        if self._fresh.pop(id(obj), None) is not None:
            (_fill_function if isinstance(obj, types.FunctionType) else _fill_class)(obj, state)


_registry = CodeRegistry()


def registry() -> CodeRegistry:
    """The registry of this process. A controller sets its `namespace`."""
    return _registry


# on the wire (named in pickles: never rename)


def _resolve(module: str, qualname: str, key: str, blob: bytes, loose: bytes) -> Any:
    return _registry.load(module, qualname, key, blob, loose)


def _rebind(obj: _Code, values: list[tuple[str, str, str, bytes]]) -> None:
    """Give the globals of received code the values its sender has bound, where the edition is another."""
    functions = reach(obj).functions
    for module, name, edition, pickled in values:
        value: Any = None
        loaded = False
        for func in functions:
            space = func.__globals__
            if space.get("__name__") != module or name not in code_names(func.__code__):
                continue
            editions = space.setdefault("__editions__", {})
            if editions.get(name) != edition:
                if not loaded:
                    value, loaded = pickle.loads(pickled), True
                space[name] = value
                editions[name] = edition


def _make(module: str, qualname: str, key: str, maker: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return _registry.make((module, qualname, key), maker, args)


def _fill(obj: Any, state: Any) -> None:
    _registry.fill(obj, state)


def _make_code(args: tuple[Any, ...], source: str | None) -> types.CodeType:
    code = types.CodeType(*args)
    name = code.co_filename
    if source and name not in linecache.cache and not os.path.exists(name):
        # No modification time: `linecache.checkcache` leaves such entries alone.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return code


def _make_class(meta: type, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
    return types.new_class(name, bases, {"metaclass": meta}, lambda body: body.update(space))


def _make_enum(
    meta: type, name: str, bases: tuple[type, ...], space: dict[str, Any], members: dict[str, Any]
) -> type[enum.Enum]:
    body: Any = meta.__prepare__(name, bases)
    for key, value in itertools.chain(space.items(), members.items()):
        body[key] = value
    made: type[enum.Enum] = meta.__new__(meta, name, bases, body)
    return made


def _make_typed_dict(name: str, fields: dict[str, Any], total: bool, space: dict[str, Any]) -> Any:
    made = typing.TypedDict(name, fields, total=total)  # type: ignore[misc]  # the functional form, by value
    for key, value in space.items():
        setattr(made, key, value)
    return made


def _make_cached_property(func: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(func)
    made.attrname = name
    return made


def _make_lru_cache(func: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(func)


def _fill_function(obj: types.FunctionType, state: Any) -> None:
    _cp._function_setstate(obj, state)


def _fill_class(obj: type, state: dict[str, Any]) -> None:
    members = state.pop(" members", None)
    _cp._class_setstate(obj, (state, {}))
    for name, attributes in (members or {}).items():
        obj.__members__[name].__dict__.update(attributes)  # type: ignore[attr-defined]


# the pickler


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    args = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize,
        code.co_flags, code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_filename, code.co_name,
        code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_exceptiontable, code.co_freevars,
        code.co_cellvars,
    )  # fmt: skip
    return _make_code, (args, _source(code.co_filename))


def _reduce_lru_cache(cached: Any) -> Any:
    if not by_value(cached):
        return cached.__reduce__()
    return _make_lru_cache, (cached.__wrapped__, *cached.cache_parameters().values())


_sources: dict[str, tuple[int, str]] = {}
_installed = tuple({sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()})


def _source(filename: str) -> str | None:
    """Text of the file or cell that code came from; the same string each time, so that a pickle holds it once."""
    if filename.startswith(_installed):
        return None
    lines = linecache.getlines(filename)
    if not lines:
        return None
    known = _sources.get(filename)
    if known is None or known[0] != id(lines):
        text = "".join(lines)
        if len(_sources) > 256:
            _sources.clear()
        known = _sources[filename] = (id(lines), text if len(text) <= _SOURCE else "")
    return known[1] or None


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles by-value classes and module-level functions as references into the receiver's registry."""

    dispatch_table: ClassVar[Any] = collections.ChainMap(
        {
            types.CodeType: _reduce_code,
            functools.cached_property: lambda obj: (_make_cached_property, (obj.func, obj.attrname)),
            functools._lru_cache_wrapper: _reduce_lru_cache,
        },
        cloudpickle.Pickler.dispatch_table,
    )
    inline = False
    loose: Collection[str] = ()

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for all but the plainest objects."""
        kind = type(obj)
        if kind is types.FunctionType:
            return self._reduce_function(obj) if by_value(obj) else NotImplemented
        if issubclass(kind, type):
            if obj in _cp._BUILTIN_TYPE_NAMES or not by_value(obj):
                return super().reducer_override(obj)
            return self._reduce_class(obj)
        return NotImplemented

    def _reduce_class(self, cls: type) -> Any:
        if not self.inline:
            return _resolve, _registry.ticket(cls)
        maker, args, state = _take_apart(cls)
        args = (cls.__module__, cls.__qualname__, _registry.key(cls), maker, args)
        return _make, args, state, None, None, _fill

    def _reduce_function(self, func: types.FunctionType) -> Any:
        named = "." not in func.__qualname__ and "<" not in func.__qualname__
        if not self.inline:
            if named:
                return _resolve, _registry.ticket(func)
            owner = _owner(func)
            if owner is not None:
                return getattr, (owner, func.__name__)
        args, state = self._function_getnewargs(func), _function_state(func, self.loose)
        if not named:
            return _cp._make_function, args, state, None, None, _fill_function
        args = (func.__module__, func.__qualname__, _registry.key(func), _cp._make_function, args)
        return _make, args, state, None, None, _fill


#: What code keeps beside itself to guard or remember things: each process's own, made anew there.
_OWN = (type(threading.Lock()), type(threading.RLock()), weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


class _BlobPickler(CodePickler):
    inline = True
    dispatch_table: ClassVar[Any] = collections.ChainMap(
        {
            type(threading.Lock()): lambda _: (threading.Lock, ()),
            type(threading.RLock()): lambda _: (threading.RLock, ()),
            weakref.WeakKeyDictionary: lambda _: (weakref.WeakKeyDictionary, ()),
            weakref.WeakValueDictionary: lambda _: (weakref.WeakValueDictionary, ()),
        },
        CodePickler.dispatch_table,
    )


def _blob(obj: _Code, loose: set[str]) -> bytes:
    with io.BytesIO() as file:
        pickler = _BlobPickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.loose = loose
        pickler.dump(obj)
        return file.getvalue()


def _loose_blob(values: list[Loose]) -> bytes:
    parts = []
    for loose in values:
        if loose.name not in loose.space:
            continue
        value = loose.space[loose.name]
        _warn_if_large(loose.name, value)
        with io.BytesIO() as file:
            CodePickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
            parts.append((loose.space.get("__name__"), loose.name, loose.edition, file.getvalue()))
    return pickle.dumps(parts) if parts else b""


def _blame(obj: _Code, error: Exception) -> Exception:
    """The error to raise instead: which name in the code stands for what cannot travel."""
    if isinstance(error, CannotTravel):
        return error
    found = reach(obj)
    named: list[tuple[_Code, str, Any]] = [
        (func, name, func.__globals__.get(name)) for func in found.functions for name in code_names(func.__code__)
    ]
    named += [(func, name, value) for func in found.functions for name, value in _filled(func)]
    named += [(cls, name, value) for cls in found.classes for name, value in vars(cls).items() if not is_code(value)]
    for owner, name, value in named:
        if isinstance(value, (type, types.FunctionType, types.ModuleType)) or name in ("__dict__", "__weakref__"):
            continue
        try:
            with io.BytesIO() as file:
                _BlobPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception as reason:
            kind = type(value)
            text = (
                f"{owner.__qualname__} uses {name!r} ({kind.__module__}.{kind.__qualname__}), which cannot travel with "
                f"it: {reason}. Make or import it inside the method that uses it"
            )
            return CannotTravel(text)
    return error


class CannotTravel(pickle.PicklingError):
    """Says already which name is to blame."""


def _owner(func: types.FunctionType) -> type | None:
    """The by-value class of which a function is a plain method, if it can be found by its name."""
    if "<" in func.__qualname__:
        return None
    path = func.__qualname__.split(".")
    found: Any = sys.modules.get(func.__module__)
    for part in path[:-1]:
        found = getattr(found, part, None)
    return found if isinstance(found, type) and found.__dict__.get(path[-1]) is func else None


def _function_state(func: types.FunctionType, loose: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    space = func.__globals__
    used = {name: space[name] for name in code_names(func.__code__) if name in space and name not in loose}
    cells = dict(_filled(func))
    for name, value in itertools.chain(used.items(), cells.items()):
        _warn_if_large(name, value, func)
    slots = {
        "__name__": func.__name__,
        "__qualname__": func.__qualname__,
        "__annotations__": func.__annotations__,
        "__kwdefaults__": func.__kwdefaults__,
        "__defaults__": func.__defaults__,
        "__module__": func.__module__,
        "__doc__": func.__doc__,
        "__closure__": func.__closure__,
        "__globals__": used,
        "_cloudpickle_submodules": _cp._find_imported_submodules(func.__code__, [*used.values(), *cells.values()]),
    }
    return dict(func.__dict__), slots


def _warn_if_large(name: str, value: Any, func: types.FunctionType | None = None) -> None:
    if size_of(value) > _LARGE:
        text = (
            f"{func.__qualname__ if func else 'sent code'} uses {name!r} ({size_of(value) / 1e6:,.0f} MB), which "
            "travels with it to every process; pass it as an argument, or load it inside an actor"
        )
        warnings.warn(text, LargeCaptureWarning, stacklevel=3)


def _filled(func: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _take_apart(cls: type) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """How to begin a class, and what to set on it afterwards."""
    space: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if typing.is_typeddict(cls):
        return _make_typed_dict, (cls.__name__, cls.__annotations__, cls.__total__, space), {}  # type: ignore[attr-defined]
    state: dict[str, Any] = _cp._class_getstate(cls)[0]
    for name in ("__module__", "__qualname__", "__orig_bases__", "__slots__"):
        if name in state:
            space[name] = state.pop(name)
    state = {name: value for name, value in state.items() if not _slot_of(cls, value)}
    if isinstance(cls, enum.EnumMeta):
        named: dict[str, Any] = dict(cls.__members__)
        members = {name: member.value for name, member in named.items()}
        skip = {"_generate_next_value_", "_member_names_", "_member_map_", "_member_type_", "_value2member_map_",
                "_unhashable_values_", "_unhashable_values_map_", "_hashable_values_", "_use_args_",
                "_value_repr_", "_boundary_", "_flag_mask_", "_all_bits_", "_singles_mask_",
                "_inverted_", "_new_member_", "__new_member__"}  # fmt: skip
        state = {name: value for name, value in state.items() if name not in skip and name not in members}
        if "__new_member__" in cls.__dict__:
            state["__new_member__"] = cls.__dict__["__new_member__"]
        known = {"_value_", "_name_", "__objclass__", "_sort_order_"}
        extra = {m.name: {k: v for k, v in vars(m).items() if k not in known} for m in named.values()}
        if any(extra.values()):
            state[" members"] = extra
        return _make_enum, (type(cls), cls.__name__, cls.__bases__, space, members), state
    slots = space.get("__slots__")
    if slots is not None and not isinstance(slots, (str, dict)):
        space["__slots__"] = tuple(slots)
    taken = {slots} if isinstance(slots, str) else set(slots or ())
    # Plain constants are there from the start: `__init_subclass__` of a base may look at them.
    space |= {k: v for k, v in state.items() if type(v) in (int, float, str, bool, type(None)) and k not in taken}
    return _make_class, (type(cls), cls.__name__, cls.__bases__, space), state


def _slot_of(cls: type, value: Any) -> bool:
    return isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls
