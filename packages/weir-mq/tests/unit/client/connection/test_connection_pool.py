"""The client's ways to the shards of a node: own ports where they can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec
import pytest

from rigs.clients import network_of, pool_of
from weir.client.client import connect
from weir.client.connection import pool
from weir.errors import Disconnected, NotLeader, Unavailable
from weir.model.ids import Address
from weir.protocol.client import messages as m

Brokers = Callable[[], AbstractAsyncContextManager[Any]]


def told(broker: Any, shard: int, *ports: int) -> None:
    """Let a broker say that it is one shard of a node with these own ports."""

    async def answer(request: m.Request) -> m.Reply:
        if isinstance(request, m.Hello):
            return m.Welcome(77, 1, 1, shard, 1 << 20, 64, ports=ports)
        return await plain(request)

    plain = broker.answer
    broker.answer = answer


def placed(broker: Any, *shards: int) -> None:
    """Place the partitions of topic "t" in these shards."""
    info = broker.topic("t", len(shards))
    addresses = [
        Address(shard, 0, address.group)
        for shard, address in zip(shards, info.addresses, strict=True)
    ]
    broker.topics["t"] = m.TopicInfo(info.id, "default", "t", "partition", addresses)


def produced(broker: Any) -> list[int]:
    """Return the shards of all batches that a broker got."""
    return [request.address.shard for request in broker.seen if isinstance(request, m.Produce)]


def same_logs(brokers: list[Any]) -> None:
    """Let all store into one: whoever is not the owner passes on."""
    for broker in brokers[1:]:
        for name in ("topics", "logs", "answers", "next_sequence", "chunks", "starts", "news"):
            setattr(broker, name, getattr(brokers[0], name))


async def two(stack: AsyncExitStack, fake_broker: Brokers) -> tuple[Any, Any]:
    landing, other = [await stack.enter_async_context(fake_broker()) for _ in range(2)]
    placed(landing, 0, 1)
    same_logs([landing, other])
    told(landing, 0, landing.port, other.port)
    told(other, 1, landing.port, other.port)
    return landing, other


async def read_in_order(client: Any, count: int) -> list[bytes]:
    """Read partition 1 in total order, and publish there what comes next once all is read."""
    found: list[bytes] = []
    async with client.reader("t", order="total") as reader:
        for n in range(count):
            if n:
                await client.publish("t", b"%d" % n, partition=1)
            async with asyncio.timeout(5):
                found.append((await anext(reader)).value)
    return found


def asked(broker: Any) -> int:
    return sum(isinstance(request, m.AskBarriers) for request in broker.seen)


def test_who_has_sent_news_is_asked_how_far_the_order_is(fake_broker: Brokers) -> None:
    """It is awake. The question once went to the shard at home, which had to ask that one."""

    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            async with connect(landing.url) as client:
                landing.barrier = other.barrier
                await client.publish("t", b"0", partition=1)  # so that there is a way
                assert await read_in_order(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
            assert (asked(landing), asked(other)) == (0, 5)

    asyncio.run(asyncio.wait_for(body(), 20))


def test_who_is_not_told_by_the_others_is_not_asked_again(fake_broker: Brokers) -> None:
    """A shard that is cut off from the others would answer each time that it knows of nothing."""

    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            landing.barrier, other.barrier = other.barrier, lambda group: (0, 0)
            async with connect(landing.url) as client:
                await client.publish("t", b"0", partition=1)
                assert await read_in_order(client, 3) == [b"0", b"1", b"2"]
            assert (asked(landing), asked(other)) == (3, 3)

    asyncio.run(asyncio.wait_for(body(), 20))


def refusing(kind: type[m.Request]) -> Callable[[m.Request], m.Refusal | None]:
    """Refuse one kind of request, as a node does that has lost the others."""

    def script(request: m.Request) -> m.Refusal | None:
        gone = m.Refusal(Unavailable.code, "cannot reach the registry's leader")
        return gone if isinstance(request, kind) else None

    return script


def test_what_a_shard_cannot_answer_is_asked_at_home(fake_broker: Brokers) -> None:
    """It was asked there again and again, until the reader ended; and home was left for it."""

    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            async with connect(landing.url, request_timeout=5) as client:
                landing.barrier = other.barrier
                await client.publish("t", b"0", partition=1)
                home = pool_of(client).home
                other.script = refusing(m.AskBarriers)
                assert await read_in_order(client, 3) == [b"0", b"1", b"2"]
                assert (asked(landing), asked(other)) == (3, 3)
                other.script = refusing(m.Fetch)
                async with client.reader("t", partitions=[1]) as reader:
                    assert (await anext(reader)).value == b"0"
                assert pool_of(client).home is home

    asyncio.run(asyncio.wait_for(body(), 20))


def test_a_pull_that_was_passed_on_is_withdrawn_by_the_connection_that_it_went_by(
    fake_broker: Brokers,
) -> None:
    """It was withdrawn by the shard's own connection, to which it was another peer's, and waited on
    for up to a minute. The handler that was to be alone in its process waited with it.
    """

    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            landing.lets_withdraw = other.lets_withdraw = True
            other.script = refusing(m.Pull)
            client = await stack.enter_async_context(connect(landing.url))
            consumer = await stack.enter_async_context(client.consumer("t", cluster="c"))
            deliveries = consumer.deliveries()
            more = asyncio.ensure_future(deliveries.more())
            while len(pulls(landing)) < 2:
                await asyncio.sleep(0.01)
            more.cancel()
            assert pulls(landing) == [0, 1]
            deliveries.pause()
            async with asyncio.timeout(1):  # pulls wait for 5 s
                await deliveries.quiet()
            assert not any(isinstance(request, m.Withdraw) for request in other.seen)

    asyncio.run(asyncio.wait_for(body(), 20))


def pulls(broker: Any) -> list[int]:
    """Return the shards that pulls of a broker were for, in order."""
    return sorted(request.address.shard for request in broker.seen if isinstance(request, m.Pull))


def test_each_shard_gets_its_own_by_its_own_port(fake_broker: Brokers) -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            async with connect(landing.url) as client:
                for n in range(6):
                    await client.publish("t", b"%d" % n, partition=n % 2)
                found = [message async for message in client.reader("t", follow=False)]
            assert len(found) == 6
            assert (set(produced(landing)), set(produced(other))) == ({0}, {1})
            asked = [r for r in landing.seen if isinstance(r, m.Fetch)]
            assert {request.address.shard for request in asked} == {0}

    asyncio.run(asyncio.wait_for(body(), 20))


@pytest.mark.parametrize("why", ["nobody listens", "another shard", "another system"])
def test_where_an_own_port_leads_nowhere_the_first_connection_serves(
    fake_broker: Brokers, why: str
) -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            if why == "nobody listens":
                await other.stop()
            elif why == "another shard":
                told(other, 0)
            else:
                other.script = lambda r: m.Refusal(23, "no") if isinstance(r, m.Hello) else None
            async with connect(landing.url) as client:
                for n in range(6):
                    await client.publish("t", b"%d" % n, partition=n % 2)
            assert set(produced(landing)) == {0, 1}
            assert not produced(other)

    asyncio.run(asyncio.wait_for(body(), 20))


def test_a_shard_that_goes_and_comes_back_is_talked_to_again(fake_broker: Brokers) -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            async with connect(landing.url) as client, client.producer("t", linger=0) as producer:
                await producer.publish(b"0", partition=1)
                assert produced(other) == [1]
                await other.stop()
                await producer.publish(b"1", partition=1)
                assert produced(landing) == [1]
                await other.start()
                n = 2
                while len(produced(other)) < 3:
                    await producer.publish(b"%d" % n, partition=1)
                    n += 1
            assert landing.values("t", 1) == [b"%d" % i for i in range(n)]

    asyncio.run(asyncio.wait_for(body(), 20))


def test_batches_under_way_are_not_overtaken_on_another_way(fake_broker: Brokers) -> None:
    """While some go by the first connection, the own port opens: the rest waits for those."""

    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            await other.stop()
            async with connect(landing.url) as client:
                network = network_of(client)
                await client.publish("t", b"x", partition=1)  # decided: there is no own way
                address = landing.topics["t"].addresses[1]
                gate, answers = asyncio.Event(), list[Any]()
                slow = landing.produce

                async def held(request: m.Produce) -> m.Reply:
                    await gate.wait()
                    return await slow(request)

                landing.produce = held
                request = m.Produce(
                    address, 0, memoryview(bytes(landing.logs[address.group][0].view))
                )

                def on_answer(number: int, answer: Any) -> None:
                    answers.append(answer)

                assert network.send(request, on_answer) is not None
                await other.start()
                way = pool_of(network).toward(request)
                assert way is not None
                while way.connection is None:
                    await asyncio.sleep(0)
                assert network.send(request, on_answer) is None
                gate.set()
                while not answers:
                    await asyncio.sleep(0)
                assert network.send(request, on_answer) is not None
                while len(answers) < 2:
                    await asyncio.sleep(0)
                assert produced(other) == [1]

    asyncio.run(asyncio.wait_for(body(), 20))


def test_two_connections_never_number_requests_alike(fake_broker: Brokers) -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, _ = await two(stack, fake_broker)
            async with connect(landing.url) as client:
                numbers = []
                for partition in (0, 1):
                    await client.publish("t", b"x", partition=partition)
                    address = landing.topics["t"].addresses[partition]
                    number = network_of(client).send(m.Positions(address), lambda *_: None)
                    assert number is not None
                    numbers.append(number >> 40)
                assert numbers[0] != numbers[1]

    asyncio.run(asyncio.wait_for(body(), 20))


def test_another_nodes_ports_are_taken_when_that_node_answers(fake_broker: Brokers) -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            third = await stack.enter_async_context(fake_broker())
            same_logs([landing, third])
            told(third, 1)
            async with connect(landing.url) as client:
                await client.publish("t", b"x", partition=1)
                assert produced(other) == [1]
                told(landing, 0, landing.port, third.port)
                landing.cut()
                while not produced(third):
                    await client.publish("t", b"y", partition=1)

    asyncio.run(asyncio.wait_for(body(), 20))


def test_a_shard_that_does_not_answer_is_left_for_another(
    fake_broker: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared port leads to any shard: who says nothing to a hello is dialled once more."""
    monkeypatch.setattr(pool, "_FIRST_DIAL_TIMEOUT", 0.5)

    async def run() -> None:
        async with fake_broker() as broker:
            plain, hellos = broker.answer, []

            async def answer(request: m.Request) -> m.Reply:
                if isinstance(request, m.Hello):
                    hellos.append(request)
                    if len(hellos) == 1:
                        await asyncio.Event().wait()
                return await plain(request)

            broker.answer = answer
            async with connect(broker.url, request_timeout=20.0) as client:
                await client.ping()
            assert len(hellos) == 2

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("end", ["closed", "replaced", "late"])
def test_a_request_never_waits_for_ever_for_a_way_that_is_not_decided(
    fake_broker: Brokers, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The other shard takes the connection and says nothing."""
    monkeypatch.setattr("weir.client.connection.pool.DIAL_TIMEOUT", 60.0)

    async def body() -> None:
        async with AsyncExitStack() as stack:
            landing, other = await two(stack, fake_broker)
            dialled = asyncio.Event()

            async def silent(request: m.Request) -> m.Reply:
                dialled.set()
                await asyncio.Event().wait()
                raise AssertionError

            other.answer = silent
            async with connect(landing.url) as client:
                network = network_of(client)
                if end == "late":
                    network.request_timeout = 0.3
                request = m.Positions(landing.topics["t"].addresses[1])
                asked = asyncio.ensure_future(network.request(request, m.PositionsReply))
                await dialled.wait()
                if end == "closed":
                    await network.close()
                if end == "replaced":
                    assert network.welcome is not None
                    welcome = msgspec.structs.replace(network.welcome, ports=())
                    await pool_of(network).welcomed("127.0.0.1", welcome)
                    await asked  # by the connection that there is
                else:
                    with pytest.raises(Disconnected):
                        await asked

    asyncio.run(asyncio.wait_for(body(), 20))


def test_a_node_that_lags_behind_takes_no_partition_away(fake_broker: Brokers) -> None:
    """A reader ended with `UnknownTopic` once such a node was asked where a partition had moved."""

    async def body() -> None:
        async with fake_broker() as broker:
            whole = broker.topic("t", 3)
            async with connect(broker.url) as client:
                await client.publish("t", b"0", partition=2)
                async with client.reader("t") as reader:
                    assert (await anext(reader)).value == b"0"
                    broker.topics["t"] = msgspec.structs.replace(
                        whole, addresses=whole.addresses[:1]
                    )
                    moved = [m.Refusal(NotLeader.code, "moved")]
                    broker.script = lambda request: (
                        moved.pop() if moved and isinstance(request, m.Fetch) else None
                    )
                    await client.publish("t", b"1", partition=2)
                    assert (await anext(reader)).value == b"1"
                    assert not moved

    asyncio.run(asyncio.wait_for(body(), 20))
