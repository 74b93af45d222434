"""Messages are settled in any order: done, given back now or later, and held on to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

import weir
from rigs.clients import network_of
from rigs.consuming import take
from weir import testing
from weir.client.client import Client
from weir.client.connection.metadata import Places
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.delivery import Extending
from weir.client.consumer.moves import KeptGrants
from weir.client.core.retries import Backoff
from weir.errors import BadRequest, StaleGrant
from weir.model.message import Message
from weir.protocol.client import messages as m

Scenario = Callable[[testing.Node, Client], Coroutine[None, None, None]]


def run(scenario: Scenario) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await w.create_topic("t")
            await scenario(node, w)

    asyncio.run(whole())


async def fill(w: Client, count: int, key: Callable[[int], bytes | None] = lambda _: None) -> None:
    async with w.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(count)], keys=[*map(key, range(count))])


def number(message: Message) -> int:
    return int(message.value)


async def lag(w: Client) -> int:
    (cluster,) = await w.clusters("t", "c")
    return cluster.lag


async def is_nothing_there(consumer: Consumer) -> bool:
    try:
        await asyncio.wait_for(anext(consumer), 0.1)
    except TimeoutError:
        return True
    return False


def test_a_message_that_failed_comes_again_at_once() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 3)
        seen: list[tuple[int, int]] = []
        async with w.consumer("t", cluster="c") as consumer:
            async for message in consumer:
                seen.append((number(message), message.attempts))
                if seen[-1] == (1, 1):
                    assert await message.nack(0, confirmed=True)
                else:
                    await message.ack()
                if len(seen) == 4:
                    break
        assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1)]
        assert await lag(w) == 0

    run(scenario)


def test_a_message_that_failed_comes_again_when_its_delay_is_over() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, 2)
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            first = await anext(consumer)
            assert await first.nack(delay="10m", confirmed=True)
            assert number(await take(consumer)) == 1
            assert await is_nothing_there(consumer)
            node.advance(599)
            assert await is_nothing_there(consumer)
            node.advance(2)
            again = await take(consumer)
            assert (number(again), again.attempts) == (0, 2)

    run(scenario)


def test_the_first_outcome_counts_and_a_delay_is_checked() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 3)
        async with w.consumer("t", cluster="c") as consumer:
            done, failed = await take(consumer), await anext(consumer)
            assert not await done.nack(0, confirmed=True)
            assert await failed.nack("1h")
            assert not await failed.ack(confirmed=True)
            await failed.ack()
            last = await anext(consumer)
            with pytest.raises(BadRequest, match="365 days"):
                await last.nack(delay="400d", confirmed=True)
            await last.ack()
        assert await lag(w) == 1

    run(scenario)


def test_messages_of_a_grant_are_settled_in_any_order() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 6)
        async with w.consumer("t", cluster="c") as consumer:
            grants = consumer.batches()
            grant = await anext(grants)
            messages = [*grant.messages()]
            for at in (4, 0, 5):
                assert await grant.ack([messages[at]], confirmed=True)
            assert await grant.nack(0, [messages[2]], confirmed=True)
            assert await lag(w) == 3
            assert consumer.cursors == {0: 1}
            again = await anext(grants)
            assert [(number(one), again.attempts) for one in again.messages()] == [(2, 2)]
            assert await grant.nack(0, confirmed=True)
            rest = await anext(grants)
            assert [number(one) for one in rest.messages()] == [1]
            assert not await grant.ack([messages[3]], confirmed=True)
            await again.ack()
            await rest.ack()

    run(scenario)


def test_a_whole_grant_is_given_back() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 4)
        async with w.consumer("t", cluster="c") as consumer:
            grants = consumer.batches()
            first = await anext(grants)
            assert await first.nack(0, confirmed=True)
            second = await anext(grants)
            assert (second.offset, second.next_offset, second.attempts) == (0, 4, 2)
            assert not await first.nack(0, confirmed=True)
            assert await second.ack(confirmed=True)

    run(scenario)


def test_deliveries_are_settled_each_by_itself() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 300)
        seen: dict[int, int] = {}
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            deliveries = consumer.deliveries()
            waiting = []
            while len(seen) < 300:
                delivery = await anext(deliveries)
                value = number(delivery.message)
                assert delivery.held
                if value % 10 == 3 and delivery.attempts == 1:
                    delivery.nack()
                    delivery.done()  # it is settled: nothing happens
                    assert not delivery.held
                    continue
                seen[value] = delivery.attempts
                waiting.append(delivery)
                if len(waiting) >= 7:
                    waiting.pop(3).done()
            for delivery in waiting:
                delivery.done()
            await consumer.flush()
            assert await lag(w) == 0
            assert consumer.cursors == {0: 300}
        assert {value for value, attempts in seen.items() if attempts == 2} == {*range(3, 300, 10)}

    run(scenario)


def test_what_is_open_goes_to_others_when_the_consumer_closes() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 6)
        async with w.consumer("t", cluster="c") as consumer:
            deliveries = consumer.deliveries()
            taken = [await anext(deliveries) for _ in range(4)]
            taken[2].done()
            taken[3].give_back()
        async with w.consumer("t", cluster="c") as other:
            found = [(number(one), one.attempts) for one in [await take(other) for _ in range(5)]]
        assert sorted(found) == [(0, 2), (1, 2), (3, 1), (4, 1), (5, 1)]

    run(scenario)


def test_a_pause_gives_back_what_nobody_tried() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 50)
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            deliveries = consumer.deliveries()
            for _ in range(10):
                (await anext(deliveries)).done()
            last = await anext(deliveries)
            deliveries.pause()
            async with w.consumer("t", cluster="c") as other:
                rest = [await take(other) for _ in range(39)]
                found = sorted((number(one), one.attempts) for one in rest)
                assert found == [(value, 1) for value in range(11, 50)]
            assert last.held
            last.nack()
            again = await anext(deliveries)
            assert (again.message.value, again.attempts) == (b"10", 2)

    run(scenario)


def test_a_lease_is_kept_up_while_work_goes_on() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, 2)
        async with (
            w.consumer("t", cluster="c", lease="600ms", max_work=None) as slow,
            w.consumer("t", cluster="c") as other,
        ):
            first = await anext(slow)
            assert number(await take(other)) == 1
            await asyncio.sleep(1.3)
            assert await is_nothing_there(other)
            assert await first.extend("20m")
            node.advance(1_199)
            assert await is_nothing_there(other)
            await first.ack()
            await slow.flush()
            assert await lag(w) == 0
            assert slow.stale == 0

    run(scenario)


def test_a_lease_that_has_ended_is_not_extended() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, 1)
        async with w.consumer("t", cluster="c") as late, w.consumer("t", cluster="c") as other:
            message = await anext(late)
            node.advance(31)
            assert number(await take(other)) == 0
            assert not await message.extend()
            assert not await message.nack(0, confirmed=True)

    run(scenario)


def test_a_lease_that_has_ended_costs_the_others_nothing(fake_broker) -> None:
    """A broker extends all of a request's grants, or none."""

    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            for number in range(6):  # the broker grants three batches at once
                await w.publish("t", b"%d" % number)
            broker.script = lambda request: (
                m.Refusal(StaleGrant.code, "over")
                if isinstance(request, m.Extend) and 1 in request.fences
                else None
            )
            async with w.consumer("t", cluster="c") as consumer:
                grants = consumer.batches()
                ended, other = await anext(grants), await anext(grants)
                held = consumer.settlement.leases.topics["t"].held
                places = await Places.find(network_of(w), "t")
                kept = KeptGrants("c", network_of(w))
                extending = Extending("c", places, 3_600, held, time.monotonic, kept)
                before = held[0, other.fence].ends
                assert not await extending.extend([*held.values()])
                assert held[0, ended.fence].over
                assert held[0, other.fence].ends > before + 3_000

    asyncio.run(scenario())


def test_what_went_back_without_an_answer_goes_back_again(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t")
            async with weir.connect(broker.url, retry=Backoff(first=0.001, most=0.01)) as w:
                await w.publish("t", b"0")
                cut = iter(["cut", "cut after"])
                broker.script = lambda request: (
                    next(cut, None) if isinstance(request, m.Nack) else None
                )
                async with w.consumer("t", cluster="c") as consumer:
                    (await anext(consumer.deliveries())).nack("1s")
                    await consumer.flush()
                    assert [(nack.ranges, nack.delay_ms) for nack in broker.returned] == [
                        ([(0, 1)], 1_000)
                    ] * 2

    asyncio.run(scenario())
