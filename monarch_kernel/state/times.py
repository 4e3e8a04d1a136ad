"""The one table of times: how often we look, how long we wait, what counts as gone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TIMES", "Times"]


@dataclass(frozen=True, slots=True)
class Times:
    """The one table of times, in seconds; each can be configured.

    Parameters
    ----------
    heartbeat
        Between two heartbeats of ours on a link.
    silent
        Of a peer on a stream that stands, before the stream is given up and dialled anew.
    greeting
        A peer may take to answer the first words on a stream.
    back_off, back_off_most
        Before a link that broke is dialled again, at first and at most.
    sample
        Between two looks at ``/proc`` of a process that is silent.
    suspect
        Of silence, before it is asked why.
    lost
        Of silence of a host's daemon, before the host counts as lost.
    reconnect_window
        A cut link may take to come back without loss, and a controller to be back after an end without goodbye.
    tick
        Between two looks at the time of lease, spawns and liveness.
    grace
        Given to a session after its machine slept.
    jump
        A gap between two ticks that means that the machine slept.
    spawn_resend
        Between two prepares or commits to a host that has not answered.
    spawn_bound
        A host keeps a prepared spawn without a word from the head.
    """

    heartbeat: float = 1.0
    silent: float = 15.0
    greeting: float = 5.0
    back_off: float = 0.05
    back_off_most: float = 0.5
    sample: float = 1.0
    suspect: float = 3.0
    lost: float = 30.0
    reconnect_window: float = 30.0
    tick: float = 1.0
    grace: float = 60.0
    jump: float = 30.0
    spawn_resend: float = 10.0
    spawn_bound: float = 60.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"the time {field.name!r} must be above 0, not {getattr(self, field.name)!r}")
        for less, more in (
            ("heartbeat", "suspect"),
            ("heartbeat", "silent"),
            ("back_off", "back_off_most"),
            ("suspect", "lost"),
            ("tick", "jump"),
            ("spawn_resend", "spawn_bound"),
        ):
            if not getattr(self, less) < getattr(self, more):
                raise ValueError(f"the time {less!r} must be below {more!r}")

    @classmethod
    def of(cls, settings: Mapping[str, float]) -> Times:
        """The table with some times changed.

        Raises
        ------
        ValueError
            When a name is unknown or a time makes no sense, with the names that exist.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(f"there is no time named {name!r}; there are {', '.join(known)}")
        return cls(**{name: float(value) for name, value in settings.items()})


TIMES = Times()
"""The table where nobody says otherwise."""
