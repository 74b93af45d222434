"""A consumer's messages one by one, each to be settled by itself, in any order; and which task, or
thread, has what has no outcome yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from weir.client.arguments import Delay, delay_ms
from weir.client.consumer.delivery import (
    AckResult,
    Delivery,
    Holding,
    Settled,
    expired_result,
    run_of,
)
from weir.client.consumer.leases import ConsumerLeases
from weir.client.consumer.subscription import ConsumerOptions
from weir.client.core.delivered_batches import Delivered, LargeDelivered
from weir.client.core.grants import Prefetch
from weir.client.reader.fetcher import loaded
from weir.errors import TooManyInHand, ValueLost, WeirError
from weir.model.message import Message
from weir.model.topic import Mode

#: The one thread that uses a consumer of the client without async.
THREAD = 1
#: Each look at the enumeration is felt where messages go one by one.
_DONE = Settled.DONE
#: A task of the event loop, or that thread.
Holder = asyncio.Task[Any] | int


class InHand:
    """Everything without an outcome, `most` messages of it at a time.

    At that limit a task that asks for more waits until another task settles a message. If no other
    task holds any, the asking task has forgotten to: it gets `TooManyInHand`.
    """

    def __init__(self, most: int) -> None:
        """Begin with nothing."""
        self._most = most
        #: The holder of each message and each batch; and how many messages a batch has more than
        #: one.
        self._holders: dict[object, Holder | None] = {}
        self._sizes: dict[object, int] = {}
        self._batched = 0
        self._asking: dict[Holder | None, None] = {}
        self._freed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether a task must wait for `room` before it asks for more."""
        return len(self._holders) + self._batched >= self._most

    @property
    def free(self) -> int:
        """How many more may be handed out: none while a task must wait for `room` first."""
        return max(self._most - len(self._holders) - self._batched, 0)

    def put(self, handed: object, holder: Holder | None) -> None:
        """Note that a message was handed to a task, or a thread."""
        self._holders[handed] = holder

    def put_batch(self, handed: object, holder: Holder | None, count: int) -> None:
        """Note that a batch of `count` messages was handed to a task, or a thread."""
        self._holders[handed] = holder
        self._sizes[handed] = count - 1
        self._batched += count - 1

    def enter(self, handed: object, holder: Holder | None) -> None:
        """Note that a task works on what may have been handed to another."""
        if handed in self._holders:
            self._holders[handed] = holder

    def settled(self, handed: object) -> None:
        """Note that something has its outcome, if it was in hand at all."""
        self._holders.pop(handed, None)
        if self._sizes:
            self._batched -= self._sizes.pop(handed, 0)
        if self._asking:
            self._freed.set()

    def clear(self) -> None:
        """Nothing is in hand any more: its consumer has given it back."""
        self._holders.clear()
        self._sizes.clear()
        self._batched = 0
        self._freed.set()

    async def room(self, holder: Holder | None) -> None:
        """Return when more may be handed out. Raises `TooManyInHand` if nobody can settle any of
        it, for all who have some ask for more themselves, or have ended.
        """
        # Tasks that were just given something enter its block, which makes it theirs.
        await asyncio.sleep(0)
        while not self.free:
            await self.outcome(holder)

    async def outcome(self, holder: Holder | None) -> None:
        """Return once something in hand has its outcome, if there is any. Raises as `room`."""
        if not self._holders:
            return
        self._asking[holder] = None
        try:
            if all(self._cannot_settle(one) for one in self._holders.values()):
                raise TooManyInHand(
                    f"{self._most - self.free:,} messages are in hand without an outcome, and no "
                    f"more come before one has it (max_in_hand={self._most:,}; 1 grant in order): "
                    "`await message.ack()`, or enter each with `async with message:`, before you "
                    "ask for the next"
                )
            self._freed.clear()
            await self._freed.wait()
        finally:
            self._asking.pop(holder, None)

    def _cannot_settle(self, holder: Holder | None) -> bool:
        if holder in self._asking:
            return True
        return isinstance(holder, asyncio.Task) and holder.done()


