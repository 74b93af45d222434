"""A consumer takes one topic, several, or those of a prefix, and says where its cluster begins."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

import weir
from rigs.clients import network_of
from rigs.consuming import take
from weir import sync, testing
from weir.client.client import Client
from weir.client.consumer import leases
from weir.client.consumer.consumer import Consumer
from weir.errors import (
    BadName,
    BadRequest,
    OffsetOutOfRange,
    TooManyInHand,
    UnknownOpcode,
    UnknownTopic,
)
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_LOOK_EVERY", 0.02)


def run(scenario: Callable[[testing.Node, Client], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await scenario(node, w)

    asyncio.run(whole())


async def fill(
    w: Client, topic: str, count: int, partitions: int = 1, order: Any = "partition"
) -> None:
    await w.create_topic(topic, partitions, order)
    for partition in range(partitions):
        async with w.producer(topic, partition=partition) as producer:
            await producer.send_many([b"%d" % i for i in range(count)])


async def values(consumer: Consumer, count: int) -> Counter[tuple[str, bytes]]:
    found = [await take(consumer) for _ in range(count)]
    return Counter((one.topic, bytes(one.value)) for one in found)


async def is_idle(consumer: Consumer) -> bool:
    """Whether nothing more comes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            return not await anext(consumer)
    return True


async def seen(consumer: Consumer, topics: list[str]) -> None:
    """Return once it consumes these; ask for messages meanwhile, for only then it looks."""
    asking = asyncio.ensure_future(anext(consumer))
    while consumer.topics != topics:
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait([asking])


# Topics.


def test_messages_of_several_topics_come_with_their_topic_and_are_acked_in_it() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "a", 2, partitions=2)
        await fill(w, "ns/b", 3)
        async with w.consumer(["a", "ns/b"], cluster="c") as consumer:
            assert consumer.topics == ["a", "ns/b"]
            assert await values(consumer, 7) == Counter(
                [("a", b"0"), ("a", b"1")] * 2 + [("ns/b", b"%d" % i) for i in range(3)]
            )
            await consumer.flush()
            assert consumer.cursors_of("default/a") == {0: 2, 1: 2}
            assert consumer.cursors_of("ns/b") == {0: 3}
            assert consumer.cursors_of("other") == {}
            with pytest.raises(BadRequest, match=r"ask cursors_of\(topic\)"):
                _ = consumer.cursors
        for topic in ("a", "ns/b"):
            (cluster,) = await w.clusters(topic)
            assert (cluster.name, cluster.lag) == ("c", 0)

    run(scenario)


def test_a_topic_with_much_to_do_keeps_no_other_waiting() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "much", 5_000)
        await fill(w, "little", 1)
        async with w.consumer(["much", "little"], cluster="c", max_messages=10) as consumer:
            assert ("little", b"0") in await values(consumer, 40)

    run(scenario)


def test_batches_and_deliveries_are_of_all_topics() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "a", 3)
        await fill(w, "b", 3)
        async with w.consumer(["a", "b"], cluster="batches") as consumer:
            grants = consumer.batches()
            got = [await anext(grants), await anext(grants)]
            assert {grant.topic for grant in got} == {"a", "b"}
            for grant in got:
                assert await grant.ack(confirmed=True)
        async with w.consumer(["a", "b"], cluster="deliveries") as consumer:
            deliveries, topics = consumer.deliveries(), Counter[str]()
            for _ in range(6):
                delivery = await anext(deliveries)
                topics[delivery.message.topic] += 1
                delivery.done()
            assert topics == {"a": 3, "b": 3}

    run(scenario)


def test_what_is_in_hand_is_counted_over_all_topics() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "a", 2)
        await fill(w, "b", 2)
        async with w.consumer(["a", "b"], cluster="c", max_in_hand=3) as consumer:
            held = [await anext(consumer) for _ in range(3)]
            assert {one.topic for one in held} == {"a", "b"}
            with pytest.raises(TooManyInHand):
                await anext(consumer)
            for one in held:
                await one.ack()
            await take(consumer)

    run(scenario)


@pytest.mark.parametrize("order", ["partition", "total"])
def test_in_order_each_topic_keeps_its_own(order: Any) -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        for topic in ("a", "b"):
            await fill(w, topic, 20, order=order)
        async with w.consumer(["a", "b"], cluster="c", mode="ordered") as consumer:
            found: dict[str, list[int]] = {"a": [], "b": []}
            failed = False
            while len(found["a"]) + len(found["b"]) < 40:
                message = await anext(consumer)
                if int(message.value) == 5 and not failed:
                    failed = await message.nack(0)
                    continue
                found[message.topic].append(int(message.value))
                await message.ack()
            assert found == {"a": [*range(20)], "b": [*range(20)]}

    run(scenario)


