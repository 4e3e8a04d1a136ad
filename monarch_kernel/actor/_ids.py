"""Names of processes and services, as Monarch writes them: ``service<2MuAHeDj>``."""

from __future__ import annotations

import re
import secrets

__all__ = ["ProcId", "Uid"]

_DIGITS = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
_UID = re.compile(r"(?P<label>[^<>]*)(?:<(?P<value>[^<>]*)>)?")
_LABEL = re.compile(r"[a-z][a-z0-9_.-]*")
_MOST = (1 << 64) - 1


class Uid:
    """A name that nothing else has: of an instance, a random number with or without a label; or a label alone.

    Made by `instance`, `anonymous`, `instance_from_value` and `from_string`. Two of one number are equal, whatever
    their labels.

    Examples
    --------
    >>> str(Uid.instance_from_value(12, "service"))
    'service<d>'
    >>> Uid.from_string("service<d>").instance_value
    12
    """

    __slots__ = ("_label", "_value")

    def __init__(self, label: str | None, value: int | None) -> None:
        if label is not None and not _LABEL.fullmatch(label):
            raise ValueError(f"invalid uid: invalid label {label!r}: it begins with a lowercase letter")
        if label is None and value is None:
            raise ValueError("invalid uid: it has a label, a number, or both")
        if value is not None and not 0 <= value <= _MOST:
            raise ValueError(f"invalid uid: {value} has more than 64 bits, or is negative")
        self._label, self._value = label, value

    @staticmethod
    def anonymous() -> Uid:
        """A fresh instance without a label."""
        return Uid.instance()

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        """A fresh instance."""
        return Uid(label, secrets.randbits(64))

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        """The instance of this number, of at most 64 bits."""
        return Uid(label, value)

    @staticmethod
    def from_string(uid: str) -> Uid:
        """Read one back; raises ValueError where there is none.

        >>> Uid.from_string("service").is_singleton
        True
        """
        found = _UID.fullmatch(uid)
        if found is None:
            raise ValueError(f"invalid uid: {uid!r} is not as 'label', 'label<number>' or '<number>'")
        digits = found["value"]
        return Uid(found["label"] or None, None if digits is None else _number(digits))

    @property
    def label(self) -> str | None:
        """Its label, None without."""
        return self._label

    @property
    def is_instance(self) -> bool:
        """Whether it has a number."""
        return self._value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether it is a label alone."""
        return self._value is None

    @property
    def instance_value(self) -> int | None:
        """Its number, None without."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Uid):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> str | int | None:
        return self._label if self._value is None else self._value

    def __str__(self) -> str:
        number = "" if self._value is None else f"<{_digits(self._value)}>"
        return f"{self._label or ''}{number}"

    def __repr__(self) -> str:
        return f"Uid({str(self)!r})"


class ProcId:
    """The name of a process or a service.

    Examples
    --------
    >>> ProcId.from_string("service<d>") == ProcId(Uid.instance_from_value(12, "service"))
    True
    """

    __slots__ = ("_uid",)

    def __init__(self, uid: Uid) -> None:
        if not isinstance(uid, Uid):
            raise TypeError(f"a ProcId is made of a Uid; got {uid!r}")
        self._uid = uid

    @staticmethod
    def from_string(proc_id: str) -> ProcId:
        """Read one back; raises ValueError where there is none."""
        try:
            return ProcId(Uid.from_string(proc_id))
        except ValueError as error:
            raise ValueError(f"invalid proc id: {error}") from None

    @property
    def uid(self) -> Uid:
        """What makes it unique."""
        return self._uid

    @property
    def label(self) -> str | None:
        """Its label, None without."""
        return self._uid.label

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcId):
            return NotImplemented
        return self._uid == other._uid

    def __hash__(self) -> int:
        return hash(self._uid)

    def __str__(self) -> str:
        return str(self._uid)

    def __repr__(self) -> str:
        return f"ProcId({str(self)!r})"


def _digits(value: int) -> str:
    out = ""
    while True:
        value, digit = divmod(value, len(_DIGITS))
        out = _DIGITS[digit] + out
        if not value:
            return out


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        place = _DIGITS.find(digit)
        if place < 0:
            raise ValueError(f"invalid uid: invalid base58 uid: {digits}")
        value = value * len(_DIGITS) + place
    if not digits:
        raise ValueError("invalid uid: invalid base58 uid: there is none between < and >")
    return value
