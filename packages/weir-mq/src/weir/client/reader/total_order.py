"""One sequence of all partitions: fetched ahead, held until the barrier, handed out in one order.

Every reader gets the same sequence, from whichever replica, live or replayed (DESIGN §6 OneOrder).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from weir.client.connection.metadata import watch
from weir.client.core.delivered_batches import Delivered
from weir.client.reader.fetcher import EMPTY_PAUSE, Fetcher, Portion, ReadyBatches
from weir.client.reader.positions import Barriers, Span
from weir.errors import Unavailable, WeirError
from weir.model.limits import MIB
from weir.order.barrier import Barrier
from weir.order.merge import NO_BOUND, Merge, Roster
from weir.protocol.client import messages as m

#: What all partitions together may hold that waits for the barrier; as much may wait for the user.
HELD_BYTES = 64 * MIB
_HELD_BYTES_MIN = 64 * 1024
#: No question for barriers begins sooner after the last one, in seconds.
ASK_EVERY = 0.005
#: How often, and after how many seconds, it is asked again who joined.
_TRIES = 200
_AGAIN_AFTER = 0.05


class _Held(NamedTuple):
    """A batch that waits for the barrier, and where its partition goes on behind it."""

    delivered: Delivered
    behind: int


def room_for(partitions: int) -> int:
    """Return how many bytes each of so many partitions may hold."""
    return max(HELD_BYTES // max(partitions, 1), _HELD_BYTES_MIN)


class TotalOrder:
    """Pullers of all partitions, and one order of what they bring.

    Barriers come with what leaders answer. They are asked for only while something is held that
    lies above them: nothing goes over the wire while nothing is published.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        barriers: Barriers,
        begins: Mapping[int, int],
        span: Span,
        grows: bool,
    ) -> None:
        """Read each partition from `begins` on, up to where `span` ends. If it `grows`, partitions
        that are added later join `span` before anything of them comes; else they are not read.
        """
        self._fetcher = fetcher
        self._barriers = barriers
        self._span = span
        self._grows = grows
        self._merge: Merge[_Held] = Merge(Roster(begins), begins, room_for(len(begins)))
        #: By partition, up to where it was received, with nothing behind what was handed out.
        self._passed: dict[int, int] = {}
        #: By partition, when something of it came.
        self._heard: dict[int, float] = {}
        self._rooms = {partition: asyncio.Event() for partition in begins}
        self._news = asyncio.Event()
        self._waits = asyncio.Event()
        self._error: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._live = len(begins)
        #: The partition of which something came last: its leader is asked for barriers.
        self._latest: int | None = None
        #: By partition that has ended, the offset behind its last message.
        self._over: dict[int, int] = {}
        for partition in begins:
            self._begin(partial(self._pull, partition))
        if span.ends is None:
            self._begin(self._ask)
        if grows:
            self._begin(partial(watch, fetcher.places, len(begins), self._grown))

    async def take(self) -> ReadyBatches | None:
        """Return what comes next, None at the end; raise what a puller raised."""
        while (ready := self._let_out()) is None:
            if self._error is not None:
                raise self._error
            if not self._live and not self._merge.highest:
                return None
            self._news.clear()
            if self._merge.highest:
                self._waits.set()
            await self._news.wait()
        self._waits.clear()
        return ready

    async def close(self) -> None:
        """End every puller."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._run(work), name="weir order"))

    async def _run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._error = self._error or error
            self._news.set()

    # -- batches -------------------------------------------------------------------------------

    async def _pull(self, partition: int) -> None:
        merge, room = self._merge, self._rooms[partition]
        ends = self._span.ends
        end = None if ends is None else ends[partition]
        position = merge.next(partition)
        while end is None or position < end:
            while not merge.wants(partition):
                room.clear()
                await room.wait()
            if self._has_ended(partition, position):
                return  # whoever follows a topic waits on for its other partitions
            try:
                portion = await self._fetcher.fetch(partition, position, end)
            except WeirError:
                if self._has_ended(partition, position):  # it may well have no leader any more
                    return
                raise
            await self._learn(portion.partitions)
            self._take_in(portion)
            if portion.over:
                break
            if portion.next_offset == position:
                await asyncio.sleep(EMPTY_PAUSE)
            position = portion.next_offset
        merge.barrier(partition, Barrier(NO_BOUND, merge.next(partition)))
        self._live -= 1
        self._news.set()

    def _has_ended(self, partition: int, position: int) -> bool:
        return self._span.ends is None and self._over.get(partition, NO_BOUND) <= position

    def _take_in(self, portion: Portion) -> None:
        merge, partition, delivered = self._merge, portion.partition, portion.delivered
        for at, part in enumerate(delivered, 1):
            behind = delivered[at].offset if at < len(delivered) else portion.next_offset
            header = part.batch.header
            merge.skip(partition, part.offset)
            held = _Held(part, behind)
            merge.push(partition, header.stamp, part.offset, behind, header.total_size, held)
            self._passed.pop(partition, None)
        if delivered:
            self._latest = partition
            self._heard[partition] = asyncio.get_running_loop().time()
        if portion.next_offset > merge.next(partition):
            merge.skip(partition, portion.next_offset)
            self._passed[partition] = portion.next_offset
        if portion.barrier:
            merge.barrier(partition, Barrier(portion.barrier, portion.committed))
        self._news.set()

    def _let_out(self) -> ReadyBatches | None:
        """Return all that the barrier lets out; None if that is nothing."""
        taken = self._merge.take()
        positions = {merged.partition: merged.item.behind for merged in taken}
        for partition in positions:
            self._rooms[partition].set()
        for partition in [one for one in self._passed if not self._merge.holds(one)]:
            positions[partition] = self._passed.pop(partition)
        if not positions:
            return None
        return ReadyBatches([merged.item.delivered for merged in taken], positions)

    # -- barriers and partitions that join -------------------------------------------------------

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._waits.wait()
            if (rest := self._quiet_in()) > 0:
                await asyncio.sleep(rest)
                continue
            self._waits.clear()
            began = loop.time()
            # Who sent the news is awake, and gets the question together with the next fetch.
            latest = self._latest
            told = await self._barriers.ask(self._merge.highest, partition=latest)
            if not told.reached and self._latest == latest:
                self._latest = None  # it may be cut off from the others: ask where one is at home
            await self._apply(told)
            await asyncio.sleep(max(began + ASK_EVERY - loop.time(), 0.0))

    def _quiet_in(self) -> float:
        """Return in how many seconds somebody who holds the barrier back was silent for a while:
        until then, what he sends next is likely to say more than an answer would.
        """
        behind = self._merge.roster.behind()
        heard = min((self._heard.get(partition, 0.0) for partition in behind), default=0.0)
        return heard + ASK_EVERY - asyncio.get_running_loop().time()

    async def _apply(self, told: m.Barriers) -> None:
        await self._join(told)
        for partition, stamp, through in told.registers:
            if stamp and partition in self._merge:
                if through > self._merge.next(partition):
                    self._fetcher.expect(partition, through)
                self._merge.barrier(partition, Barrier(stamp, through))
        for partition, stamp, offset in told.ends:
            if partition in self._merge and partition not in self._over:
                self._over[partition] = offset
                self._merge.roster.end(partition, stamp)
                self._merge.barrier(partition, Barrier(stamp, offset))
        self._news.set()

    async def _join(self, told: m.Barriers) -> None:
        """Read who joined the order, before anything is used that was said of it since."""
        if not self._grows or all(p in self._merge for p, _ in told.roster):
            return
        await self._barriers.known(told)
        for partition, floor in told.roster:
            if partition not in self._merge:
                self._span.join(partition)
                self._rooms[partition] = asyncio.Event()
                self._merge.roster.join(partition, floor)
                self._merge.add(partition, 0)
                self._live += 1
                self._begin(partial(self._pull, partition))

    async def _learn(self, partitions: int) -> None:
        """Wait until all partitions are read that belong to the order by now."""
        if not self._grows:
            return
        tries = 0
        while len(self._merge.roster) < partitions:
            await self._apply(await self._barriers.ask(0))
            tries += 1
            if tries > _TRIES:
                raise Unavailable(
                    f"{partitions} partitions belong to the order, and it is not told which: "
                    "read again shortly"
                )
            if len(self._merge.roster) < partitions:
                await asyncio.sleep(_AGAIN_AFTER)

    def _grown(self, partitions: Iterable[int]) -> None:
        self._begin(partial(self._learn, max(partitions) + 1))