def test_one_scattering_acks_messages_of_two_topics() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "a", 1)
        await fill(w, "b", 1)
        await w.create_topic("out")
        async with w.consumer(["a", "b"], cluster="c") as consumer:
            held = [await anext(consumer) for _ in range(2)]
            async with w.scatter() as scattering:
                scattering.publish("out", b"both")
                for message in held:
                    scattering.ack(message)
        assert [(await w.clusters(topic))[0].lag for topic in ("a", "b")] == [0, 0]

    run(scenario)


def test_a_named_topic_that_is_not_there_or_goes_is_an_error() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "a", 1)
        with pytest.raises(UnknownTopic):
            await w.consumer(["a", "none"], cluster="c").open()
        await w.create_topic("b")
        async with w.consumer(["a", "b", "p*"], cluster="c") as consumer:
            await take(consumer)
            await w.delete_topic("b")
            with pytest.raises(UnknownTopic):
                await anext(consumer)

    run(scenario)


# Prefixes.


def test_a_prefix_takes_what_matches_and_what_comes_later() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        for topic in ("orders", "orders-b", "other", "ns/orders.c"):
            await fill(w, topic, 1)
        async with w.consumer("orders.*", cluster="c", start="latest") as consumer:
            assert consumer.topics == []
            asking = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.05)
            assert not asking.done(), "a prefix that matches nothing waits"
            # All that is in a topic which was not there at first is new.
            await fill(w, "orders.new", 1)
            async with await asking as message:
                assert (message.topic, message.value) == ("orders.new", b"0")
            await fill(w, "orders.", 1)
            assert await values(consumer, 1) == {("orders.", b"0"): 1}
            assert consumer.topics == ["orders.", "orders.new"]

    run(scenario)


@pytest.mark.parametrize("prefix", ["*", "default/*", "t*", ["t0.*", "t1.*"]])
def test_what_a_prefix_matches(prefix: Any) -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        for number in range(2):
            for name in ("b", "a"):
                await fill(w, f"t{number}.{name}", 1)
        await fill(w, "ns/t0.a", 1)
        async with w.consumer(prefix, cluster="c") as consumer:
            names = [f"t{number}.{name}" for number in range(2) for name in "ab"]
            assert await values(consumer, 4) == Counter((name, b"0") for name in names)
            assert await is_idle(consumer)

    run(scenario)


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_a_prefix_lets_go_of_what_is_deleted_and_takes_what_comes_under_its_name(
    mode: Any,
) -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "p.gone", 2)
        async with w.consumer("p.*", cluster="c", mode=mode, ack_within=0) as consumer:
            first = await anext(consumer)
            await w.delete_topic("p.gone")
            await seen(consumer, [])
            await first.ack()
            await consumer.flush()
            with pytest.raises(UnknownTopic):
                await first.ack(confirmed=True)
            await fill(w, "p.gone", 1)
            await fill(w, "p.stays", 1)
            assert await values(consumer, 2) == Counter([("p.gone", b"0"), ("p.stays", b"0")])
            await consumer.flush()
            assert consumer.cursors_of("p.gone") == {0: 1}

    run(scenario)


def test_who_waits_for_an_ack_of_what_was_deleted_is_told() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "p.gone", 2)
        async with w.consumer("p.*", cluster="c") as consumer:
            held = [await anext(consumer) for _ in range(2)]
            await w.delete_topic("p.gone")
            with pytest.raises(UnknownTopic):
                await held[0].ack(confirmed=True)
            await held[1].nack(0)
            await seen(consumer, [])

    run(scenario)


# Where to start.


def test_a_new_cluster_begins_where_it_is_told_to_and_one_that_has_begun_goes_on() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "t", 5, partitions=3)
        async with w.consumer("t", cluster="c", start="latest") as consumer:
            await w.publish("t", b"new", partition=1)
            assert await values(consumer, 1) == {("t", b"new"): 1}
            assert await is_idle(consumer)
        await w.publish("t", b"while it was away", partition=2)
        for start in ("latest", "earliest", {0: 3}, weir.last(2)):
            async with w.consumer("t", cluster="c", start=start) as consumer:
                held = await anext(consumer)
                assert held.value == b"while it was away"
                await held.nack(0)

    run(scenario)


def test_partitions_that_a_cluster_has_not_come_to_are_begun_at_their_beginning() -> None:
    """A cluster has begun, or not, in the whole topic: nothing of what is added is passed over."""

    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "t", 1)
        async with w.consumer("t", cluster="c") as consumer:
            await take(consumer)
        await w.alter_topic("t", partitions=2)
        await w.publish("t", b"first", partition=1)
        async with w.consumer("t", cluster="c", start="latest") as consumer:
            assert await values(consumer, 1) == {("t", b"first"): 1}

    run(scenario)


