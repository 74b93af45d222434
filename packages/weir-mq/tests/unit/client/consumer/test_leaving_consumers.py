"""What a consumer did is not lost, however it is left; and late acks are told."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable

import pytest

import weir
from rigs.consuming import take
from rigs.fake_broker import FakeBroker
from rigs.leaving import leave
from weir import testing
from weir.client.client import Client
from weir.client.consumer.delivery import Stale
from weir.errors import AccessRevoked, BadName, BadRequest, Disconnected, UnknownTopic
from weir.protocol.client import messages as m


def run(scenario: Callable[[testing.Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        with testing.node() as node:
            async with asyncio.timeout(30):
                await scenario(node)

    asyncio.run(whole())


async def fill(w: Client, count: int) -> None:
    await w.create_topic("t")
    async with w.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(count)])


async def first(w: Client) -> bytes:
    async with w.consumer("t", cluster="c") as consumer:
        return (await take(consumer)).value


def test_a_client_that_closes_acks_for_consumers_left_open() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 10)
            with pytest.warns(ResourceWarning, match="async with"):  # noqa: PT031
                async with weir.connect(node.url) as other:
                    consumer = other.consumer("t", cluster="c", ack_within="1h")
                    for _ in range(3):
                        await take(consumer)
            assert await first(w) == b"3"

    run(scenario)


def test_close_acks_what_is_done_and_warns_of_nothing() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 10)
            consumer = w.consumer("t", cluster="c", ack_within="1h")
            async for message in consumer:
                if message.value == b"5":
                    break
                await message.ack()
            await consumer.close()
            assert consumer.closed
            assert not consumer.unfinished
            assert await first(w) == b"5"

    run(scenario)


def test_asking_for_the_next_message_says_nothing_of_the_one_before() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 4)
            async with w.consumer("t", cluster="c") as consumer:
                held = [await anext(consumer) for _ in range(3)]
                await held[1].ack()
            found = []
            async with w.consumer("t", cluster="c") as consumer:
                for _ in range(3):
                    async with await anext(consumer) as message:
                        found.append((message.value, message.attempts))
            assert sorted(found) == [(b"0", 2), (b"2", 2), (b"3", 1)]

    run(scenario)


def test_a_consumer_that_was_closed_can_go_on() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 4)
            consumer = w.consumer("t", cluster="c", ack_within=0)
            held = await anext(consumer)
            assert held.value == b"0"
            await consumer.close()
            assert (await take(consumer)).value == b"0"
            assert (await take(consumer)).value == b"1"
            await consumer.close()

    run(scenario)


def test_a_late_ack_is_told_to_whoever_asks() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 1)
            late: list[Stale] = []
            async with w.consumer("t", cluster="c", on_stale=late.append) as consumer:
                grant = await anext(consumer.batches())
                node.advance(31)
                other = await w.consumer("t", cluster="c").open()
                again = await anext(other.batches())
                assert (again.offset, again.attempts) == (0, 2)
                assert not await grant.ack(confirmed=True)
                assert await again.ack(confirmed=True)
                await other.close()
                assert late == [Stale("t", 0, 0, 1)]
                assert consumer.stale == 1

    run(scenario)


def test_a_late_ack_is_logged_if_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 2)
            async with w.consumer("t", cluster="c", lease="1s", ack_within="1h") as consumer:
                held = await anext(consumer)
                node.advance(2)
                assert await first(w) == b"0"
                await held.ack()

    with caplog.at_level(logging.WARNING, "weir.client.consumer.acknowledgements"):
        run(scenario)
    record, *_ = caplog.records
    assert "give a longer lease=" in record.getMessage()


def test_a_wrong_name_is_told_before_anything_is_pulled() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            with pytest.raises(UnknownTopic):
                async with w.consumer("nowhere", cluster="c"):
                    pass
            with pytest.raises(BadName, match="cluster"):
                w.consumer("t", cluster="no blanks")

    run(scenario)


def test_a_client_that_is_never_closed_is_told() -> None:
    async def scenario(node: testing.Node) -> None:
        w = await weir.connect(node.url)
        with pytest.warns(ResourceWarning, match="await client.close"):
            w.__del__()
        await w.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w.__del__()

    run(scenario)


def test_why_a_block_ends_is_not_hidden_by_acks_that_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counterexample: the client of a revoked user was told that it was closed."""

    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 1)

            async def leave(error: Exception | None) -> None:
                async with w.consumer("t", cluster="c") as consumer:
                    close = consumer.settlement.close

                    async def fail() -> None:
                        await close()
                        raise Disconnected("the client is closed")

                    monkeypatch.setattr(consumer.settlement, "close", fail)
                    if error is not None:
                        raise error

            with pytest.raises(AccessRevoked):
                await leave(AccessRevoked("a right was taken away"))
            for error in (None, ValueError("its own")):
                with pytest.raises(Disconnected):
                    await leave(error)

    run(scenario)


