"""Which host a sender hands its messages for a mesh to.

A message for several hosts goes whole to one of them, the *root*, which hands it on. All messages of one sender for one
mesh take the same root, also those for a single rank, so that they stay in order. A root is given up only when it is
lost, and then everything unanswered is sent again through the next one, in order; receivers drop what they have had.
"""

from __future__ import annotations

from collections.abc import Sequence


class Routes:
    """The roots of one sender's meshes."""

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}
        self._lost: set[int] = set()

    def root(self, mesh: int, hosts: Sequence[int]) -> int | None:
        """The root for a mesh that lives on these hosts; None when all of them are lost."""
        root = self._roots.get(mesh)
        if root is None:
            root = min((host for host in hosts if host not in self._lost), default=None)
            if root is not None:
                self._roots[mesh] = root
        return root

    def known(self, mesh: int) -> int | None:
        """The root that this mesh has already."""
        return self._roots.get(mesh)

    def lost(self, host: int) -> list[int]:
        """A host is lost: the meshes whose root it was. Their unanswered messages are to be sent again."""
        self._lost.add(host)
        moved = [mesh for mesh, root in self._roots.items() if root == host]
        for mesh in moved:
            del self._roots[mesh]
        return moved

    def back(self, host: int) -> None:
        """A host is there again. Meshes that moved away stay where they are."""
        self._lost.discard(host)

    def forget(self, mesh: int) -> None:
        """The mesh was stopped."""
        self._roots.pop(mesh, None)
