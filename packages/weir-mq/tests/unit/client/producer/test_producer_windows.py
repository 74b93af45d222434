"""What window clients ask for, and which publishes share a producer id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weir.client.client import connect
from weir.client.producer import sender
from weir.client.producer.sender import LONE_WINDOW
from weir.errors import BadRequest
from weir.model.ids import window_of
from weir.protocol.client import messages as m


def publishers(broker: Any, *topics: str) -> list[int]:
    """Return the producer id of each batch in these topics, the oldest first."""
    logs = [broker.logs[broker.topics[name].addresses[0].group] for name in topics]
    return [batch.header.producer for log in logs for batch in log]


def test_publishes_to_all_topics_share_an_id_of_a_narrow_window(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            for topic in "tuv":
                await w.create_topic(topic)
                for _ in range(2):
                    await w.publish(topic, b"x")
            assert broker.windows == [LONE_WINDOW]
            (producer,) = set(publishers(broker, *"tuv"))
            assert window_of(producer) == LONE_WINDOW == 4

    asyncio.run(scenario())


def test_what_is_delayed_has_another_id_in_the_same_topic(fake_broker: Any) -> None:
    """Two producers of a topic that shared one would number their batches alike."""

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("t")
            await w.publish("t", b"x")
            await w.publish("t", b"x", delay=1)
            assert len(set(publishers(broker, "t"))) == 2

    asyncio.run(scenario())


def test_a_topic_gets_a_new_id_where_its_producer_failed(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("t")
            await w.create_topic("u")
            await w.publish("t", b"x")

            def refuse(request: m.Request) -> m.Refusal | None:
                is_batch = isinstance(request, m.Produce)
                return m.Refusal(BadRequest.code, "no") if is_batch else None

            broker.script = refuse
            with pytest.raises(BadRequest):
                await w.publish("t", b"y")
            broker.script = lambda _: None
            await w.publish("t", b"z")
            await w.publish("u", b"z")
            first, second = publishers(broker, "t")
            assert first != second
            assert publishers(broker, "u") == [second]
            assert broker.windows == [LONE_WINDOW] * 2

    asyncio.run(scenario())


def test_an_old_id_is_not_given_to_a_topic_that_is_new_to_it(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "SHARED_SECONDS", -1.0)

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            for topic in "tu":
                await w.create_topic(topic)
                for _ in range(2):
                    await w.publish(topic, b"x")
            assert len(set(publishers(broker, *"tu"))) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "asked"),
    [({}, 8), ({"window": 3}, 3), ({"window": 500}, 64), ({"ack": "received"}, 0)],
)
def test_a_producer_asks_for_its_window(
    fake_broker: Any, options: dict[str, Any], asked: int
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("t")
            async with w.producer("t", **options) as producer:
                await producer.publish(b"x")
            assert broker.windows == [asked]

    asyncio.run(scenario())


def test_a_producer_keeps_to_the_window_that_was_granted(fake_broker: Any) -> None:
    """A node may grant a smaller one than was asked for."""

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("t")
            held: list[tuple[Any, ...]] = []
            grant = m.ProducerGrant(2 << 60 | 7, 0)
            plain = broker.reply

            def late(reply: m.Reply, *more: Any) -> None:
                if isinstance(reply, m.Confirm):
                    held.append((reply, *more))
                else:
                    plain(grant if isinstance(reply, m.ProducerGrant) else reply, *more)

            broker.reply = late
            async with w.producer("t", window=8, linger=0) as producer:
                for number in range(5):
                    producer.send(b"%d" % number)
                    await asyncio.sleep(0)  # a turn of the loop: each is a batch of its own
                while len(held) < 2:
                    await asyncio.sleep(0)
                await w.ping()
                assert len(held) == 2
                broker.reply = plain
                for one in held:
                    plain(*one)
                await producer.flush()
            assert broker.values("t") == [b"%d" % number for number in range(5)]

    asyncio.run(scenario())
