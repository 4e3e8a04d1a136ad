"""TCP addresses of a daemon, beside its unix socket: hosts of other machines reach it there."""

from __future__ import annotations

import json
import sys
from typing import Any

from monarch_kernel.errors import SessionError
from monarch_kernel.protocol.rpc import server
from monarch_worker.host import Host

KEPT = "listen"
"""Where the keeper has the ports by address: a daemon that is restarted listens where others know it."""


class Listening:
    """Opens them. Whoever connects has to show the session's secret, as on the unix socket."""

    def __init__(self, host: Host, service: Any) -> None:
        self._host = host
        self._service = service
        self._servers: dict[str, Any] = {}
        self._ports: dict[str, int] = json.loads(host.keeper.get(KEPT) or b"{}")

    async def resume(self) -> None:
        """Listen where the daemon before this one did, and where a host that is lent has to."""
        wanted = dict.fromkeys(self._ports)
        if self._host.config.get("listen"):
            wanted[self._host.config["listen"]] = None
        for address in wanted:
            try:
                await self.at(address)
            except SessionError as error:
                print(error, file=sys.stderr, flush=True)

    async def at(self, address: str) -> int:
        """Listen at an address of this machine, and return the port.

        Raises
        ------
        SessionError
            It is none of this machine, or the port that others know is taken.
        """
        if address not in self._servers:
            made = server(self._host.secret, [self._service])
            where = f"[{address}]" if ":" in address else address
            try:
                port = made.add_insecure_port(f"{where}:{self._ports.get(address, 0)}")
            except RuntimeError:
                port = 0
            if port == 0:
                raise SessionError(f"host {self._host.index} cannot listen at {address}")
            await made.start()
            self._servers[address] = made
            self._ports[address] = port
            self._host.keeper.put(KEPT, json.dumps(self._ports).encode())
        return self._ports[address]
