"""A reader: batches or messages of a topic from some position on, without a cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from weir.client.chunked import Chunks, loaded
from weir.client.delivered import Delivered, deliver
from weir.client.feed import Feed
from weir.client.growth import watch
from weir.client.link import Link
from weir.client.picking import Pick
from weir.client.places import Places
from weir.client.seeking import exact
from weir.client.start import Begin, End, Start, Until, begin_of, end_of
from weir.client.values import key_bytes
from weir.errors import BadRequest, OffsetOutOfRange
from weir.model.ids import Address
from weir.model.limits import FETCH_BYTES_MAX, MIB, VALUE_BYTES_LOADED_MAX
from weir.model.message import Message
from weir.model.stamp import STAMP_MAX
from weir.wire import messages as m

LONG_POLL = 5.0
#: Answers of one partition that are with the user or ahead of him.
PREFETCH = 2
#: After an answer with nothing in it, so that a broker that does not wait is not stormed.
EMPTY_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What to read: see `Client.reader`."""

    start: Start = "earliest"
    partitions: Sequence[int] | None = None
    max_bytes: int = 4 * MIB
    follow: bool = True
    until: Until | None = None
    key: bytes | str | Sequence[bytes | str] | None = None
    tag: str | Sequence[str] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        if not 1 <= self.max_bytes <= FETCH_BYTES_MAX:
            raise BadRequest(f"max_bytes={self.max_bytes}: give 1 to {FETCH_BYTES_MAX:,}")
        if self.partitions is not None and not self.partitions:
            raise BadRequest("partitions=[]: name at least one, or leave it out for all")
        numbers = [] if self.partitions is None else self.partitions
        if not isinstance(numbers, Collection) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise BadRequest(f"partitions={numbers!r}: give a list of numbers from 0 on")

    def pick(self, begin: Begin, end: End | None) -> Pick:
        """Return which messages are wanted. Raises `BadRequest`."""
        keys = [self.key] if isinstance(self.key, bytes | str) else self.key
        tags = [self.tag] if isinstance(self.tag, str) else self.tag
        for name, wanted in (("key", keys), ("tag", tags)):
            if not isinstance(wanted, Collection | None):
                raise BadRequest(f"{name}={wanted!r}: give one, or a list of them")
        return Pick(
            None if keys is None else map(key_bytes, keys),
            tags,
            begin.stamp,
            STAMP_MAX if end is None else end.stamp,
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one fetch brought, and the position behind it."""

    partition: int
    delivered: list[Delivered]
    next_offset: int
    over: bool
    slots: asyncio.Semaphore = field(repr=False)


class Reader:
    """Iterate it for messages, or `batches()` for batches, each partition in offset order.

    `positions` is {partition: offset behind what was handed out}; kept and given back as `start`,
    it continues there without gap or repeat. So does iterating again after an error.
    """

    def __init__(self, link: Link, topic: str, options: ReaderOptions) -> None:
        """Take the link; the first iteration talks to the broker."""
        options.check()
        self.topic = topic
        self._begin = begin_of(options.start)
        self._end = None if options.until is None else end_of(options.until)
        self._pick = options.pick(self._begin, self._end)
        self.positions: dict[int, int] = dict(self._begin.offsets or {})
        #: By partition, the offset behind the last committed message, as of the last fetch.
        self.committed: dict[int, int] = {}
        self._link = link
        self._options = options
        self._ends: dict[int, int] | None = None
        #: Where partitions began for which the user named no offset.
        self._found: dict[int, int] = {}
        self._feed: Feed[_Piece] | None = None
        self._piece: _Piece | None = None
        self._rest: deque[Delivered] = deque()
        self._delivered: Delivered | None = None
        self._messages: Iterator[Message] | None = None

    async def open(self) -> Reader:
        """Fill `positions`, and begin to fetch; `async with` and the first iteration do it too.

        Raises `UnknownTopic`, also for a partition that the topic does not have.
        """
        if self._feed is None:
            await self._start()
        return self

    async def close(self) -> None:
        """Stop fetching. Iterating again would continue at `positions`."""
        feed, self._feed = self._feed, None
        self._piece = self._delivered = self._messages = None
        self._rest.clear()
        if feed is not None:
            await feed.close()

    async def __aenter__(self) -> Reader:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        while (message := self.at_hand()) is None:
            if not await self.more():
                raise StopAsyncIteration
        return message

    def at_hand(self) -> Message | None:
        """Return the next message if it is here already, without waiting; None: await `more`."""
        if self._messages is None:
            return None
        message = next(self._messages, None)
        if message is not None:
            self.positions[message.partition] = message.offset + 1
        elif self._delivered is not None:
            self.positions[self._delivered.partition] = self._delivered.next_offset
            self._delivered = self._messages = None
        return message

    async def more(self) -> bool:
        """Wait for messages, so that `at_hand` has one; False at the end."""
        delivered = await self._next()
        if delivered is None:
            return False
        self._delivered, self._messages = delivered, delivered.messages()
        return True

    async def batches(self) -> AsyncIterator[Delivered]:
        """Yield checked batches; `skip` of the first one may be above 0."""
        while (delivered := await self._next()) is not None:
            self.positions[delivered.partition] = delivered.next_offset
            yield delivered

    async def _next(self) -> Delivered | None:
        """Return the next batch; None at the end. `positions` moves over what holds no messages."""
        while (delivered := self._wanted()) is None:
            if self._piece is not None:
                piece, self._piece = self._piece, None
                self.positions[piece.partition] = piece.next_offset
                piece.slots.release()
            feed = self._feed or await self._start()
            try:
                self._piece = await feed.take()
            except BaseException:
                await self.close()
                raise
            if self._piece is None:
                return None
            # Moved, not copied: what is handed out is in nobody's hands but the user's, since an
            # opened batch may be a thousand times as large as what came.
            self._rest.extend(self._piece.delivered)
            self._piece.delivered.clear()
        return await self._whole(delivered)

    def _wanted(self) -> Delivered | None:
        """Return the next batch at hand with messages that are wanted, or nothing."""
        while self._rest:
            delivered = self._pick.wanted(self._rest.popleft())
            if delivered is not None:
                return delivered
        return None

    async def _whole(self, delivered: Delivered) -> Delivered:
        """Fetch a value that lies in chunks, unless it is over the limit."""
        try:
            return await loaded(delivered, self._options.value_bytes_max)
        except BaseException:
            await self.close()  # to go on at `positions`, with this very message
            raise

    async def _start(self) -> Feed[_Piece]:
        options = self._options
        places = await Places.find(self._link, self.topic)
        mine = [*dict.fromkeys(options.partitions or range(len(places)))]
        for partition in [*self.positions, *mine, *((self._end and self._end.offsets) or ())]:
            places[partition]  # raises if the topic has no such partition
        await self._settle()
        found = await places.positions(self._begin.stamp, mine)
        new = {p: reply for p, reply in found.items() if p not in self.positions}
        begins = {p: self._begin.offset(p, reply) for p, reply in new.items()}
        if self._begin.stamp:
            # Offsets say nothing of times: whoever goes on at them must get nothing older.
            begins = await exact(places, self._begin.stamp, new)
        self.positions.update(begins)
        self._found.update(begins)
        if self._ends is None and (self._end is not None or not options.follow):
            end = self._end or End()
            if end.needs_clock:
                # Asked for this very stamp: what is stamped below it lies before the end then.
                found = await places.positions(end.stamp, mine)
            self._ends = {p: end.offset(p, reply, options.follow) for p, reply in found.items()}
        self._feed = Feed(partial(self._pull, places, partition) for partition in mine)
        if options.partitions is None and self._ends is None:
            self._feed.add(partial(self._watch, places))
        return self._feed

    async def _settle(self) -> None:
        """Turn times into stamps, once: iterating again goes on with the same ones."""
        begin, end = self._begin, self._end
        if begin.needs_clock or (end is not None and end.needs_clock):
            now_ms = await self._link.wall_ms()
            self._begin = begin.settled(now_ms)
            self._end = None if end is None else end.settled(now_ms)
            self._pick.floor = self._begin.stamp
            self._pick.ceiling = STAMP_MAX if self._end is None else self._end.stamp

    async def _watch(self, places: Places, feed: Feed[_Piece]) -> None:
        """Read partitions that are added later, too: all that is in them is new."""

        def grown(partitions: range) -> None:
            for partition in partitions:
                if partition not in self.positions:
                    self.positions[partition] = self._found[partition] = 0
                feed.add(partial(self._pull, places, partition))

        await watch(places, grown)

    async def _pull(self, places: Places, partition: int, feed: Feed[_Piece]) -> None:
        position = self.positions[partition]
        end = None if self._ends is None else self._ends[partition]
        slots = asyncio.Semaphore(PREFETCH)
        while end is None or position < end:
            await slots.acquire()
            piece = await self._fetch(places, partition, position, end, slots)
            if piece.next_offset == position and not piece.over:
                slots.release()
                await asyncio.sleep(EMPTY_PAUSE)
                continue
            position = piece.next_offset
            feed.put(piece)
            if piece.over:
                return

    async def _fetch(
        self, places: Places, partition: int, position: int, end: int | None,
        slots: asyncio.Semaphore,
    ) -> _Piece:  # fmt: skip
        delivered: list[Delivered] = []

        def request(address: Address) -> m.Request:
            return m.Fetch(address, position, self._options.max_bytes, int(LONG_POLL * 1_000))

        def behind(fetched: m.Fetched) -> int:
            return fetched.next_offset if end is None else min(fetched.next_offset, end)

        def check(fetched: m.Fetched) -> None:
            group = places[partition].group
            delivered[:] = deliver(
                fetched.batches, group, self.topic, partition, position, behind(fetched),
                Chunks(places),
            )  # fmt: skip

        try:
            fetched = await places.ask(partition, request, m.Fetched, wait=LONG_POLL, check=check)
        except OffsetOutOfRange as error:
            if self._found.get(partition) == position < error.detail:
                # Nobody named this offset: retention was faster than the first fetch.
                return _Piece(partition, [], error.detail, False, slots)
            raise self._out_of_range(partition, position, error.detail) from error
        self.committed[partition] = fetched.committed
        for part in delivered:
            self._link.saw(part.batch.header.stamp)
        wanted, ceiling = self._pick.passes(delivered)
        over = ceiling is not None
        next_offset = max(behind(fetched), position) if ceiling is None else ceiling
        return _Piece(partition, wanted, next_offset, over, slots)

    def _out_of_range(self, partition: int, position: int, nearest: int) -> OffsetOutOfRange:
        why = (
            "Messages before it are past retention."
            if nearest > position
            else "The partition ends there: is this the topic, and the system, it was read from?"
        )
        return OffsetOutOfRange(
            f"{self.topic}/{partition} has no offset {position}; the nearest one is {nearest}. "
            f"{why} To go on, read with start={{{partition}: {nearest}}} or start='earliest'",
            nearest,
        )
