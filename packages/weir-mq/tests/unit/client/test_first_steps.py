"""What a first user does: topics made again, values of all kinds, programs that publish once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import weir
from rigs.clients import network_of
from weir import testing
from weir.client.arguments import value_bytes
from weir.client.client import Client
from weir.client.consumer.delivery import Stale
from weir.errors import TooLarge, UnknownTopic
from weir.model.message import LargeMessage, Message


def run(scenario: Callable[[testing.Node, Client], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(20):
            await scenario(node, w)

    asyncio.run(whole())


def test_a_name_means_the_topic_that_has_it_now() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await w.create_topic("t")
        await w.publish("t", b"old")
        await w.delete_topic("t")
        await w.create_topic("t")
        receipts = await asyncio.gather(*(w.publish("t", b"new") for _ in range(3)))
        assert [receipt.offset for receipt in receipts] == [0, 1, 2]
        await w.delete_topic("t")
        with pytest.raises(UnknownTopic, match="no topic 't'"):
            await w.publish("t", b"nowhere")

    run(scenario)


def test_who_holds_on_to_a_deleted_topic_is_told_so_in_words() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await w.create_topic("t")
        async with w.reader("t") as reader:
            await w.delete_topic("t")
            with pytest.raises(UnknownTopic, match="deleted"):
                await anext(reader)
        await w.create_topic("t")
        producer = await w.producer("t").open()
        await w.delete_topic("t")
        with pytest.raises(UnknownTopic, match="the topic was deleted"):
            await producer.publish(b"x")
        await producer.close()

    run(scenario)


def test_programs_that_publish_once_spread_over_the_partitions() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await w.create_topic("t", partitions=4)
        chosen = set()
        for seed in range(12):
            network_of(w).random = random.Random(seed)
            async with w.producer("t") as producer:
                chosen.add((await producer.publish(b"x")).partition)
        assert chosen == {0, 1, 2, 3}

    run(scenario)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [1, {"a": -float("inf")}], {"x": (None, float("nan"))}]
)
def test_no_number_becomes_null_without_a_word(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON has no number"):
        value_bytes(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, b"null"), ({"null": 1.5}, b'{"null":1.5}'), ([None, "null"], b'[null,"null"]')],
)
def test_null_is_null(value: Any, text: bytes) -> None:
    assert value_bytes(value) == text


def test_a_value_that_is_not_here_is_not_unpacked_as_nothing() -> None:
    plain = Message(b"", b"k", "tag", 5, {}, "t", 0, 3, 4)
    large = LargeMessage(plain, 100)
    unpackings: list[Callable[[], object]] = [
        lambda: [*large],
        lambda: large[0],
        lambda: large[-11],
        lambda: large[:2],
        large._asdict,
    ]
    for unpack in unpackings:
        with pytest.raises(TooLarge, match="100 bytes"):
            unpack()
    assert (large[1], large[-3], large[1:3]) == (b"k", 4, (b"k", "tag"))
    assert LargeMessage(large, 100).key == b"k"


def test_a_callback_that_raises_costs_no_report(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await w.create_topic("t")
        async with w.producer("t") as producer:
            await producer.send_many([b"%d" % i for i in range(4)])
        told: list[Stale] = []

        def tell(stale: Stale) -> None:
            told.append(stale)
            raise ValueError("the user's mistake")

        async with w.consumer("t", cluster="c", max_messages=2, on_stale=tell) as consumer:
            grants = consumer.batches()
            late = [await anext(grants), await anext(grants)]
            node.advance(31)
            async with w.consumer("t", cluster="c") as other:
                again = [await anext(other) for _ in range(4)]
                assert sorted(int(message.value) for message in again) == [0, 1, 2, 3]
                for message in again:
                    await message.ack(confirmed=True)
            assert not any([await grant.ack(confirmed=True) for grant in late])
        assert {offset for one in told for offset in range(one.offset, one.next_offset)} == {
            *range(4)
        }

    with caplog.at_level(logging.ERROR, "weir.client.consumer.acknowledgements"):
        run(scenario)
    assert len(caplog.records) == 2
