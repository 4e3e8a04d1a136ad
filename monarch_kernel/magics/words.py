"""Times, counts and slots in words."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence

from monarch_kernel.magics.render import Mark
from monarch_kernel.protocol.statefile import SessionFile
from monarch_kernel.state.lease import format_duration
from monarch_kernel.state.records import MeshRecord

__all__ = ["ago", "clock", "count", "extent", "lease_terms", "ranks", "slots"]

_TONES = {"ok": "good", "starting": "warn", "stopped": "dim"}


def count(number: int, what: str, plural: str = "") -> str:
    """A number of things.

    >>> count(1, "host"), count(2, "process", "processes")
    ('1 host', '2 processes')
    """
    return f"{number} {what if number == 1 else plural or what + 's'}"


def ago(when: float, now: float | None = None) -> str:
    """How long ago a wall time was.

    >>> ago(1000.0, 1002.0), ago(1000.0, 1300.0), ago(0.0, 200000.0)
    ('just now', '5 min ago', '2 days ago')
    """
    seconds = max(0.0, (time.time() if now is None else now) - when)
    if seconds < 5:
        return "just now"
    if seconds < 90:
        return f"{seconds:.0f} s ago"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min ago"
    if seconds < 129600:
        return f"{seconds / 3600:.0f} h ago"
    return f"{seconds / 86400:.0f} days ago"


def clock(when: float) -> str:
    """A wall time: the time of day, with the date when it was not today."""
    then = time.localtime(when)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def lease_terms(file: SessionFile) -> str:
    """What the lease of a session says."""
    return (
        f"ends after {format_duration(file.lease)} with nobody attached and nothing running, or "
        f"{format_duration(file.max_detached)} with nobody attached"
    )


def slots(blob: bytes) -> str:
    """What a host has to give, from its own words (JSON)."""
    found = json.loads(blob or b"{}")
    number = found.get("count")
    if found.get("kind") == "cuda":
        devices = [str(device) for device in found.get("gpus", ())]
        return f"{count(len(devices), 'GPU')}: {', '.join(devices)}" if devices else "no GPUs"
    # Marked wherever it is shown: a job that was meant for GPUs should not run on CPUs unseen.
    return "CPU slots (no GPU driver), " + ("as many as asked for" if number is None else f"{number}")


def extent(labels: Sequence[str], sizes: Sequence[int]) -> str:
    """The shape of a mesh.

    >>> extent(("hosts", "gpus"), (2, 4))
    'hosts 2 × gpus 4'
    """
    return " × ".join(f"{label} {size}" for label, size in zip(labels, sizes, strict=True)) or "1"


def ranks(record: MeshRecord) -> Mark:
    """How the ranks of a mesh are, the bad ones named."""
    states = Counter(
        rank.health if rank.state == "ok" and rank.health != "alive" else rank.state for rank in record.ranks.values()
    )
    text = ", ".join(f"{states[state]} {state}" for state in sorted(states, key=lambda s: (s != "ok", s)))
    tones = {_TONES.get(state, "bad") for state in states}
    tone = next((t for t in ("bad", "warn", "good", "dim") if t in tones), "dim")
    return Mark(text or "none", tone)  # type: ignore[arg-type]  # one of the four above
