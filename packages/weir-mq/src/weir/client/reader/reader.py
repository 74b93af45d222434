"""A reader: batches or messages of a topic from some position on, without a cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, Protocol

from weir.client.arguments import ReadFrom, check_choice, key_bytes, whole_number
from weir.client.connection.metadata import Places, watch
from weir.client.connection.network_client import NetworkClient
from weir.client.core.delivered_batches import Delivered, Pick
from weir.client.reader.fetcher import (
    EMPTY_PAUSE,
    FetchBuffer,
    Fetcher,
    ReadyBatches,
    Replicas,
    loaded,
)
from weir.client.reader.positions import Barriers, Begin, End, Span, Start, Until, begin_of, end_of
from weir.client.reader.total_order import TotalOrder, room_for
from weir.errors import BadRequest
from weir.model.limits import FETCH_BYTES_MAX, MIB, VALUE_BYTES_LOADED_MAX
from weir.model.message import Message
from weir.model.topic import Order, check_order
from weir.order.clock import STAMP_MAX

#: Answers of one partition that are with the user or ahead of him.
PREFETCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
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
    #: What has one order: each "partition", all together ("total"), or None: as the topic says.
    order: Order | None = None
    read_from: ReadFrom = "leader"

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        whole_number("max_bytes", self.max_bytes, 1, FETCH_BYTES_MAX)
        whole_number("value_bytes_max", self.value_bytes_max, 0)
        if self.partitions is not None and not self.partitions:
            raise BadRequest("partitions=[]: name at least one, or leave it out for all")
        numbers = [] if self.partitions is None else self.partitions
        if not isinstance(numbers, Collection) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise BadRequest(f"partitions={numbers!r}: give a list of numbers from 0 on")
        if self.order is not None:
            check_order(self.order)
        check_choice("read_from", self.read_from, ReadFrom)

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


class _BatchSource(Protocol):
    """Whatever gives batches in the order in which they are handed out."""

    async def take(self) -> ReadyBatches | None:
        """Return the next ones; None at the end."""

    async def close(self) -> None:
        """End all that runs for it."""


class Reader:
    """Iterate it for messages, or `batches()` for batches, each partition in offset order.

    In total order all of them come in one order, which is the same for every reader of the topic.
    `positions` is {partition: offset behind what was handed out}; kept and given back as `start`,
    it continues there without gap or repeat. So does iterating again after an error.
    """

    def __init__(self, network: NetworkClient, topic: str, options: ReaderOptions) -> None:
        """Take the connections; the first iteration talks to the broker."""
        options.check()
        self.topic = topic
        begin = begin_of(options.start)
        end = None if options.until is None else end_of(options.until)
        self._span = Span(begin, end, options.pick(begin, end), options.follow)
        self.positions = self._span.positions
        #: By partition, the offset behind the last committed message, as of the last fetch.
        self.committed = self._span.committed
        #: "partition" or "total", once it is open.
        self.order: Order | Literal[""] = options.order or ""
        self._network = network
        self._options = options
        self._source: _BatchSource | None = None
        self._ready: ReadyBatches | None = None
        self._rest: deque[Delivered] = deque()
        self._delivered: Delivered | None = None
        self._messages: Iterator[Message] | None = None

    async def open(self) -> Reader:
        """Fill `positions`, and begin to fetch; `async with` and the first iteration do it too.

        Raises `UnknownTopic`, also for a partition that the topic does not have.
        """
        if self._source is None:
            await self._start()
        return self

    async def close(self) -> None:
        """Stop fetching. Iterating again would continue at `positions`."""
        source, self._source = self._source, None
        self._ready = self._delivered = self._messages = None
        self._rest.clear()
        if source is not None:
            await source.close()

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
            if self._ready is not None:
                ready, self._ready = self._ready, None
                self.positions.update(ready.positions)
                if ready.slot is not None:
                    ready.slot.release()
            source = self._source or await self._start()
            try:
                self._ready = await source.take()
            except BaseException:
                await self.close()
                raise
            if self._ready is None:
                return None
            # Moved, not copied: what is handed out is in nobody's hands but the user's, since an
            # opened batch may be a thousand times as large as what came.
            self._rest.extend(self._ready.delivered)
            self._ready.delivered.clear()
        return await self._whole(delivered)

    def _wanted(self) -> Delivered | None:
        """Return the next batch at hand with messages that are wanted, or nothing."""
        while self._rest:
            delivered = self._span.pick.wanted(self._rest.popleft())
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

    async def _start(self) -> _BatchSource:
        options, span = self._options, self._span
        places = await Places.find(self._network, self.topic)
        self.order = options.order or check_order(places.order)
        barriers = Barriers(self._network, places) if self.order == "total" else None
        mine = await span.ask(self._network, places, options.partitions, barriers)
        replicas = None
        if options.read_from == "any":
            replicas = Replicas(self._network, places)
            await replicas.find(mine)
        max_bytes = options.max_bytes
        if barriers is not None:
            max_bytes = min(max_bytes, room_for(len(mine)))
        fetcher = Fetcher(self._network, places, span, max_bytes, replicas)
        grows = options.partitions is None and span.ends is None
        if barriers is not None:
            begins = {partition: span.positions[partition] for partition in mine}
            self._source = TotalOrder(fetcher, barriers, begins, span, grows)
            return self._source
        buffer = self._source = FetchBuffer(
            partial(self._pull, fetcher, partition) for partition in mine
        )
        if grows:
            buffer.add(partial(self._watch, fetcher, len(mine)))
        return buffer

    async def _watch(self, fetcher: Fetcher, known: int, buffer: FetchBuffer[ReadyBatches]) -> None:
        """Read partitions that are added later, too: all that is in them is new."""

        def grown(partitions: range) -> None:
            for partition in partitions:
                self._span.join(partition)
                buffer.add(partial(self._pull, fetcher, partition))

        await watch(fetcher.places, known, grown)

    async def _pull(
        self, fetcher: Fetcher, partition: int, buffer: FetchBuffer[ReadyBatches]
    ) -> None:
        ends = self._span.ends
        position, end = self.positions[partition], None if ends is None else ends[partition]
        slots = asyncio.Semaphore(PREFETCH)
        while end is None or position < end:
            await slots.acquire()
            portion = await fetcher.fetch(partition, position, end)
            if portion.next_offset == position and not portion.over:
                slots.release()
                await asyncio.sleep(EMPTY_PAUSE)
                continue
            position = portion.next_offset
            buffer.put(ReadyBatches(portion.delivered, {partition: position}, slots))
            if portion.over:
                return
