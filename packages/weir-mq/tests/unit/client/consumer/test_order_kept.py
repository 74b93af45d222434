"""In an ordered cluster, nothing is worked on before what is in front of it has come again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

import weir
from rigs.clients import PULL_ONCE, SEND_NACK, feed_of
from rigs.consuming import take
from weir import testing
from weir.client.consumer.acknowledgements import Nacks
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.delivery import Holding
from weir.client.consumer.pulls import Pulling
from weir.client.core.grants import Grant
from weir.errors import Disconnected

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
