"""A node in memory; and a consumer that is none, of deliveries that a test makes."""

from __future__ import annotations

import asyncio

import weir


class FakeDelivery:
    """As `weir.client.consumer.delivery.Delivery`; `outcome` is what was told."""

    def __init__(
        self, value: str, attempts: int = 1, key: bytes | None = None, topic: str = "doors"
    ) -> None:
        self.message = weir.Message(value.encode(), key=key, topic=topic, partition=0, offset=0)
        self.attempts = attempts
        self.held = True
        self.outcome: object = None
        self.settled = asyncio.Event()
        #: How often it was reported, and whether that can be.
        self.reports = 0
        self.may_begin = True

    @property
    def was_tried(self) -> bool:
        return self.attempts > 1

    async def begin(self) -> bool:
        self.reports += self.was_tried
        return self.may_begin and self.held

    def done(self) -> None:
        self._settle("done")

    def nack(self, delay: float = 0.0) -> None:
        self._settle(delay)

    def give_back(self, delay: float = 0.0) -> None:
        self._settle(("untried", delay) if delay else "untried")

    def _settle(self, outcome: object) -> None:
        assert self.outcome is None, "settled twice"
        self.outcome = outcome
        self.held = False
        self.settled.set()


class FakeSource:
    """As `weir.client.consumer.messages.Deliveries`."""

    def __init__(self) -> None:
        self.waiting: list[FakeDelivery] = []
        self.pauses = self.flushes = 0
        self.paused = False
        #: Set when somebody asks for more.
        self.asked = asyncio.Event()
        self.errors: list[Exception] = []
        self._some = asyncio.Event()

    def add(self, *deliveries: FakeDelivery) -> None:
        self.waiting += deliveries
        if not self.paused:
            self._some.set()

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self._some.set()

    def at_hand(self) -> FakeDelivery | None:
        return self.waiting.pop(0) if self.waiting and not self.paused else None

    async def more(self) -> None:
        self._some.clear()
        self.paused = False
        self.asked.set()
        if not self.waiting and not self.errors:
            await self._some.wait()
        if self.errors:
            raise self.errors.pop(0)

    def pause(self) -> None:
        self.pauses += 1
        self.paused = True

    async def flush(self) -> None:
        self.flushes += 1

    async def quiet(self) -> None:
        await self.flush()


class Seen:
    """What handlers got; `some(n)` waits for n messages."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._more = asyncio.Event()

    def add(self, message: weir.Message) -> None:
        self.values.append(message.value)
        self._more.set()

    async def some(self, count: int) -> list[bytes]:
        async with asyncio.timeout(30):
            while len(self.values) < count:
                self._more.clear()
                await self._more.wait()
        return self.values
