"""The driver does the effects of one event before the shard hears of another."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.admission import Budget
from weir.broker.identity import Identity
from weir.broker.shard import Shard
from weir.server.driver import Driver


class Noting:
    """A shard that holds reading, or not, in front of other effects."""

    ready = True
    identity = Identity(1)

    def __init__(self) -> None:
        self.budget = Budget(100)
        self.heard: list[Any] = []
        self.said: list[ef.Effect] = []

    def handle(self, event: Any) -> list[ef.Effect]:
        self.heard.append(event)
        said, self.said = self.said, []
        return said


class Claiming:
    """A peer that charges a frame as soon as reading goes on."""

    def __init__(self, driver: Driver, shard: Noting) -> None:
        self._driver, self._shard = driver, shard

    def update(self) -> None:
        self._driver.charge(90)

    def send(self, buffers: tuple[bytes, ...], charged: int) -> None:
        self._shard.heard.append(buffers)


def test_what_is_charged_while_effects_are_done_is_heard_of_behind_them() -> None:
    async def body() -> None:
        shard = Noting()
        driver = Driver(cast(Shard, shard), {})
        driver._peers[7] = cast(Any, Claiming(driver, shard))
        shard.said = [ef.HoldReads(False), ef.Send(7, (b"reply",))]
        driver.handle(ev.Closed(1))
        assert shard.heard == [ev.Closed(1), (b"reply",)]
        driver.charge(1)
        assert shard.heard[2:] == [ev.Ticked()]
        driver._pool.shutdown()

    asyncio.run(body())
