"""Keyed and ordered clusters, as their consumers see them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine

import pytest

import weir
from weir import testing
from weir.client.client import Client
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.delivery import Delivery
from weir.client.consumer.messages import Deliveries
from weir.errors import BadRequest

KEYS = 7


def run(scenario: Callable[[testing.Node, Client], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await w.create_topic("t")
            await scenario(node, w)

    asyncio.run(whole())


async def fill(w: Client, count: int, first: int = 0) -> None:
    async with w.producer("t") as producer:
        numbers = range(first, first + count)
        await producer.send_many(
            [b"%d" % i for i in numbers], keys=[b"k%d" % (i % KEYS) for i in numbers]
        )


async def take(consumer: Consumer | Deliveries, within: float = 20.0) -> int | None:
    try:
        async with asyncio.timeout(within):
            found = await anext(consumer)
    except TimeoutError:
        return None
    if isinstance(found, Delivery):
        return int(found.message.value)
    await found.ack()
    return int(found.value)


def test_a_cluster_keeps_its_mode() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 3)
        async with w.consumer("t", cluster="c", mode="keyed") as consumer:
            assert await take(consumer) is not None
            with pytest.raises(BadRequest, match="keyed"):
                await anext(w.consumer("t", cluster="c"))
        with pytest.raises(BadRequest, match='"shared", "keyed" or "ordered"'):
            w.consumer("t", cluster="c", mode="sorted")
        (cluster,) = await w.clusters("t", "c")
        assert cluster.mode == "keyed"

    run(scenario)


def test_one_consumer_gets_all_in_order_and_a_standby_takes_over() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 10)
        active = w.consumer("t", cluster="c", mode="ordered", ack_within=0)
        standby = w.consumer("t", cluster="c", mode="ordered", ack_within=0)
        assert [await take(active) for _ in range(4)] == [0, 1, 2, 3]
        waiting = asyncio.ensure_future(anext(standby))
        await fill(w, 2, first=10)
        assert [await take(active) for _ in range(2)] == [4, 5]
        assert not waiting.done()
        held = await anext(active)
        assert (int(held.value), held.attempts) == (6, 1)
        await active.close()  # it was handed out and is not done
        again = await waiting
        assert (int(again.value), again.attempts) == (6, 2)
        await again.ack()
        assert [await take(standby) for _ in range(5)] == [7, 8, 9, 10, 11]
        await standby.close()

    run(scenario)


def test_a_message_that_failed_holds_back_all_behind_it() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, 12)
        async with w.consumer("t", cluster="c", mode="ordered", ack_within=0) as consumer:
            while (message := await anext(consumer)).value != b"4":
                await message.ack()
            assert await message.nack(delay="10m", confirmed=True)
            assert await take(consumer, within=0.15) is None
            node.advance(601)
            found = []
            for _ in range(8):
                async with await anext(consumer) as one:
                    found.append((int(one.value), one.attempts))
            assert found == [(4, 2), *((number, 1) for number in range(5, 12))]

    run(scenario)


def test_deliveries_of_an_ordered_cluster_go_back_together() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 40)
        async with w.consumer("t", cluster="c", mode="ordered", ack_within=0) as consumer:
            deliveries = consumer.deliveries()
            done: list[int] = []
            open_: list[Delivery] = []
            failed = False
            while len(done) < 40:
                while len(open_) < 3 and (delivery := deliveries.at_hand()) is not None:
                    open_.append(delivery)
                if not open_:
                    await deliveries.more()
                    continue
                first = open_.pop(0)
                number = int(first.message.value)
                if not first.held:
                    continue
                if number == 20 and not failed:
                    first.nack()
                    failed = True
                    assert not any(delivery.held for delivery in open_)
                    continue
                assert first.attempts == 1 + (number == 20)
                first.done()
                done.append(number)
            assert done == [*range(40)]

    run(scenario)


def test_messages_of_a_key_go_to_one_consumer_at_a_time_in_order() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        count = 420
        await fill(w, count)
        seen: dict[int, list[int]] = defaultdict(list)
        busy: set[int] = set()
        shares = [0, 0, 0]

        async def work(me: int) -> None:
            async with w.consumer(
                "t", cluster="c", mode="keyed", max_messages=5, ack_within=0
            ) as consumer:
                async for message in consumer:
                    number = int(message.value)
                    key = number % KEYS
                    assert key not in busy
                    busy.add(key)
                    await asyncio.sleep(0)
                    seen[key].append(number)
                    shares[me] += 1
                    busy.discard(key)
                    if number % 50 == 13 and message.attempts == 1:
                        seen[key].pop()
                        await message.nack(0, confirmed=True)
                    else:
                        await message.ack()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(me)) for me in range(3)]
            while sum(map(len, seen.values())) < count:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
        assert seen == {k: [*range(k, count, KEYS)] for k in range(KEYS)}
        assert min(shares) > 0

    run(scenario)


@pytest.mark.parametrize("batches", [False, True])
def test_who_settles_a_grant_of_a_key_keeps_nobody_waiting_for_that(batches: bool) -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        count = 60
        async with w.producer("t") as producer:
            await producer.send_many([b"%d" % i for i in range(count)], keys=[b"k"] * count)
        seen: list[int] = []

        async def one_by_one(consumer: Consumer) -> None:
            async for message in consumer:
                seen.append(int(message.value))
                await message.ack()

        async def in_batches(consumer: Consumer) -> None:
            async for batch in consumer.batches():
                seen.extend(int(message.value) for message in batch.messages())
                await batch.ack()

        consumers = [
            w.consumer("t", cluster="c", mode="keyed", max_messages=5, ack_within="20s")
            for _ in range(2)
        ]
        work = in_batches if batches else one_by_one
        # A grant that waits for the end of another one would wait 20 s.
        async with asyncio.timeout(15), asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(one)) for one in consumers]
            while len(seen) < count:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
        assert seen == [*range(count)]
        for one in consumers:
            await one.close()

    run(scenario)


def test_deliveries_of_a_key_that_failed_go_back_and_others_do_not() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, 200)
        async with w.consumer("t", cluster="c", mode="keyed", ack_within=0) as consumer:
            deliveries = consumer.deliveries()
            done: list[int] = []
            open_: list[Delivery] = []
            while len(open_) < 3 * KEYS:  # its grants grow with what is done
                for delivery in open_:
                    delivery.done()
                    done.append(int(delivery.message.value))
                await deliveries.more()
                open_ = [*iter(deliveries.at_hand, None)]
            failed = open_[KEYS]
            number, key = int(failed.message.value), failed.message.key
            failed.nack("10m")
            for delivery in open_:
                mine = delivery.message.key == key and int(delivery.message.value) >= number
                assert delivery.held != mine
                delivery.done()
                done += [] if mine else [int(delivery.message.value)]
            behind = [*range(number, 200, KEYS)]
            while len(done) < 200 - len(behind):
                other = await anext(deliveries)
                done.append(int(other.message.value))
                other.done()
            assert await take(deliveries, within=0.2) is None
            assert sorted(done) == sorted({*range(200)} - {*behind})
            node.advance(601)
            again = []
            while len(again) < len(behind):
                delivery = await anext(deliveries)
                again.append((int(delivery.message.value), delivery.attempts))
                delivery.done()
            assert again == [(one, 1 + (one == number)) for one in behind]

    run(scenario)
