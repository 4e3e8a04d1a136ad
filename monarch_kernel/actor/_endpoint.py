"""Actor classes and their endpoints, and how an endpoint of a mesh is called."""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from ..protocol import pickling, records
from ..state.records import Endpoint as EndpointRecord
from ._calls import Call, GatheredCall, QuietCall, SingleCall, StreamedCall
from ._context import note_own_call
from ._future import Future
from ._handle import Carried, mentioned
from ._lifecycle import check_hooks
from ._ndslice import NDSlice
from ._ports import Port, PortedCall
from ._region import Region
from ._valuemesh import ValueMesh

if TYPE_CHECKING:
    from ._meshes import ActorMesh

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Call)


class Actor:
    """Base of actor classes. Mark the methods that others may call with `endpoint`.

    An actor handles one message at a time, in the order in which each sender sent them. Its code runs on a thread of
    its own, never on the main thread of its process.

    Examples
    --------
    >>> class Counter(Actor):
    ...     def __init__(self, start: int = 0) -> None:
    ...         self.n = start
    ...     @endpoint
    ...     def add(self, by: int = 1) -> int:
    ...         self.n += by
    ...         return self.n
    """

    @property
    def logger(self) -> logging.Logger:
        """A logger named after the actor."""
        return logging.getLogger(f"monarch.{type(self).__qualname__}")


class EndpointMethod(Generic[P, R]):
    """A method marked as an endpoint. On the class it is this marker; on an actor itself, the plain method."""

    def __init__(
        self, method: Callable[..., Any], *, explicit_response_port: bool, instrument: bool, concurrent: bool = False
    ) -> None:
        self._method = method
        self.explicit_response_port = explicit_response_port
        self.instrument = instrument
        self.concurrent = concurrent
        functools.update_wrapper(self, method)  # type: ignore[arg-type]  # a callable for inspect, not for callers

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def _explicit_response_port(self) -> bool:
        """Whether something else than the method's return is the answer; Monarch's own tests look at this name."""
        return self.explicit_response_port or self.concurrent

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._method.__get__(instance, owner)

    if TYPE_CHECKING:
        # What a mesh's attribute offers, for type checkers: a mesh is typed as its class.
        def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]: ...
        def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
        def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
        def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]: ...
        def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None: ...


