"""Objects to bytes and back: pickle protocol 5 with large buffers beside the pickle.

A *body* is ``u32 count, u64 length × count``, the pickle, then the buffers, each at a multiple of 64 bytes: arrays and
tensors of the receiver lie in the received memory itself, and are writable. Small calls of plain values take a path
that touches nothing of ours. An argument that cannot travel fails at the sender, named; what cannot be rebuilt fails
at the receiver with what is missing and what to do.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from monarch_kernel.protocol.arrays import ALIGN, Spans, reduce_read_only, reduce_tensor
from monarch_kernel.protocol.code import CannotTravel, CodePickler, LargeCaptureWarning

__all__ = [
    "Buffer",
    "LargeCaptureWarning",
    "RemoteException",
    "decode",
    "dumps",
    "dumps_call",
    "dumps_exception",
    "encode",
    "loads",
    "loads_exception",
]

Buffer = bytes | bytearray | memoryview

#: Smaller buffers are copied into the pickle: a chunk of its own costs more than the copy.
OUT_OF_BAND = 64 * 2**10
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
_PROTOCOL = pickle.HIGHEST_PROTOCOL
_ONE = struct.Struct("<IQ")  # the header of a body without buffers


# writing


class _MessagePickler(CodePickler):
    def __init__(self, file: io.BytesIO, buffers: list[Buffer] | None, spans: Spans) -> None:
        self._spans = spans
        super().__init__(file, _PROTOCOL, None if buffers is None else _collector(buffers))

    def reducer_override(self, obj: Any) -> Any:
        found = super().reducer_override(obj)
        if found is not NotImplemented:
            return found
        kind = type(obj)
        if isinstance(obj, BaseException):
            return _reduce_exception(obj)
        if kind.__name__ == "ndarray" and kind.__module__ == "numpy":
            return NotImplemented if obj.flags.writeable else reduce_read_only(obj)
        if kind.__module__.startswith("torch"):
            torch: Any = sys.modules.get("torch")
            if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
                return reduce_tensor(torch, obj, self._spans)
        return NotImplemented


def _collector(buffers: list[Buffer]) -> Callable[[pickle.PickleBuffer], bool]:
    def collect(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    return collect


def dumps(obj: Any) -> tuple[bytes, list[Buffer]]:
    """Pickle an object.

    Parameters
    ----------
    obj
        Anything; by-value code travels as `monarch_kernel.protocol.code` says.

    Returns
    -------
    (bytes, list)
        The pickle, and the buffers of 64 KiB and more that belong to it. They are views: do not change the arrays
        before the message is written.

    Raises
    ------
    TypeError
        When something cannot be pickled; the text says what, and where in ``obj``.
    """
    if _is_plain(obj):
        return pickle.dumps(obj, _PROTOCOL), []
    try:
        return _dump(obj)
    except Exception as error:
        raise _culprit([("value", obj)], "", error) from error


def dumps_call(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str] = ()) -> list[Buffer]:
    """Pickle the arguments of a call.

    Parameters
    ----------
    args, kwargs
        The arguments.
    names
        Names of the positional parameters, for error texts.

    Returns
    -------
    list
        The pickle of ``(args, kwargs)``, then its buffers: what `encode` takes.

    Raises
    ------
    TypeError
        When an argument cannot be pickled; the text names the argument and the place inside it. What an object's own
        ``__getstate__`` or ``__reduce__`` raises is raised as it is, with a note that says the same.
    """
    if not kwargs or _PLAIN.issuperset(map(type, kwargs.values())):
        for value in args:
            if type(value) not in _PLAIN and not _is_plain(value):
                break
        else:
            return [pickle.dumps((args, kwargs), _PROTOCOL)]
    try:
        data, buffers = _dump((args, kwargs))
    except Exception as error:
        named = [(names[i] if i < len(names) else f"args[{i}]", value) for i, value in enumerate(args)]
        culprit = _culprit([*named, *kwargs.items()], "argument ", error)
        if _in_pickling(error):
            raise culprit from None  # its text holds the cause's
        error.add_note(f"({culprit})")
        raise
    return [data, *buffers]


def _in_pickling(error: BaseException) -> bool:
    """Whether an error was raised by a pickler itself, not by what an object does when it is pickled."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_globals.get("__name__", "").startswith(
        ("monarch_kernel.", "cloudpickle")
    )


def _is_plain(obj: Any) -> bool:
    """Whether plain pickle does it: exact primitives, and short tuples and dicts of them."""
    kind = type(obj)
    if kind in _PLAIN:
        return True
    if kind is tuple or kind is list:
        return len(obj) <= 16 and _PLAIN.issuperset(map(type, obj))
    if kind is dict:
        return len(obj) <= 16 and _PLAIN.issuperset(map(type, obj)) and _PLAIN.issuperset(map(type, obj.values()))
    return False


