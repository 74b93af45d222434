"""Where a reader begins when only the messages themselves tell: the first one of a time, and the
last ones of a key or tag.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from weir.client.connection.metadata import Places
from weir.client.core.delivered_batches import Delivered, deliver
from weir.client.core.filters import Pick, Picked
from weir.errors import OffsetOutOfRange
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.protocol.client import messages as m

#: Partitions looked at together: each answer may have a megabyte.
_TOGETHER = 16
#: Offsets looked through at once, from a partition's end back; each step is twice the one before.
_STEP = 256
_STEP_MAX = 65_536


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


async def last_wanted(
    places: Places, pick: Pick, count: int, spans: Mapping[int, range]
) -> dict[int, int]:
    """Return, by partition, the offset of the last `count` messages that `pick` lets through; the
    end of its span if there are none.

    They are looked for in `spans`, from the end back, as far as needed. Of one key alone the last
    ones of all partitions together are meant: they lie in one, unless partitions were added.
    """
    searches = {p: _Search(places, pick, count, p, span) for p, span in spans.items()}
    limit = asyncio.Semaphore(_TOGETHER)

    async def step(search: _Search) -> None:
        async with limit:
            await search.step()

    newest = 0
    while left := [search for search in searches.values() if search.goes_on]:
        await asyncio.gather(*map(step, left))
        if pick.keys is None or len(pick.keys) > 1:
            continue
        stamps = sorted(stamp for search in searches.values() for stamp, _ in search.found)
        if len(stamps) >= count and stamps[-count] > newest:
            newest = stamps[-count]
            # Nothing stamped below the oldest of them can be one of the last.
            below = [p for p, search in searches.items() if search.goes_on]
            for partition, reply in (await places.positions(newest, below)).items():
                searches[partition].ends_at(reply.at)
    return {p: search.first(newest) for p, search in searches.items()}


class _Search:
    """Looks through one partition, from its end back, for messages that are wanted."""

    def __init__(self, places: Places, pick: Pick, count: int, partition: int, span: range) -> None:
        self.found: deque[tuple[int, int]] = deque(maxlen=count)  # (stamp, offset), rising
        self._places = places
        self._pick = pick
        self._count = count
        self._partition = partition
        self._low, self._at = span.start, max(span.start, span.stop)
        self._end = self._at
        self._size = _STEP

    @property
    def goes_on(self) -> bool:
        """Whether there may be more to find."""
        return self._at > self._low and len(self.found) < self._count

    def ends_at(self, offset: int) -> None:
        """Look no further back than `offset`."""
        self._low = max(self._low, offset)

    def first(self, stamp: int) -> int:
        """Return the first offset found that is stamped `stamp` or later, else the end."""
        return next((offset for at, offset in self.found if at >= stamp), self._end)

    async def step(self) -> None:
        """Look through the offsets just before those that were looked through."""
        first, behind = max(self._low, self._at - self._size), self._at
        found: deque[tuple[int, int]] = deque(maxlen=self._count - len(self.found))
        at = first
        while at < behind:
            delivered, at = await self._fetch(at, behind)
            for part in self._pick.passes(delivered)[0]:
                if (wanted := self._pick.wanted(part)) is not None:
                    found.extend((part.batch.header.stamp, offset) for offset in _offsets(wanted))
        self.found.extendleft(reversed(found))
        self._at, self._size = first, min(2 * self._size, _STEP_MAX)

    async def _fetch(self, at: int, behind: int) -> tuple[list[Delivered], int]:
        delivered: list[Delivered] = []

        def check(fetched: m.Fetched) -> None:
            group, end = self._places[self._partition].group, min(fetched.next_offset, behind)
            topic = self._places.topic
            delivered[:] = deliver(fetched.batches, group, topic, self._partition, at, end)

        def request(address: Address) -> m.Request:
            return m.Fetch(address, at, MIB)

        try:
            fetched = await self._places.ask(self._partition, request, m.Fetched, check=check)
        except OffsetOutOfRange as error:
            # Past retention since. What is still there begins at the offset that it tells.
            return [], max(error.detail, at + 1) if error.detail < behind else behind
        if fetched.next_offset <= at:
            return delivered, behind
        return delivered, fetched.next_offset


def _offsets(part: Delivered) -> range | list[int]:
    if isinstance(part, Picked):
        return [part.batch.header.first_offset + row for row in part.rows]
    return range(part.offset, part.next_offset)
