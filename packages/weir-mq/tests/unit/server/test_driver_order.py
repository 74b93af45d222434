"""The driver does the effects of one event before the shard hears of another; logs rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from rigs import drivers
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.logs import LONE_IN_A_ROW, QUICK_SECONDS
from weir.host.trunks import RemotePeer
from weir.protocol.device import DeviceHello, DevicePing, DevicePublishes, DeviceRequest
from weir.protocol.trunk import Arrival
from weir.server.assembly import assemble
from weir.storage.log import Flush, Run
from weir.testing.simulator.disk import SimDisk


class Noting:
    """A shard that holds reading, or not, in front of other effects."""

    ready = True
    has_deferred = False
    identity = Identity(1)

    def __init__(self) -> None:
        self.budget = Budget(100)
        self.heard: list[Any] = []
        self.said: list[ef.Effect] = []

    def step(self, *events: Any) -> list[ef.Effect]:
        self.heard += events
        said, self.said = self.said, []
        return said

    def run_deferred(self) -> list[ef.Effect]:
        return []


def test_what_is_gathered_is_fed_in_order_and_settled_once() -> None:
    class Counting(Noting):
        def step(self, *events: Any) -> list[ef.Effect]:
            self.heard.append(len(events))
            return super().step(*events)

    async def body() -> None:
        shard = Counting()
        driver = assemble(cast(Shard, shard), {})
        driver.gather()
        for event in (ev.Opened(1), ev.Received(1, [DevicePing(1)]), ev.Closed(1)):
            driver.handle(event)
        assert shard.heard == []
        driver.release()
        assert shard.heard == [3, ev.Opened(1), ev.Received(1, [DevicePing(1)]), ev.Closed(1)]
        driver.gather()
        driver.release()
        driver.handle(ev.Ticked())
        assert shard.heard[4:] == [1, ev.Ticked()]
        driver.gather()
        driver.handle(ev.Closed(2))
        driver.gather()  # one inside of another loses nothing
        driver.release()
        driver.release()
        assert shard.heard[6:] == [1, ev.Closed(2)]
        drivers.end(driver)

    asyncio.run(body())


class Hasty:
    """A loop on which what is to come later comes at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.asked: list[float] = []

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, act: Callable[..., None], *given: Any) -> None:
        self._loop.call_soon(act, *given)

    def call_soon_threadsafe(self, act: Callable[..., None], *given: Any) -> None:
        self._loop.call_soon_threadsafe(act, *given)

    def call_later(self, seconds: float, act: Callable[..., None], *given: Any) -> None:
        self.asked.append(seconds)
        self._loop.call_soon(act, *given)


def test_a_log_rests_behind_a_flush_of_a_crowd_and_behind_no_other() -> None:
    async def body() -> None:
        shard = Noting()
        driver = assemble(cast(Shard, shard), {3: SimDisk(random.Random(1))})
        hasty = Hasty(asyncio.get_running_loop())
        drivers.call_later_by(driver, hasty)

        async def heard(rest_ms: int, count: int) -> list[Any]:
            shard.heard.clear()
            shard.said = [ef.StartFlush(3, flush, rest_ms)]
            driver.handle(ev.Ticked())
            async with asyncio.timeout(20):
                while len(shard.heard) < count:
                    await asyncio.sleep(0)
            return shard.heard[1:]

        flush = Flush(0, 0, (), ())
        assert await heard(600_000, 3) == [ev.Flushed(3, flush, rests=True), ev.Rested(3)]
        assert await heard(0, 2) == [ev.Flushed(3, flush, rests=False)]
        assert [590 < asked <= 600 for asked in hasty.asked] == [True]
        drivers.end_flushes(driver)
        drivers.end(driver)

    asyncio.run(body())


class Settling(Noting):
    """Notes when it is settled, too; it is held above three quarters."""

    @property
    def has_deferred(self) -> bool:  # type: ignore[override]
        return self.budget.used > 75

    def run_deferred(self) -> list[ef.Effect]:
        self.heard.append("settled")
        return [ef.HoldReads(True)] if self.budget.used > 75 else []


