"""What is read of a topic in total order while its consumer has the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from weir.client.connection.link import Link
from weir.client.connection.metadata import Places
from weir.client.core.delivered_batches import Delivered
from weir.client.reader.reader import Reader, ReaderOptions


class TurnReading:
    """Pieces of one batch at a time, in the one order, from where a turn begins."""

    def __init__(
        self, link: Link, places: Places, begins: Mapping[int, int], max_bytes: int
    ) -> None:
        """Read each partition from its offset in `begins` on."""
        options = ReaderOptions(
            start=dict(begins), order="total", max_bytes=max_bytes, value_bytes_max=0
        )
        self._reader = Reader(link, places.topic, options)
        self._batches = self._reader.batches()
        self._next: asyncio.Task[Delivered] | None = None
        self._rest: Delivered | None = None

    async def piece(self, size: int) -> Delivered | None:
        """Return the next messages, `size` at most; None once it was told to `stop`."""
        part = self._rest or await self._batch()
        if part is None:
            return None
        self._rest = None
        if len(part) > size:
            cut = part.offset + size
            self._rest = replace(part, offset=cut)
            part = replace(part, next_offset=cut)
        return part

    async def _batch(self) -> Delivered | None:
        self._next = asyncio.get_running_loop().create_task(_following(self._batches))
        try:
            await asyncio.wait([self._next])
            return None if self._next.cancelled() else self._next.result()
        finally:
            self._next.cancel()

    def stop(self) -> None:
        """Let who waits for a piece wait no longer."""
        if self._next is not None:
            self._next.cancel()

    async def close(self) -> None:
        """Read no more."""
        await self._reader.close()


async def _following(batches: AsyncIterator[Delivered]) -> Delivered:
    return await anext(batches)
