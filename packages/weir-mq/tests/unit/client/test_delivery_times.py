"""Messages that are delivered later, or not at all: what people write, and what clusters get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta

import pytest

import weir
from rigs.consuming import take
from weir import testing
from weir.client.arguments import Timing, delay_ms, timing
from weir.client.client import Client
from weir.client.consumer.consumer import Consumer
from weir.errors import BadRequest
from weir.model.batch import Batch, Columns
from weir.model.limits import MIB

NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000


def run(scenario: Callable[[testing.Node, Client], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await w.create_topic("t")
            await scenario(node, w)

    asyncio.run(whole())


async def here(consumer: Consumer, count: int = 0) -> list[bytes]:
    """Take so many messages, however long that takes, and what else comes within a moment."""
    found = [(await take(consumer)).value for _ in range(count)]
    while True:
        try:
            message = await asyncio.wait_for(anext(consumer), 0.15)
        except TimeoutError:
            return found
        await message.ack()
        found.append(message.value)


def test_what_people_write_becomes_columns() -> None:
    zone = datetime(2023, 11, 14, 23, 13, 20, tzinfo=UTC)
    assert timing(None, None, None) is None
    assert timing("1h", None, None) == Timing(delay=HOUR)
    assert timing(0, None, "2h").columns(NOW) == (None, NOW + 2 * HOUR)
    assert timing(3_600.0, None, "2h").columns(NOW) == (NOW + HOUR, NOW + 2 * HOUR)
    assert timing(None, zone, None).columns(NOW) == (NOW + HOUR, None)
    assert timing(None, zone.isoformat(), None).columns(NOW) == (NOW + HOUR, None)
    assert timing(None, NOW + 5, None).columns(NOW) == (NOW + 5, None)
    assert timing(None, NOW - HOUR, None).columns(NOW) == (None, None), "it is due already"
    assert delay_ms("1.0001s") == 1_001


@pytest.mark.parametrize(
    ("given", "error", "advice"),
    [
        (("1h", NOW, None), BadRequest, "not both"),
        (("366d", None, None), BadRequest, "365 days"),
        (("-1s", None, None), ValueError, "no duration"),
        ((-1.0, None, None), ValueError, "seconds from 0 on"),
        ((None, "tomorrow", None), BadRequest, "is no time"),
        ((None, 1.5, None), TypeError, "whole microseconds"),
        ((None, 0, None), BadRequest, "since 1970"),
        ((None, None, 0), BadRequest, "give more than 0"),
        ((None, None, "366d"), BadRequest, "365 days"),
    ],
)
def test_what_cannot_be_is_told(given: tuple, error: type[Exception], advice: str) -> None:
    with pytest.raises(error, match=advice):
        timing(*given)


def test_a_message_that_expires_before_it_is_due_is_told() -> None:
    with pytest.raises(BadRequest, match="expire before it is due"):
        timing("1h", None, "1h")
    with pytest.raises(BadRequest, match="expire before it is due"):
        timing(None, NOW + HOUR, "1h").columns(NOW)
    with pytest.raises(BadRequest, match="within a year"):
        timing(None, NOW + 366 * 24 * HOUR, None).columns(NOW)


def test_all_ways_to_publish_fill_the_columns(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            now = broker.wall_ms * 1_000
            group = broker.topic("t").addresses[0].group
            named = {"delay": "1h", "ttl": "2h"}
            await w.publish("t", b"a", **named)
            async with w.producer("t", linger="1h") as producer:
                producer.send(b"plain")
                producer.send(b"b", **named)
                await producer.flush()
                await producer.send_many([b"c", b"d"], **named)
                await producer.publish_from([bytes(MIB)] * 3, **named)

            def hours(batch: Batch, column: Columns) -> list[float]:
                found = batch.numbers(column)
                assert found is not None
                return [(at - now) / HOUR if at else 0 for at in found]

            closest = {"abs": 0.01}
            for batch, dues, expires in zip(
                broker.logs[group],
                ([1], [0, 1], [1, 1], [1]),
                ([2], [0, 2], [2, 2], [2]),
                strict=True,
            ):
                assert hours(batch, Columns.DUE) == pytest.approx(dues, **closest)
                assert hours(batch, Columns.EXPIRES) == pytest.approx(expires, **closest)

    asyncio.run(scenario())


def test_delayed_messages_come_when_they_are_due() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        node.advance(7_200)  # what is "from now on" is counted by the broker's clock
        await w.publish("t", b"in 20", delay="20m")
        await w.publish("t", b"now")
        await w.publish("t", b"in 10", delay="10m")
        due = datetime.now(UTC) + timedelta(hours=2, minutes=30)
        await w.publish("t", b"in 30", due=due)
        async with w.reader("t", follow=False) as reader:
            assert len([message async for message in reader]) == 4, "readers see them at once"
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            assert await here(consumer, 1) == [b"now"]
            node.advance(599)
            assert await here(consumer) == []
            for seconds, value in ((2, b"in 10"), (600, b"in 20"), (600, b"in 30")):
                node.advance(seconds)
                assert await here(consumer, 1) == [value]

    run(scenario)


def test_delayed_messages_wait_through_a_crash() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await w.publish("t", b"later", delay="10m")
        await w.publish("t", b"now")
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            assert await here(consumer, 1) == [b"now"]
        node.restart()
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            assert await here(consumer) == []
            node.advance(601)
            assert await here(consumer, 1) == [b"later"]

    run(scenario)


def test_what_has_expired_is_left_out_and_done() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        await w.publish("t", b"short", ttl="10s")
        async with w.producer("t") as producer:
            sent = [producer.send(b"x", ttl="10s"), producer.send(b"y"), producer.send(b"z")]
            for one in sent:
                await one
        node.advance(11)
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            assert await here(consumer, 2) == [b"y", b"z"]
        (cluster,) = await w.clusters("t", "c")
        assert cluster.lag == 0
        async with w.reader("t", follow=False) as reader:
            assert len([message async for message in reader]) == 4

    run(scenario)


def test_grants_of_nothing_but_expired_messages_are_not_handed_out() -> None:
    async def scenario(node: testing.Node, w: Client) -> None:
        for _ in range(3):
            await w.publish("t", b"short", ttl="10s")
        node.advance(11)
        async with w.consumer("t", cluster="c", ack_within=0) as consumer:
            grants = consumer.batches()
            asked = asyncio.ensure_future(anext(grants))
            while not (found := await w.clusters("t", "c")) or found[0].lag:
                await asyncio.sleep(0.01)
            await w.publish("t", b"lasts", ttl="1h")
            grant = await asked
            assert [message.value for message in grant.messages()] == [b"lasts"]
            assert await grant.ack(confirmed=True)

    run(scenario)


def test_a_delay_is_refused_where_the_order_counts_and_spoils_nothing_else() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await w.publish("t", b"x")
        async with w.consumer("t", cluster="c", mode="ordered") as consumer:
            held = await anext(consumer)
            refused, taken = await asyncio.gather(
                w.publish("t", b"later", delay="1h"), w.publish("t", b"y"), return_exceptions=True
            )
            assert isinstance(refused, BadRequest)
            assert taken.offset == 1
            await held.ack()

    run(scenario)
