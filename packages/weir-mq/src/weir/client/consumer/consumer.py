"""A consumer of a cluster: grants of messages, handled and acked (DESIGN §5 Consume)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from types import TracebackType

from weir.client.arguments.values import Delay, delay_ms
from weir.client.connection.link import Link
from weir.client.consumer.acknowledgements import AckResult, expired_result
from weir.client.consumer.delivery import ConsumerOptions, Holding, lease_seconds
from weir.client.consumer.leases import ConsumerLeases
from weir.client.consumer.messages import Deliveries
from weir.client.consumer.pulls import with_values
from weir.client.core.delivered_batches import Delivered
from weir.client.core.durations import seconds
from weir.client.core.grants import Grant, Prefetch, Run, joined, within
from weir.client.reader.fetcher import loaded
from weir.errors import BadRequest, ValueLost
from weir.model.clusters import Mode
from weir.model.message import Message

__all__ = ["Consumer", "ConsumerOptions", "Grant"]

log = logging.getLogger(__name__)


class Consumer:
    """Iterate it for messages: asking for the next one says that the last is done.

    Or iterate `batches()` for whole grants, and `ack` each, or their messages. `stale` counts acks
    that came after the grant had expired: another consumer does, or did, those messages again.
    Leave it with `async with` or `close`: what is done and not acked yet is acked then, and all
    else goes to others at once. For that it has a connection of its own: to the broker, that is
    the consumer.
    """

    def __init__(self, home: Link, topic: str, options: ConsumerOptions) -> None:
        """Take the client's link; `open` dials another to the same system."""
        options.check()
        self.topic = topic
        self.closed = False
        self._options = options
        self._mode = options.number
        self._pace = Prefetch(options.max_messages, seconds(options.lease))
        self._monotonic = home.system.monotonic
        self._holdings = ConsumerLeases(home, topic, options, self._note)
        #: The grant whose messages are being handed out, and since when; or one to hand out whole.
        self._taken: Holding | None = None
        self._began = 0.0
        self._ready: Holding | None = None
        self._messages: Iterator[Message] = iter(())
        self._unopened: deque[Delivered] = deque()
        # Of the grant, all below these offsets was handed out; is done; is noted as done; is there.
        self._handed = self._done = self._noted = self._end = 0
        #: The message of the grant that was reported last, as it was tried before; -1 if none was.
        self._reported = -1

    @property
    def stale(self) -> int:
        """How many acks came too late."""
        return self._holdings.acking.stale

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which the cluster has done all, as of the last ack."""
        return dict(self._holdings.acking.cursors)

    @property
    def attempts(self) -> int:
        """The how-manieth time the last message was handed to a consumer: 1, unless work failed."""
        return 0 if self._taken is None else self._taken.grant.attempts

    @property
    def unfinished(self) -> bool:
        """Whether it is connected: others wait for what it holds, or it has acks to send."""
        return self._holdings.connected

    async def open(self) -> Consumer:
        """Connect and ask for the partitions; `async with` and the first iteration do it too.

        Raises `UnknownTopic`, `Disconnected`. Nothing is pulled, so no lease runs, before messages
        are asked for.
        """
        await self._holdings.open()
        self.closed = False
        return self

    async def close(self) -> None:
        """Stop pulling, and ack what is done; what is not goes to others at once."""
        self.closed = True
        self._ready = None
        if self._taken is not None:
            self._taken.handed = self._handed
        try:
            await self._holdings.close()
        finally:
            self._taken = None
            self._drop()

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
        if self._taken is not None:
            self._taken.current = -1
        if self._done > self._noted:
            self._holdings.soon()

    def at_hand(self) -> Message | None:
        """Say that the last message is done; return the next if it is here, else await `more`."""
        self.done()
        taken = self._taken
        if taken is None:
            return None
        for message in self._messages:
            if taken.over:
                self._drop()
                return None
            if message.offset in taken.skipped:
                self._handed = message.offset + 1
                continue
            if taken.grant.attempts > 1 and message.offset != self._reported:
                self._messages = chain((message,), self._messages)
                return None  # `more` reports it, and then it is here
            self._handed = message.offset + 1
            taken.current = message.offset
            return message
        return None

    async def more(self) -> None:
        """Wait for a grant, so that `at_hand` has a message. Messages handed out before are done.

        Whatever of the last grant holds no messages is done with it. What is left of one whose
        lease has ended is not handed out: it is another consumer's.
        """
        if await self._report():
            return
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

    async def _report(self) -> bool:
        """Report the next message, if it was tried before and is here; return whether it is."""
        taken, message = self._taken, next(self._messages, None)
        if message is None:
            return False
        self._messages = chain((message,), self._messages)
        assert taken is not None  # it is of this grant
        if not taken.over:
            taken.current = message.offset
            try:
                await self._holdings.report(taken)
            except BaseException:
                taken.current = -1
                raise
            self._reported = message.offset
        return True

    async def batches(self) -> AsyncIterator[Grant]:
        """Yield grants of up to `max_messages`; `ack` each when its messages are done.

        Large values are loaded up to `value_bytes_max` a grant, together; others are streamed.
        """
        while True:
            if self._ready is None or self._ready.over or not self._ready.left:
                self._ready = await self._holdings.take(self._options.max_messages, self._ready)
                if self._mode is not Mode.ORDERED:
                    self._ready.let_next_come()
            holding = self._ready
            grant = await with_values(holding.grant, self._options.value_bytes_max)
            if grant.attempts > 1:
                holding.all_begun = True
                try:
                    await self._holdings.report(holding)
                finally:
                    holding.all_begun = False
                if holding.over:
                    continue
            if not holding.left:
                continue  # it went back meanwhile
            if self._mode is not Mode.KEYED:
                holding.forget_batches()
            holding.handed = grant.next_offset
            self._ready = None
            holding.all_begun = True
            try:
                yield grant
            finally:
                holding.all_begun = False
            # In order, the next one is not pulled before it is known what became of this.
            holding.let_next_come()

    def deliveries(self) -> Deliveries:
        """Return the messages one by one, each to be settled by itself, in any order."""
        return Deliveries(self._holdings, self._pace, self._options, self._monotonic)

    # Settling.

    async def ack(self, what: Grant | Message) -> AckResult:
        """Say that a grant of `batches()`, or one of its messages, is done; return when a majority
        knows.

        The result is true if this grant did all of it. Otherwise the lease had ended, and `of`
        tells for each offset whether another consumer did the message or it is done again.
        """
        acking = self._holdings.acking
        if isinstance(what, Grant):
            holding = self._holdings.held.of(what.partition, what.fence)
            runs: Sequence[Run] = what.leased
            if holding is not None:
                runs = self._holdings.take_out(holding, runs)
            return await acking.ack(what.partition, what.fence, runs) if runs else AckResult()
        holding = self._holder(what)
        if holding is None:
            return expired_result([_run_of(what)])
        runs = self._holdings.take_out(holding, [_run_of(what)])
        return await acking.ack(holding.partition, holding.fence, runs)

    async def nack(self, what: Grant | Message, delay: Delay = 0.0) -> bool:
        """Give a message, or a grant of `batches()`, back: it failed, and is granted again, no
        sooner than in `delay` ("10s", or seconds). Return when a majority knows.

        With a message goes what this consumer holds behind it, in a keyed cluster of its key, in
        an ordered one of its partition; none of that counts as an attempt. False as of `ack`.
        Raises `BadRequest` for a message that was said to be done.
        """
        wait = delay_ms(delay)
        if isinstance(what, Grant):
            holding = self._holdings.held.of(what.partition, what.fence)
            if holding is None:
                return False
            return await self._holdings.nack(holding, [*holding.left], [], wait)
        holding = self._holder(what)
        if holding is None:
            return False
        behind = self._behind(holding, what)
        return await self._holdings.nack(holding, [_run_of(what)], behind, wait)

    async def extend(self, what: Grant | Message, lease: str | float | None = None) -> bool:
        """Let the lease of a grant, or of a message's grant, run for `lease` from now on.

        None: as long as it did at first. False as of `ack`.
        """
        length = lease_seconds(self._options.lease if lease is None else lease)
        if isinstance(what, Grant):
            holding = self._holdings.held.of(what.partition, what.fence)
        else:
            holding = self._holder(what)
        return holding is not None and await self._holdings.extend(holding, length)

    async def flush(self) -> None:
        """Tell the broker of all that is done or given back; return when a majority knows."""
        await self._holdings.flush()

    def _holder(self, message: Message) -> Holding | None:
        """Return the grant that holds a message. Raises `BadRequest` if it was said to be done."""
        taken = self._taken
        if taken is not None and taken.partition == message.partition:
            grant = taken.grant
            if grant.offset <= message.offset < grant.next_offset:
                if message.offset < self._done:
                    raise BadRequest(
                        f"message {message.offset} of {self.topic}/{message.partition} was said to "
                        "be done: asking for the next one does so, and done(). Settle it before"
                    )
                return taken if taken.holds(message.offset) else None
        return self._holdings.held.find(message.partition, message.offset)

    def _behind(self, holding: Holding, message: Message) -> list[Run]:
        """Return what of a grant goes back with one of its messages, which failed."""
        if self._mode is Mode.SHARED:
            return []
        later = message.offset + 1
        if self._mode is Mode.ORDERED:
            if holding is self._taken:
                self._drop()
            return [*within(holding.left, later, holding.grant.next_offset)]
        if message.key is None:
            return []
        offsets = [
            other.offset
            for delivered in holding.grant.batches
            for other in delivered.messages()
            if other.key == message.key and other.offset >= later and holding.holds(other.offset)
        ]
        holding.skipped.update(offsets)
        return joined(offsets)

    # One grant after the other.

    def _note(self) -> None:
        """Note what is done of the grant, for the next request that acks."""
        taken, done = self._taken, self._done
        if taken is not None and done > self._noted:
            self._holdings.settle(taken, self._noted, done)
            self._noted = done

    async def _next_grant(self) -> None:
        self._finish()
        taken = await self._holdings.take(self._pace.size)
        if self._pace.ahead and self._mode is not Mode.ORDERED:
            taken.let_next_come()
        self._began = self._monotonic()
        grant = taken.grant
        self._handed = self._done = self._noted = grant.offset
        self._reported = -1
        self._unopened.extend(grant.batches)
        self._end = grant.batches[-1].next_offset
        if self._mode is not Mode.KEYED:
            taken.forget_batches()
        self._taken = taken

    def _finish(self) -> None:
        """Note that the last grant is done, and how long it took."""
        taken = self._taken
        if taken is None:
            return
        if self._handed >= self._end:
            self._done = self._handed = taken.grant.next_offset
        self._note()
        taken_for = self._monotonic() - self._began
        partitions = self._holdings.partitions
        self._pace.took(self._handed - taken.grant.offset, taken_for, partitions)
        taken.handed = self._handed
        self._holdings.drop(taken)
        self._taken = None

    def _drop(self) -> None:
        """Hand out nothing more of a grant: its lease has ended, or it went back."""
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


def _run_of(message: Message) -> Run:
    return message.offset, message.offset + 1
