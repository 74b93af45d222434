"""A reader: batches or messages of a topic from some position on, without a cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Literal

from weir.client.delivered import Delivered, deliver
from weir.client.feed import Feed
from weir.client.link import Link
from weir.client.places import Places
from weir.errors import BadRequest, OffsetOutOfRange
from weir.model.ids import Address
from weir.model.limits import FETCH_BYTES_MAX, MIB
from weir.model.message import Message
from weir.wire import messages as m

Start = Literal["earliest", "latest"] | Mapping[int, int]

LONG_POLL = 5.0
#: Answers of one partition that are with the user or ahead of him.
PREFETCH = 2
#: After an answer with nothing in it, so that a broker that does not wait is not stormed.
EMPTY_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What to read: see `Client.reader`."""

    start: Start = "earliest"
    partitions: list[int] | None = None
    max_bytes: int = 4 * MIB
    follow: bool = True

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        if isinstance(self.start, str) and self.start not in ("earliest", "latest"):
            raise BadRequest(
                f'start={self.start!r}: give "earliest", "latest" or {{partition: offset}}'
            )
        if not isinstance(self.start, str) and not all(
            isinstance(partition, int) and isinstance(offset, int) and offset >= 0
            for partition, offset in self.start.items()
        ):
            raise BadRequest(
                f"start={self.start!r}: give {{partition: offset}} in whole numbers from 0 on "
                "(JSON makes strings of the keys: turn them back with int)"
            )
        if not 1 <= self.max_bytes <= FETCH_BYTES_MAX:
            raise BadRequest(f"max_bytes={self.max_bytes}: give 1 to {FETCH_BYTES_MAX:,}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one fetch brought, and the position behind it."""

    partition: int
    delivered: list[Delivered]
    next_offset: int
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
        self.positions: dict[int, int] = (
            {} if isinstance(options.start, str) else dict(options.start)
        )
        #: By partition, the offset behind the last committed message, as of the last fetch.
        self.committed: dict[int, int] = {}
        self._link = link
        self._options = options
        self._ends: dict[int, int] | None = None
        self._feed: Feed[_Piece] | None = None
        self._piece: _Piece | None = None
        self._rest: deque[Delivered] = deque()
        self._messages: Iterator[Message] | None = None

    async def close(self) -> None:
        """Stop fetching. Iterating again would continue at `positions`."""
        feed, self._feed = self._feed, None
        self._piece, self._messages = None, None
        self._rest.clear()
        if feed is not None:
            await feed.close()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        while True:
            if self._messages is not None:
                message = next(self._messages, None)
                if message is not None:
                    self.positions[message.partition] = message.offset + 1
                    return message
                self._messages = None
            delivered = await self._next()
            if delivered is None:
                raise StopAsyncIteration
            self._messages = delivered.messages()

    async def batches(self) -> AsyncIterator[Delivered]:
        """Yield checked batches; `skip` of the first one may be above 0."""
        while (delivered := await self._next()) is not None:
            self.positions[delivered.partition] = delivered.next_offset
            yield delivered

    async def _next(self) -> Delivered | None:
        """Return the next batch; None at the end. `positions` moves over what holds no messages."""
        while not self._rest:
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
            self._rest.extend(self._piece.delivered)
        return self._rest.popleft()

    async def _start(self) -> Feed[_Piece]:
        options = self._options
        places = await Places.find(self._link, self.topic)
        mine = options.partitions if options.partitions is not None else [*range(len(places))]
        for partition in [*self.positions, *mine]:
            places[partition]  # raises if the topic has no such partition
        found = await places.positions(partitions=mine)
        for partition, reply in found.items():
            begin = reply.end if options.start == "latest" else reply.start
            self.positions.setdefault(partition, begin)
        if self._ends is None and not options.follow:
            self._ends = {partition: reply.end for partition, reply in found.items()}
        self._feed = Feed(partial(self._pull, places, partition) for partition in mine)
        return self._feed

    async def _pull(self, places: Places, partition: int, feed: Feed[_Piece]) -> None:
        position = self.positions[partition]
        end = None if self._ends is None else self._ends[partition]
        slots = asyncio.Semaphore(PREFETCH)
        while end is None or position < end:
            await slots.acquire()
            piece = await self._fetch(places, partition, position, end, slots)
            if piece.next_offset == position:
                slots.release()
                await asyncio.sleep(EMPTY_PAUSE)
                continue
            position = piece.next_offset
            feed.put(piece)

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
                fetched.batches, group, self.topic, partition, position, behind(fetched)
            )

        try:
            fetched = await places.ask(partition, request, m.Fetched, wait=LONG_POLL, check=check)
        except OffsetOutOfRange as error:
            raise self._out_of_range(partition, position, error.detail) from error
        self.committed[partition] = fetched.committed
        for part in delivered:
            self._link.saw(part.batch.header.stamp)
        return _Piece(partition, delivered, max(behind(fetched), position), slots)

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
