"""What is told when something fails: to the actor that owns it, and if nobody handles it, to the program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MeshFailure:
    """A rank of a mesh has failed: its actor, or its process, or its constructor.

    ``__supervise__`` of the actor that owns the mesh is given one for each rank that failed; what no actor handles
    reaches `unhandled_fault_hook`.

    Attributes
    ----------
    mesh_name
        The name of the mesh, as it was spawned.
    crashed_ranks
        The ranks in it that failed.

    Examples
    --------
    >>> failure = MeshFailure("trainers", (1,), "The actor <root>.<lab.Trainer trainers{'gpus': 1/2}> ... failed")
    >>> failure.mesh_name, failure.crashed_ranks
    ('trainers', (1,))
    """

    mesh_name: str
    crashed_ranks: tuple[int, ...]
    _text: str

    @property
    def mesh(self) -> tuple[str, ...]:
        """The name of the mesh, in a tuple: Monarch has a tuple here, and nothing in it."""
        return (self.mesh_name,)

    def report(self) -> str:
        """What failed and why, with the traceback or the last lines of its output; of a chain, the cause last."""
        return self._text

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"mesh_name": self.mesh_name, "ranks": list(self.crashed_ranks), "text": self._text}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeshFailure:
        """Read what `to_dict` wrote; unknown keys are ignored.

        >>> MeshFailure.from_dict({"mesh_name": "trainers", "ranks": [1], "text": "killed"}).report()
        'killed'
        """
        return cls(str(data["mesh_name"]), tuple(data["ranks"]), str(data["text"]))

    def __str__(self) -> str:
        return f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks={list(self.crashed_ranks)}, event={self._text})"


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """What is called with a failure that no actor handled; put a function of your own in its place.

    It is looked up as ``monarch_kernel.actor.unhandled_fault_hook`` when a fault arrives, and runs on a thread of its
    own. One that returns drops the fault. This one exits, which ends a script: the failure is reported on stderr and
    its main thread gets a `KeyboardInterrupt`, so that ``finally`` blocks and exit handlers run. A notebook's kernel
    never ends of it: the failure is shown once, with the next cell.

    Parameters
    ----------
    failure
        What failed.

    Examples
    --------
    >>> import monarch_kernel.actor
    >>> seen = []
    >>> monarch_kernel.actor.unhandled_fault_hook = seen.append       # doctest: +SKIP
    """
    sys.exit(1)


__all__ = ["MeshFailure", "unhandled_fault_hook"]