def _dump(obj: Any) -> tuple[bytes, list[Buffer]]:
    spans = Spans()
    while True:
        buffers: list[Buffer] = []
        file = io.BytesIO()
        _MessagePickler(file, buffers, spans).dump(obj)
        if not spans.again():
            return file.getvalue(), buffers


# reading


def loads(data: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Rebuild what `dumps` or `dumps_call` pickled.

    Raises
    ------
    ImportError
        When a module, or a name in it, is missing here; the text says which, and what to do.
    """
    try:
        return pickle.loads(data, buffers=buffers)
    except ModuleNotFoundError as error:
        name = error.name or str(error)
        text = (
            f"this process has no module {name!r}, which the received object needs. Install it on the workers or put "
            f"its folder on their path (sys.path); to send a local module's code along, call "
            f"cloudpickle.register_pickle_by_value({name}) before the call"
        )
        raise ModuleNotFoundError(text, name=error.name, path=error.path) from error
    except AttributeError as error:
        if "Can't get attribute" not in str(error):
            raise
        text = (
            f"{error}: this process has another version of that module. Bring its file up to date on the workers and "
            "restart them, or register the module with cloudpickle.register_pickle_by_value to send its code along"
        )
        raise ImportError(text) from error


def encode(chunks: Sequence[Buffer]) -> list[Buffer]:
    """Lay chunks out as one body.

    Returns
    -------
    list
        Pieces whose concatenation is the body; large buffers are not copied.
    """
    if len(chunks) == 1:
        return [_ONE.pack(1, len(chunks[0])) + chunks[0]]
    sizes = [chunk.nbytes if isinstance(chunk, memoryview) else len(chunk) for chunk in chunks]
    body: list[Buffer] = [struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes), chunks[0]]
    at = len(body[0]) + sizes[0]
    for chunk, size in zip(chunks[1:], sizes[1:], strict=True):
        gap = -at % ALIGN
        if gap:
            body.append(bytes(gap))
        body.append(chunk)
        at += gap + size
    return body


def decode(body: Buffer) -> tuple[memoryview, list[Buffer]]:
    """Take a body apart.

    Returns
    -------
    (memoryview, list)
        The pickle and its buffers. Of a writable body (a bytearray, private memory) the buffers are parts of it;
        of ``bytes`` they are copies, so that the receiver's arrays are writable either way.

    Raises
    ------
    ValueError
        When the body is cut short or is none.
    """
    view = memoryview(body).cast("B")
    if len(view) >= _ONE.size:
        count, size = _ONE.unpack_from(view)
        if count == 1 and _ONE.size + size == len(view):
            return view[_ONE.size :], []
    try:
        (count,) = struct.unpack_from("<I", view)
        sizes = struct.unpack_from(f"<{count}Q", view, 4)
    except struct.error:
        raise ValueError("a message body is shorter than its header") from None
    at = 4 + 8 * count
    parts: list[Buffer] = []
    for number, size in enumerate(sizes):
        if number:
            at += -at % ALIGN
        part = view[at : at + size]
        if part.nbytes != size:
            raise ValueError("a message body is shorter than its header says")
        parts.append(bytearray(part) if number and view.readonly else part)
        at += size
    if not parts:
        raise ValueError("a message body without a pickle")
    pickled = parts[0]
    assert isinstance(pickled, memoryview)
    return pickled, parts[1:]


# which argument


def _culprit(named: Sequence[tuple[str, Any]], what: str, error: BaseException) -> Exception:
    """The error to raise instead: which value, where in it, its type, and why."""
    for name, value in named:
        failure = _fails(value)
        if failure is not None:
            path, inner, failure = _deepest(name, value, failure)
            kind = type(inner)
            plain = isinstance(failure, (TypeError, pickle.PicklingError))
            reason = str(failure) if plain else f"{type(failure).__name__}: {failure}"
            return TypeError(f"{what}{path} ({kind.__module__}.{kind.__qualname__}) cannot be sent: {reason}")
    return TypeError(f"{what or 'value '}cannot be sent: {type(error).__name__}: {error}")


def _fails(value: Any) -> Exception | None:
    try:
        _dump(value)
    except Exception as error:
        return error
    return None


def _deepest(path: str, value: Any, failure: Exception) -> tuple[str, Any, Exception]:
    seen: set[int] = set()
    while id(value) not in seen and len(seen) < 50:
        if isinstance(failure, CannotTravel) and hasattr(value, "__code__"):
            break  # it says itself what in it is to blame
        seen.add(id(value))
        for step, inner in _parts(value):
            its = _fails(inner)
            if its is not None:
                path, value, failure = path + step, inner, its
                break
        else:
            break
    return path, value, failure


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield f"[{number}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield "{...}", item
    elif callable(value) and hasattr(value, "__code__"):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            yield f"→{name}", cell.cell_contents
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield f"→{name}", value.__globals__[name]
    elif not any("__getstate__" in vars(cls) for cls in type(value).__mro__[:-1]):
        for name, item in getattr(value, "__dict__", {}).items():
            yield f".{name}", item


# exceptions


class RemoteException(Exception):
    """Stands for an exception that could not be rebuilt in this process.

    Attributes
    ----------
    type_name, module, text
        Of the original.
    traceback_text
        Its formatted traceback.
    """

    def __init__(self, type_name: str, module: str, text: str, traceback_text: str = "") -> None:
        super().__init__(type_name, module, text, traceback_text)
        self.type_name = type_name
        self.module = module
        self.text = text
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        name = self.type_name if self.module in ("builtins", "__main__") else f"{self.module}.{self.type_name}"
        return f"{name}: {self.text}" if self.text else name


def _reduce_exception(error: BaseException) -> Any:
    """Rebuild without the class's own ``__init__``, which may want other arguments than those it passed on."""
    kind = type(error)
    if kind.__module__ == "builtins" or getattr(kind, "__reduce_ex__") is not object.__reduce_ex__:  # noqa: B009 - mypy
        return NotImplemented
    if kind.__reduce__ not in (BaseException.__reduce__, OSError.__reduce__):
        return NotImplemented
    args = error.__reduce__()[1]
    return _load_exception, (kind, args), error.__dict__ or None


def _load_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))
    try:
        error: BaseException = builtin.__new__(kind, *args)
        builtin.__init__(error, *args)
    except TypeError:
        error = BaseException.__new__(kind, *args)
        error.args = args
    return error


