"""A consumer of a cluster: grants of messages, handled and acked (DESIGN §5 Consume)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import TracebackType

from weir.client.acking import Acking, Stale
from weir.client.chunked import Chunks, loaded
from weir.client.delivered import Delivered, deliver
from weir.client.duration import seconds
from weir.client.feed import Feed
from weir.client.growth import watch
from weir.client.link import Link
from weir.client.places import Places
from weir.client.reader import EMPTY_PAUSE, LONG_POLL
from weir.errors import BadRequest, WeirError
from weir.model.ids import Address
from weir.model.limits import FETCH_BYTES_MAX, GRANT_MS_MAX, VALUE_BYTES_LOADED_MAX
from weir.model.message import Message
from weir.model.topic import check_name
from weir.wire import messages as m


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer pulls and acks: see `Client.consumer`."""

    cluster: str
    max_messages: int
    max_bytes: int
    lease: str | float
    ack_within: str | float
    on_stale: Callable[[Stale], None] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX

    def check(self) -> None:
        """Raise `BadRequest` or `BadName` for options that cannot work."""
        if not isinstance(self.cluster, str):
            raise TypeError(f"cluster={self.cluster!r}: name the cluster that shares the messages")
        check_name(self.cluster, "cluster")
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
    the grant had expired: another consumer does, or did, those messages again. Leave it with
    `async with` or `close`: what is done and not acked yet is acked then, and all else goes to
    others at once. For that it has a connection of its own: to the broker, that is the consumer.
    """

    def __init__(self, home: Link, topic: str, options: ConsumerOptions) -> None:
        """Take the client's link; `open` dials another to the same system."""
        options.check()
        self.topic = topic
        self.closed = False
        self._home = home
        self._link: Link | None = None
        self._options = options
        self._ack_within = seconds(options.ack_within)
        self._places: Places | None = None
        self._feed: Feed[_Pulled] | None = None
        self._grant: Grant | None = None
        self._messages: Iterator[Message] = iter(())
        self._unopened: deque[Delivered] = deque()
        # Of the grant, all below these offsets was handed out; is done; is noted as done.
        self._handed = self._done = self._noted = 0
        self._acking = Acking(topic, options.cluster, options.on_stale)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: set[asyncio.Task[None]] = set()

    @property
    def stale(self) -> int:
        """How many acks came too late."""
        return self._acking.stale

    @property
    def unfinished(self) -> bool:
        """Whether it is connected: others wait for what it holds, or it has acks to send."""
        return self._link is not None

    async def open(self) -> Consumer:
        """Connect and ask for the partitions; `async with` and the first iteration do it too.

        Raises `UnknownTopic`, `Disconnected`. Nothing is pulled, so no lease runs, before messages
        are asked for.
        """
        if self._link is None:
            self._link = self._home.another()
            try:
                await self._link.start()
                self._places = await Places.find(self._link, self.topic)
            except BaseException:
                await self._disconnect()
                raise
            self.closed = False
            self._acking.begin(self._places)
        return self

    async def close(self) -> None:
        """Stop pulling, and ack what is done; what is not goes to others at once."""
        self.closed = True
        feed, self._feed = self._feed, None
        if self._timer is not None:
            self._timer.cancel()
        self._due = False
        if feed is not None:
            await feed.close()
        if self._flushes:
            await asyncio.wait(self._flushes)
        self._note()
        self._grant, self._messages = None, iter(())
        self._unopened.clear()
        try:
            for partition in self._acking.waiting():
                await self._acking.flush(partition)
        finally:
            await self._disconnect()

    async def __aenter__(self) -> Consumer:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        while (message := self.at_hand()) is None:
            await self.more()
        return message

    def done(self) -> None:
        """Say that all messages handed out are done, without asking for the next one.

        One thread at a time may call this and `at_hand`, the loop's or another.
        """
        self._done = self._handed
        if self._done > self._noted and not self._due and self._loop is not None:
            self._due = True
            self._loop.call_soon_threadsafe(self._ack_soon)

    def at_hand(self) -> Message | None:
        """Say that the last message is done; return the next if it is here, else await `more`."""
        self.done()
        message = next(self._messages, None)
        if message is not None:
            self._handed = message.offset + 1
        return message

    async def more(self) -> None:
        """Wait for a grant, so that `at_hand` has a message. Messages handed out before are done.

        Whatever of the last grant holds no messages is done with it.
        """
        if self._unopened:
            delivered = await loaded(self._unopened[0], self._options.value_bytes_max)
            self._unopened.popleft()
            self._messages = delivered.messages()
            return
        if self._grant is not None:
            if self._handed >= _end_of(self._grant):
                self._done = self._handed = self._grant.next_offset
            self._note()
        self._grant = None
        self._grant = grant = await self._take()
        self._handed = self._done = self._noted = grant.offset
        self._unopened.extend(grant.batches)

    async def batches(self) -> AsyncIterator[Grant]:
        """Yield grants; `ack` each when its messages are done."""
        while True:
            yield await self._take()

    async def ack(self, grant: Grant) -> bool:
        """Say that all of a grant is done; return when a majority knows.

        False: the lease had ended, and the messages go, or went, to another consumer.
        """
        return await self._acking.ack(grant.partition, grant.fence, grant.offset, grant.next_offset)

    def _ack_soon(self) -> None:
        assert self._loop is not None  # it calls this
        if self._feed is None:  # it was closed: that acks
            self._due = False
        else:
            self._timer = self._loop.call_later(self._ack_within, self._ack_now)

    def _ack_now(self) -> None:
        self._due = False
        self._note()
        for partition in self._acking.waiting():
            task = asyncio.get_running_loop().create_task(self._flush_or_tell(partition))
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    def _note(self) -> None:
        """Note what is done of the grant, for the next request that acks."""
        grant, done = self._grant, self._done
        if grant is not None and done > self._noted:
            self._acking.done(grant.partition, grant.fence, self._noted, done)
            self._noted = done

    async def _flush_or_tell(self, partition: int) -> None:
        try:
            await self._acking.flush(partition)
        except WeirError as error:
            if self._feed is not None:
                self._feed.fail(error)

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

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
        self._loop = asyncio.get_running_loop()
        await self.open()
        places = self._places
        assert places is not None  # `open` has found them
        self._feed = Feed(partial(self._pull, places, p) for p in range(len(places)))
        self._feed.add(partial(self._watch, places))
        return self._feed

    async def _watch(self, places: Places, feed: Feed[_Pulled]) -> None:
        """Work on partitions that are added later, too."""

        def grown(partitions: range) -> None:
            for partition in partitions:
                feed.add(partial(self._pull, places, partition))

        await watch(places, grown)

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
                Chunks(places),
            )

        granted = await places.ask(partition, request, m.Granted, wait=LONG_POLL, check=check)
        if granted.fence == 0:
            return None
        for part in delivered:
            self._home.saw(part.batch.header.stamp)
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


def _end_of(grant: Grant) -> int:
    return grant.batches[-1].next_offset if grant.batches else grant.offset
