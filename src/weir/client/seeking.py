"""Where the first message of a time lies, exactly: brokers tell the entry that holds it."""

from __future__ import annotations

import asyncio

from weir.client.delivered import Delivered, deliver
from weir.client.places import Places
from weir.errors import OffsetOutOfRange
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.wire import messages as m

#: Partitions looked at together: each answer may have a megabyte.
_TOGETHER = 16


async def exact(places: Places, stamp: int, found: dict[int, m.PositionsReply]) -> dict[int, int]:
    """Return, by partition, the first offset stamped `stamp` or later; its end if there is none.

    `found` must have been asked for this stamp.
    """
    limit = asyncio.Semaphore(_TOGETHER)

    async def one(partition: int, reply: m.PositionsReply) -> int:
        async with limit:
            return await _first_from(places, partition, reply, stamp)

    offsets = await asyncio.gather(*(one(p, reply) for p, reply in found.items()))
    return dict(zip(found, offsets, strict=True))


async def _first_from(places: Places, partition: int, reply: m.PositionsReply, stamp: int) -> int:
    at = reply.at
    while at < reply.end:
        delivered: list[Delivered] = []

        def check(fetched: m.Fetched, at: int = at, into: list[Delivered] = delivered) -> None:
            address, behind = places[partition], fetched.next_offset
            into[:] = deliver(fetched.batches, address.group, places.topic, partition, at, behind)

        def request(address: Address, at: int = at) -> m.Request:
            return m.Fetch(address, at, MIB)

        try:
            fetched = await places.ask(partition, request, m.Fetched, wait=0.0, check=check)
        except OffsetOutOfRange:
            return at  # past retention since: whoever reads on is told where it begins now
        for part in delivered:
            if part.batch.header.stamp >= stamp:
                return part.offset
        if fetched.next_offset <= at:
            return at
        at = fetched.next_offset
    return min(at, reply.end)
