"""Large values read back: their chunks fetched one reply at a time, with bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from weir.client.connection.metadata import Places
from weir.client.core.delivered_batches import Assembly, Delivered, LargeDelivered
from weir.codec.fields import Buffer
from weir.errors import BadBatch
from weir.model.chunks import References
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.protocol.client import messages as m

#: Of one reply; a single chunk may be larger.
FETCH_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class ChunkedValue:
    """The pieces of one value. Each iteration fetches, and checks, all of it."""

    places: Places
    partition: int
    references: References

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        """Yield pieces in order. Raises `BadBatch` behind the last if the whole is not right."""
        assembly = Assembly(self.references, self.places[self.partition].group)
        while (wanted := assembly.wanted()) is not None:
            for piece in await self._fetch(assembly, *wanted):
                yield piece

    async def _fetch(self, assembly: Assembly, index: int, count: int) -> list[memoryview]:
        pieces: list[memoryview] = []

        def request(address: Address) -> m.Request:
            return m.FetchChunks(address, index, count, FETCH_BYTES)

        def check(fetched: m.FetchedChunks) -> None:
            pieces[:] = assembly.opened(fetched.batches)

        await self.places.ask(self.partition, request, m.FetchedChunks, wait=0.0, check=check)
        assembly.took(pieces)
        return pieces


@dataclass(frozen=True, slots=True)
class Chunks:
    """Fetches the large values of one topic."""

    places: Places

    def pieces(self, partition: int, references: References) -> ChunkedValue:
        """Return where a value's pieces come from; nothing is fetched yet."""
        return ChunkedValue(self.places, partition, references)


async def loaded(delivered: Delivered, size_max: int) -> Delivered:
    """Return `delivered`, its value fetched if it lies in chunks and has up to `size_max` bytes.

    Raises `BadBatch`, which says how to go on.
    """
    if not isinstance(delivered, LargeDelivered) or delivered.references.size > size_max:
        return delivered
    (message,) = delivered.messages()
    try:
        return replace(delivered, loaded=await message.read())
    except BadBatch as error:
        raise BadBatch(
            f"offset {delivered.offset} of {delivered.topic}/{delivered.partition} cannot be read: "
            f"{error}. To skip it, read with start={{{delivered.partition}: "
            f"{delivered.next_offset}}}"
        ) from error
