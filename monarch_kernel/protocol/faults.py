"""Errors of ours as JSON, the class found again by name: in replies, in events and beside failed RPCs."""

from __future__ import annotations

import json
from typing import Any

from .. import errors
from ..errors import MonarchError, SessionError


def error_to_json(error: BaseException) -> bytes:
    """An error of ours (or any other, as a `SessionError`) as JSON."""
    if isinstance(error, MonarchError):
        about = {"mesh": error.mesh, "rank": error.rank, "host": error.host}
        return json.dumps({"error": type(error).__name__, "text": error.message, **about}).encode()
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return json.dumps({"error": "SessionError", "text": text}).encode()


def error_from_json(data: bytes | bytearray | memoryview | str) -> MonarchError:
    """What `error_to_json` wrote, as an error again."""
    return error_from_dict(json.loads(data if isinstance(data, str) else bytes(data)))


def error_from_dict(words: dict[str, Any]) -> MonarchError:
    """The same from JSON that was read already."""
    cls = getattr(errors, str(words.get("error")), None)
    if not (isinstance(cls, type) and issubclass(cls, MonarchError)) or cls is errors.ActorError:
        cls = SessionError
    return cls(str(words["text"]), mesh=words.get("mesh"), rank=words.get("rank"), host=words.get("host"))
