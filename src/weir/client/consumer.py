"""A consumer of a cluster: grants of messages, handled and acked (DESIGN §5 Consume)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

from weir.client.acking import Acking, Stale
from weir.client.chunked import loaded
from weir.client.delivered import Delivered
from weir.client.duration import seconds
from weir.client.feed import Feed
from weir.client.link import Link
from weir.client.pace import Pace
from weir.client.places import Places
from weir.client.pulling import Grant, Pulled, Pulling, with_values
from weir.errors import BadRequest, ValueLost, WeirError
from weir.model.limits import FETCH_BYTES_MAX, GRANT_MS_MAX, VALUE_BYTES_LOADED_MAX
from weir.model.message import Message
from weir.model.topic import check_name

__all__ = ["Consumer", "ConsumerOptions", "Grant"]

log = logging.getLogger(__name__)

#: Seconds for the acks that wait when pulling has failed; without them messages come again.
_LAST_ACKS = 2.0


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
        self._pace = Pace(options.max_messages, seconds(options.lease))
        self._pulling: Pulling | None = None
        self._feed: Feed[Pulled] | None = None
        #: The grant whose messages are being handed out, and since when; or one to hand out whole.
        self._taken: Pulled | None = None
        self._began = 0.0
        self._ready: Pulled | None = None
        self._messages: Iterator[Message] = iter(())
        self._unopened: deque[Delivered] = deque()
        # Of the grant, all below these offsets was handed out; is done; is noted as done; is there.
        self._handed = self._done = self._noted = self._end = 0
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
    def attempts(self) -> int:
        """The how-manieth time the last message was handed to a consumer: 1, unless work failed."""
        return 0 if self._taken is None else self._taken.grant.attempts

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
                places = await Places.find(self._link, self.topic)
            except BaseException:
                await self._disconnect()
                raise
            self.closed = False
            self._acking.begin(places)
            options = self._options
            self._pulling = Pulling(
                self._home, places, options.cluster, options.max_bytes, seconds(options.lease)
            )
        return self

    async def close(self) -> None:
        """Stop pulling, and ack what is done; what is not goes to others at once."""
        self.closed = True
        feed, self._feed = self._feed, None
        if self._timer is not None:
            self._timer.cancel()
        self._due = False
        self._ready = None
        if feed is not None:
            await feed.close()
        if self._flushes:
            await asyncio.wait(self._flushes)
        self._note()
        self._taken, self._messages = None, iter(())
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
        if message is not None and self._taken is not None:
            if self._taken.over:
                self._drop()
                return None
            self._handed = message.offset + 1
        return message

    async def more(self) -> None:
        """Wait for a grant, so that `at_hand` has a message. Messages handed out before are done.

        Whatever of the last grant holds no messages is done with it. What is left of one whose
        lease has ended is not handed out: it is another consumer's.
        """
        if not self._unopened:
            await self._next_grant()
            return
        assert self._taken is not None  # they are of this grant
        if self._taken.over:
            self._drop()
            return
        try:
            delivered = await loaded(self._unopened[0], self._options.value_bytes_max)
        except ValueLost as error:
            self._skip(self._unopened.popleft(), error)
        else:
            self._unopened.popleft()
            self._messages = delivered.messages()

    async def batches(self) -> AsyncIterator[Grant]:
        """Yield grants of up to `max_messages`; `ack` each when its messages are done.

        Large values are loaded up to `value_bytes_max` a grant, together; others are streamed.
        """
        while True:
            if self._ready is None or self._ready.over:
                await self.open()
                assert self._pulling is not None  # `open` has made it
                self._pulling.size = self._options.max_messages
                self._ready = await self._take()
                self._ready.slot.release()
            grant = await with_values(self._ready.grant, self._options.value_bytes_max)
            self._ready = None
            yield grant

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
        taken, done = self._taken, self._done
        if taken is not None and done > self._noted:
            self._acking.done(taken.grant.partition, taken.grant.fence, self._noted, done)
            self._noted = done

    async def _next_grant(self) -> None:
        self._finish()
        await self.open()
        assert self._pulling is not None  # `open` has made it
        self._pulling.size = self._pace.size
        taken = await self._take()
        if self._pace.ahead:
            taken.slot.release()
        self._began = time.monotonic()
        self._handed = self._done = self._noted = taken.grant.offset
        self._unopened.extend(taken.grant.batches)
        self._end = _end_of(taken.grant)
        # An opened batch may be a thousand times as large as what came: only the user keeps it.
        self._taken = replace(taken, grant=replace(taken.grant, batches=()))

    def _finish(self) -> None:
        """Note that the last grant is done, and how long it took."""
        taken = self._taken
        if taken is None:
            return
        if self._handed >= self._end:
            self._done = self._handed = taken.grant.next_offset
        self._note()
        assert self._pulling is not None  # it was pulled
        taken_for = time.monotonic() - self._began
        self._pace.took(self._handed - taken.grant.offset, taken_for, self._pulling.partitions)
        if taken.slot.locked():
            taken.slot.release()
        self._taken = None

    def _drop(self) -> None:
        """Hand out nothing more of a grant whose lease has ended: others do it."""
        self._messages = iter(())
        self._unopened.clear()

    def _skip(self, delivered: Delivered, error: ValueLost) -> None:
        """Pass over a message whose value is gone, without saying that it is done."""
        self._note()
        self._handed = self._done = self._noted = delivered.next_offset
        log.warning(
            "%s/%d: message %d is skipped, its value is gone: %s",
            self.topic, delivered.partition, delivered.offset, error,
        )  # fmt: skip

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

    async def _take(self) -> Pulled:
        """Return the next grant whose lease runs. One who gives up waiting loses none."""
        feed = self._feed or await self._start()
        while True:
            try:
                pulled = await feed.take()
            except Exception:
                await self._reset()
                raise
            assert pulled is not None  # pullers do not end by themselves
            if not pulled.over:
                return pulled
            pulled.slot.release()

    async def _reset(self) -> None:
        """End the feed and the connection: what the broker grants to its pulls goes to others."""
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.close()
        with contextlib.suppress(WeirError, TimeoutError):
            async with asyncio.timeout(_LAST_ACKS):
                for partition in self._acking.waiting():
                    await self._acking.flush(partition)
        await self._disconnect()

    async def _start(self) -> Feed[Pulled]:
        self._loop = asyncio.get_running_loop()
        await self.open()
        assert self._pulling is not None  # `open` has made it
        self._feed = self._pulling.feed()
        return self._feed


def _end_of(grant: Grant) -> int:
    return grant.batches[-1].next_offset if grant.batches else grant.offset
