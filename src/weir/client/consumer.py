"""A consumer of a cluster: grants of messages, handled and acked (DESIGN §5 Consume)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import TracebackType

from weir.client.acks import Acks
from weir.client.delivered import Delivered, deliver
from weir.client.duration import seconds
from weir.client.feed import Feed
from weir.client.link import Link
from weir.client.places import Places
from weir.client.reader import EMPTY_PAUSE, LONG_POLL
from weir.errors import BadRequest, StaleGrant, WeirError
from weir.model.ids import Address
from weir.model.limits import FETCH_BYTES_MAX, GRANT_MS_MAX
from weir.model.message import Message
from weir.wire import messages as m


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer pulls and acks: see `Client.consumer`."""

    cluster: str
    max_messages: int
    max_bytes: int
    lease: str | float
    ack_within: str | float

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        if not 1 <= self.max_bytes <= FETCH_BYTES_MAX or self.max_messages < 1:
            raise BadRequest(f"give 1 to {FETCH_BYTES_MAX:,} max_bytes, at least 1 max_messages")
        if not 1 <= seconds(self.lease) * 1_000 <= GRANT_MS_MAX:
            raise BadRequest(f"lease={self.lease!r}: give 1 ms to {GRANT_MS_MAX // 1_000:,} s")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease of messages [offset, next_offset) until `deadline`, a stamp."""

    topic: str
    partition: int
    fence: int
    deadline: int
    offset: int
    next_offset: int
    attempts: int
    batches: tuple[Delivered, ...]

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        return chain.from_iterable(delivered.messages() for delivered in self.batches)


@dataclass(frozen=True, slots=True)
class _Pulled:
    grant: Grant
    slot: asyncio.Semaphore


class Consumer:
    """Iterate it for messages: asking for the next one says that the last is done.

    Or iterate `batches()` for whole grants, and `ack` each. `stale` counts acks that came after
    the grant had expired: another consumer does, or did, those messages again.
    """

    def __init__(self, link: Link, topic: str, options: ConsumerOptions) -> None:
        """Take the link; the first iteration talks to the broker."""
        options.check()
        self.topic = topic
        self.stale = 0
        self._link = link
        self._options = options
        self._ack_within = seconds(options.ack_within)
        self._places: Places | None = None
        self._feed: Feed[_Pulled] | None = None
        self._grant: Grant | None = None
        self._messages: Iterator[Message] = iter(())
        self._done = 0  # all of the grant below this offset is noted as done
        self._handed = 0  # all of it below this offset was handed out
        self._acks: dict[int, Acks] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._flushes: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop pulling, and ack what is done; what is not goes to others when its lease ends."""
        feed, self._feed = self._feed, None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if feed is not None:
            await feed.close()
        if self._flushes:
            await asyncio.wait(self._flushes)
        for partition in self._acks:
            await self._flush(partition)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        while True:
            self._finish()
            message = next(self._messages, None)
            if message is not None:
                self._handed = message.offset + 1
                return message
            grant = await self._take()
            self._grant, self._messages = grant, grant.messages()
            self._done = self._handed = grant.offset

    async def batches(self) -> AsyncIterator[Grant]:
        """Yield grants; `ack` each when its messages are done."""
        while True:
            yield await self._take()

    async def ack(self, grant: Grant) -> None:
        """Say that all of a grant is done; return when a majority knows."""
        self._acks[grant.partition].done(grant.fence, grant.offset, grant.next_offset)
        await self._flush(grant.partition)

    def _finish(self) -> None:
        """Note what was handed out as done, and the tail of a grant that holds no messages."""
        grant = self._grant
        if grant is None:
            return
        behind = self._handed
        last = grant.batches[-1].next_offset if grant.batches else grant.offset
        if behind >= last:
            behind, self._grant = grant.next_offset, None
        if behind > self._done:
            acks = self._acks[grant.partition]
            acks.done(grant.fence, self._done, behind)
            self._done = behind
            if grant.partition not in self._timers:
                self._timers[grant.partition] = asyncio.get_running_loop().call_later(
                    self._ack_within, self._flush_soon, grant.partition
                )

    def _flush_soon(self, partition: int) -> None:
        self._timers.pop(partition, None)
        task = asyncio.get_running_loop().create_task(self._flush_or_tell(partition))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush_or_tell(self, partition: int) -> None:
        try:
            await self._flush(partition)
        except WeirError as error:
            if self._feed is not None:
                self._feed.fail(error)

    async def _flush(self, partition: int) -> None:
        """Ack all that waits; one request of a partition at a time, so that acks gather."""
        acks = self._acks[partition]
        async with self._locks[partition]:
            while ranges := acks.take():
                try:
                    await self._ack(partition, ranges)
                except StaleGrant:
                    if len(ranges) == 1:
                        self.stale += 1
                    else:
                        await self._ack_each(partition, ranges)
                except BaseException:
                    acks.put_back(ranges)
                    raise

    async def _ack_each(self, partition: int, ranges: list[tuple[int, int, int]]) -> None:
        """Ack one by one: some are stale, and the others must not suffer for it."""
        for at, one in enumerate(ranges):
            try:
                await self._ack(partition, [one])
            except StaleGrant:
                self.stale += 1
            except BaseException:
                self._acks[partition].put_back(ranges[at:])
                raise

    async def _ack(self, partition: int, ranges: list[tuple[int, int, int]]) -> None:
        def request(address: Address) -> m.Request:
            return m.Ack(address, self._options.cluster, ranges)

        assert self._places is not None
        await self._places.ask(partition, request, m.Acked, wait=0.0, check=_accept)

    async def _take(self) -> Grant:
        feed = self._feed or await self._start()
        try:
            pulled = await feed.take()
        except BaseException:
            self._feed = None
            await feed.close()
            raise
        assert pulled is not None  # pullers do not end by themselves
        pulled.slot.release()
        return pulled.grant

    async def _start(self) -> Feed[_Pulled]:
        places = self._places = await Places.find(self._link, self.topic)
        for partition in range(len(places)):
            self._acks.setdefault(partition, Acks())
            self._locks.setdefault(partition, asyncio.Lock())
        self._feed = Feed(partial(self._pull, places, p) for p in range(len(places)))
        return self._feed

    async def _pull(self, places: Places, partition: int, feed: Feed[_Pulled]) -> None:
        # One grant ahead of the user, no more: its lease runs while it waits.
        slot = asyncio.Semaphore(1)
        while True:
            await slot.acquire()
            grant = await self._pull_once(places, partition)
            if grant is None:
                slot.release()
                await asyncio.sleep(EMPTY_PAUSE)
            else:
                feed.put(_Pulled(grant, slot))

    async def _pull_once(self, places: Places, partition: int) -> Grant | None:
        options = self._options
        delivered: list[Delivered] = []

        def request(address: Address) -> m.Request:
            return m.Pull(
                address,
                options.cluster,
                options.max_messages,
                options.max_bytes,
                int(LONG_POLL * 1_000),
                int(seconds(options.lease) * 1_000),
            )

        def check(granted: m.Granted) -> None:
            delivered[:] = deliver(
                granted.batches,
                places[partition].group,
                self.topic,
                partition,
                granted.offset,
                granted.next_offset,
            )

        granted = await places.ask(partition, request, m.Granted, wait=LONG_POLL, check=check)
        if granted.fence == 0:
            return None
        for part in delivered:
            self._link.saw(part.batch.header.stamp)
        return Grant(
            self.topic,
            partition,
            granted.fence,
            granted.deadline,
            granted.offset,
            granted.next_offset,
            granted.attempts,
            tuple(delivered),
        )


def _accept(_: m.Acked) -> None:
    """Nothing in an `Acked` can be wrong."""
