"""Readers with an order of best effort go on without a partition that tells nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import weir
from weir import testing
from weir.client.client import connect
from weir.client.reader import reader as readers
from weir.client.reader.fetcher import Portion
from weir.errors import BadRequest
from weir.protocol.client import messages as m


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def stalled(fake_broker: Any, order: Any) -> AsyncIterator[Any]:
    """Yield a broker of whose first partition nothing is told, its client, a reader, and what that
    has taken.
    """
    async with fake_broker() as broker, connect(broker.url) as client:
        group = broker.topic("t", 2).addresses[0].group
        await client.publish("t", b"late", partition=0)
        broker.hidden, broker.logs[group] = broker.logs[group], []
        broker.stalled[group] = 0, 0
        broker.stamp += 1
        values: list[bytes] = []

        async def take() -> None:
            async for message in reader:
                values.append(message.value)

        async with client.reader("t", order=order) as reader:
            taking = asyncio.ensure_future(take())
            yield broker, client, reader, values
            taking.cancel()
            await asyncio.wait([taking])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up silent partitions soon."""
    monkeypatch.setattr(readers, "SILENT_AFTER", 0.05)


@pytest.mark.usefixtures("quick")
def test_a_silent_partition_is_left_and_its_late_messages_are_counted(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with stalled(fake_broker, "best-effort") as (broker, client, reader, values):
            group = broker.topics["t"].addresses[0].group
            await client.publish("t", b"0", partition=1)
            await until(lambda: values == [b"0"])
            assert (reader.order, reader.late) == ("best-effort", 0)
            broker.logs[group] = broker.hidden
            async with broker.news:
                broker.news.notify_all()
            await until(lambda: reader.late == 1)
            await until(lambda: reader.positions == {0: 1, 1: 1})
            # It is waited for again once it tells as much as the others.
            del broker.stalled[group]
            await client.publish("t", b"1", partition=0)
            await client.publish("t", b"2", partition=1)
            await until(lambda: values == [b"0", b"1", b"2"])
            assert reader.late == 1
            await reader.close()
            assert reader.late == 1

    asyncio.run(scenario())


@pytest.mark.usefixtures("quick")
def test_in_total_order_it_is_waited_for(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with stalled(fake_broker, "total") as (broker, client, reader, values):
            await client.publish("t", b"0", partition=1)
            await until(
                lambda: len([one for one in broker.seen if isinstance(one, m.AskBarriers)]) > 20
            )
            assert (values, reader.late) == ([], 0)

    asyncio.run(scenario())


class Portions:
    """Fetches of three partitions, and what is told of barriers: nothing comes of the first, one
    message of the second, and of the third again and again what is not wanted.
    """

    ends = None

    async def fetch(self, partition: int, position: int, end: int | None) -> Portion:
        if partition == 1 and not position:
            header = SimpleNamespace(stamp=5, total_size=10)
            part: Any = SimpleNamespace(partition=1, offset=0, batch=SimpleNamespace(header=header))
            return Portion(1, [part], 1, committed=1, barrier=6, received=5)
        if partition < 2:
            await asyncio.Event().wait()
        await asyncio.sleep(0.005)
        return Portion(2, [], position + 1, committed=position + 1, barrier=position + 10)

    def place(self, partition: int) -> tuple[int, int]:
        return 0, partition

    async def ask(self, *given: Any, **named: Any) -> Any:
        await asyncio.Event().wait()

    next_mark = ask


def test_it_goes_on_though_all_the_while_what_nobody_wants_comes_of_others() -> None:
    async def scenario() -> None:
        portions: Any = Portions()
        begins = dict.fromkeys(range(3), 0)
        order = readers.TotalOrder(portions, portions, begins, portions, False, patience=0.1)
        async with asyncio.timeout(5):
            while not (ready := await order.take()) or not ready.delivered:
                assert ready is not None
        assert [part.partition for part in ready.delivered] == [1]
        await order.close()

    asyncio.run(scenario())


def test_while_all_is_well_it_is_the_one_order() -> None:
    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.create_topic("t", partitions=3)
            for number in range(30):
                await w.publish("t", b"%d" % number, partition=number % 3)
            for order in ("total", "best-effort"):
                reader = w.reader("t", order=order, follow=False)
                found = [message.value async for message in reader]
                assert found == [b"%d" % number for number in range(30)]
                assert reader.late == 0
            with pytest.raises(BadRequest, match="'partition'"):
                w.reader("t", order="best_effort")
            with pytest.raises(BadRequest, match="'partition'"):
                await w.create_topic("u", order="best-effort")

    asyncio.run(scenario())
