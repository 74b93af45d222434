"""Where a reader begins and ends, as the broker is asked once, and cuts through the one order.

In total order a reader reads a piece of the one order of a topic's partitions, between two cuts
through it. `Barriers` asks how far that order is complete (DESIGN §5 Aggregation).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter

import msgspec

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.core.delivered_batches import Delivered, Pick, Picked, deliver
from weir.client.reader.options import Begin, End
from weir.errors import OffsetOutOfRange, Unavailable
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.order.barrier import Barrier
from weir.order.clock import STAMP_MAX
from weir.protocol.client import messages as m

#: How long a broker may keep a question for barriers that are not there yet.
WAIT_MS = 100
_LOOK_AGAIN = 0.05

#: Partitions looked at together: each answer may have a megabyte.
_TOGETHER = 16
#: Offsets looked through at once, from a partition's end back; each step is twice the one before.
_STEP = 256
_STEP_MAX = 65_536


class Moment(msgspec.Struct, frozen=True):
    """A cut through the one order: what is stamped at or below `stamp`, and all the rest.

    By partition, none stamped above it lies below `begins`, and none stamped at or below it lies
    at or behind `ends`.
    """

    stamp: int
    begins: dict[int, int]
    ends: dict[int, int]


class Barriers:
    """What one reader asks of how far the one order of a topic's partitions is complete."""

    def __init__(self, network: NetworkClient, places: Places) -> None:
        """Ask about the topic of `places`."""
        self._network = network
        self._places = places

    async def ask(
        self, stamp: int, wait_ms: int = WAIT_MS, partition: int | None = None
    ) -> m.Barriers:
        """Return what is known once all are at `stamp`, or after `wait_ms`. The leader of
        `partition` is asked, if there is an open connection to it; else the node at home.
        """
        request = m.AskBarriers(self._places.id, stamp, wait_ms)
        near = None if partition is None else self._places[partition]
        return await self._network.request(request, m.Barriers, wait=wait_ms / 1_000, near=near)

    async def next_mark(
        self, above: int, stamp: int, wait_ms: int, partition: int | None
    ) -> m.OrderMark:
        """Return the next mark above the last one, which is `above`, once it is at `stamp`, or with
        0 at what comes next; or after `wait_ms`. The leader of `partition` is asked, as in `ask`.

        Raises `UnknownOpcode` where an earlier release answers.
        """
        request = m.AwaitMark(self._places.id, above, stamp, wait_ms)
        near = None if partition is None else self._places[partition]
        return await self._network.request(request, m.OrderMark, wait=wait_ms / 1_000, near=near)

    def place(self, partition: int) -> tuple[int, int]:
        """Return the node and the shard that lead a partition, as far as is known."""
        address = self._places[partition]
        return address.node, address.shard

    async def reached(self, stamp: int) -> dict[int, Barrier]:
        """Return the barriers of all partitions, each at `stamp` or above; with 0, each such that
        all lies below it that was confirmed to anybody until now.

        Raises `Unavailable` if that takes longer than a request may.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._network.request_timeout
        while True:
            began = loop.time()
            told = await self.ask(stamp)
            if told.reached:
                await self.known(told)
                return {p: Barrier(at, through) for p, at, through in told.registers}
            if loop.time() >= until:
                least = min(told.registers, key=itemgetter(1), default=(0, 0, 0))[0]
                raise Unavailable(
                    f"partition {least} of {self._places.topic} has not said for "
                    f"{self._network.request_timeout:g} s how far it is complete: has it a leader? "
                    "`weir doctor` tells; order='partition' reads the others"
                )
            await asyncio.sleep(max(began + _LOOK_AGAIN - loop.time(), 0.0))

    async def now(self) -> Moment:
        """Return a cut that all lies before which was confirmed until now, and behind which all
        comes that is published once this has returned.
        """
        before = await self.reached(0)
        stamp = max(barrier.stamp for barrier in before.values())
        behind = await self.reached(stamp)
        begins = {p: before[p].through if p in before else 0 for p in behind}
        return Moment(stamp, begins, _throughs(behind))

    async def through(self, stamp: int) -> Moment:
        """Return the cut at a stamp, once nothing comes at or below it any more."""
        behind = await self.reached(stamp)
        return Moment(stamp, dict.fromkeys(behind, 0), _throughs(behind))

    async def known(self, told: m.Barriers) -> None:
        """Return once it is known where all partitions are served that belong to the order."""
        count = max(partition for partition, _, _ in told.registers) + 1
        await self._places.find_all(count)


def _throughs(barriers: dict[int, Barrier]) -> dict[int, int]:
    return {partition: barrier.through for partition, barrier in barriers.items()}


class Span:
    """Positions of a reader, where it ends, and what of its options is asked for only once:
    iterating again goes on with the same.
    """

    def __init__(self, begin: Begin, end: End | None, pick: Pick, follow: bool) -> None:
        """Take checked options; what `pick` lets through is narrowed by stamps."""
        self.positions: dict[int, int] = dict(begin.offsets or {})
        #: None: there is no end.
        self.ends: dict[int, int] | None = None
        #: Where partitions began for which the user named no offset.
        self.found: dict[int, int] = {}
        #: By partition, the offset behind the last committed message, as of the last fetch.
        self.committed: dict[int, int] = {}
        #: By partition, the lineage that ended what was fetched last, as far as it was told; until
        #: then that of where the reader begins.
        self.lineages: dict[int, int] = dict(begin.lineages)
        self._begin = begin
        self._end = end
        self.pick = pick
        self._follow = follow
        self._moment: Moment | None = None

    async def ask(
        self,
        network: NetworkClient,
        places: Places,
        given: Sequence[int] | None,
        barriers: Barriers | None,
    ) -> list[int]:
        """Fill `positions` and `ends` for the `given` partitions, or all; return these.

        With `barriers`, what lies between both is a piece of the one order of all partitions.
        Raises `UnknownTopic` for a partition that the topic does not have.
        """
        await self._resolve_times(network)
        if barriers is not None and self._moment is None:
            self._moment = await self._cut(barriers)
        named = (self._end and self._end.offsets) or ()
        await places.find_these([*self.positions, *(given or ()), *named])
        mine = [*dict.fromkeys(given or range(len(places)))]
        await self._set_begins(places, mine)
        if self.ends is None and (self._end is not None or not self._follow):
            self.ends = await self._ends(places, mine)
        return mine

    def join(self, partition: int) -> None:
        """A partition was added, all in it is new."""
        if partition not in self.positions:
            self.positions[partition] = self.found[partition] = 0

    async def _resolve_times(self, network: NetworkClient) -> None:
        begin, end = self._begin, self._end
        if begin.needs_clock or (end is not None and end.needs_clock):
            now_ms = await network.wall_ms()
            self._begin = begin.settled(now_ms)
            self._end = None if end is None else end.settled(now_ms)
            ceiling = STAMP_MAX if self._end is None else self._end.stamp
            self.pick = self.pick.between(self._begin.stamp, ceiling)

    async def _cut(self, barriers: Barriers) -> Moment | None:
        """Return the barrier to begin behind or to end at, if there is one."""
        end = self._end
        if end is not None and end.stamp < STAMP_MAX:
            return await barriers.through(end.stamp - 1)
        if self._begin.word != "latest" and (self._follow or end is not None):
            return None
        moment = await barriers.now()
        if self._begin.word == "latest":
            self.pick = self.pick.between(moment.stamp + 1, self.pick.ceiling)
        if not self._follow and end is None:
            self.pick = self.pick.between(self.pick.floor, moment.stamp + 1)
        return moment

    async def _set_begins(self, places: Places, mine: Sequence[int]) -> None:
        stamp, moment = self._begin.stamp, self._moment
        if moment is not None and self._begin.word == "latest":
            begins = {p: moment.begins.get(p, 0) for p in mine if p not in self.positions}
        else:
            found = await places.positions(stamp, mine)
            new = {p: reply for p, reply in found.items() if p not in self.positions}
            if self._begin.word == "last":
                begins = await self._last(places, new)
            elif stamp:
                # Offsets say nothing about times: a reader that continues there must get nothing
                # older.
                begins = await exact(places, stamp, new)
            else:
                begins = {p: self._begin.offset(p, reply) for p, reply in new.items()}
        self.positions.update(begins)
        self.found.update(begins)

    async def _last(self, places: Places, new: Mapping[int, m.PositionsReply]) -> dict[int, int]:
        """Return where the last messages that the reader wants begin, of those before its end."""
        ends = {p: reply.end for p, reply in new.items()}
        if self._moment is not None:
            ends = {p: min(end, self._moment.ends.get(p, 0)) for p, end in ends.items()}
        elif self._end is not None and self._end.offsets is not None:
            given = self._end.offsets
            ends = {p: min(end, given.get(p, end)) for p, end in ends.items()}
        spans = {p: range(reply.start, max(ends[p], reply.start)) for p, reply in new.items()}
        if self.pick.wants_all:
            return {p: max(span.start, span.stop - self._begin.count) for p, span in spans.items()}
        return await last_wanted(places, self.pick, self._begin.count, spans)

    async def _ends(self, places: Places, mine: Sequence[int]) -> dict[int, int]:
        end, moment = self._end or End(), self._moment
        if moment is not None and end.offsets is None:
            # A partition that joined the order since has nothing before it.
            return {p: moment.ends.get(p, 0) for p in mine}
        # Asked for this very stamp: what is stamped below it lies before the end then.
        found = await places.positions(end.stamp if end.needs_clock else 0, mine)
        return {p: end.offset(p, reply, self._follow) for p, reply in found.items()}


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
            return m.Fetch(address, at, MIB, equal_stamps=True)

        try:
            fetched = await places.ask(partition, request, m.Fetched, wait=0.0, check=check)
        except OffsetOutOfRange:
            return at  # deleted by retention since: the next fetch says where the partition begins
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
                    found.extend(
                        (part.batch.header.stamp, offset) for offset in _offsets_of(wanted)
                    )
        self.found.extendleft(reversed(found))
        self._at, self._size = first, min(2 * self._size, _STEP_MAX)

    async def _fetch(self, at: int, behind: int) -> tuple[list[Delivered], int]:
        delivered: list[Delivered] = []

        def check(fetched: m.Fetched) -> None:
            group, end = self._places[self._partition].group, min(fetched.next_offset, behind)
            topic = self._places.topic
            delivered[:] = deliver(fetched.batches, group, topic, self._partition, at, end)

        def request(address: Address) -> m.Request:
            return m.Fetch(address, at, MIB, equal_stamps=True)

        try:
            fetched = await self._places.ask(self._partition, request, m.Fetched, check=check)
        except OffsetOutOfRange as error:
            # Past retention since. What is still there begins at the offset that it tells.
            return [], max(error.detail, at + 1) if error.detail < behind else behind
        if fetched.next_offset <= at:
            return delivered, behind
        return delivered, fetched.next_offset


def _offsets_of(part: Delivered) -> range | list[int]:
    if isinstance(part, Picked):
        return [part.batch.header.first_offset + row for row in part.rows]
    return range(part.offset, part.next_offset)