@overload
def endpoint(method: Callable[..., R], /) -> EndpointMethod[..., R]: ...
@overload
def endpoint(
    *, propagate: Any = None, explicit_response_port: bool = False, instrument: bool = True
) -> Callable[[Callable[..., R]], EndpointMethod[..., R]]: ...
def endpoint(
    method: Callable[..., Any] | None = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Mark a method, ``def`` or ``async def``, as one that others may call.

    The endpoints of one actor must not mix: either all are ``def`` or all are ``async def``.

    Parameters
    ----------
    propagate
        Accepted for Monarch's sake (shape propagation of its tensor engine); without meaning here.
    explicit_response_port
        The method gets a `Port` as its first argument and answers through it, once, at any time: also after it has
        returned, or from another actor that it sends the port to. What it returns is ignored, and an exception that
        escapes it stops the actor.
    instrument
        In a process that has OpenTelemetry loaded, each message is a `span` of the endpoint's name.

    Raises
    ------
    TypeError
        It is put on something that is no method, or on an endpoint.

    Examples
    --------
    >>> class Counter(Actor):
    ...     def __init__(self, start: int) -> None:
    ...         self.count = start
    ...     @endpoint
    ...     def add(self, amount: int) -> int:
    ...         self.count += amount
    ...         return self.count
    ...     @endpoint(explicit_response_port=True)
    ...     def add_slowly(self, port: Port[int], amount: int) -> None:
    ...         self.count += amount
    ...         port.send(self.count)
    """
    del propagate

    def mark(function: Callable[..., Any]) -> EndpointMethod[..., Any]:
        if isinstance(function, EndpointMethod | staticmethod) or not callable(function):
            raise TypeError(f"@endpoint marks a method; got {function!r}")
        return EndpointMethod(function, explicit_response_port=explicit_response_port, instrument=instrument)

    return mark if method is None else mark(method)


@overload
def concurrent_endpoint(method: Callable[..., Coroutine[Any, Any, R]], /) -> EndpointMethod[..., R]: ...
@overload
def concurrent_endpoint(
    *, propagate: Any = None, explicit_response_port: bool = False, instrument: bool = True
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], EndpointMethod[..., R]]: ...
def concurrent_endpoint(
    method: Callable[..., Any] | None = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Mark an ``async def`` method whose messages run beside the actor's others, each as a task of its loop.

    They start in the order in which they came; the actor goes on to its next message without waiting for them. What
    is still running when the actor stops is cancelled before its ``__cleanup__``.

    Parameters
    ----------
    propagate, explicit_response_port, instrument
        See `endpoint`.

    Raises
    ------
    ValueError
        The method is no ``async def``, or it is an endpoint already.

    Examples
    --------
    >>> import asyncio
    >>> class Gate(Actor):
    ...     def __init__(self) -> None:
    ...         self.opened = asyncio.Event()
    ...     @concurrent_endpoint
    ...     async def wait(self) -> None:
    ...         await self.opened.wait()
    ...     @endpoint
    ...     async def open(self) -> None:
    ...         self.opened.set()
    """
    del propagate

    def mark(function: Callable[..., Any]) -> EndpointMethod[..., Any]:
        if isinstance(function, EndpointMethod):
            raise ValueError(f"@concurrent_endpoint does not wrap @endpoint: {function.__qualname__} takes one of them")
        if not inspect.iscoroutinefunction(function):
            raise ValueError(f"@concurrent_endpoint can only wrap async endpoints (async def); got {function!r}")
        return EndpointMethod(
            function, explicit_response_port=explicit_response_port, instrument=instrument, concurrent=True
        )

    return mark if method is None else mark(method)


class PlainMethod:
    """A method of a mesh's class that is no endpoint: all that can be done with it is `as_endpoint`."""

    def __init__(self, mesh: ActorMesh[Any], name: str, method: Callable[..., Any]) -> None:
        self._mesh = mesh
        self._name = name
        self._method = method

    def _text(self) -> str:
        return (
            f"{self._mesh._handle.record.qualname}.{self._name} is no endpoint: mark the method with @endpoint to call "
            f"it from outside, or wrap it: as_endpoint({self._mesh._handle.name}.{self._name}).call(...)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(self._text())

    def __getattr__(self, name: str) -> Any:
        # What somebody tries who takes it for an endpoint: an AttributeError is what an attribute that is not there
        # raises, and its text says what to do.
        raise AttributeError(self._text() if not name.startswith("__") else name)

    def __reduce__(self) -> Any:
        raise TypeError(self._text())

    def __repr__(self) -> str:
        return f"<method {self._mesh._handle.name}.{self._name}, no endpoint>"


def as_endpoint(not_an_endpoint: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> Any:
    """Call a method that is not marked as an endpoint as if it were one.

    It needs the actor's class: on a mesh that was spawned here, or whose class is in an imported module.

    Parameters
    ----------
    not_an_endpoint
        A method of a mesh of actors.
    propagate, explicit_response_port
        See `endpoint`.

    Returns
    -------
    Endpoint

    Raises
    ------
    ValueError
        It is no such method.

    Examples
    --------
    >>> as_endpoint(trainers.evaluate).call(batch).get()        # doctest: +SKIP
    """
    del propagate
    if not isinstance(not_an_endpoint, PlainMethod):
        raise ValueError(f"as_endpoint takes a method of a mesh of actors that is no endpoint; got {not_an_endpoint!r}")
    method = not_an_endpoint._method
    record = _endpoint_record(not_an_endpoint._name, method, explicit_response_port=explicit_response_port)
    return Endpoint(not_an_endpoint._mesh, record)


def plain_method(mesh: ActorMesh[Any], name: str) -> PlainMethod | None:
    """The method of this name of the mesh's class, where the class is known here and has one."""
    handle = mesh._handle
    cls = handle.cls if handle.cls is not None else _imported(handle.record.module, handle.record.qualname)
    method = inspect.getattr_static(cls, name, None) if cls is not None else None
    return PlainMethod(mesh, name, method) if inspect.isfunction(method) else None


def _imported(module: str, qualname: str) -> type | None:
    """A class of a module that is imported already; a handle that came from elsewhere brings no class along."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Actor) else None


RESERVED = frozenset({"stop", "slice", "flatten", "split", "rename", "size", "sizes", "extent", "initialized"})
"""What an endpoint may not be called: the names that Monarch's meshes of actors have, and no more."""


def endpoints_of(cls: type) -> list[EndpointRecord]:
    """The endpoint table of an actor class.

    Raises
    ------
    TypeError
        It is no actor class.
    ValueError
        It mixes ``def`` and ``async def`` endpoints, its hooks do not fit them, or an endpoint is named like something
        that every mesh has.
    """
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise TypeError(f"{cls!r} is no actor class: derive it from monarch_kernel.actor.Actor")
    found: dict[str, EndpointRecord] = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, EndpointMethod):
            found[name] = _endpoint_record(
                name,
                member._method,
                explicit_response_port=member.explicit_response_port,
                concurrent=member.concurrent,
            )
    kinds = {kind: [e.name for e in found.values() if e.kind == kind] for kind in ("sync", "async")}
    check_hooks(cls, kinds["sync"], kinds["async"])
    if taken := sorted(RESERVED & found.keys()):
        raise ValueError(f"{cls.__qualname__}: every mesh has {', '.join(taken)}; give the endpoint another name")
    return list(found.values())


def _endpoint_record(
    name: str, method: Callable[..., Any], *, explicit_response_port: bool, concurrent: bool = False
) -> EndpointRecord:
    return EndpointRecord(
        name=name,
        kind="async" if inspect.iscoroutinefunction(method) else "sync",
        signature=_signature(method, 2 if explicit_response_port else 1),
        doc=inspect.getdoc(method) or "",
        explicit_response_port=explicit_response_port,
        concurrent=concurrent,
    )


def _signature(method: Callable[..., Any], given: int) -> str:
    """Parameters without the first ones, which the actor is `given`, annotations and large defaults.

    For people, and for `Binder`.
    """
    parameters = list(inspect.signature(method).parameters.values())
    if len([p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]) >= given:
        parameters = parameters[given:]
    elif not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        names = ("self", "the response port")[:given]
        raise TypeError(f"{method.__qualname__} takes no {' and '.join(names)}: an endpoint is given them first")
    shown = []
    for parameter in parameters:
        default = parameter.default
        if default is not parameter.empty:
            # By exact type: a member of an IntEnum is an int too, and its repr is no Python.
            simple = type(default) in _PLAIN and len(repr(default)) <= 40
            default = default if simple and default == default and default not in (_INF, -_INF) else ...
        shown.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(inspect.Signature(shown)).replace("Ellipsis", "...")


_INF = float("inf")
_PLAIN = (int, float, str, bool, type(None))


class Binder:
    """Checks arguments against a signature's text, at the caller, before anything is sent."""

    __slots__ = ("_least", "_most", "_signature")

    def __init__(self, text: str) -> None:
        function = ast.parse(f"def f{text}: pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        arguments = function.args
        kind = inspect.Parameter
        parameters: list[inspect.Parameter] = []
        positional = [*arguments.posonlyargs, *arguments.args]
        first_default = len(positional) - len(arguments.defaults)
        for index, argument in enumerate(positional):
            parameters.append(
                kind(
                    argument.arg,
                    kind.POSITIONAL_ONLY if index < len(arguments.posonlyargs) else kind.POSITIONAL_OR_KEYWORD,
                    default=... if index >= first_default else kind.empty,
                )
            )
        if arguments.vararg:
            parameters.append(kind(arguments.vararg.arg, kind.VAR_POSITIONAL))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            parameters.append(kind(argument.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else ...))
        if arguments.kwarg:
            parameters.append(kind(arguments.kwarg.arg, kind.VAR_KEYWORD))
        self._signature = inspect.Signature(parameters)
        self._least = first_default
        self._most = -1 if arguments.vararg else len(positional)
        if any(default is None for default in arguments.kw_defaults):
            self._least = 1 << 30  # a keyword is required: always the slow way

    def check(self, mesh: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError when the arguments of an endpoint do not fit."""
        if not kwargs and len(args) >= self._least and (len(args) <= self._most or self._most < 0):
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{mesh.name}.{name}{self._signature}: {error}".replace("Ellipsis", "...")) from None


@functools.lru_cache(maxsize=4096)
def binder(signature: str) -> Binder:
    """The binder of a signature's text."""
    return Binder(signature)


class _Doc:
    """What `help` and ``?`` say: of the class its own docstring, of an endpoint its method's, with the signature."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, instance: Endpoint[..., Any] | None, owner: type | None = None) -> str | None:
        if instance is None:
            return self._text
        record = instance._record
        return f"{record.name}{record.signature}\n\n{record.doc}"


class Endpoint(Generic[P, R]):
    """An endpoint of a mesh: the adverbs say how to call it.

    Every call starts at once; arguments are pickled, and checked against the signature, before it returns. An exception
    of the endpoint reaches the caller as an `ActorError`, an actor that cannot answer as a `SupervisionError`: both are
    raised by whoever waits.

    Examples
    --------
    >>> trainers.step.call(batch).get().values()                    # doctest: +SKIP
    [0.5, 0.25]
    >>> trainers.slice(gpus=0).step.call_one(batch).get()           # doctest: +SKIP
    0.5
    >>> trainers.sample.choose().get()                              # doctest: +SKIP
    >>> [future.get() for future in trainers.step.stream(batch)]    # doctest: +SKIP
    >>> trainers.log.broadcast("epoch 1")                           # doctest: +SKIP
    """

    __doc__ = _Doc(__doc__)
    __slots__ = ("_binder", "_heads", "_hosts", "_mesh", "_record")

    def __init__(self, mesh: ActorMesh[Any], record: EndpointRecord) -> None:
        self._mesh = mesh
        self._record = record
        self._binder = binder(record.signature)
        self._hosts = mesh._hosts(mesh._region)
        self._heads: dict[bool, tuple[bytes, bytes]] = {}  # by whether an answer is wanted

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every actor of the mesh; the answers come as a `ValueMesh` of the mesh's shape."""
        return self._send(GatheredCall, args, kwargs).future

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the one actor of a mesh of one; a ValueError for a larger mesh."""
        size = len(self._mesh)
        if size != 1:
            raise ValueError(
                f"call_one is for a mesh of one actor; {self._mesh._handle.name} has {size}: slice it first, "
                "or use call"
            )
        return self._send(SingleCall, args, kwargs).future

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one actor of the mesh, picked at random."""
        return self._any()._send(SingleCall, args, kwargs).future

    def _any(self) -> Endpoint[P, R]:
        """The same of one actor of the mesh, picked at random."""
        region = self._mesh._region
        if len(region) == 1:
            return self
        rank = region.rank_at(random.randrange(len(region)))  # noqa: S311  # a choice of actors is no secret
        one = self._mesh._with_region(Region((), NDSlice(offset=rank, sizes=(), strides=())))
        return Endpoint[P, R](one, self._record)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Call every actor; yields as many futures as there are actors, the answers in the order of arrival."""
        return iter(self._send(StreamedCall, args, kwargs).futures)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to every actor and wait for nothing. An error there is reported as a fault."""
        self._send(QuietCall, args, kwargs)

    def _send(self, kind: type[C], args: tuple[Any, ...], kwargs: dict[str, Any], port: Port[Any] | None = None) -> C:
        mesh, record = self._mesh, self._record
        handle, region = mesh._handle, mesh._region
        self._binder.check(handle, record.name, args, kwargs)
        body = pickling.encode(pickling.dumps_call(args, kwargs))
        mentions = mentioned()
        waits = [wait for mention in mentions for wait in mention.waits()] if mentions else []
        if handle.ready is not None:
            waits = [*handle.waits(), *waits]
        runtime = handle.runtime
        if not handle.used:
            handle.used = True
            runtime.first_use(handle)
        call = kind(handle, region, record.name, self._hosts)
        if mentions:
            call.carried = [mention for mention in mentions if isinstance(mention, Carried)]
        if isinstance(call, PortedCall):
            assert port is not None
            call.port = port
        ends = self._heads.get(kind.quiet)
        if ends is None:
            flags = (records.QUIET if kind.quiet else 0) | (records.PORT if record.explicit_response_port else 0)
            ends = self._heads[kind.quiet] = runtime.caller.ends(handle, region, self._hosts, record.name, flags)
        runtime.caller.submit(call, ends, body, waits)
        own = runtime.executor.actors.get(handle.id)
        if own is not None and (region is handle.region or own.rank in region.ranks()):
            for future in call.needs_all():
                handled = functools.partial(runtime.executor.handled, call.sender, handle.id, call.number)
                note_own_call(future, handle.id, record.name, handled)
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"an endpoint of a mesh is called with an adverb: {self._mesh._handle.name}.{self._record.name}.call(...), "
            ".call_one, .choose, .stream or .broadcast"
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"an endpoint cannot be sent; send the mesh and call .{self._record.name} on it there")

    def __repr__(self) -> str:
        name, record = self._mesh._handle.name, self._record
        return f"<endpoint {name}.{record.name}{record.signature} of {len(self._mesh)} actors>"


def send(
    endpoint: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Send to the actors of a mesh; their answers go to a port.

    Parameters
    ----------
    endpoint
        Of a mesh.
    args, kwargs
        Its arguments.
    port
        Where answers and errors go, each with its rank, see `PortReceiver.ranked`. None: nobody waits, and an error
        stops its actor, as with ``broadcast``.
    selection
        ``"all"`` actors, or one that is picked at random (``"choose"``).

    Examples
    --------
    >>> port, receiver = Channel.open_ranked()                          # doctest: +SKIP
    >>> send(trainers.step, (batch,), {}, port=port)                    # doctest: +SKIP
    >>> for _ in range(len(trainers)):                                  # doctest: +SKIP
    ...     rank, loss = receiver.recv().get()
    """
    if not isinstance(endpoint, Endpoint):
        raise TypeError(f"send takes an endpoint of a mesh; got {endpoint!r}")
    if port is not None and not isinstance(port, Port):
        raise TypeError(f"answers go to a port, see Channel.open; got {port!r}")
    if selection not in ("all", "choose"):
        raise ValueError(f"selection is 'all' or 'choose'; got {selection!r}")
    target = endpoint if selection == "all" else endpoint._any()
    if port is None:
        target._send(QuietCall, args, kwargs)
    else:
        target._send(PortedCall, args, kwargs, port)
