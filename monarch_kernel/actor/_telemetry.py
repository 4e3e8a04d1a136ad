"""Meters and spans of user code: OpenTelemetry's where it is installed, else numbers that this process keeps itself.

Of ours only the messages of endpoints are spans, in processes that have OpenTelemetry loaded. With it, all go where
the providers that are set in each process send them; without it `get_meter` has a `LocalMeter`, whose `LocalMeter.read`
shows them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from ._context import context

_SCOPE = "monarch"
_F = TypeVar("_F", bound=Callable[..., Any])
_Attributes = Mapping[str, Any] | None
_Series = tuple[tuple[str, str], ...]


@functools.cache  # looking for what is not there reads every folder of sys.path
def _opentelemetry(part: str) -> Any:
    """A module of OpenTelemetry's API; None where it is not installed."""
    try:
        return importlib.import_module(f"opentelemetry.{part}")
    except ImportError:
        return None


@dataclass
class Measured:
    """What a local instrument has of one set of attributes.

    Attributes
    ----------
    sum, count
        Of all amounts.
    least, most
        The smallest and the largest amount.
    """

    sum: float = 0
    count: int = 0
    least: float = field(default=float("inf"))
    most: float = field(default=float("-inf"))

    def take(self, amount: float) -> None:
        """One amount more."""
        self.sum += amount
        self.count += 1
        self.least, self.most = min(self.least, amount), max(self.most, amount)


class _Instrument:
    """Adds up what it is given. From any thread."""

    def __init__(self, name: str, unit: str, description: str, lock: threading.Lock) -> None:
        self.name, self.unit, self.description = name, unit, description
        self._lock = lock
        self._measured: dict[_Series, Measured] = {}

    def _take(self, amount: float, attributes: _Attributes) -> None:
        series = tuple(sorted((str(key), str(value)) for key, value in (attributes or {}).items()))
        with self._lock:
            self._measured.setdefault(series, Measured()).take(amount)

    def read(self) -> dict[_Series, Measured]:
        """Its numbers, by attributes."""
        with self._lock:
            return {series: replace(measured) for series, measured in self._measured.items()}


class Counter(_Instrument):
    """A sum that only grows."""

    def add(self, amount: float, attributes: _Attributes = None, context: Any = None) -> None:
        """Add to it.

        Raises
        ------
        ValueError
            The amount is negative.
        """
        if amount < 0:
            raise ValueError(f"counter {self.name!r} only grows; for {amount} there is create_up_down_counter")
        self._take(amount, attributes)


class UpDownCounter(_Instrument):
    """A sum that grows and shrinks."""

    def add(self, amount: float, attributes: _Attributes = None, context: Any = None) -> None:
        """Add to it, or take away."""
        self._take(amount, attributes)


class Histogram(_Instrument):
    """How often, and between which bounds."""

    def record(self, amount: float, attributes: _Attributes = None, context: Any = None) -> None:
        """One amount more."""
        self._take(amount, attributes)


_I = TypeVar("_I", bound=_Instrument)


