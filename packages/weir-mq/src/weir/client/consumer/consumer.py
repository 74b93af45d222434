"""A consumer of a cluster, and what it hands out: messages and batches under a lease (DESIGN §5
Consume). Each is work, which is done once that is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, overload

from weir.client.arguments import Delay
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.delivery import AckResult, Delivery, Settled
from weir.client.consumer.messages import Deliveries, InHand
from weir.client.consumer.settlement import BatchLease, Leased, Publisher, Settlement
from weir.client.consumer.subscription import ConsumerOptions, Subscription
from weir.client.core.grants import Grant, text_of
from weir.errors import BadRequest, WeirError
from weir.model.message import LargeMessage, Message
from weir.model.topic import full_name_of, split_name

__all__ = [
    "Consumer",
    "ConsumerOptions",
    "LeasedBatch",
    "LeasedLargeMessage",
    "LeasedMessage",
    "leased_batch",
    "leased_message",
]


#: Each look at the enumeration is felt where messages go one by one.
_OPEN = Settled.OPEN
_new_tuple = tuple.__new__


class LeasedMessage(Message):
    """A message of a consumer, which is done once that is said: by `ack`, or by a block.

    `async with message:` acks it at its end. If the block raises, the message goes back: it comes
    again after a while, as an attempt more. `Reject` takes it to the dead-letter topic, and ends
    there. A task that is cancelled gives it back without an attempt. The first outcome counts.
    """

    __slots__ = ()

    _delivery: Delivery
    _settlement: Settlement

    def __new__(cls, delivery: Delivery, settlement: Settlement) -> Self:
        """Take what is handed out, and who settles it."""
        # Of a plain tuple another is made at once, of any other one column by column.
        leased = _new_tuple(cls, delivery.message[:])
        leased._delivery = delivery
        leased._settlement = settlement
        return leased

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Message:  # type: ignore[override]
        """Return a message without a lease: what `_replace` makes is nobody's to settle."""
        return Message._make(iterable)

    @property
    def attempts(self) -> int:
        """The how-manieth time it was handed to a consumer: 1, unless work failed."""
        return self._delivery.attempts

    @overload
    async def ack(self, *, confirmed: Literal[False] = False) -> None: ...

    @overload
    async def ack(self, *, confirmed: Literal[True]) -> AckResult: ...

    @overload
    async def ack(self, *, confirmed: bool) -> AckResult | None: ...

    async def ack(self, *, confirmed: bool = False) -> AckResult | None:
        """Say that it is done: the client tells it within `ack_within`, together with others.

        With `confirmed`, return when a majority knows, and what the ack did: false if the lease had
        ended, and the message is another consumer's.
        """
        delivery = self._delivery
        if confirmed:
            return await self._settlement.ack(delivery)
        delivery.done()
        return None

    async def nack(self, delay: Delay | None = None, *, confirmed: bool = False) -> bool:
        """Say that it failed: it is granted again, no sooner than in `delay` ("10s", or seconds);
        None: as the consumer's `retry` says.

        With it goes what its consumer holds behind it, in a keyed cluster of its key, in an ordered
        one of its partition; none of that counts as an attempt. With `confirmed`, return when a
        majority knows; False if it was too late.
        """
        if confirmed:
            return await self._settlement.nack(self._delivery, delay)
        self._settlement.give_back(self._delivery, delay, untried=False)
        return True

    async def reject(self, reason: str = "rejected") -> None:
        """Say that it will never work: it goes to the consumer's `dead_letter` topic, with the
        reason, and is done once it is there.

        Raises `BadRequest` where no such topic is given; the message goes back then.
        """
        await self._settlement.reject(self._delivery, reason)

    async def extend(self, lease: str | float | None = None) -> bool:
        """Let its lease run for `lease` from now on, None: as long as it did at first; False if it
        had ended.
        """
        return await self._settlement.extend(self._delivery, lease)

    def lease_of(self) -> tuple[Settlement, Leased]:
        """Return its lease, and who settles it: for a scattering."""
        return self._settlement, self._delivery

    async def __aenter__(self) -> LeasedMessage:
        self._settlement.enter(self._delivery, asyncio.current_task())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        return await self._settlement.leave(self._delivery, error)

    def __del__(self) -> None:
        if self._delivery.state is _OPEN:
            self._settlement.dropped(self._delivery)