class WorkClock:
    """How long the messages took that are settled, which says how many to ask for at a time."""

    def __init__(self, pace: Prefetch, monotonic: Callable[[], float]) -> None:
        """Take what is to know, and a clock in seconds."""
        self.pace = pace
        self._monotonic = monotonic
        #: How many were settled when that was last told; seconds of work since then.
        self._told = 0
        self._worked = 0.0
        #: Since when some are worked on, of what is not counted yet; None while none is.
        self._began: float | None = None

    def begin(self) -> None:
        """Some are worked on from now on."""
        if self._began is None:
            self._began = self._monotonic()

    def count(self, goes_on: bool) -> None:
        """Count the work until now; waiting while no message is open is no work."""
        now = self._monotonic()
        if self._began is not None:
            self._worked += now - self._began
        self._began = now if goes_on else None

    def learn(self, settled: int, partitions: int) -> None:
        """Tell how many were settled since that was told last, in how much work."""
        if settled > self._told:
            self.pace.took(settled - self._told, self._worked, partitions)
            self._told, self._worked = settled, 0.0


class Deliveries:
    """Iterate it, or ask `at_hand` and await `more`: one task at a time, and as fast as settled.

    What `at_hand` returns must `begin` before it is worked on, if it `was_tried`; what an iteration
    returns has begun.
    The caller settles all of it: a grant whose deliveries stay open ends with its lease.
    """

    def __init__(
        self,
        holdings: ConsumerLeases,
        pace: Prefetch,
        options: ConsumerOptions,
        monotonic: Callable[[], float],
        in_hand: InHand,
    ) -> None:
        """Take what the consumer holds, the size of its pulls, a clock in seconds, and what is to
        know what was settled.
        """
        self._in_hand = in_hand
        self._holdings = holdings
        self._work = WorkClock(pace, monotonic)
        self._options = options
        self._mode = options.number
        self._monotonic = monotonic
        #: When `at_hand` last looked at the clock.
        self.looked = 0.0
        #: Whether a nack takes others of its grant with it.
        self._takes_along = self._mode is not Mode.SHARED
        #: The grant that is handed out, and one whose large values are on their way.
        self._current: Holding | None = None
        self._ready: Holding | None = None
        self._messages: Iterator[Message] = iter(())
        self._unopened: deque[Delivered] = deque()
        # Handed out and open; handed out in all.
        self._open = self._handed = 0
        #: Whether somebody waits for a grant; others may be at work meanwhile.
        self._waits = False

    def __aiter__(self) -> Deliveries:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            while (delivery := self.at_hand()) is None:
                await self.more()
            begun = not delivery.was_tried
            try:
                begun = begun or await delivery.begin()
            finally:
                if not begun:  # also if the caller is cancelled
                    delivery.give_back()
            if begun:
                return delivery

    def at_hand(self) -> Delivery | None:
        """Return the next message if it is here; None: await `more`."""
        holding = self._current
        if holding is None:
            return None
        self.looked = now = self._monotonic()
        if now < holding.ends and not holding.skipped and holding.grant.attempts == 1:
            # Most messages come by here: each call less is felt.
            for message in self._messages:
                offset = message.offset
                holding.handed = offset + 1
                holding.open += 1
                holding.opened.add(offset)
                self._open += 1
                self._handed += 1
                delivery = Delivery(message, holding, self)
                if self._takes_along:
                    holding.deliveries[offset] = delivery
                return delivery
        other = self.ahead()
        if other is not None and not other.was_tried:
            other.mark_begun()
        return other

    def ahead(self) -> Delivery | None:
        """Return the next message if it is here; nobody works on it before its `mark_begun`."""
        holding = self._current
        if holding is None:
            return None
        while not holding.over:
            for message in self._messages:
                holding.handed = message.offset + 1
                if message.offset not in holding.skipped:
                    return self._hand_out(message, holding)
            if not self._unopened:
                break
            if _lies_elsewhere(self._unopened[0]):
                return None  # `more` fetches it
            self._messages = self._unopened.popleft().messages()
        if holding.over:
            # An extension may be under way, and would keep the rest from others with what is open.
            holding.lessor.outcomes.give_back_rest(holding)
        self._messages = iter(())
        self._unopened.clear()
        holding.all_handed = True
        self._current = None
        self._last_of(holding)
        return None

    def _hand_out(self, message: Message, holding: Holding) -> Delivery:
        delivery = Delivery(message, holding, self)
        holding.open += 1
        self._open += 1
        self._handed += 1
        if self._takes_along:
            holding.deliveries[message.offset] = delivery
        return delivery

    @property
    def waits_for_outcome(self) -> bool:
        """Whether nothing more comes before what was handed out is settled: where all is in order,
        it may have to come again first.
        """
        return self._mode is Mode.ORDERED and self._open > 0 and self._current is None

    async def more(self) -> None:
        """Wait for a grant, so that `at_hand` has a message. A cancelled caller loses none.

        Raises as iterating the consumer.
        """
        if self._unopened:
            await self._fetch(self._unopened[0])
            return
        self._work.count(self._open > 0)
        self._work.learn(self._handed - self._open, self._holdings.partitions)
        self._holdings.resume()
        self._waits = True
        try:
            if self._ready is None or self._ready.over:
                self._ready = await self._holdings.take(self._work.pace.size, self._ready)
                if self._work.pace.ahead and self._mode is not Mode.ORDERED:
                    self._ready.let_next_come()
            holding = self._ready
        finally:
            self._waits = False
        self._ready = None
        self._current, self._messages = holding, iter(())
        self._unopened = deque(holding.grant.batches)
        if self._mode is Mode.SHARED:
            holding.forget_batches()
        self._work.begin()

    async def _fetch(self, delivered: Delivered) -> None:
        """Fetch the value of the next message, as far as it is to be loaded. If the value is gone,
        reading it raises the error.
        """
        with contextlib.suppress(ValueLost):
            delivered = await loaded(delivered, self._options.value_bytes_max)
        if self._unopened and self._unopened[0].offset == delivered.offset:
            self._unopened.popleft()
            self._messages = delivered.messages()

    def pause(self) -> None:
        """Pull nothing until the next `more`, which begins with single messages.

        What came and was not handed out goes back, untried.
        """
        self._holdings.pause()
        self._messages = iter(())
        self._unopened.clear()
        for holding in (self._current, self._ready):
            if holding is not None:
                holding.lessor.outcomes.give_back_rest(holding)
                holding.all_handed = True
                self._last_of(holding)
        self._current = self._ready = None
        self._work.pace.restart()

    async def flush(self) -> None:
        """Tell the broker of all that is settled; return when a majority knows."""
        await self._holdings.flush()

    async def report(self, delivery: Delivery, holding: Holding) -> bool:
        """Tell the broker that a delivery is about to begin; False if that cannot be."""
        offset = delivery.message.offset
        try:
            await holding.lessor.report(holding, [(offset, offset + 1)])
        except WeirError:
            return False
        return True

    async def quiet(self) -> None:
        """Flush, in a pause; return when nothing can be granted to this consumer any more, either,
        and what was on its way has gone back.
        """
        await self._holdings.quiet()

    # What deliveries tell.

    def done(self, delivery: Delivery) -> None:
        """Note that it is done."""
        holding, offset = delivery.holding, delivery.message.offset
        delivery.state = _DONE
        left = holding.open = holding.open - 1
        holding.opened.discard(offset)
        if self._takes_along:
            holding.deliveries.pop(offset, None)
        self._open -= 1
        if self._waits and not self._open:
            self._work.count(goes_on=False)
        self._in_hand.settled(delivery)
        if not holding.finished:
            holding.lessor.outcomes.settled(holding)
        holding.finished.append(offset)
        if not left and holding.all_handed:
            self._last_of(holding)

    async def ack(self, delivery: Delivery) -> AckResult:
        """Say that it is done, or was; return when a majority knows, and what that did."""
        holding, run = delivery.holding, run_of(delivery.message)
        if delivery.state is Settled.GIVEN_BACK:
            return expired_result([run])
        if delivery.state is Settled.OPEN:
            self._close(delivery, Settled.DONE)
        try:
            return await holding.lessor.outcomes.ack(holding, [run])
        finally:
            self._let_go(holding)

    def give_back(self, delivery: Delivery, delay: Delay, untried: bool) -> None:
        """Note that it goes back, and all that is behind it where the order counts."""
        wait = delay_ms(delay)
        if delivery.state is not Settled.OPEN:
            return
        holding = delivery.holding
        if self._mode is not Mode.SHARED:
            self._take_along(holding, delivery.message, wait)
        self._return(delivery, wait, untried)

    async def nack(self, delivery: Delivery, delay: Delay) -> bool:
        """Say that it failed; return when a majority knows, False if it was too late."""
        wait = delay_ms(delay)
        if delivery.state is not Settled.OPEN:
            return False
        holding = delivery.holding
        if self._mode is not Mode.SHARED:
            self._take_along(holding, delivery.message, wait)
        self._close(delivery, Settled.GIVEN_BACK)
        holding.skipped.add(delivery.message.offset)
        try:
            return await holding.lessor.outcomes.nack(holding, [run_of(delivery.message)], [], wait)
        finally:
            self._let_go(holding)

    def take_out(self, delivery: Delivery) -> None:
        """Say that it is another's to tell what became of it: a scattering's."""
        self._close(delivery, Settled.DONE)
        self._let_go(delivery.holding)

    def put_back(self, delivery: Delivery) -> None:
        """Take it back: it is in hand again."""
        holding = delivery.holding
        delivery.state = Settled.OPEN
        holding.open += 1
        self._open += 1
        delivery.mark_begun()
        if self._takes_along:
            holding.deliveries[delivery.message.offset] = delivery
        self._in_hand.put(delivery, None)

    def _return(self, delivery: Delivery, wait: int, untried: bool) -> None:
        holding = delivery.holding
        self._close(delivery, Settled.GIVEN_BACK)
        holding.lessor.outcomes.give_back(holding, [delivery.message.offset], wait, untried)
        self._let_go(holding)

    def _close(self, delivery: Delivery, state: Settled) -> None:
        holding = delivery.holding
        delivery.state = state
        holding.open -= 1
        holding.opened.discard(delivery.message.offset)
        holding.deliveries.pop(delivery.message.offset, None)
        self._open -= 1
        if self._waits and not self._open:
            self._work.count(goes_on=False)
        self._in_hand.settled(delivery)

    def _let_go(self, holding: Holding) -> None:
        if holding.all_handed and not holding.open:
            self._last_of(holding)

    def _take_along(self, holding: Holding, failed: Message, wait: int) -> None:
        """Give back what is held behind a message, of its key or of its partition.

        It is in the same grant: no other one has any of the key, nor of the partition.
        """
        if self._mode is Mode.KEYED and failed.key is None:
            return
        for other in [*holding.deliveries.values()]:
            if other.state is Settled.OPEN and self._is_behind(failed, other.message):
                self._return(other, wait, untried=True)
        self._skip(holding, failed, wait)

    def _skip(self, holding: Holding, failed: Message, wait: int) -> None:
        """Give back what was not handed out yet of a grant."""
        offsets = [
            message.offset
            for delivered in holding.grant.batches
            if delivered.next_offset > holding.handed
            for message in delivered.messages()
            if message.offset >= holding.handed and self._is_behind(failed, message)
        ]
        holding.lessor.outcomes.give_back(holding, offsets, wait, untried=True)

    def _is_behind(self, failed: Message, other: Message) -> bool:
        if other.offset <= failed.offset:
            return False
        return self._mode is Mode.ORDERED or other.key == failed.key

    def _last_of(self, holding: Holding) -> None:
        """Nothing of a grant is to be handed out any more: let the next one be pulled.

        In order, that would be behind what is still worked on, which may fail.
        """
        if not holding.open:
            holding.lessor.outcomes.settled_all()
        if self._mode is not Mode.ORDERED or not holding.open:
            holding.let_next_come()


def _lies_elsewhere(delivered: Delivered) -> bool:
    """Whether a value has to be fetched before it is handed out."""
    return isinstance(delivered, LargeDelivered) and delivered.loaded is None
