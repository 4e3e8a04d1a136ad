"""Flags of the actor layer, as Monarch's ``monarch.actor.config``: plain attributes, to be assigned to."""

from __future__ import annotations

prefix_python_logs_with_actor = True
"""Whether lines of the `logging` module say which actor wrote them; of the process in which they are written."""

__all__ = ["prefix_python_logs_with_actor"]
