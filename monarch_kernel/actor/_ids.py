"""What names an actor, a process, or anything else that is to be told from all others, as a text that can be read back.

>>> print(ActorAddr.from_string("trainers<4CVg2ZNHHp5>.procs-1-0<rj4Mgs19Cj3>@inproc://3").actor_name)
trainers
"""

from __future__ import annotations

import re
import secrets

_DIGITS = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"  # base 58: none that is taken for another
_MOST = 2**64
_LABEL = re.compile(r"[a-z](?:[a-z0-9_-]*[a-z0-9])?")
_LABEL_LENGTH = 63
_UID = re.compile(r"(?P<label>[^<>]*)(?:<(?P<value>[^<>]*)>)?")
_SCHEMES = {"local": "inproc", "unix": "ipc"}
_CHANNELS = {scheme: channel for channel, scheme in _SCHEMES.items()}
_LOCATION = re.compile(r"(?P<via>[^/@]+\.)?(?P<scheme>[a-z]+)://(?P<rest>.+)")


def _written(value: int) -> str:
    text = ""
    while value or not text:
        value, digit = divmod(value, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text


def _read(text: str) -> int:
    value = 0
    for digit in text:
        value = value * len(_DIGITS) + _DIGITS.index(digit)
    return value


class Uid:
    """What one thing is known by: an instance by a number of 64 bits, a singleton by its name alone.

    Made by `instance`, `anonymous`, `instance_from_value` or `from_string`. Two are equal when their numbers are, or
    when both are singletons of the same name; a label is for people. Hashable, can be pickled.

    Attributes
    ----------
    label
        The name; None for an instance without one.
    instance_value
        The number; None for a singleton.

    Examples
    --------
    >>> print(Uid.instance_from_value(57, "loader"))
    loader<Z>
    >>> Uid.from_string("loader<Z>") == Uid.instance_from_value(57)
    True
    """

    __slots__ = ("_label", "_value")
    _label: str | None
    _value: int | None

    def __init__(self) -> None:
        raise TypeError("a Uid is made by Uid.instance(), Uid.anonymous() or Uid.from_string(text)")

    @classmethod
    def _make(cls, value: int | None, label: str | None) -> Uid:
        made = object.__new__(cls)
        made._value, made._label = value, label
        return made

    @staticmethod
    def anonymous() -> Uid:
        """A new instance without a label.

        >>> Uid.anonymous() == Uid.anonymous()
        False
        """
        return Uid.instance()

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        """A new instance; its number is drawn at random.

        Raises
        ------
        ValueError
            The label is not of lower-case letters, digits, ``-`` and ``_``, with a letter first.

        Examples
        --------
        >>> Uid.instance("loader").label
        'loader'
        """
        return Uid.instance_from_value(secrets.randbits(64), label)

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        """The instance of this number.

        Raises
        ------
        OverflowError
            The number is negative, or has more than 64 bits.
        ValueError
            As of `instance`.

        Examples
        --------
        >>> Uid.instance_from_value(7).instance_value
        7
        """
        if not 0 <= value < _MOST:
            raise OverflowError(f"the number of an instance has 64 bits; got {value}")
        if label is not None and (why := _wrong_label(label)):
            raise ValueError(f"invalid uid label: {why}")
        return Uid._make(value, label)

    @staticmethod
    def from_string(uid: str) -> Uid:
        """What ``str()`` of one gave: ``name<number>``, ``<number>``, or ``name`` of a singleton.

        Raises
        ------
        ValueError
            The text is none.

        Examples
        --------
        >>> Uid.from_string("controllers").is_singleton
        True
        """
        found = _UID.fullmatch(uid)
        if found is None:
            raise ValueError(f"invalid uid: {uid!r} is neither a name nor name<number>")
        label, value = found["label"] or None, found["value"]
        if label is not None and (why := _wrong_label(label)):
            raise ValueError(f"invalid uid: {why}")
        if value is None:
            if label is None:
                raise ValueError("invalid uid: the text is empty")
            return Uid._make(None, label)
        if not value or not set(value) <= set(_DIGITS) or _read(value) >= _MOST:
            raise ValueError(f"invalid uid: {value!r} is no number of 64 bits in base 58")
        return Uid._make(_read(value), label)

    @property
    def label(self) -> str | None:
        """The name; None for an instance without one."""
        return self._label

    @property
    def instance_value(self) -> int | None:
        """The number of an instance; None for a singleton."""
        return self._value

    @property
    def is_instance(self) -> bool:
        """Whether it is known by a number."""
        return self._value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether it is known by its name alone."""
        return self._value is None

    def __str__(self) -> str:
        return self._label or "" if self._value is None else f"{self._label or ''}<{_written(self._value)}>"

    def __repr__(self) -> str:
        return f"Uid.from_string({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Uid):
            return NotImplemented
        return self._value == other._value and (self._value is not None or self._label == other._label)

    def __hash__(self) -> int:
        return hash(self._label if self._value is None else self._value)

    def __reduce__(self) -> tuple[object, ...]:
        return Uid._make, (self._value, self._label)


def _wrong_label(label: str) -> str:
    """Why a text cannot be a label; empty when it can."""
    if len(label) > _LABEL_LENGTH:
        return f"label exceeds {_LABEL_LENGTH} characters"
    if _LABEL.fullmatch(label):
        return ""
    return f"label {label!r} is not of lower-case letters, digits, - and _, with a letter first and no sign last"


def as_label(name: str) -> str | None:
    """The name of a mesh as a label: in lower case, without what a label cannot have; None when nothing is left.

    >>> as_label("My.Trainers-2")
    'mytrainers-2'
    """
    kept = re.sub(r"[^a-z0-9_-]", "", name.lower()).lstrip("0123456789_-")[:_LABEL_LENGTH].rstrip("_-")
    return kept or None


class ProcId:
    """The identity of a process: a `Uid` of its own kind. Hashable, can be pickled.

    Parameters
    ----------
    uid
        The process's.

    Examples
    --------
    >>> ProcId.from_string("procs-1<3fZ>").label
    'procs-1'
    """

    __slots__ = ("_uid",)

    def __init__(self, uid: Uid) -> None:
        if not isinstance(uid, Uid):
            raise TypeError(f"a ProcId is made of a Uid, not of {type(uid).__name__}")
        self._uid = uid

    @staticmethod
    def from_string(proc_id: str) -> ProcId:
        """What ``str()`` of one gave.

        Raises
        ------
        ValueError
            The text is none.

        Examples
        --------
        >>> str(ProcId.from_string("<3fZ>"))
        '<3fZ>'
        """
        try:
            return ProcId(Uid.from_string(proc_id))
        except ValueError as error:
            raise ValueError(f"invalid proc id: {error}") from None

    @property
    def uid(self) -> Uid:
        """What it is known by."""
        return self._uid

    @property
    def label(self) -> str | None:
        """The name; None without one."""
        return self._uid.label

    def __str__(self) -> str:
        return str(self._uid)

    def __repr__(self) -> str:
        return f"ProcId.from_string({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._uid == other._uid if isinstance(other, ProcId) else NotImplemented

    def __hash__(self) -> int:
        return hash(("proc", self._uid))

    def __reduce__(self) -> tuple[object, ...]:
        return ProcId, (self._uid,)


class ActorAddr:
    """Where an actor is: ``actor.process@location``. What `Instance.actor_id` is; hashable, can be pickled.

    Parameters
    ----------
    addr
        The address of the process, ``local:3``, ``tcp:HOST:PORT``, ``unix:PATH``.
    proc_name, actor_name
        Names of singletons; what a name cannot have is left out.

    Raises
    ------
    ValueError
        The address names no kind of channel, or nothing is left of a name.

    Examples
    --------
    >>> client = ActorAddr(addr="local:0", proc_name="local", actor_name="client")
    >>> print(client, client.is_root)
    client.local@inproc://0 True
    >>> ActorAddr.from_string(str(client)) == client
    True
    """

    __slots__ = ("_actor", "_location", "_proc")

    def __init__(self, *, addr: str, proc_name: str, actor_name: str) -> None:
        channel, colon, rest = addr.partition(":")
        if not colon or not rest:
            raise ValueError(f"{addr!r} is no address: it begins with its kind, as local:3 and tcp:HOST:PORT do")
        actor, proc = as_label(actor_name), as_label(proc_name)
        if actor is None or proc is None:
            raise ValueError(f"nothing of {actor_name!r} or of {proc_name!r} can be a name")
        self._set(Uid._make(None, actor), Uid._make(None, proc), f"{_SCHEMES.get(channel, channel)}://{rest}")

    def _set(self, actor: Uid, proc: Uid, location: str) -> None:
        self._actor, self._proc, self._location = actor, proc, location

    @classmethod
    def of(cls, actor: Uid, proc: Uid, location: str) -> ActorAddr:
        """The one of these parts.

        Parameters
        ----------
        location
            As in the text: ``inproc://3``.

        Examples
        --------
        >>> print(ActorAddr.of(Uid.from_string("a<4>"), Uid.from_string("p<3>"), "inproc://0"))
        a<4>.p<3>@inproc://0
        """
        made = object.__new__(cls)
        made._set(actor, proc, location)
        return made

    @staticmethod
    def from_string(actor_addr_str: str) -> ActorAddr:
        """What ``str()`` of one gave.

        Raises
        ------
        ValueError
            The text is none.

        Examples
        --------
        >>> ActorAddr.from_string("a<4>.p<3>@tcp://[::1]:20").addr
        'tcp:[::1]:20'
        """
        who, at, location = actor_addr_str.partition("@")
        actor, dot, proc = who.partition(".")
        if not at or not dot or not _LOCATION.fullmatch(location):
            raise ValueError(f"{actor_addr_str!r} names no actor: it is written actor.process@kind://address")
        return ActorAddr.of(Uid.from_string(actor), Uid.from_string(proc), location)

    def within(self, actor: Uid) -> ActorAddr:
        """Another actor of the same process.

        Examples
        --------
        >>> print(ActorAddr.from_string("a<4>.p<3>@inproc://0").within(Uid.from_string("b")))
        b.p<3>@inproc://0
        """
        return ActorAddr.of(actor, self._proc, self._location)

    @property
    def addr(self) -> str:
        """The address of the process, as the constructor takes it."""
        found = _LOCATION.fullmatch(self._location)
        if found is None:
            return self._location
        return f"{_CHANNELS.get(found['scheme'], found['scheme'])}:{found['rest']}"

    @property
    def proc_name(self) -> str:
        """Name of the process; without one, its number."""
        return self._proc.label or str(self._proc)

    @property
    def actor_name(self) -> str:
        """Name of the actor, the mesh's; without one, its number."""
        return self._actor.label or str(self._actor)

    @property
    def label(self) -> str | None:
        """Name of the actor; None without one."""
        return self._actor.label

    @property
    def proc_label(self) -> str | None:
        """Name of the process; None without one."""
        return self._proc.label

    @property
    def uid(self) -> str:
        """What the actor is known by within its process."""
        return str(self._actor)

    @property
    def pid(self) -> str:
        """The same as `uid`."""
        return self.uid

    @property
    def proc_id(self) -> str:
        """The process and where it is: ``process@location``."""
        return f"{self._proc}@{self._location}"

    @property
    def is_root(self) -> bool:
        """Whether it is known by its name alone, as the client is."""
        return self._actor.is_singleton

    def __str__(self) -> str:
        return f"{self._actor}.{self.proc_id}"

    def __repr__(self) -> str:
        return f"ActorAddr.from_string({str(self)!r})"

    def _key(self) -> tuple[Uid, Uid, str]:
        return self._actor, self._proc, self._location

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ActorAddr) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[object, ...]:
        return ActorAddr.of, self._key()


__all__ = ["ActorAddr", "ProcId", "Uid", "as_label"]