class LeasedSmallMessage(LeasedMessage):
    """A `LeasedMessage` whose value is here."""


class LeasedLargeMessage(LeasedMessage, LargeMessage):  # type: ignore[misc]  # one tuple
    """A `LeasedMessage` whose value is not here: `async for piece in message.chunks()` streams it,
    and `value` raises `TooLarge`.
    """

    def __new__(cls, delivery: Delivery, settlement: Settlement) -> Self:
        """Take what is handed out, and who settles it."""
        message = delivery.message
        assert isinstance(message, LargeMessage)  # any other is small
        leased = LargeMessage.__new__(cls, message, message.size, message.pieces)
        leased._delivery = delivery
        leased._settlement = settlement
        return leased


class LeasedBatch(Grant, frozen=True, kw_only=True, eq=False):
    """Messages of a consumer that were granted together, and are settled together.

    `async with batch:` acks it at its end; if the block raises, all of it goes back, as with
    `LeasedMessage`. `messages()` splits it; its batches are columns.
    """

    lease: BatchLease
    settlement: Settlement

    def __repr__(self) -> str:
        """Show what was granted."""
        return text_of(self)

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.lease.count

    @overload
    async def ack(
        self, messages: Iterable[Message] | None = None, *, confirmed: Literal[False] = False
    ) -> None: ...

    @overload
    async def ack(
        self, messages: Iterable[Message] | None = None, *, confirmed: Literal[True]
    ) -> AckResult: ...

    async def ack(
        self, messages: Iterable[Message] | None = None, *, confirmed: bool = False
    ) -> AckResult | None:
        """Say that all of it is done, or some of its messages: the client tells it within
        `ack_within`.

        With `confirmed`, return when a majority knows, and what the ack did: true if this grant did
        all of it. Otherwise the lease had ended, and `of` tells for each offset whether another
        consumer did the message or it is done again.
        """
        if confirmed:
            return await self.settlement.ack(self.lease, messages)
        if messages is None:
            self.settlement.done(self.lease)
        else:
            self.settlement.some_done(self.lease, messages)
        return None

    async def nack(
        self,
        delay: Delay | None = None,
        messages: Iterable[Message] | None = None,
        *,
        confirmed: bool = False,
    ) -> bool:
        """Say that all of it failed, or some of its messages: see `LeasedMessage.nack`."""
        if confirmed or messages is not None:
            some = None if messages is None else [*messages]
            return await self.settlement.nack(self.lease, delay, some)
        self.settlement.give_back(self.lease, delay, untried=False)
        return True

    async def reject(self, reason: str = "rejected") -> None:
        """Say that none of it will ever work: see `LeasedMessage.reject`."""
        await self.settlement.reject(self.lease, reason)

    async def extend(self, lease: str | float | None = None) -> bool:
        """Let its lease run for `lease` from now on: see `LeasedMessage.extend`."""
        return await self.settlement.extend(self.lease, lease)

    def lease_of(self) -> tuple[Settlement, Leased]:
        """Return its lease, and who settles it: for a scattering."""
        return self.settlement, self.lease

    async def __aenter__(self) -> LeasedBatch:
        self.settlement.enter(self.lease, asyncio.current_task())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        return await self.settlement.leave(self.lease, error)

    def __del__(self) -> None:
        if self.lease.state is Settled.OPEN:
            self.settlement.dropped(self.lease)


def leased_message(delivery: Delivery, settlement: Settlement) -> LeasedMessage:
    """Return what a consumer hands out of a delivery."""
    message = delivery.message
    if type(message) is Message:  # most are: a call less than by its class
        leased = _new_tuple(LeasedSmallMessage, message[:])
        leased._delivery = delivery
        leased._settlement = settlement
        return leased
    return LeasedLargeMessage(delivery, settlement)


def leased_batch(lease: BatchLease, settlement: Settlement) -> LeasedBatch:
    """Return what a consumer hands out of a grant."""
    values = {name: getattr(lease.grant, name) for name in Grant.__struct_fields__}
    return LeasedBatch(**values, lease=lease, settlement=settlement)


