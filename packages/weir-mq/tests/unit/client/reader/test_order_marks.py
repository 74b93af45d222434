"""Marks of one order: what they let out, and of which set they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rigs.clients import error_of
from weir.client.client import connect
from weir.client.reader import reader as readers
from weir.protocol.client import messages as m


def awaited(broker: Any) -> list[m.AwaitMark]:
    return [request for request in broker.seen if isinstance(request, m.AwaitMark)]


def questions(broker: Any) -> int:
    return sum(isinstance(request, m.AskBarriers) for request in broker.seen)


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not happened():
            await asyncio.sleep(0.002)


class Following:
    """A reader of two partitions; of the first one barriers say nothing that would do."""

    def __init__(self, broker: Any, client: Any, reader: Any, late: int) -> None:
        self.broker = broker
        self.client = client
        self.reader = reader
        self.late = late
        self.values: list[bytes] = []
        #: Batches of the first partition that are not given out yet.
        self.held_back: list[Any] = []

    async def take(self) -> None:
        async for message in self.reader:
            self.values.append(message.value)

    async def stays_at(self, values: list[bytes]) -> None:
        await asyncio.sleep(4 * readers.ASK_EVERY)
        assert self.values == values

    async def comes_to(self, values: list[bytes]) -> None:
        await until(lambda: self.values == values)

    async def parked(self) -> m.AwaitMark:
        """Return what awaits a mark, once something does."""
        await until(lambda: self.broker.parked)
        return awaited(self.broker)[-1]


@asynccontextmanager
async def following(
    fake_broker: Any, knows: bool = True, held: tuple[bytes, ...] = (), **options: Any
) -> AsyncIterator[Any]:
    async with fake_broker() as broker, connect(broker.url) as client:
        broker.knows_marks = knows
        info = broker.topic("t", 2)
        late = info.addresses[0].group  # what is stamped alike comes first there
        for value in held:
            await client.publish("t", value, partition=0)
        held_back, broker.logs[late] = broker.logs[late], []
        broker.stalled[late] = 0 if held else broker.stamp, 0
        broker.stamp += 1
        async with client.reader("t", order="total", **options) as reader:
            one = Following(broker, client, reader, late)
            one.held_back = held_back
            taking = asyncio.ensure_future(one.take())
            try:
                yield one
                assert error_of(reader) is None
            finally:
                taking.cancel()
                await asyncio.wait([taking])


def test_a_mark_lets_out_what_lies_at_or_below_it(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker) as one:
            first = await one.client.publish("t", b"0", partition=1)
            request = await one.parked()
            assert (request.above, request.stamp) == (0, first.stamp)
            await one.stays_at([])
            one.broker.tell_mark(first.stamp, [(1, 1)])
            await one.comes_to([b"0"])
            request = await one.parked()
            assert (request.above, request.stamp) == (first.stamp, 0)
            second = await one.client.publish("t", b"1", partition=1)
            one.broker.tell_mark(second.stamp - 1, [(1, 2)])
            await one.stays_at([b"0"])
            assert (await one.parked()).above == second.stamp - 1
            one.broker.tell_mark(second.stamp, [])
            await one.comes_to([b"0", b"1"])

    asyncio.run(scenario())


def test_a_mark_waits_for_the_data_that_it_tells_of(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker, held=(b"late",)) as one:
            broker = one.broker
            first = await one.client.publish("t", b"0", partition=1)
            await one.parked()
            broker.tell_mark(first.stamp, [(0, 1), (1, 1)])
            await one.stays_at([])
            second = await one.client.publish("t", b"1", partition=1)
            await one.parked()
            broker.tell_mark(second.stamp, [(1, 2)])  # of partition 0 nothing is new
            await one.stays_at([])
            broker.logs[one.late] = one.held_back
            async with broker.news:
                broker.news.notify_all()
            await one.comes_to([b"late", b"0", b"1"])

    asyncio.run(scenario())


def test_a_mark_of_partitions_that_are_not_read_yet_is_not_used(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker) as one:
            first = await one.client.publish("t", b"0", partition=1)
            await one.parked()
            asked = questions(one.broker)
            one.broker.tell_mark(first.stamp, [(1, 1)], partitions=3)
            await until(lambda: questions(one.broker) > asked)
            await one.stays_at([])
            assert (await one.parked()).above == 0
            one.broker.tell_mark(first.stamp, [(1, 1)])
            await one.comes_to([b"0"])

    asyncio.run(scenario())


def test_what_a_mark_of_another_set_leaves_out_is_asked_anew(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker, partitions=[0, 1]) as one:
            first = await one.client.publish("t", b"0", partition=1)
            await one.parked()
            one.broker.tell_mark(first.stamp, [(1, 1)])
            await one.comes_to([b"0"])
            await one.parked()
            second = await one.client.publish("t", b"1", partition=1)
            one.broker.tell_mark(second.stamp, [(1, 2)], partitions=3)
            await one.stays_at([b"0"])
            assert (await one.parked()).above == 0
            one.broker.tell_mark(second.stamp, [(1, 2)], partitions=3)
            await one.comes_to([b"0", b"1"])
            third = await one.client.publish("t", b"2", partition=1)
            assert (await one.parked()).above == second.stamp
            one.broker.tell_mark(third.stamp, [(1, 3)], partitions=2)  # it has not heard of all
            await one.stays_at([b"0", b"1"])

    asyncio.run(scenario())


def test_ends_are_learnt_once_a_mark_says_that_there_are_some(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker) as one:
            first = await one.client.publish("t", b"0", partition=1)
            await one.parked()
            one.broker.ends[one.late >> 16] = [(0, first.stamp + 1, 0)]
            one.broker.tell_mark(first.stamp, [(1, 1)], ended=1)
            await one.comes_to([b"0"])

    asyncio.run(scenario())


def test_a_mark_is_awaited_again_after_the_connection_broke(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker) as one:
            first = await one.client.publish("t", b"0", partition=1)
            await one.parked()
            one.broker.tell_mark(first.stamp, [(1, 1)])
            await one.comes_to([b"0"])
            await one.parked()
            one.broker.parked.clear()
            one.broker.cut()
            assert (await one.parked()).above == first.stamp
            second = await one.client.publish("t", b"1", partition=1)
            one.broker.tell_mark(second.stamp, [(1, 2)])
            await one.comes_to([b"0", b"1"])

    asyncio.run(scenario())


def test_an_earlier_release_is_asked_for_a_mark_once(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with following(fake_broker, knows=False) as one:
            del one.broker.stalled[one.late]
            for number in range(5):
                await one.client.publish("t", b"%d" % number, partition=1)
                await one.comes_to([b"%d" % n for n in range(number + 1)])
            assert len(awaited(one.broker)) == 1

    asyncio.run(scenario())


def test_no_mark_is_awaited_of_who_has_an_end(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as client:
            broker.knows_marks = True
            broker.topic("t", 2)
            await client.publish("t", b"0", partition=0)
            async with client.reader("t", order="total", follow=False) as reader:
                assert [message.value async for message in reader] == [b"0"]
            assert awaited(broker) == []

    asyncio.run(scenario())
