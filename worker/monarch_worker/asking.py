"""Requests to the head of a session from a host that does not dial it: they go over the link by which it is dialled."""

from __future__ import annotations

import asyncio
from typing import Any

from monarch_kernel.protocol import host_pb2 as pb
from monarch_kernel.protocol import records
from monarch_kernel.protocol.faults import error_from_json
from monarch_kernel.protocol.frames import Record


class Asking:
    """The requests that are not answered yet. All of them may be repeated."""

    def __init__(self, to: Any) -> None:
        self._to = to
        self._number = 0
        self._open: dict[int, tuple[str, bytes, asyncio.Future[bytes]]] = {}

    async def ask(self, method: str, request: Any) -> Any:
        """Ask, and return the answer; raises errors of ours."""
        self._number += 1
        number = self._number
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = (method, request.SerializeToString(), future)
        try:
            self._send(number)
            return getattr(pb, method + "Reply").FromString(await future)
        finally:
            del self._open[number]

    def _send(self, number: int) -> None:
        method, data, _ = self._open[number]
        self._to(records.request(number, method), data)

    def answered(self, record: Record) -> None:
        """A RESPONSE came."""
        number, ok, body = records.parse_response(record)
        if number not in self._open:
            return
        future = self._open[number][2]
        if future.done():
            return
        if ok:
            future.set_result(bytes(body))
        else:
            future.set_exception(error_from_json(body))

    def again(self) -> None:
        """The head's daemon was restarted, and knows of none of them."""
        for number in list(self._open):
            self._send(number)

    def lost(self, error: Exception) -> None:
        """The head is lost."""
        for _, _, future in list(self._open.values()):
            if not future.done():
                future.set_exception(error)
