"""An open producer looks for a partition that it does not know before it refuses it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import weir
from weir import sync, testing
from weir.client.producer import sender as outgoing
from weir.client.producer.producer import Producer
from weir.errors import Overloaded, UnknownTopic
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


async def send(p: Producer) -> int:
    return (await p.send(b"x", partition=3)).partition


async def publish(p: Producer) -> int:
    return (await p.publish(b"x", partition=3)).partition


async def publish_from(p: Producer) -> int:
    return (await p.publish_from([b"x" * 700_000] * 4, partition=3)).partition


async def send_many(p: Producer) -> int:
    (batch,) = await p.send_many([b"x", b"y"], partition=3)
    return (await batch).partition


async def publish_arrow(p: Producer) -> int:
    arrow = pytest.importorskip("pyarrow")
    (done,) = await p.publish_arrow(arrow.table({"value": [b"x"]}), partition=3)
    return int(done.partition)


WAYS: list[Callable[[Producer], Awaitable[int]]] = [
    send, publish, publish_from, send_many, publish_arrow,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_partition_that_was_added_is_sent_to_at_once(
    way: Callable[[Producer], Awaitable[int]],
) -> None:
    async def scenario(url: str) -> None:
        async with asyncio.timeout(30), weir.connect(url) as w:
            await w.create_topic("t", partitions=2)
            async with w.producer("t") as p:
                await w.alter_topic("t", partitions=4)
                assert await way(p) == 3
                assert (await p.publish(b"", partition=2)).partition == 2

    with testing.node() as node:
        asyncio.run(scenario(node.url))


def test_without_a_loop_too() -> None:
    with testing.node() as node, sync.connect(node.url) as client:
        client.create_topic("t")
        with client.producer("t") as producer:
            client.alter_topic("t", partitions=2)
            assert producer.send(b"x", partition=1).wait().partition == 1


def test_what_waits_goes_out_in_order_and_with_one_look(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            info = broker.topic("t", 3)
            broker.topics["t"] = msgspec.structs.replace(info, addresses=info.addresses[:1])
            async with w.producer("t") as p:
                sent = [p.send(b"%d" % n, partition=1 + n % 2) for n in range(100)]
                broker.topics["t"] = info
                await p.flush()
                receipts = [await one for one in sent]
            assert [r.partition for r in receipts] == [1, 2] * 50
            assert [r.offset for r in receipts if r.partition == 2] == [*range(50)]
            assert Counter(map(type, broker.seen))[a.AskLeader] == 2

    asyncio.run(scenario())


def test_one_that_there_is_not_is_looked_for_once(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            broker.topic("t", 3)
            async with w.producer("t") as p:
                sent = [p.send(b"", partition=3) for _ in range(10)]
                for one in sent:
                    with pytest.raises(UnknownTopic, match="no partition 3: give 0 to 2"):
                        await one
                for partition in (3, 4, 1 << 70, -1):
                    with pytest.raises(UnknownTopic, match="give 0 to 2"):
                        p.send(b"", partition=partition)
                    with pytest.raises(UnknownTopic, match="give 0 to 2"):
                        await p.publish(b"", partition=partition)
                assert Counter(map(type, broker.seen))[a.AskLeader] == 1
                assert p.error is None
                with pytest.raises(UnknownTopic):
                    await p.flush()
                await p.publish(b"", partition=2)

    asyncio.run(scenario())


def test_who_was_refused_may_find_it_a_while_later(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "LOOK_EVERY", 0.0)

    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            info = broker.topic("t", 2)
            group = info.addresses[1].group
            broker.topics["t"] = msgspec.structs.replace(info, addresses=info.addresses[:1])
            late = broker.logs.pop(group)
            async with w.producer("t") as p:
                with pytest.raises(UnknownTopic):
                    await p.publish(b"", partition=1)
                broker.topics["t"], broker.logs[group] = info, late
                assert (await p.publish(b"", partition=1)).partition == 1

    asyncio.run(scenario())


def test_a_broker_that_is_busy_is_asked_again(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            info = broker.topic("t", 2)
            broker.topics["t"] = msgspec.structs.replace(info, addresses=info.addresses[:1])
            busy = [m.Refusal(Overloaded.code, "busy", 1)] * 2

            def script(request: m.Request) -> m.Refusal | str | None:
                if isinstance(request, a.AskLeader):
                    return busy.pop() if busy else None
                return None

            async with w.producer("t") as p:
                broker.topics["t"], broker.script = info, script
                assert (await p.send(b"", partition=1)).partition == 1
            assert not busy

    asyncio.run(scenario())


def test_closing_gives_up_what_waits(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            broker.topic("t", 1)
            p = await w.producer("t").open()
            one = p.send(b"", partition=1)
            await p.close()
            with pytest.raises(weir.errors.Disconnected, match="the producer is closed"):
                await one
            assert not p.buffered
            with pytest.raises(UnknownTopic):
                p.send(b"", partition=1)

    asyncio.run(scenario())
