"""Accumulator: an endpoint called on a whole mesh, its answers folded into one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

from ._endpoint import Endpoint, EndpointMethod
from ._future import Future
from ._returns import returns_future

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Accumulator(Generic[P, R, A]):
    """Folds the answers of an endpoint.

    Parameters
    ----------
    endpoint
        Of a mesh.
    identity
        What the fold begins with.
    combine
        ``combine(value, answer)`` gives the next value; called once an actor, in the order in which they answer.

    Examples
    --------
    >>> total = Accumulator(counters.value, 0, lambda total, value: total + value)    # doctest: +SKIP
    >>> total.accumulate().get()                                                      # doctest: +SKIP
    """

    def __init__(
        self, endpoint: Endpoint[P, R] | EndpointMethod[P, R], identity: A, combine: Callable[[A, R], A]
    ) -> None:
        self._endpoint: Any = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call the endpoint on every actor now; the answers are folded once the future is waited for.

        The fold runs where it is first waited for, see `returns_future`. The first error ends it.
        """
        return self._fold(self._endpoint.stream(*args, **kwargs))

    @returns_future
    async def _fold(self, answers: Iterator[Future[R]]) -> A:
        value = self._identity
        for answer in answers:
            value = self._combine(value, await answer)
        return value
