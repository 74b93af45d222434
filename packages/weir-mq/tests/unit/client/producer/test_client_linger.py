"""Who sends a message at a time waits for nothing; who sends several still sends them together."""

from __future__ import annotations

import asyncio

from rigs.clients import sender_of
from weir.client.client import connect
from weir.client.producer.partition_sender import ALONE_IN_A_ROW
from weir.protocol.client import messages as m


def batches(broker) -> int:
    return sum(isinstance(request, m.Produce) for request in broker.seen)


def test_one_message_at_a_time_soon_waits_for_no_turn_of_the_loop(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("doors")
            async with w.producer("doors", linger=0) as producer:
                (sender,) = sender_of(producer).senders
                for _ in range(ALONE_IN_A_ROW):
                    sent = producer.send(b"one")
                    assert sender.gathering  # it may not be the only one
                    await sent
                sent = producer.send(b"at once")
                assert not sender.gathering
                assert (await sent).offset == ALONE_IN_A_ROW
                assert batches(broker) == ALONE_IN_A_ROW + 1

    asyncio.run(scenario())


def test_the_second_message_of_a_turn_ends_sending_at_once(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("doors")
            async with w.producer("doors", linger=0) as producer:
                (sender,) = sender_of(producer).senders
                for _ in range(ALONE_IN_A_ROW + 1):
                    await producer.publish(b"one")
                for _ in range(3):
                    before = batches(broker)
                    several = [producer.send(b"%d" % n) for n in range(5)]
                    assert sender.gathering
                    offsets = [(await sent).offset for sent in several]
                    assert offsets == sorted(offsets)
                    found = batches(broker) - before
                assert found == 1  # only the very first went without the others

    asyncio.run(scenario())


def test_a_producer_that_lingers_sends_nothing_at_once(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("doors")
            async with w.producer("doors", linger="1ms") as producer:
                (sender,) = sender_of(producer).senders
                for _ in range(2 * ALONE_IN_A_ROW):
                    sent = producer.send(b"one")
                    assert sender.gathering
                    await sent

    asyncio.run(scenario())
