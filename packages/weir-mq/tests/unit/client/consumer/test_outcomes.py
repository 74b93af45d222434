"""A message is done once that is said, and never because of anything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

import pytest

import weir
from rigs.consuming import take, take_numbers
from weir import testing
from weir.client.client import Client
from weir.client.consumer.consumer import LeasedBatch, LeasedMessage
from weir.client.core.retries import Backoff
from weir.errors import BadRequest, Reject, TooManyInHand

Scenario = Callable[[testing.Node, Client], Coroutine[None, None, None]]
QUICK = Backoff(first=0.01, most=0.01)


def run(scenario: Scenario) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await w.create_topic("t")
            await scenario(node, w)

    asyncio.run(whole())


async def fill(w: Client, count: int) -> None:
    async with w.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(count)])


async def fail(leased: LeasedMessage | LeasedBatch) -> None:
    """Fail at work on it."""
    with contextlib.suppress(KeyError):
        async with leased:
            raise KeyError("mine")


async def lag(w: Client) -> int:
    (cluster,) = await w.clusters("t", "c")
    return cluster.lag


def test_the_next_message_says_nothing_of_the_one_before() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 5)
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            held = [await anext(consumer) for _ in range(5)]
            await consumer.flush()
            assert await lag(w) == 5
            await held[3].ack(confirmed=True)
            assert await lag(w) == 4
        async with w.consumer("t", cluster="c") as consumer:
            assert sorted(await take_numbers(consumer, 4)) == [0, 1, 2, 4]

    run(scenario)


def test_the_end_of_a_block_acks() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 3)
        async with w.consumer("t", cluster="c") as consumer:
            for _ in range(3):
                async with await anext(consumer) as message:
                    assert message.attempts == 1
            await consumer.flush()
            assert await lag(w) == 0

    run(scenario)


def test_a_block_that_raises_gives_back_with_a_wait_and_an_attempt() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, 1)
        retry = Backoff(first="10m", most="10m", jitter=0)
        async with w.consumer("t", cluster="c", ack_within=0, retry=retry) as consumer:
            await fail(await anext(consumer))
            await consumer.flush()
            assert await lag(w) == 1
            node.advance(599)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.1)
            node.advance(2)
            again = await take(consumer)
            assert again.attempts == 2

    run(scenario)


def test_a_block_that_is_cancelled_gives_back_without_an_attempt() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 1)
        async with w.consumer("t", cluster="c") as consumer:
            begun = asyncio.Event()

            async def work() -> None:
                async with await anext(consumer):
                    begun.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            again = await take(consumer)
            assert again.attempts == 1

    run(scenario)


def test_reject_goes_to_the_dead_letters_and_ends_at_the_block() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 2)
        await w.create_topic("dead")
        async with w.consumer("t", cluster="c", dead_letter="dead") as consumer:
            async with await anext(consumer):
                raise Reject("it is  blue")
            await (await anext(consumer)).reject("it is green")
        assert await lag(w) == 0
        dead = [message async for message in w.reader("dead", follow=False)]
        assert [(one.value, one.headers["weir-reason"]) for one in dead] == [
            (b"0", b"it is blue"),
            (b"1", b"it is green"),
        ]

    run(scenario)


def test_what_is_rejected_without_a_topic_for_it_goes_back() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 1)
        async with w.consumer("t", cluster="c", retry=QUICK) as consumer:
            message = await anext(consumer)
            with pytest.raises(BadRequest, match="dead_letter="):
                await message.reject("no")
            again = await take(consumer)
            assert again.attempts == 2

    run(scenario)


def test_what_fails_too_often_is_a_dead_letter() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 1)
        await w.create_topic("dead")
        retry = Backoff(first=0.01, most=0.01, attempts=3)
        async with w.consumer("t", cluster="c", retry=retry, dead_letter="dead") as consumer:
            for attempt in (1, 2, 3):
                message = await anext(consumer)
                assert message.attempts == attempt
                await fail(message)
        assert await lag(w) == 0
        assert [m.value async for m in w.reader("dead", follow=False)] == [b"0"]

    run(scenario)


def test_what_was_settled_within_a_block_stays_so() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 2)
        async with w.consumer("t", cluster="c", retry=QUICK) as consumer:
            first = await anext(consumer)
            async with first:
                await first.ack()
                await fail(first)
            async with await anext(consumer) as second:
                await second.nack(0)
            again = await take(consumer)
            assert (again.value, again.attempts) == (b"1", 2)
            await consumer.flush()
            assert await lag(w) == 0

    run(scenario)


def test_a_batch_has_a_block_too() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 4)
        async with w.consumer("t", cluster="c", retry=QUICK, ack_within=0) as consumer:
            batches = consumer.batches()
            batch = await anext(batches)
            assert len(batch) == 4
            await fail(batch)
            async with await anext(batches) as again:
                assert (again.attempts, len(again)) == (2, 4)
            await consumer.flush()
            assert await lag(w) == 0

    run(scenario)


def test_a_message_that_is_dropped_goes_back_and_that_is_told() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 2)
        async with w.consumer("t", cluster="c", retry=QUICK, max_messages=1) as consumer:
            with pytest.warns(ResourceWarning, match="without an outcome"):
                await anext(consumer)
            found = [await take(consumer) for _ in range(2)]
            assert sorted((int(one.value), one.attempts) for one in found) == [(0, 2), (1, 1)]

    run(scenario)


def test_a_batch_that_is_dropped_goes_back_and_that_is_told() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 2)
        async with w.consumer("t", cluster="c", retry=QUICK) as consumer:
            with pytest.warns(ResourceWarning, match="without an outcome"):
                await anext(consumer.batches())
            async with await anext(consumer.batches()) as again:
                assert (again.attempts, len(again)) == (2, 2)

    run(scenario)


def test_a_task_that_forgets_is_told_at_the_limit() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 5)
        async with w.consumer("t", cluster="c", max_in_hand=3) as consumer:
            held = [await anext(consumer) for _ in range(3)]
            with pytest.raises(TooManyInHand, match="max_in_hand=3"):
                await anext(consumer)
            await held[0].ack()
            held.append(await anext(consumer))
            with pytest.raises(TooManyInHand):
                await anext(consumer)
            for message in held:
                await message.ack()
            assert int((await take(consumer)).value) == 4

    run(scenario)


def test_at_the_limit_a_task_waits_for_others_that_work() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 40)
        done: list[int] = []

        async def work(message: LeasedMessage) -> None:
            async with message:
                await asyncio.sleep(0.001)
                done.append(int(message.value))

        async with (
            w.consumer("t", cluster="c", max_in_hand=4) as consumer,
            asyncio.TaskGroup() as group,
        ):
            async for message in consumer:
                group.create_task(work(message))
                if int(message.value) == 39:
                    break
        assert sorted(done) == [*range(40)]

    run(scenario)


def test_in_order_who_asks_for_more_before_an_outcome_is_told() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 3)
        async with w.consumer("t", cluster="c", mode="ordered") as consumer:
            first = await anext(consumer)
            with pytest.raises(TooManyInHand, match="in order"):
                await anext(consumer)
            await first.ack()
            assert await take_numbers(consumer, 2) == [1, 2]

    run(scenario)


@pytest.mark.parametrize("how", ["block", "max_work", "neither"])
def test_a_lease_is_extended_in_a_block_or_for_max_work(how: str) -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 1)
        work = "1h" if how == "max_work" else 0
        async with (
            w.consumer("t", cluster="c", lease="400ms", max_work=work) as slow,
            w.consumer("t", cluster="c") as other,
        ):
            message = await anext(slow)
            waiting = asyncio.ensure_future(take(other))
            if how == "block":
                async with message:
                    await asyncio.sleep(1.0)
            else:
                await asyncio.sleep(1.0)
                await message.ack()
            await slow.flush()
            assert waiting.done() == (how == "neither")
            waiting.cancel()
            await asyncio.wait([waiting])
            assert slow.stale == (how == "neither")

    run(scenario)


def test_a_changed_copy_of_a_message_has_no_lease() -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(20):
            await w.create_topic("t")
            await w.publish("t", b"x")
            async with w.consumer("t", cluster="c") as consumer, await anext(consumer) as message:
                copied = message._replace(value=b"y")
                assert type(copied) is weir.Message
                assert (copied.value, copied.offset) == (b"y", 0)

    asyncio.run(whole())
