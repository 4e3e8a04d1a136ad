"""The TCP address of a daemon that a worker loop lends, beside its unix socket: other machines dial it there."""

from __future__ import annotations

import json
from typing import Any

from monarch_kernel.errors import SessionError
from monarch_kernel.protocol.rpc import server
from monarch_worker.host import Host

KEPT = "listen"
"""Where the keeper has the port: a daemon that is restarted listens where others know it."""


async def listen(host: Host, service: Any) -> Any:
    """Listen where the worker loop said; returns the server, None where it said nothing.

    Whoever connects has to show the session's secret, as on the unix socket.

    Raises
    ------
    SessionError
        It is no address of this machine, or the port that others know is taken.
    """
    address = host.config.get("listen")
    if not address:
        return None
    known = json.loads(host.keeper.get(KEPT) or b"0")
    made = server(host.secret, [service])
    where = f"[{address}]" if ":" in address else address
    try:
        port = made.add_insecure_port(f"{where}:{known}")
    except RuntimeError:
        port = 0
    if port == 0:
        raise SessionError(f"host {host.index} cannot listen at {address}")
    await made.start()
    host.keeper.put(KEPT, json.dumps(port).encode())
    return made
