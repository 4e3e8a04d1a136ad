"""All sessions of this user, as they can be seen without attaching to any."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from monarch_kernel.errors import MonarchError
from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol import statefile
from monarch_kernel.protocol.rpc import Dialer
from monarch_kernel.protocol.statefile import SessionFile, Standing, Tombstone
from monarch_kernel.session import sessions
from monarch_kernel.session._controller import io_thread

__all__ = ["Found", "ended", "glance", "survey"]

#: Seconds that a head has to answer.
ANSWER = 1.0


@dataclass(frozen=True)
class Found:
    """One session that has a state file.

    Attributes
    ----------
    file, standing
        What is on file, and whether it is live.
    status
        What its head says; None where it is not live, or does not answer.
    grave
        How it ended, where that is known.
    """

    file: SessionFile
    standing: Standing
    status: pb.StatusReply | None = None
    grave: Tombstone | None = None


def survey() -> list[Found]:
    """Every session of this user that has a state file, by name."""
    known = sessions()
    live = [file for file, standing in known if standing.state == "live"]
    answers = glance(live)
    found = []
    for file, standing in known:
        grave = statefile.tombstone(file.name) if standing.state == "dead" else None
        mine = grave if grave is not None and grave.sid == file.sid else None
        found.append(Found(file, standing, answers.get(file.sid), mine))
    return found


def ended(found: list[Found], days: float = 7.0, most: int = 5) -> list[Tombstone]:
    """Sessions that are gone, files and all: the latest of the last days."""
    kept = {one.file.sid for one in found}
    since = time.time() - days * 86400
    return [stone for stone in statefile.tombstones() if stone.sid not in kept and stone.ended >= since][:most]


def glance(files: list[SessionFile]) -> dict[str, pb.StatusReply]:
    """What the heads of these sessions say, by session id; those that do not answer in time are left out."""
    answers: dict[str, pb.StatusReply] = {}

    async def ask(file: SessionFile) -> None:
        dialer = Dialer(file.members[0].address, file.secret)
        try:
            answers[file.sid] = await dialer.call("Status", pb.StatusRequest(), ANSWER, patience=0.0)
        except MonarchError:
            pass  # it shows as one that does not answer
        finally:
            await dialer.close()

    async def everyone() -> None:
        await asyncio.gather(*(ask(file) for file in files if file.members))

    if files:
        io_thread().run(everyone(), ANSWER + 5.0)
    return answers