class LocalMeter:
    """Instruments of this process, as OpenTelemetry's meter makes them; one of each name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instruments: dict[str, _Instrument] = {}

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """A sum that only grows."""
        return self._instrument(Counter, name, unit, description)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> UpDownCounter:
        """A sum that grows and shrinks."""
        return self._instrument(UpDownCounter, name, unit, description)

    def create_histogram(
        self, name: str, unit: str = "", description: str = "", *, explicit_bucket_boundaries_advisory: Any = None
    ) -> Histogram:
        """Sum, number, smallest and largest of amounts; there are no buckets."""
        return self._instrument(Histogram, name, unit, description)

    def _instrument(self, kind: type[_I], name: str, unit: str, description: str) -> _I:
        with self._lock:
            found = self._instruments.get(name)
            if found is None:
                found = self._instruments[name] = kind(name, unit, description, self._lock)
        if not isinstance(found, kind):
            raise ValueError(f"{name!r} is a {type(found).__name__}; take another name for a {kind.__name__}")
        return found

    def read(self) -> dict[str, dict[_Series, Measured]]:
        """The numbers of all instruments of this process, by name and attributes.

        Examples
        --------
        >>> meter = LocalMeter()
        >>> meter.create_counter("tokens").add(3, {"split": "train"})
        >>> meter.read()["tokens"][(("split", "train"),)].sum
        3
        """
        with self._lock:
            instruments = list(self._instruments.values())
        return {one.name: one.read() for one in instruments}


_local = LocalMeter()


def get_meter() -> Any:
    """The meter of this process, to measure one's own code with.

    Returns
    -------
    opentelemetry.metrics.Meter
        Where ``opentelemetry-api`` is installed: the meter ``monarch`` of the provider that is set in this process. Its
        numbers go where that provider sends them.
    LocalMeter
        Elsewhere: counters, up-down counters and histograms that add up in this process, and a ``read()`` that shows
        them.

    Examples
    --------
    >>> requests = get_meter().create_counter("example.requests", description="served")
    >>> requests.add(1, {"outcome": "success"})
    """
    metrics = _opentelemetry("metrics")
    return _local if metrics is None else metrics.get_meter(_SCOPE)


class Span:
    """A stretch of time with a name. Made by `span`; each is entered once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: contextlib.ExitStack | None = None
        self._began = 0.0

    def __enter__(self) -> Span:
        if self._open is not None:
            raise RuntimeError(f"span {self.name!r} was entered before; make another one")
        self._open = contextlib.ExitStack()
        trace = _opentelemetry("trace")
        if trace is not None:
            me = context().actor_instance
            attributes = {"actor_id": str(me.actor_id), "actor_name": repr(me)}
            tracer = trace.get_tracer(_SCOPE)
            self._open.enter_context(tracer.start_as_current_span(self.name, attributes=attributes))
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._open is not None
        if _opentelemetry("trace") is None:
            durations = _local.create_histogram("span.duration", "s")
            durations.record(time.perf_counter() - self._began, {"span": self.name})
        self._open.__exit__(kind, error, trace)


def span(name: str) -> Span:
    """A stretch of time with a name, for a ``with``.

    With OpenTelemetry it is a span of the tracer ``monarch``, below the one that is open, with the actor as its
    attributes ``actor_id`` and ``actor_name``; an exception that leaves it is written down in it. Without OpenTelemetry
    its duration goes to the histogram ``span.duration`` of `get_meter`, in seconds.

    Raises
    ------
    RuntimeError
        It is entered a second time.

    Examples
    --------
    >>> with span("load batch"):
    ...     batch = [1, 2, 3]
    """
    return Span(name)


@overload
def traced(fn: _F) -> _F: ...
@overload
def traced(*, name: str | None = None) -> Callable[[_F], _F]: ...
def traced(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make each call of a function, ``def`` or ``async def``, a `span`.

    Parameters
    ----------
    name
        Of the span; the function's own when left out.

    Examples
    --------
    >>> @traced
    ... def tokenize(text):
    ...     return text.split()
    >>> @traced(name="training step")
    ... async def step(batch):
    ...     return sum(batch)
    >>> tokenize("a b")
    ['a', 'b']
    """

    def wrap(function: _F) -> _F:
        title = name if name is not None else function.__name__

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with span(title):
                    return await function(*args, **kwargs)

            return cast("_F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with span(title):
                return function(*args, **kwargs)

        return cast("_F", call)

    return wrap if fn is None else wrap(fn)


def instrumented(kind: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an actor of this class as a span of its name, unless it was marked with ``instrument=False``."""
    if getattr(getattr(kind, name, None), "instrument", False):
        return traced(name=name)(method)
    return method


__all__ = ["LocalMeter", "Measured", "Span", "get_meter", "instrumented", "span", "traced"]