async def count(broker: FakeBroker, kind: type[m.Request], least: int = 0) -> int:
    """Return how often something was asked, once that is `least` or more."""
    while (found := sum(isinstance(one, kind) for one in broker.seen)) < least:
        await asyncio.sleep(0.01)
    return found


def test_what_is_granted_while_a_consumer_leaves_goes_back_if_it_would_be_kept(
    fake_broker,
) -> None:
    """Counterexample: nobody awaited the answer. Behind a relay, the core kept the grant for the
    consumer to come back, and where order counts nobody got anything before its lease was over.
    """

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t", partitions=2)
            broker.topic("u")
            hosts = f"{broker.url},localhost:{broker.port}"
            async with weir.connect(broker.url) as other, weir.connect(hosts) as w:
                consumer = await w.consumer(["t", "u"], cluster="c", lease="1h").open()
                taking = asyncio.ensure_future(anext(consumer))
                await count(broker, m.Pull, 3)
                taking.cancel()
                leaving = asyncio.ensure_future(consumer.close())
                await count(broker, m.Withdraw, 3)
                for partition in range(2):
                    await other.publish("t", b"late", partition=partition)
                await other.publish("u", b"late")
                await leaving
                groups = {one.group for topic in broker.topics.values() for one in topic.addresses}
                assert {one.address.group for one in broker.returned} == groups
                assert [(one.fence, one.untried) for one in broker.returned] == [(1, True)] * 3

    asyncio.run(scenario())


def test_a_consumer_of_one_address_that_holds_nothing_leaves_without_a_word(
    fake_broker,
) -> None:
    """What is granted to it goes to others with the end of its connection."""

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t")
            async with weir.connect(broker.url) as w:
                consumer = await w.consumer("t", cluster="c").open()
                taking = asyncio.ensure_future(anext(consumer))
                await count(broker, m.Pull, 1)
                taking.cancel()
                await consumer.close()
                assert not await count(broker, m.Withdraw)

    asyncio.run(scenario())


@pytest.mark.parametrize("addresses", [1, 2])
@pytest.mark.parametrize("how", ["failed", "cancelled", "closed"])
def test_a_consumer_that_leaves_something_tells_that_it_does_not_come_back(
    fake_broker, monkeypatch: pytest.MonkeyPatch, how: str, addresses: int
) -> None:
    """Counterexample: behind a relay the core kept it for 10 s, and nobody came."""

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t", partitions=2)
            broker.lets_withdraw = True
            hosts = ",".join([broker.url, f"localhost:{broker.port}"][:addresses])
            async with weir.connect(hosts) as w:
                await w.publish("t", b"0")
                consumer = await w.consumer("t", cluster="c", lease="1h").open()
                held = await anext(consumer)
                if how == "closed":
                    await consumer.close()
                else:
                    await leave(consumer, how, monkeypatch)
                assert not consumer.unfinished
                await held.ack()  # it is late
            told = [one for one in broker.seen if isinstance(one, m.MoveGrants)]
            groups = {one.group for one in broker.topics["t"].addresses}
            is_told = how != "closed" and addresses == 2
            assert {one.address.group for one in told} == (groups if is_told else set())
            assert all((one.token, one.fences) == (b"", []) for one in told)

    asyncio.run(scenario())


def test_a_consumer_that_moved_nothing_tells_that_of_its_former_connections(fake_broker) -> None:
    """What it was granted by them and never got would be kept for it."""

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t")
            broker.lets_withdraw = True
            broker.script = lambda request: (
                m.Refusal(BadRequest.code, "no")
                if isinstance(request, m.MoveGrants) and request.fences
                else None
            )
            async with weir.connect(f"{broker.url},localhost:{broker.port}") as w:
                await w.publish("t", b"0")
                consumer = await w.consumer("t", cluster="c").open()
                held = await anext(consumer)
                broker.cut()
                await count(broker, m.MoveGrants, 1)
                await held.ack()
                await consumer.close()
            first, *told = [one for one in broker.seen if isinstance(one, m.MoveGrants)]
            assert first.fences != []
            assert [(one.token, one.fences) for one in told] == [(b"", []), (first.token, [])]
            assert told[1].number > first.number

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_consumer_ends_soon_where_nobody_answers(
    fake_broker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t")
            hosts = f"{broker.url},localhost:{broker.port}"
            async with weir.connect(hosts) as w:
                await w.publish("t", b"0")
                consumer = await w.consumer("t", cluster="c", lease="1h").open()
                held = await anext(consumer)
                await broker.stop()
                async with asyncio.timeout(6):
                    await leave(consumer, how, monkeypatch)
                assert not consumer.unfinished
                await held.ack()  # it is late

    asyncio.run(scenario())
