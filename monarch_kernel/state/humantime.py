"""Durations as Monarch's configuration writes them: ``30s``, ``1h 30m``, ``500ms``.

The format is that of Rust's humantime crate: whole numbers with a unit, added up; a month is 30.44 days and a year
365.25. It is kept apart from the durations of a lease, which people type at a prompt.
"""

from __future__ import annotations

import re

__all__ = ["format_humantime", "parse_humantime"]

_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000}
_SECOND = 1_000_000_000
_DAY = 86_400
_SECONDS = {"y": 31_557_600, "month": 2_630_016, "w": 7 * _DAY, "d": _DAY, "h": 3600, "m": 60, "s": 1}
_SPELLINGS = {
    "ns": ("nanos", "nsec", "ns"),
    "us": ("usec", "us", "µs"),
    "ms": ("millis", "msec", "ms"),
    "s": ("seconds", "second", "secs", "sec", "s"),
    "m": ("minutes", "minute", "mins", "min", "m"),
    "h": ("hours", "hour", "hrs", "hr", "h"),
    "d": ("days", "day", "d"),
    "w": ("weeks", "week", "wks", "wk", "w"),
    "month": ("months", "month", "M"),
    "y": ("years", "year", "yrs", "yr", "y"),
}
_UNITS = {
    spelling: _NS.get(unit, 0) or _SECONDS[unit] * _SECOND for unit, names in _SPELLINGS.items() for spelling in names
}
_PART = re.compile(r"\s*(\d+)\s*([a-zA-Zµ]+)\s*")


def parse_humantime(text: str) -> int:
    """Nanoseconds of a duration.

    Raises
    ------
    ValueError
        It is none; says what one looks like.

    Examples
    --------
    >>> parse_humantime("1m 30s")
    90000000000
    """
    at, total = 0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNITS:
            break
        total += int(part[1]) * _UNITS[part[2]]
        at = part.end()
    if not text or at < len(text):
        raise ValueError(f"Invalid duration format {text!r}: numbers with a unit are expected, as '30s' or '1h 30m'")
    return total


def format_humantime(ns: int) -> str:
    """A duration in words that `parse_humantime` reads.

    Examples
    --------
    >>> format_humantime(90 * 10**9)
    '1m 30s'
    """
    seconds, rest = divmod(ns, _SECOND)
    out = []
    for unit, size in (("year", _SECONDS["y"]), ("month", _SECONDS["month"]), ("day", _DAY)):
        count, seconds = divmod(seconds, size)
        if count:
            out.append(f"{count}{unit}{'s' if count > 1 else ''}")
    for unit in ("h", "m", "s"):
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            out.append(f"{count}{unit}")
    for unit in ("ms", "us", "ns"):
        count, rest = divmod(rest, _NS[unit])
        if count:
            out.append(f"{count}{unit}")
    return " ".join(out) or "0s"
