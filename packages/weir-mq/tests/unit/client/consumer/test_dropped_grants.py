"""What a consumer hands out no more goes back: nothing stays granted that no program gets.

The broker here lets leases run for an hour, as it does where an extension is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

import pytest

import weir
from rigs.clients import SEND_NACK
from weir import testing
from weir.client.client import Client
from weir.client.consumer.acknowledgements import Nacks
from weir.client.consumer.consumer import Consumer, LeasedBatch, LeasedMessage
from weir.client.consumer.delivery import Delivery, Settled
from weir.client.consumer.pulls import Pulling
from weir.client.core.grants import Run, joined
from weir.errors import StaleGrant, Unavailable

WAYS = ["iteration", "batches", "threads"]
#: As `weir.client.consumer.messages.THREAD`.
_THREAD = 1

Reported = Callable[[int], Coroutine[None, None, None]]
Taken = LeasedMessage | LeasedBatch | Delivery


def run(
    scenario: Callable[[Consumer], Coroutine[None, None, None]],
    count: int = 1,
    mode: weir.ConsumerMode = "shared",
    tried: bool = True,
    max_messages: int = 100,
) -> None:
    """Consume `count` messages, which were tried once if they are `tried`."""

    async def fill(w: Client) -> None:
        await w.create_topic("t", partitions=1)
        async with w.producer("t") as producer:
            values = [b"%d" % number for number in range(count)]
            await producer.send_many(values, keys=[b"k"] * count)

    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await fill(w)
            if tried:
                async with w.consumer("t", cluster="c", mode=mode, ack_within=0) as consumer:
                    left = count
                    async for batch in consumer.batches():
                        left -= len(batch)
                        await batch.nack("1ms" if left else 0, confirmed=True)
                        if left <= 0:
                            break
                node.advance(1)
            async with w.consumer(
                "t", cluster="c", mode=mode, lease="1h", max_work=None, ack_within=0,
                max_messages=max_messages,
            ) as consumer:  # fmt: skip
                await scenario(consumer)

    asyncio.run(whole())


@contextmanager
def reports(then: Reported) -> Iterator[None]:
    """Let something happen behind each report, of the how-manieth it tells."""
    honest, count = Pulling.report, 0

    async def report(self: Pulling, partition: int, runs: list[Run]) -> None:
        nonlocal count
        count += 1
        await honest(self, partition, runs)
        await then(count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pulling, "report", report)
        yield


def end_leases(consumer: Consumer) -> None:
    """As the consumer sees it: an extension is under way, and the leases run on."""
    for holding in consumer.settlement.leases.topics["t"].held.values():
        holding.ends = 0.0


def begun(consumer: Consumer) -> list[Run]:
    """What it tells the broker to be worked on."""
    return consumer.settlement.leases.topics["t"].held.begun(0)


async def take(consumer: Consumer, way: str) -> list[bytes]:
    """Take what comes next; it has no outcome."""
    taken: list[Taken] = []
    if way == "iteration":
        taken.append(await anext(consumer))
    elif way == "deliveries":
        taken.append(await anext(consumer.deliveries()))
    elif way == "threads":
        taken += await consumer.settlement.several(32, _THREAD)
    else:
        taken.append(await anext(consumer.batches()))
    _KEPT.extend(taken)
    values = list[bytes]()
    for one in taken:
        if isinstance(one, LeasedBatch):
            values += [message.value for message in one.messages()]
        else:
            values.append((one.message if isinstance(one, Delivery) else one).value)
    return values


#: What is dropped would go back by that.
_KEPT: list[Taken] = []


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    yield
    _KEPT.clear()


@pytest.mark.parametrize("way", WAYS)
def test_what_was_reported_too_late_comes_again(way: str) -> None:
    """It was dropped, and the extension that was under way let it be kept from all for ever."""

    async def scenario(consumer: Consumer) -> None:
        counts: list[int] = []

        async def too_late(count: int) -> None:
            counts.append(count)
            if count == 1:
                end_leases(consumer)

        with reports(too_late):
            assert await take(consumer, way) == [b"0"]
        assert counts == [1, 2]

    run(scenario)


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_the_rest_of_a_grant_that_is_dropped_comes_again(mode: weir.ConsumerMode) -> None:
    """What was handed out of it is worked on, and its lease is extended."""
    count = 12

    async def scenario(consumer: Consumer) -> None:
        seen, ended = set[bytes](), False
        while len(seen) < count:
            message = await anext(consumer)
            seen.add(message.value)
            (holding,) = consumer.settlement.leases.topics["t"].held.values()
            if holding.grant.next_offset - message.offset > 2 and not ended:
                ended, ends, holding.ends = True, holding.ends, 0.0
                following = asyncio.ensure_future(anext(consumer))
                await asyncio.sleep(0)
                holding.ends = ends
                await message.ack()
                message = await following
                seen.add(message.value)
            await message.ack()
        assert ended

    run(scenario, count, mode, tried=False, max_messages=4)


@pytest.mark.parametrize("way", [*WAYS, "deliveries"])
def test_what_somebody_gives_up_waiting_for_comes_whole(way: str) -> None:
    """A batch came without its messages, and its end said that they were done."""

    async def scenario(consumer: Consumer) -> None:
        reported = asyncio.Event()

        async def waits(count: int) -> None:
            reported.set()
            await asyncio.sleep(3_600 if count == 1 else 0)

        with reports(waits):
            waiting = asyncio.ensure_future(take(consumer, way))
            await reported.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
            assert begun(consumer) == []
            assert await take(consumer, way) == [b"0"]

    run(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_what_could_not_be_reported_comes_whole(way: str) -> None:
    async def scenario(consumer: Consumer) -> None:
        async def fails(count: int) -> None:
            if count == 1:
                raise Unavailable("no broker knows of it")

        with reports(fails):
            with pytest.raises(Unavailable):
                await take(consumer, way)
            assert begun(consumer) == []
            assert await take(consumer, way) == [b"0"]

    run(scenario)


@pytest.mark.parametrize("how", ["refused", "too late"])
@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_of_what_comes_together_all_comes_again_if_one_cannot_be_reported(
    mode: weir.ConsumerMode, how: str
) -> None:
    """Nobody had the others, and their leases were extended."""
    count = 200

    async def scenario(consumer: Consumer) -> None:
        settlement, seen, failed = consumer.settlement, set[bytes](), False
        ahead, together = settlement.ahead, list[Delivery]()

        def noted(most: int) -> list[Delivery]:
            together[:] = ahead(most)
            return [*together]

        async def fails(_: int) -> None:
            nonlocal failed
            if failed or len(together) < 3:
                return
            second = together[1]
            if second.message.offset in second.holding.opened:
                failed = True
                end_leases(consumer)
                if how == "refused":
                    raise Unavailable("no broker knows of it")

        with pytest.MonkeyPatch.context() as patch, reports(fails):
            patch.setattr(settlement, "ahead", noted)
            while len(seen) < count:
                found = list[Delivery]()
                try:
                    found = await settlement.several(32, _THREAD)
                except Unavailable:
                    assert {one.state for one in together} == {Settled.GIVEN_BACK}
                assert begun(consumer) == joined(one.message.offset for one in found)
                for delivery in found:
                    seen.add(delivery.message.value)
                    delivery.done()
        assert failed

    run(scenario, count, mode)


@pytest.mark.parametrize("way", WAYS)
def test_what_nobody_holds_is_not_given_back(way: str) -> None:
    told: list[list[Run]] = []
    honest = getattr(*SEND_NACK)

    async def send(self: Nacks, partition: int, kind: object, runs: list[Run]) -> bool:
        told.append(runs)
        return bool(await honest(self, partition, kind, runs))

    async def scenario(consumer: Consumer) -> None:
        reported = asyncio.Event()

        async def lost(_: int) -> None:
            reported.set()
            raise StaleGrant("it was lost with a connection")

        with pytest.MonkeyPatch.context() as patch, reports(lost):
            patch.setattr(*SEND_NACK, send)
            waiting = asyncio.ensure_future(take(consumer, way))
            await reported.wait()
            await asyncio.sleep(0)
            await consumer.flush()
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
        assert told == []
        assert not consumer.settlement.leases.topics["t"].held

    run(scenario)
