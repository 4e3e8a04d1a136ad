"""Memory: the bytes of a tensor, an array or a memoryview, where they are."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_KINDS = "a 1-D contiguous torch tensor on the CPU, NumPy array, memoryview or bytearray"


class Memory:
    """Some memory of this process, kept alive for as long as this object is.

    Attributes
    ----------
    view
        Its bytes.
    writable
        Whether they may be changed.

    Raises
    ------
    ValueError
        What was given is not 1-D, not contiguous, or no memory that can be used here.

    Examples
    --------
    >>> Memory(bytearray(b"abc")).size
    3
    >>> Memory(memoryview(b"abcd")[::2])
    Traceback (most recent call last):
    ...
    ValueError: 1-D contiguous memory is needed; got a memoryview of shape (2,) and strides (2,)
    """

    __slots__ = ("_keep", "view", "writable")

    def __init__(self, data: Any) -> None:
        self._keep: Any = data
        if (tensor := _tensor(data)) is not None:
            self._keep, self.view = tensor
        elif isinstance(data, memoryview | bytearray):
            self.view = _bytes_of(memoryview(data), "memoryview" if isinstance(data, memoryview) else "bytearray")
        elif (array := _array(data)) is not None:
            self.view = array
        else:
            raise ValueError(f"{_KINDS} is needed; got {type(data).__name__}")
        self.writable = not self.view.readonly

    @property
    def size(self) -> int:
        """Bytes."""
        return self.view.nbytes

    def address(self) -> int:
        """Where it starts."""
        return _address(self.view)


def _not_flat(kind: str, shape: Any, strides: Any) -> ValueError:
    return ValueError(
        f"1-D contiguous memory is needed; got a {kind} of shape {tuple(shape)} and strides {tuple(strides)}"
    )


def _bytes_of(view: memoryview, kind: str) -> memoryview:
    if view.ndim != 1 or not view.c_contiguous:
        raise _not_flat(kind, view.shape or (), view.strides or ())
    return view.cast("B")


def _tensor(data: Any) -> tuple[Any, memoryview] | None:
    """What to keep alive and the bytes of a torch tensor; None when it is none. Never imports torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(data, torch.Tensor):
        return None
    if data.layout != torch.strided or data.dim() != 1 or not data.is_contiguous():
        strides = data.stride() if data.layout == torch.strided else ()
        raise _not_flat("tensor", data.shape, strides)
    if data.device.type != "cpu":
        raise ValueError(f"{_KINDS} is needed; got a tensor on {data.device}: copy it with .cpu()")
    size = data.numel() * data.element_size()
    # The address, not .numpy(): NumPy may not be there, and it knows neither bfloat16 nor tensors that need gradients.
    view = memoryview((ctypes.c_ubyte * size).from_address(data.data_ptr())).cast("B") if size else memoryview(b"")
    return (data, data.untyped_storage()), view


def _array(data: Any) -> memoryview | None:
    """The bytes of a NumPy array, None when it is none. Never imports NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(data, numpy.ndarray):
        return None
    if data.ndim != 1 or not data.flags.c_contiguous:
        raise _not_flat("NumPy array", data.shape, data.strides)
    if data.dtype.hasobject:
        raise ValueError(f"{_KINDS} is needed; got an array of Python objects")
    # As bytes first: the buffer protocol has no format for dates and the like.
    return memoryview(data.view(numpy.uint8)) if data.nbytes else memoryview(b"")


class _Buffer(ctypes.Structure):
    """Py_buffer, of CPython's stable interface."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _address(view: memoryview) -> int:
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