def test_a_flush_is_settled_behind_its_turn_and_publishes_of_devices_not_at_all() -> None:
    async def body() -> None:
        shard = Settling()
        driver = assemble(cast(Shard, shard), {})
        driver.handle(flushed := ev.Flushed(1, Flush(0, 0, (), ())))
        assert shard.heard == [flushed]
        await asyncio.sleep(0)
        assert shard.heard == [flushed, "settled"]
        shard.heard.clear()
        publishes: list[DeviceRequest] = [
            DeviceHello(0, 5, 1, 0, "t"),
            DevicePublishes([1], [0], [b"value"], [0]),
        ]
        drivers.receive(driver, 1, publishes)
        drivers.receive(driver, 1, [DevicePing(1)])
        assert shard.heard == [
            ev.Received(1, publishes), ev.Received(1, [DevicePing(1)]), "settled",
        ]  # fmt: skip
        shard.heard.clear()
        shard.budget.take(90)  # this cannot wait: others would be read from meanwhile
        drivers.receive(driver, 1, publishes)
        assert drivers.is_held(driver)
        assert shard.heard == [ev.Received(1, publishes), "settled"]
        drivers.end(driver)

    asyncio.run(body())


def test_the_shard_settles_once_the_confirm_of_a_lone_flush_is_out() -> None:
    async def body() -> None:
        shard = Settling()
        disk = SimDisk(random.Random(1))
        disk.create("a", 8192)
        driver = assemble(cast(Shard, shard), {3: disk})
        flush = Flush(0, 300, (Run("a", 0, [b"frames"]),), (1,))
        drivers.flushed_alone(driver, 3, flush, 200, QUICK_SECONDS / 10)
        drivers.begin_flushes(driver, ef.StartFlush(3, flush), LONE_IN_A_ROW)
        asked = ev.Received(1, [DevicePing(1)])
        flushed = ev.Flushed(3, flush, rests=False)

        shard.said = [ef.StartFlush(3, flush)]
        drivers.receive(driver, 1, asked.frames)
        drivers.receive(driver, 1, asked.frames)
        assert shard.heard == [asked, asked]
        for _ in range(3):
            await asyncio.sleep(0)
        assert shard.heard == [asked, asked, flushed, "settled"]

        shard.heard.clear()
        shard.budget.take(90)  # others would be read from meanwhile
        shard.said = [ef.StartFlush(3, flush)]
        drivers.receive(driver, 1, asked.frames)
        assert shard.heard == [asked, "settled"]
        assert drivers.is_held(driver)
        await asyncio.sleep(0)
        assert shard.heard[:3] == [asked, "settled", flushed]
        drivers.end_flushes(driver)
        drivers.end(driver)

    asyncio.run(body())


def said(session: int) -> tuple[DeviceHello, DevicePublishes]:
    return DeviceHello(0, session, 1, 0, "t"), DevicePublishes([1], [0], [b"value"], [0])


def test_devices_that_say_hello_and_publish_as_they_come_are_one_event() -> None:
    async def body() -> None:
        shard = Settling()
        driver = assemble(cast(Shard, shard), {})

        def comes(session: int, principal: str = "", place: int = 0) -> None:
            driver.handle(ev.Opened(session, principal, place))
            drivers.receive(driver, session, said(session))

        def one(session: int) -> Arrival:
            return Arrival(session, *said(session))

        driver.gather()
        comes(1)
        comes(2)
        driver.handle(ev.Opened(3))
        driver.handle(ev.Opened(4))
        drivers.receive(driver, 3, said(3))  # who comes between is no part of it
        drivers.arrive(driver, ev.Arrived([one(5)], "ada", 1))
        comes(6)
        comes(7, "ada", 1)
        comes(8, "ada", 1)
        driver.release()
        assert shard.heard == [
            ev.Arrived([one(1), one(2)]),
            ev.Opened(3),
            ev.Opened(4),
            ev.Received(3, said(3)),
            ev.Arrived([one(5)], "ada", 1),
            ev.Arrived([one(6)]),
            ev.Arrived([one(7), one(8)], "ada", 1),
        ], "and nothing is settled behind it"
        drivers.end(driver)

    asyncio.run(body())


def test_answers_to_many_find_peers_and_guests() -> None:
    async def body() -> None:
        shard = Noting()
        driver = assemble(cast(Shard, shard), {})
        heard: list[Any] = []
        end = SimpleNamespace(answer=lambda *given: heard.append(given))
        drivers.peers(driver)[7] = cast(
            Any, SimpleNamespace(send=lambda *given: heard.append(given))
        )
        drivers.remote_peers(driver.trunks)[8] = RemotePeer(cast(Any, end), 80)
        shard.said = [ef.Answers({7: b"one", 8: b"two", 9: b"gone"})]
        driver.handle(ev.Ticked())
        assert heard == [((b"one",), 0), (80, b"two")]
        drivers.end(driver)

    asyncio.run(body())
