"""Arrays and tensors as buffers beside the pickle, without importing NumPy or torch at the sender.

Views that share one torch storage within one message share it at the receiver; a slice of a large storage carries only
its own span. NumPy views are copied one by one, as pickle does. Tensors of a GPU arrive on the CPU, as Monarch's do.
"""

from __future__ import annotations

import ctypes
import dataclasses
import pickle
import sys
from typing import Any

__all__ = ["ALIGN", "Spans", "reduce_read_only", "reduce_tensor"]

#: Buffers start at multiples of this many bytes, in bodies and in storages.
ALIGN = 64


def reduce_read_only(array: Any) -> Any:
    """Pickle marks read-only memory as such, and the receiver could not write to its own copy."""
    if not array.flags.c_contiguous or array.dtype.hasobject or not array.nbytes:
        return NotImplemented
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    memory._array = array  # keeps the memory alive for as long as the view is
    return _load_array, (pickle.PickleBuffer(memory), array.dtype, array.shape)


def _load_array(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.frombuffer(buffer, dtype=dtype).reshape(shape)


@dataclasses.dataclass(slots=True)
class _Part:
    """The part of one storage that a message carries, in bytes."""

    storage: Any
    low: int
    high: int
    carried: _Storage | None = None


class _Storage:
    """Stands for a storage inside one pickle: pickle's memo keeps what shares it together."""

    __slots__ = ("base", "view")

    def __init__(self, view: Any, base: int) -> None:
        self.view = view
        self.base = base

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_storage, (pickle.PickleBuffer(self.view) if self.view is not None else b"", self.base)


class Spans:
    """Which parts of which storages one message needs: a slice of a large tensor does not carry all of it."""

    def __init__(self) -> None:
        self.parts: dict[int, _Part] = {}
        self._short = False

    def take(self, storage: Any, low: int, high: int) -> _Storage:
        """The carried form of a storage that has at least the bytes from ``low`` to ``high``."""
        number = storage._cdata
        part = self.parts.get(number)
        if part is None:
            part = self.parts[number] = _Part(storage, low, high)
        elif low < part.low or high > part.high:
            # A view met earlier was smaller: write the message once more, now with all that is needed of it.
            part.low, part.high = min(low, part.low), max(high, part.high)
            self._short = True
        if part.carried is None:
            part.carried = _Storage(_storage_view(storage, part.low, part.high), part.low)
        return part.carried

    def again(self) -> bool:
        """Whether the message must be written again; forgets what was carried, keeps what is needed."""
        short, self._short = self._short, False
        if short:
            for part in self.parts.values():
                part.carried = None
        return short


def _storage_view(storage: Any, low: int, high: int) -> memoryview | None:
    if high <= low:
        return None
    if storage.device.type != "cpu":
        torch: Any = sys.modules["torch"]
        there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, low, (high - low,))
        storage, low, high = there.cpu().untyped_storage(), 0, high - low
    memory: Any = (ctypes.c_char * (high - low)).from_address(storage.data_ptr() + low)
    memory._storage = storage  # keeps the memory alive for as long as the view is
    return memoryview(memory).cast("B")


def reduce_tensor(torch: Any, tensor: Any, spans: Spans) -> Any:
    """How a dense tensor or parameter is pickled; others are left to torch."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return NotImplemented
    plain = tensor.detach().resolve_conj().resolve_neg()
    size, stride, offset, item = tuple(plain.shape), plain.stride(), plain.storage_offset(), plain.element_size()
    reach = 0 if plain.numel() == 0 else sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    low = offset * item if reach else 0
    carried = spans.take(plain.untyped_storage(), low - low % ALIGN, low + reach * item)
    parameter = type(tensor) is not torch.Tensor
    extra = dict(vars(tensor)) if getattr(tensor, "__dict__", None) else None
    args = (carried, plain.dtype, offset if reach else 0, size, stride, bool(tensor.requires_grad), parameter)
    # A setter of ours: `torch.Tensor.__setstate__` reads an old format.
    return (_load_tensor, args, extra, None, None, _set_attributes) if extra else (_load_tensor, args)


def _set_attributes(tensor: Any, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)


def _load_storage(buffer: Any, base: int) -> tuple[Any, int]:
    import torch

    view = memoryview(buffer)
    if not view.nbytes:
        return torch.UntypedStorage(0), base
    if view.readonly:
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=torch.uint8).untyped_storage(), base


def _load_tensor(
    carried: tuple[Any, int],
    dtype: Any,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    parameter: bool,
) -> Any:
    import torch

    storage, base = carried
    tensor = torch.empty(0, dtype=dtype)
    if storage.nbytes():
        tensor.set_(storage, offset - base // tensor.element_size(), size, stride)
    else:
        tensor = tensor.new_empty(size)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