def test_who_takes_over_from_one_that_died_as_it_began_does_the_rest() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "t", 5, partitions=3)
        addresses = (await w.describe("t")).addresses
        await network_of(w).request(a.BeginCluster(addresses[2], "c", 4), a.ClusterChanged)
        async with w.consumer("t", cluster="c", start="latest") as consumer:
            assert await values(consumer, 1) == {("t", b"4"): 1}
            assert await is_idle(consumer)

    run(scenario)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", 10), ("last", 2), (weir.last(3), 6), ({0: 4}, 6), ({0: 5, 1: 3}, 2),
        ("-1m", 0), ("-2h", 10),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("order", "mode"), [("partition", "shared"), ("total", "ordered"), ("total", "keyed")]
)
def test_it_starts_as_a_reader_does(order: Any, mode: Any, start: Any, expected: int) -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await fill(w, "t", 5, partitions=2, order=order)
        node.advance(3_600)
        async with w.consumer("t", cluster="c", mode=mode, start=start) as consumer:
            found = await values(consumer, expected)
            await w.publish("t", b"new", partition=0)
            assert await values(consumer, 1) == {("t", b"new"): 1}
        async with w.reader("t", start=start, follow=False) as reader:
            read = Counter([("t", bytes(message.value)) async for message in reader])
        assert found + Counter([("t", b"new")]) == read or start == "last" or expected == 6

    run(scenario)


# It began at the earliest message then: nobody had told the broker where to begin.
def test_a_cluster_in_total_order_begins_there_though_its_consumer_lost_its_connection() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "t", 5, partitions=2, order="total")
        async with w.consumer("t", cluster="c", mode="ordered", start="latest") as consumer:
            await consumer.settlement.leases.reset()
            await w.publish("t", b"new", partition=1)
            assert await values(consumer, 1) == {("t", b"new"): 1}

    run(scenario)


def test_consumers_that_begin_a_cluster_together_agree() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "t", 5, partitions=4)
        consumers = [w.consumer("t", cluster="c", start="latest") for _ in range(5)]
        await asyncio.gather(*(consumer.open() for consumer in consumers))
        (cluster,) = await w.clusters("t")
        assert [share.cursor for share in cluster.shares] == [5] * 4
        await asyncio.gather(*(consumer.close() for consumer in consumers))

    run(scenario)


def test_bad_arguments_are_refused_where_they_are_given() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        for topic, kind, why in (
            (cast(Any, 3), TypeError, "topic=3: give a topic, a prefix"),
            (cast(Any, [b"t"]), TypeError, "give a topic, a prefix"),
            ([], BadRequest, r"topic=\[\]: name at least one topic"),
            ("a b", BadName, "topic 'a b' is not allowed"),
            ("a*b", BadName, "is not allowed"),
            ("n s/*", BadName, "namespace 'n s' is not allowed"),
        ):
            with pytest.raises(kind, match=why):
                w.consumer(topic, cluster="c")
        for start in ("soon", 3, {0: -1}):
            with pytest.raises(BadRequest, match="start="):
                w.consumer("t", cluster="c", start=cast(Any, start))
        for topics in (["a", "b"], "a*"):
            with pytest.raises(BadRequest, match=r"start=\{0: 1\}: offsets are those of one topic"):
                w.consumer(topics, cluster="c", start={0: 1})
        with pytest.raises(
            BadRequest, match=r"dead_letter='a\.dead': the consumer takes that topic"
        ):
            w.consumer("a.*", cluster="c", retry=weir.Backoff(attempts=2), dead_letter="a.dead")

    run(scenario)


def test_a_place_that_is_not_there_begins_nothing() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, "t", 5, partitions=2)
        for start, kind in (
            ({1: 6}, OffsetOutOfRange),
            ({2: 0}, UnknownTopic),
            (weir.at("2999-01-01"), BadRequest),
        ):
            with pytest.raises(kind):
                await w.consumer("t", cluster="c", start=start).open()
        assert await w.clusters("t") == []

    run(scenario)


def test_a_broker_that_cannot_begin_a_cluster_is_not_asked_to_seek(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            broker.script = lambda request: (
                m.Refusal(UnknownOpcode.code, "not known here")
                if isinstance(request, a.BeginCluster)
                else None
            )
            with pytest.raises(BadRequest, match="start='latest': the broker is of a release"):
                await w.consumer("t", cluster="c", start="latest").open()

    asyncio.run(scenario())


# Without async.


def test_the_client_without_async_takes_several_topics_and_says_where_to_start() -> None:
    with testing.node() as node, sync.connect(node.url) as w:
        for topic in ("a.1", "a.2"):
            w.create_topic(topic)
            w.publish(topic, b"old")
        with w.consumer("a.*", cluster="c", start="latest") as consumer:
            assert consumer.topics == ["a.1", "a.2"]
            w.create_topic("a.3")
            for topic in ("a.1", "a.2", "a.3"):
                w.publish(topic, topic)
            found = set()
            for _ in range(3):
                with next(consumer) as message:
                    found.add((message.topic, bytes(message.value)))
            assert found == {(topic, topic.encode()) for topic in ("a.1", "a.2", "a.3")}
            consumer.flush()
            assert consumer.cursors_of("a.1") == {0: 2}
        with w.consumer(["a.1", "a.2"], cluster="again") as consumer:
            grants, topics = consumer.batches(), set()
            for _ in range(2):
                with next(grants) as grant:
                    topics.add(grant.topic)
            assert topics == {"a.1", "a.2"}
