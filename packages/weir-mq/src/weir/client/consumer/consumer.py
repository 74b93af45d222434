"""A consumer of a cluster: messages as work, each done once that is said (DESIGN §5 Consume)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.dead_letters import Publisher
from weir.client.consumer.delivery import ConsumerOptions
from weir.client.consumer.in_hand import InHand
from weir.client.consumer.leased_messages import (
    LeasedBatch,
    LeasedMessage,
    leased_batch,
    leased_message,
)
from weir.client.consumer.messages import Deliveries
from weir.client.consumer.settlement import Settlement
from weir.client.consumer.subscription import Subscription
from weir.errors import BadRequest
from weir.model.topic import full_name_of, split_name

__all__ = ["Consumer", "ConsumerOptions"]


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
        return {} if leases is None else leases.cursors

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
        await self.close()

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> LeasedMessage:
        """Return the next message. One who gives up waiting loses none.

        Raises `TooManyInHand` if `max_in_hand` messages have no outcome, and all of them are the
        asking task's.
        """
        task, settlement = asyncio.current_task(), self.settlement
        while True:
            if not self._in_hand.free:
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