class Consumer:
    """Iterate it for messages, or `batches()` for whole grants, and settle each.

    A message is done once its `ack()`, or the end of `async with message:`, says so; asking for the
    next one says nothing. `stale` counts acks that came after the grant had expired: another
    consumer does, or did, those messages again.
    Leave it with `async with` or `close`: it returns when all acks are confirmed, and all else goes
    to others at once. For that it has a connection of its own: to the broker, that is the consumer.

    Of several topics, messages come as they are granted: the partitions of all of them take turns.
    What an ordered cluster keeps in order is each topic for itself.
    """

    def __init__(
        self,
        home: NetworkClient,
        subscription: Subscription,
        options: ConsumerOptions,
        publisher: Publisher,
    ) -> None:
        """Take the client's connections; `open` dials others to the same system. `publisher` sends
        dead letters.
        """
        options.check()
        if options.dead_letter is not None and subscription.takes(options.dead_letter):
            raise BadRequest(
                f"dead_letter={options.dead_letter!r}: the consumer takes that topic itself: name "
                "another"
            )
        #: The topics as they were given, to be shown.
        self.topic = subscription.text
        self._only = subscription.only
        self.closed = False
        self._in_hand = InHand(options.max_in_hand)
        #: For the client without async, and for scatterings.
        self.settlement = Settlement(home, subscription, options, publisher, self._in_hand)

    @property
    def stale(self) -> int:
        """How many acks came too late."""
        return self.settlement.leases.stale

    @property
    def topics(self) -> list[str]:
        """The topics that it consumes now, by full name; none before it is open."""
        return sorted(self.settlement.leases.topics)

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which the cluster has done all, as of the last ack.

        Raises `BadRequest` where there may be several topics: see `cursors_of`.
        """
        if self._only is None:
            raise BadRequest(f"{self.topic} may be several topics: ask cursors_of(topic)")
        return self.cursors_of(self._only)

    def cursors_of(self, topic: str) -> dict[int, int]:
        """Return the same for one of its topics; nothing for others."""
        leases = self.settlement.leases.topics.get(full_name_of(*split_name(topic)))
        return {} if leases is None else leases.outcomes.cursors

    @property
    def unfinished(self) -> bool:
        """Whether it is connected: others wait for what it holds, or it has acks to send."""
        return self.settlement.leases.connected

    async def open(self) -> Consumer:
        """Connect and ask for the partitions; `async with` and the first iteration do it too.

        Raises `UnknownTopic`, `Disconnected`. Nothing is pulled, so no lease runs, before messages
        are asked for.
        """
        await self.settlement.open()
        self.closed = False
        return self

    async def close(self) -> None:
        """Stop pulling; return when all acks are confirmed. What is not done goes to others."""
        self.closed = True
        try:
            await self.settlement.close()
        finally:
            self._in_hand.clear()

    async def __aenter__(self) -> Consumer:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, WeirError):
            # The block is told why it ends, as that its user was revoked, and not that acks could
            # not be told behind that: those messages come again.
            with suppress(WeirError):
                await self.close()
        else:
            await self.close()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> LeasedMessage:
        """Return the next message. A cancelled caller loses none.

        Raises `TooManyInHand` if `max_in_hand` messages have no outcome, and all of them are the
        asking task's.
        """
        settlement, in_hand = self.settlement, self._in_hand
        # Without the loop, Python asks the system each time whether it is in a child process.
        task = asyncio.current_task(settlement.loop)
        while True:
            if in_hand.is_full:
                await self._in_hand.room(task)
            delivery = settlement.at_hand(task)
            if delivery is None:
                if settlement.deliveries.waits_for_outcome:
                    await asyncio.sleep(0)
                    await self._in_hand.outcome(task)
                await settlement.more()
            elif delivery.holding.grant.attempts == 1 or await settlement.begin(delivery):
                return leased_message(delivery, settlement)

    async def batches(self) -> AsyncIterator[LeasedBatch]:
        """Yield grants of up to `max_messages`, to settle each as a whole: the fast way.

        Large values are loaded up to `value_bytes_max` a grant, together; others are streamed.
        """
        async for lease in self.settlement.batches():
            yield leased_batch(lease, self.settlement)

    async def flush(self) -> None:
        """Tell the broker of every outcome; return when a majority knows."""
        await self.settlement.flush()

    def deliveries(self) -> Deliveries:
        """Return the messages as `App` takes them: each is settled by its `Delivery`."""
        return self.settlement.deliveries
