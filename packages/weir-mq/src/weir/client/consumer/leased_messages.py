"""What a consumer hands out: a message, or a batch, under a lease that somebody has to settle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Literal, Self, overload

from weir.client.arguments import Delay
from weir.client.consumer.acknowledgements import AckResult
from weir.client.consumer.delivery import Delivery, Settled
from weir.client.consumer.settlement import BatchLease, Leased, Settlement
from weir.client.core.grants import Grant
from weir.model.message import LargeMessage, Message

__all__ = [
    "LeasedBatch",
    "LeasedLargeMessage",
    "LeasedMessage",
    "leased_batch",
    "leased_message",
]


class LeasedMessage(Message):
    """A message of a consumer, which is done once that is said: by `ack`, or by a block.

    `async with message:` acks it at its end. If the block raises, the message goes back: it comes
    again after a while, as an attempt more. `Reject` takes it to the dead-letter topic, and ends
    there. Who is cancelled gives it back without an attempt. The first outcome counts.
    """

    __slots__ = ()

    _delivery: Delivery
    _settlement: Settlement

    def __new__(cls, delivery: Delivery, settlement: Settlement) -> Self:
        """Take what is handed out, and who settles it."""
        leased = tuple.__new__(cls, delivery.message)
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
        if confirmed:
            return await self._settlement.ack(self._delivery)
        self._delivery.done()
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
        if self._delivery.state is Settled.OPEN:
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


@dataclass(frozen=True, slots=True)
class LeasedBatch(Grant):
    """Messages of a consumer that were granted together, and are settled together.

    `async with batch:` acks it at its end; if the block raises, all of it goes back, as with
    `LeasedMessage`. `messages()` splits it; its batches are columns.
    """

    lease: BatchLease = field(kw_only=True, repr=False, compare=False)
    settlement: Settlement = field(kw_only=True, repr=False, compare=False)

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
    if isinstance(delivery.message, LargeMessage):
        return LeasedLargeMessage(delivery, settlement)
    return LeasedSmallMessage(delivery, settlement)


_GRANT = [one.name for one in fields(Grant)]


def leased_batch(lease: BatchLease, settlement: Settlement) -> LeasedBatch:
    """Return what a consumer hands out of a grant."""
    values = {name: getattr(lease.grant, name) for name in _GRANT}
    return LeasedBatch(**values, lease=lease, settlement=settlement)
