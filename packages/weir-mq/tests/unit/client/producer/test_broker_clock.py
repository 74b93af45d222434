"""Times of `start=` and `until=` are the broker's, and what ends at one misses nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from msgspec.structs import replace

import weir
from weir import testing
from weir.client.connection.system import REAL
from weir.client.producer.producer import BrokerClock
from weir.client.reader.options import At
from weir.errors import BadRequest
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m


def test_ago_and_ahead_are_counted_by_the_brokers_clock() -> None:
    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.create_topic("t")
            await w.publish("t", b"early")
            node.advance(3_600)
            await w.publish("t", b"late")

            async def values(**named: object) -> list[bytes]:
                reader = w.reader("t", follow=False, **named)
                return [message.value async for message in reader]

            assert await values(start="-10m") == [b"late"]
            assert await values(start=weir.at("-10m")) == [b"late"]
            assert await values(until="-10m") == [b"early"]
            soon = datetime.now(UTC) + timedelta(minutes=30)  # of this machine; over at the broker
            assert await values(until=soon) == [b"early"]
            cluster = await w.seek_cluster("t", "c", "-10m", create=True)
            assert cluster.shares[0].cursor == 1
            with pytest.raises(BadRequest, match="ahead of the broker's clock"):
                await values(until=datetime.now(UTC) + timedelta(hours=2))

    asyncio.run(scenario())


def test_a_reader_that_ends_at_a_time_asks_for_an_end_that_holds(fake_broker) -> None:
    """Else it would miss what is stamped before that time and not committed yet."""

    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            broker.topic("t")
            until = weir.at(broker.wall_ms / 1_000)
            reader = w.reader("t", start="earliest", until=until)
            assert [message async for message in reader] == []
            asked = [request.stamp for request in broker.seen if isinstance(request, m.Positions)]
            assert asked == [0, stamp_at(broker.wall_ms)]

    asyncio.run(scenario())


def test_positions_of_a_start_in_time_lead_to_nothing_older() -> None:
    """Batches of one entry have stamps of their own, and a broker knows where the entry begins."""

    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(20):
            await w.create_topic("t")
            producers = [await w.producer("t", linger=0).open() for _ in range(6)]
            sent = [producer.send(b"x") for producer in producers]
            receipts = [await one for one in sent]
            for receipt in receipts:
                async with w.reader("t", start=At(receipt.stamp)) as reader:
                    assert reader.positions == {0: receipt.offset}
            async with w.reader("t", start=At(receipts[-1].stamp + 1)) as reader:
                assert reader.positions == {0: 6}
            for producer in producers:
                await producer.close()

    asyncio.run(scenario())


class Machine:
    """Clocks of a machine, and a broker whose clock is right."""

    def __init__(self) -> None:
        self.seen = 0
        self.truth = 1_700_000_000_000_000
        self.wall = self.truth - 5_000_000
        self.steady = 40.0
        self.system = replace(REAL, monotonic=lambda: self.steady)
        self.asked = 0

    async def wall_ms(self) -> int:
        self.asked += 1
        return self.truth // 1_000

    def passes(self, us: int, sleeps: bool = False) -> None:
        self.truth += us
        self.wall += us
        self.steady += 0 if sleeps else us / 1_000_000


def test_what_is_delayed_does_not_follow_a_clock_that_is_set_back_or_stands_still() -> None:
    async def scenario() -> None:
        machine = Machine()
        clock = BrokerClock(cast(Any, machine), lambda: machine.wall)
        assert clock.guess() == machine.wall  # nobody was asked yet
        await clock.ask()
        machine.passes(3_000_000)
        assert clock.guess() == machine.truth
        machine.wall -= 3_600_000_000
        assert clock.guess() == machine.truth
        await asyncio.sleep(0.01)
        assert machine.asked == 2  # for the clocks disagree
        machine.passes(3_600_000_000, sleeps=True)
        assert clock.guess() == machine.truth
        await asyncio.sleep(0.01)
        assert (machine.asked, clock.guess()) == (3, machine.truth)
        machine.wall += 3_600_000_000
        assert clock.guess() > machine.truth  # late, until the broker was asked
        await asyncio.sleep(0.01)
        assert clock.guess() == machine.truth

    asyncio.run(scenario())


def test_what_is_delayed_is_not_early_by_the_time_that_an_answer_takes() -> None:
    async def scenario() -> None:
        machine = Machine()

        async def wall_ms() -> int:
            machine.passes(10_000)
            told = machine.truth // 1_000
            machine.passes(20_000)  # the answer is on its way
            return told

        machine.wall_ms = wall_ms  # type: ignore[method-assign]
        clock = BrokerClock(cast(Any, machine), lambda: machine.wall)
        said = await clock.ask()
        assert machine.truth <= said <= machine.truth + 10_000

    asyncio.run(scenario())
