"""Where workers get messages from: what a consumer has at hand, in lanes, alone or in lists."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

from weir.app.handlers import Subscription
from weir.client.consumer.delivery import Delivery

T = TypeVar("T")
#: Messages that may be taken ahead, so that one behind a key that is at work can begin.
LOOK_AHEAD = 1_000


class Lanes(Generic[T]):
    """Items in order of arrival. One that has a lane waits until all before it there are done."""

    __slots__ = ("_behind", "_lane_of", "_ready", "_waiting")

    def __init__(self, lane_of: Callable[[T], Hashable] | None = None) -> None:
        """Take what names an item's lane (None: it waits for nobody); without it there are none."""
        self._lane_of = lane_of
        self._ready: deque[T] = deque()
        #: Of each lane with an item that may begin, or has: those behind it, so many in all.
        self._behind: dict[Hashable, deque[T]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many did not begin, those included that may not yet."""
        return len(self._ready) + self._waiting

    def __bool__(self) -> bool:
        """Whether one may begin."""
        return bool(self._ready)

    def add(self, items: Iterable[T]) -> None:
        """Put items behind all others."""
        if self._lane_of is None:
            self._ready.extend(items)
            return
        for item in items:
            lane = self._lane_of(item)
            behind = None if lane is None else self._behind.get(lane)
            if behind is not None:
                behind.append(item)
                self._waiting += 1
                continue
            self._ready.append(item)
            if lane is not None:
                self._behind[lane] = deque()

    def next(self) -> T | None:
        """Take out the first item that may begin; None if there is none. Tell `done` of it."""
        return self._ready.popleft() if self._ready else None

    def put_back(self, item: T) -> None:
        """Take back, to the front, what `next` returned: it did not begin."""
        self._ready.appendleft(item)

    def done(self, item: T) -> None:
        """Say that an item is over; the next of its lane may begin, before all others."""
        if self._lane_of is None:
            return
        lane = self._lane_of(item)
        behind = self._behind.get(lane)
        if behind:
            self._ready.appendleft(behind.popleft())
            self._waiting -= 1
        elif behind is not None:
            del self._behind[lane]

    def taken_out(self) -> list[T]:
        """Return all that did not begin, and forget them. What began must still come to `done`."""
        found: list[T] = []
        for item in self._ready:
            found.append(item)
            if self._lane_of is not None:
                found += self._behind.pop(self._lane_of(item), ())
        for behind in self._behind.values():
            found += behind
            behind.clear()
        self._ready.clear()
        self._waiting = 0
        return found


class Source(Protocol):
    """Deliveries of a consumer: see `weir.client.consumer.consumer.Consumer.deliveries`."""

    def at_hand(self) -> Delivery | None:
        """Return the next delivery if it is here."""

    async def more(self) -> None:
        """Wait until there may be one."""

    def pause(self) -> None:
        """Give back what is here; `more` goes on."""

    async def flush(self) -> None:
        """Return when the broker knows what is settled. Raises `WeirError`."""

    async def quiet(self) -> None:
        """Flush, in a pause; return when nothing is granted any more, either."""


class Bundle:
    """Several deliveries that are handled, and settled, together."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Delivery]) -> None:
        """Take at least one."""
        self.parts = parts

    @property
    def message(self) -> list[Any]:
        """The messages, in order."""
        return [part.message for part in self.parts]

    @property
    def attempts(self) -> int:
        """The most attempts of any."""
        return max(part.attempts for part in self.parts)

    @property
    def held(self) -> bool:
        """Whether any may be worked on; the others go back then, and are left out."""
        held: list[Delivery] = []
        over: list[Delivery] = []
        for part in self.parts:
            (held if part.held else over).append(part)
        if held:
            for part in over:
                part.give_back()  # its grant is settled when all of it is
            self.parts = held
        return bool(held)

    def done(self) -> None:
        """Say that all are done."""
        for part in self.parts:
            part.done()

    def nack(self, delay: float = 0.0) -> None:
        """Say that all failed."""
        for part in self.parts:
            part.nack(delay)

    def give_back(self) -> None:
        """Say that nobody tried them."""
        for part in self.parts:
            part.give_back()

    @property
    def was_tried(self) -> bool:
        """Whether any was begun before."""
        return any(part.was_tried for part in self.parts)

    async def begin(self) -> bool:
        """Report that they are about to be handled; False if they must not be. See `Delivery`."""
        return all([await part.begin() for part in self.parts])


Unit = Delivery | Bundle


def parts_of(unit: Unit) -> list[Delivery]:
    """Return the deliveries of a unit."""
    return unit.parts if isinstance(unit, Bundle) else [unit]


class WorkQueue:
    """Units in the order in which they may begin. Each that `next` returned must come to `done`."""

    def __init__(self, subscription: Subscription, source: Source) -> None:
        """Take where deliveries come from."""
        self._source = source
        self._batch = subscription.batch
        self._most = subscription.max_messages
        lane_of = _lane_of(subscription)
        self._laned = lane_of is not None
        self._lanes: Lanes[Unit] = Lanes(lane_of)
        #: One at a time waits for more; the others find what it got.
        self._one = asyncio.Lock()
        self._freed = asyncio.Event()
        self._waiting: asyncio.Future[None] | None = None
        self._pauses = 0

    def next(self) -> Unit | None:
        """Return a unit that may begin, if one is here."""
        if not self._laned and not self._batch and not self._lanes:
            return self._source.at_hand()
        lanes = self._lanes
        while not lanes and len(lanes) < LOOK_AHEAD:
            found = self._units()
            if not found:
                return None
            lanes.add(found)
        return lanes.next()

    async def more(self) -> None:
        """Wait until `next` may have something. Raises what ends a consumer."""
        if len(self._lanes) >= LOOK_AHEAD:
            self._freed.clear()
            await self._freed.wait()
            return
        pauses = self._pauses
        async with self._one:
            if pauses != self._pauses:
                return  # whether to go on is to be asked anew
            unit = self.next()
            if unit is not None:
                self.put_back(unit)
                return
            waiting = self._waiting = asyncio.ensure_future(self._source.more())
            try:
                await asyncio.wait((waiting,))
            finally:
                self._waiting = None
                waiting.cancel()
            if not waiting.cancelled():
                waiting.result()

    def put_back(self, unit: Unit) -> None:
        """Take back what `next` returned: it did not begin."""
        self._lanes.put_back(unit)

    def done(self, unit: Unit) -> None:
        """Say that a unit is settled, so that the next of its lane may begin."""
        if self._laned:
            self._lanes.done(unit)
            self._freed.set()

    def pause(self) -> None:
        """Give back all that is here and did not begin; nothing comes before the next `more`."""
        self._pauses += 1
        self.give_back()
        if self._waiting is not None:
            self._waiting.cancel()  # else it would wait for pulls that nobody makes
        self._source.pause()

    async def flush(self) -> None:
        """Return when the broker knows what is settled, and given back. Raises `WeirError`."""
        await self._source.flush()

    async def quiet(self) -> None:
        """Flush, in a pause; return when nothing is granted any more, either."""
        await self._source.quiet()

    def give_back(self) -> None:
        """Give back what was taken ahead."""
        for unit in self._lanes.taken_out():
            unit.give_back()

    def _units(self) -> list[Unit]:
        at_hand = self._source.at_hand
        if not self._batch:
            delivery = at_hand()
            return [] if delivery is None else [delivery]
        found: list[Delivery] = []
        while len(found) < self._most and (delivery := at_hand()) is not None:
            found.append(delivery)
        return [*_bundles(found)]


def _bundles(deliveries: Iterable[Delivery]) -> Iterable[Bundle]:
    """Bundle what is of one partition; what was tried before comes alone.

    A bundle that failed comes again, and the one bad message in it must not take all the others to
    the dead-letter topic.
    """
    for (_, alone), run in groupby(deliveries, _bundle_of):
        parts = [*run]
        yield from map(Bundle, ([part] for part in parts) if alone else [parts])


def _bundle_of(delivery: Delivery) -> tuple[tuple[str, int], bool]:
    message = delivery.message
    return (message.topic, message.partition), delivery.attempts > 1


def _lane_of(subscription: Subscription) -> Callable[[Unit], Hashable] | None:
    if subscription.mode == "shared":
        return None
    if subscription.mode == "keyed" and not subscription.batch:
        return _key_of
    return _partition_of


def _key_of(unit: Unit) -> Hashable:
    message = parts_of(unit)[0].message
    return None if message.key is None else (message.topic, message.key)


def _partition_of(unit: Unit) -> Hashable:
    message = parts_of(unit)[0].message
    return message.topic, message.partition
