"""In an ordered cluster, nothing is worked on before what is in front of it has come again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

import weir
from rigs.clients import PULL_ONCE, SEND_NACK, feed_of
from rigs.consuming import take
from weir import testing
from weir.client.consumer import pulls
from weir.client.consumer.acknowledgements import Nacks
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.delivery import Holding
from weir.client.consumer.pulls import Pulling
from weir.client.core.delivered_batches import Delivered
from weir.client.core.grants import Grant
from weir.errors import BadBatch, Disconnected
from weir.protocol.client import messages as m

COUNT = 12


def run(scenario: Callable[[Consumer], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await w.create_topic("t")
            async with w.producer("t") as producer:
                await producer.send_many([b"%d" % i for i in range(COUNT)])
            async with w.consumer(
                "t", cluster="c", mode="ordered", max_messages=4, ack_within=0
            ) as consumer:
                await scenario(consumer)

    asyncio.run(whole())


def numbers(grant: Grant) -> list[int]:
    return [int(message.value) for message in grant.messages()]


def end_leases(consumer: Consumer) -> list[Holding]:
    """As the consumer sees it: a new leader lets leases run for longer."""
    held = [*consumer.settlement.leases.topics["t"].held.values()]
    for holding in held:
        holding.ends = 0.0
    return held


def test_messages_whose_lease_has_ended_for_the_consumer_alone_come_before_those_behind() -> None:
    async def scenario(consumer: Consumer) -> None:
        seen: list[int] = []
        ended = False
        while len(seen) < COUNT:
            seen.append(int((await take(consumer)).value))
            assert seen == [*range(len(seen))]
            (holding,) = consumer.settlement.leases.topics["t"].held.values()
            if holding.grant.next_offset - seen[-1] > 1 and not ended:
                ended = True
                end_leases(consumer)
        assert ended
        assert consumer.stale == 0

    run(scenario)


def test_deliveries_whose_lease_has_ended_for_the_consumer_alone_come_before_those_behind() -> None:
    async def scenario(consumer: Consumer) -> None:
        deliveries = consumer.deliveries()
        seen: list[int] = []
        ended = False
        while len(seen) < COUNT:
            delivery = await anext(deliveries)
            seen.append(int(delivery.message.value))
            assert seen == [*range(len(seen))]
            (holding,) = consumer.settlement.leases.topics["t"].held.values()
            if holding.grant.next_offset - seen[-1] > 1 and not ended:
                ended = True
                end_leases(consumer)
            delivery.done()
        assert ended
        assert consumer.stale == 0

    run(scenario)


def test_a_grant_that_waited_for_longer_than_its_lease_comes_before_those_behind() -> None:
    async def scenario(consumer: Consumer) -> None:
        grants = consumer.batches()
        first = await anext(grants)
        assert await first.ack(confirmed=True)
        feed = feed_of(consumer)
        assert feed is not None
        take = feed.take

        async def late() -> Holding | None:
            feed.take = take  # type: ignore[method-assign]
            holding = await take()
            assert holding is not None
            holding.ends = 0.0
            return holding

        feed.take = late  # type: ignore[method-assign]
        async with await anext(grants) as grant:
            assert numbers(grant) == [4, 5, 6, 7]

    run(scenario)


def test_a_grant_on_its_way_when_one_before_it_failed_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = getattr(*PULL_ONCE)
    granted, gate = asyncio.Event(), asyncio.Event()

    async def slowly(self: Pulling, partition: int) -> Grant | None:
        grant = await once(self, partition)
        if grant is not None and grant.offset == 4 and not granted.is_set():
            granted.set()
            await gate.wait()
        return grant

    monkeypatch.setattr(*PULL_ONCE, slowly)

    async def scenario(consumer: Consumer) -> None:
        grants = consumer.batches()
        first = await anext(grants)
        following = asyncio.ensure_future(anext(grants))
        await granted.wait()
        assert await first.nack(0, confirmed=True)
        gate.set()
        again = await following
        assert (numbers(again), again.attempts) == ([0, 1, 2, 3], 2)
        assert await again.ack(confirmed=True)
        async with await anext(grants) as behind:
            assert numbers(behind)[0] == 4

    run(scenario)


def test_a_grant_in_hand_goes_back_with_one_before_it_that_failed() -> None:
    async def scenario(consumer: Consumer) -> None:
        grants = consumer.batches()
        first, second = await anext(grants), await anext(grants)
        assert await first.nack(0, confirmed=True)
        assert not await second.ack(confirmed=True)
        again = await anext(grants)
        assert (numbers(again), again.attempts) == ([0, 1, 2, 3], 2)
        assert await again.ack(confirmed=True)
        async with await anext(grants) as behind:
            assert (numbers(behind), behind.attempts) == ([4, 5, 6, 7], 1)

    run(scenario)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_nack_that_got_no_answer_is_told_before_what_is_behind_is_pulled(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    send, sent = getattr(*SEND_NACK), 0

    async def failed(self: Nacks, *args: object) -> bool:
        nonlocal sent
        sent += 1
        if sent == failing:
            raise Disconnected("cut off")
        return await send(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(*SEND_NACK, failed)

    async def scenario(consumer: Consumer) -> None:
        grants = consumer.batches()
        grant = await anext(grants)
        second = [*grant.messages()][1]
        with pytest.raises(Disconnected):
            await grant.nack(0, [second], confirmed=True)
        async with await anext(grants) as again:
            assert numbers(again)[0] == 1
        await grant.ack()

    run(scenario)


def test_who_gives_up_while_an_error_is_told_leaves_no_pull_behind() -> None:
    """Its connection stayed open then, and what came first was granted to a pull of the past."""

    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(10):
            await w.create_topic("t")
            async with w.consumer("t", cluster="c", mode="ordered") as consumer:
                leases, telling = consumer.settlement.leases, asyncio.Event()
                flush = leases.flush

                async def slowly() -> None:
                    telling.set()
                    await asyncio.Event().wait()

                leases.flush = slowly  # type: ignore[method-assign]
                waiting = asyncio.ensure_future(take(consumer))
                while (feed := feed_of(consumer)) is None:
                    await asyncio.sleep(0)
                await asyncio.sleep(0.05)  # its pull is under way
                feed.fail(Disconnected("as if"))
                await telling.wait()
                waiting.cancel()
                await asyncio.wait([waiting])
                leases.flush = flush  # type: ignore[method-assign]
                again = asyncio.ensure_future(take(consumer))
                await asyncio.sleep(0.05)
                for number in range(3):
                    await w.publish("t", b"%d" % number)
                assert (await again).value == b"0"

    asyncio.run(whole())


@pytest.mark.parametrize("number_changed", [False, True])
def test_a_grant_whose_bytes_changed_on_the_way_goes_back_before_the_next_is_pulled(
    monkeypatch: pytest.MonkeyPatch, number_changed: bool
) -> None:
    opened, once = pulls.deliver, getattr(*PULL_ONCE)
    spoilt: list[object] = []

    async def other_number(self: Pulling, partition: int) -> m.Granted:
        granted: m.Granted = await once(self, partition)
        if number_changed and not spoilt:
            return replace(granted, fence=granted.fence + 1_000)
        return granted

    def spoil(*arguments: Any) -> list[Delivered]:
        if not spoilt:
            spoilt.append(arguments)
            raise BadBatch("a bit fell over")
        return opened(*arguments)

    monkeypatch.setattr(*PULL_ONCE, other_number)
    monkeypatch.setattr(pulls, "deliver", spoil)

    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(10):
            await w.create_topic("t")
            for number in range(3):
                await w.publish("t", b"%d" % number)
            async with w.consumer(
                "t", cluster="c", mode="ordered", max_messages=1, lease=0.5
            ) as consumer:
                for number in range(3):
                    async with await take(consumer) as message:
                        assert message.value == b"%d" % number
                        assert message.attempts == 1 or number_changed
        assert spoilt

    asyncio.run(whole())
