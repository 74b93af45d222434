"""Requests for the pages of a node, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from weir.server.observability.endpoint import HEAD_BYTES_MAX, PLAIN, Answer, Guard, Pages

#: What is on a page that is not for everybody.
FIGURE = b"a figure that is hidden"


class Visits:
    """Pages of a node, and who asks for them."""

    def __init__(self, guard: Guard) -> None:
        """Let `guard` say who may see figures; health is for everybody."""

        async def figures() -> Answer:
            return 200, PLAIN, FIGURE.decode()

        async def health() -> Answer:
            return 200, PLAIN, "ok"

        self._pages = Pages({"/metrics": figures, "/healthz": health}, ("/healthz",), guard)

    async def ask(self, data: bytes, address: str) -> bytes:
        """Send bytes, and no more; return what is answered."""
        reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
        reader.feed_data(data)
        reader.feed_eof()
        writer = _Writer(address)
        await self._pages._serve(reader, cast(asyncio.StreamWriter, writer))
        return bytes(writer.written)


class _Writer:
    """Keeps what is written to a peer."""

    def __init__(self, address: str) -> None:
        self.written = bytearray()
        self._address = address

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        """All is sent."""

    def close(self) -> None:
        """There is nothing to close."""

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 1)