_DEPTH = 20


def dumps_exception(error: BaseException) -> bytes:
    """Pickle an exception; never fails.

    What is sure to arrive is its type's name, its text, notes, causes and the formatted traceback with source lines;
    the exception object itself travels as well when it can, without what in it cannot.
    """
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # what raises when it is looked at
        text = "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__qualname__}\n"
    return pickle.dumps({"traceback": text, "error": _describe(error, 0)}, _PROTOCOL)


def _describe(error: BaseException, depth: int) -> dict[str, Any]:
    kind = type(error)
    try:
        text = str(error)
    except Exception as failed:
        text = f"<its text cannot be made: {type(failed).__name__}>"
    linked: dict[str, Any] = {}
    if depth < _DEPTH:
        if error.__cause__ is not None:
            linked["cause"] = _describe(error.__cause__, depth + 1)
        elif error.__context__ is not None and not error.__suppress_context__:
            linked["context"] = _describe(error.__context__, depth + 1)
    try:
        notes = [note for note in getattr(error, "__notes__", None) or () if isinstance(note, str)]
    except Exception:
        notes = []
    return {
        "type": kind.__qualname__, "module": kind.__module__, "text": text, "notes": notes,
        "pickle": _pickled_exception(error), "suppress": error.__suppress_context__, **linked,
    }  # fmt: skip


def _pickled_exception(error: BaseException) -> bytes | None:
    for prepare in (lambda error: error, _without_the_unpicklable):
        try:
            file = io.BytesIO()
            _MessagePickler(file, None, Spans()).dump(prepare(error))
        except Exception:  # noqa: S112 - the next attempt, or the stand-in at the receiver, reports the error
            continue
        return file.getvalue()
    return None


def _without_the_unpicklable(error: BaseException) -> BaseException:
    args = tuple(value if _fails(value) is None else repr(value) for value in error.args)
    copy = _load_exception(type(error), args)
    copy.__dict__.update({k: v for k, v in error.__dict__.items() if k != "__notes__" and _fails(v) is None})
    return copy


def loads_exception(data: Buffer) -> tuple[BaseException, str]:
    """Rebuild an exception; never fails.

    Returns
    -------
    (BaseException, str)
        The exception, or a `RemoteException` in its place, with notes and causes; and the remote traceback's text.
    """
    try:
        report = pickle.loads(data)
        text: str = report["traceback"]
        return _rebuild(report["error"], text), text
    except Exception as failed:
        text = f"the report of a remote error could not be read: {type(failed).__name__}: {failed}"
        return RemoteException("Exception", "builtins", text), text


def _rebuild(report: Mapping[str, Any], text: str) -> BaseException:
    error: Any = None
    if report["pickle"] is not None:
        try:
            error = loads(report["pickle"])
        except (Exception, SystemExit):  # its class cannot be imported or made here
            error = None
    if not isinstance(error, BaseException):  # also when its class made something else of it
        error = RemoteException(report["type"], report["module"], report["text"], text)
    assert isinstance(error, BaseException)
    have = getattr(error, "__notes__", [])
    for note in report["notes"]:
        if note not in have:
            error.add_note(note)
    if "cause" in report:
        error.__cause__ = _rebuild(report["cause"], "")
    elif "context" in report:
        error.__context__ = _rebuild(report["context"], "")
    error.__suppress_context__ = report["suppress"]
    return error
