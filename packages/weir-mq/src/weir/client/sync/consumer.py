"""Consumers without async, and what they hand out: `with message:`, `message.ack()`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, overload

from weir.client.arguments import Delay
from weir.client.connection.system import Background
from weir.client.consumer import consumer as consumers
from weir.client.consumer.delivery import AckResult, Delivery, Settled
from weir.client.consumer.messages import THREAD
from weir.client.consumer.settlement import BatchLease, Leased, Settlement
from weir.client.core.grants import Grant, text_of
from weir.client.sync import (
    BlockingLargeMessage,
    Twin,
    delivered_without_async,
    waits,
)
from weir.model.message import LargeMessage, Message

#: Messages that come from the loop's thread at a time, if so many are there.
_TOGETHER = 256


class LeasedMessage(Message):
    """A message of a consumer, which is done once that is said: by `ack`, or by a block.

    `with message:` acks it at its end. If the block raises, the message goes back: it comes again
    after a while, as an attempt more. `Reject` takes it to the dead-letter topic, and ends there.
    Ctrl-C gives it back without an attempt. The first outcome counts.
    """

    __slots__ = ()

    _delivery: Delivery
    _settlement: Settlement
    _background: Background
    _is_settled: bool

    def __new__(cls, delivery: Delivery, settlement: Settlement, background: Background) -> Self:
        """Take what is handed out, who settles it, and the loop in which that is."""
        leased = tuple.__new__(cls, delivery.message)
        leased._delivery, leased._settlement = delivery, settlement
        leased._background, leased._is_settled = background, False
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
    def ack(self, *, confirmed: Literal[False] = False) -> None: ...

    @overload
    def ack(self, *, confirmed: Literal[True]) -> AckResult: ...

    @overload
    def ack(self, *, confirmed: bool) -> AckResult | None: ...

    def ack(self, *, confirmed: bool = False) -> AckResult | None:
        """Say that it is done: the client tells it within `ack_within`, together with others.

        With `confirmed`, return when a majority knows, and what the ack did: false if the lease had
        ended, and the message is another consumer's.
        """
        if confirmed:
            self._is_settled = True
            return self._background.run(self._settlement.ack(self._delivery))
        if not self._is_settled:
            self._is_settled = True
            self._settlement.post(self._delivery, Settled.DONE)
        return None

    def nack(self, delay: Delay | None = None, *, confirmed: bool = False) -> bool:
        """Say that it failed: it is granted again, no sooner than in `delay` ("10s", or seconds);
        None: as the consumer's `retry` says. More of it at the `nack` of the async client.
        """
        told = self._background.run(self._nack(delay, confirmed))
        self._is_settled = True
        return told

    async def _nack(self, delay: Delay | None, confirmed: bool) -> bool:
        if confirmed:
            return await self._settlement.nack(self._delivery, delay)
        self._settlement.give_back(self._delivery, delay, untried=False)
        return True

    def reject(self, reason: str = "rejected") -> None:
        """Say that it will never work: it goes to the consumer's `dead_letter` topic, with the
        reason, and is done once it is there.

        Raises `BadRequest` where no such topic is given; the message goes back then.
        """
        self._is_settled = True
        self._background.run(self._settlement.reject(self._delivery, reason))

    def extend(self, lease: str | float | None = None) -> bool:
        """Let its lease run for `lease` from now on, None: as long as it did at first; False if it
        had ended.
        """
        return self._background.run(self._settlement.extend(self._delivery, lease))

    def lease_of(self) -> tuple[Settlement, Leased]:
        """Return its lease, and who settles it: for a scattering."""
        return self._settlement, self._delivery

    def __enter__(self) -> LeasedMessage:
        self._delivery.holding.blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if error is None:
            self._delivery.holding.blocks -= 1
            self._settlement.leases.keep(self._delivery.holding)
            self.ack()
            return False
        self._is_settled = True
        return self._background.run(self._settlement.leave(self._delivery, error))

    def __del__(self) -> None:
        if not self._is_settled and self._delivery.state is Settled.OPEN:
            self._settlement.dropped(self._delivery)


class LeasedSmallMessage(LeasedMessage):
    """A `LeasedMessage` whose value is here."""


class LeasedLargeMessage(LeasedMessage, BlockingLargeMessage):  # type: ignore[misc]  # one tuple
    """A `LeasedMessage` whose value is not here: `for piece in message.chunks()` streams it, and
    `value` raises `TooLarge`.
    """

    def __new__(cls, delivery: Delivery, settlement: Settlement, background: Background) -> Self:
        """Take what is handed out, who settles it, and the loop in which that is."""
        message = delivery.message
        assert isinstance(message, LargeMessage)  # any other is small
        leased = BlockingLargeMessage.__new__(cls, message, background)
        leased._delivery, leased._settlement = delivery, settlement
        leased._is_settled = False
        return leased


class LeasedBatch(Grant, frozen=True, kw_only=True, eq=False):
    """Messages of a consumer that were granted together, and are settled together.

    `with batch:` acks it at its end; if the block raises, all of it goes back, as with
    `LeasedMessage`. `messages()` splits it; its batches are columns.
    """

    lease: BatchLease
    settlement: Settlement
    background: Background

    def __repr__(self) -> str:
        """Show what was granted."""
        return text_of(self)

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.lease.count

    @overload
    def ack(
        self, messages: Iterable[Message] | None = None, *, confirmed: Literal[False] = False
    ) -> None: ...

    @overload
    def ack(
        self, messages: Iterable[Message] | None = None, *, confirmed: Literal[True]
    ) -> AckResult: ...

    def ack(
        self, messages: Iterable[Message] | None = None, *, confirmed: bool = False
    ) -> AckResult | None:
        """Say that all of it is done, or some of its messages: the client tells it within
        `ack_within`.

        With `confirmed`, return when a majority knows, and what the ack did: true if this grant did
        all of it. Otherwise the lease had ended, and `of` tells for each offset whether another
        consumer did the message or it is done again.
        """
        if confirmed:
            return self.background.run(self.settlement.ack(self.lease, messages))
        self.background.run(self._done(messages))
        return None

    async def _done(self, messages: Iterable[Message] | None) -> None:
        if messages is None:
            self.settlement.done(self.lease)
        else:
            self.settlement.some_done(self.lease, messages)

    def nack(
        self,
        delay: Delay | None = None,
        messages: Iterable[Message] | None = None,
        *,
        confirmed: bool = False,
    ) -> bool:
        """Say that all of it failed, or some of its messages: see `LeasedMessage.nack`."""
        some = None if messages is None else [*messages]
        return self.background.run(self._nack(delay, some, confirmed))

    async def _nack(
        self, delay: Delay | None, messages: list[Message] | None, confirmed: bool
    ) -> bool:
        if confirmed or messages is not None:
            return await self.settlement.nack(self.lease, delay, messages)
        self.settlement.give_back(self.lease, delay, untried=False)
        return True

    def reject(self, reason: str = "rejected") -> None:
        """Say that none of it will ever work: see `LeasedMessage.reject`."""
        self.background.run(self.settlement.reject(self.lease, reason))

    def extend(self, lease: str | float | None = None) -> bool:
        """Let its lease run for `lease` from now on: see `LeasedMessage.extend`."""
        return self.background.run(self.settlement.extend(self.lease, lease))

    def lease_of(self) -> tuple[Settlement, Leased]:
        """Return its lease, and who settles it: for a scattering."""
        return self.settlement, self.lease

    def __enter__(self) -> LeasedBatch:
        self.lease.holding.blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        return self.background.run(self.settlement.leave(self.lease, error))

    def __del__(self) -> None:
        if self.lease.state is Settled.OPEN:
            self.settlement.dropped(self.lease)


class Consumer(Twin[consumers.Consumer]):
    """Iterate it for messages, or `batches()` for whole grants, and settle each.

    A message is done once its `ack()`, or the end of `with message:`, says so; asking for the next
    one says nothing. Leave it with `with` or `close`.
    """

    flush = waits(consumers.Consumer.flush)

    def __init__(self, of: consumers.Consumer, background: Background) -> None:
        """Speak for `of`, which lives in the loop of `background`."""
        super().__init__(of, background)
        #: What is here; nobody works on it yet.
        self._ahead: deque[Delivery] = deque()

    @property
    def topic(self) -> str:
        """The topics as they were given, to be shown."""
        return self._of.topic

    @property
    def settlement(self) -> Settlement:
        """What hands out messages and settles them, in the loop's thread."""
        return self._of.settlement

    @property
    def stale(self) -> int:
        """How many acks came after their grant had expired."""
        return self._of.stale

    @property
    def topics(self) -> list[str]:
        """The topics that it consumes now, by full name; none before it is open."""
        return self._of.topics

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which the cluster has done all, as of the last ack.

        Raises `BadRequest` where there may be several topics: see `cursors_of`.
        """
        return self._of.cursors

    def cursors_of(self, topic: str) -> dict[int, int]:
        """Return the same for one of its topics; nothing for others."""
        return self._of.cursors_of(topic)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._of.closed

    @property
    def unfinished(self) -> bool:
        """Whether it pulls, or has acks that the broker does not know of."""
        return self._of.unfinished

    def open(self) -> Consumer:
        """Ask where the partitions are. Raises `UnknownTopic`."""
        self._background.run(self._of.open())
        return self

    def close(self) -> None:
        """Stop pulling; return when all acks are confirmed. What is not done goes to others."""
        self._background.run(self._close())

    async def _close(self) -> None:
        while self._ahead:
            self._ahead.popleft().give_back()
        await self._of.close()

    def batches(self) -> Iterator[LeasedBatch]:
        """Yield grants of up to `max_messages`, to settle each as a whole: the fast way."""
        settlement, background = self.settlement, self._background
        for lease in background.iterate(settlement.batches(THREAD)):
            grant = lease.grant
            values = {name: getattr(grant, name) for name in Grant.__struct_fields__}
            values["batches"] = tuple(
                delivered_without_async(one, background) for one in grant.batches
            )
            yield LeasedBatch(**values, lease=lease, settlement=settlement, background=background)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> LeasedMessage:
        """Return the next message. Raises `TooManyInHand` as the async consumer does."""
        settlement = self.settlement
        while True:
            # Only this crosses threads, for many messages at a time; and Ctrl-C in it loses none.
            while not self._ahead:
                self._background.run(self._fetch(THREAD))
            delivery = self._ahead.popleft()
            if delivery.state is not Settled.OPEN:
                continue  # it went back, with one that failed before it
            if delivery.holding.over:
                settlement.post(delivery, Settled.GIVEN_BACK)
                continue
            delivery.mark_begun()
            settlement.leases.keep(delivery.holding)
            return self._leased(delivery)

    async def _fetch(self, thread: int) -> None:
        self._ahead.extend(await self.settlement.several(_TOGETHER, thread))

    def _leased(self, delivery: Delivery) -> LeasedMessage:
        large = isinstance(delivery.message, LargeMessage)
        kind = LeasedLargeMessage if large else LeasedSmallMessage
        return kind(delivery, self.settlement, self._background)

    def __enter__(self) -> Consumer:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()
