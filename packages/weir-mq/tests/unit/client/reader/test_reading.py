"""Readers and consumers against a broker that cuts connections and bytes."""

from __future__ import annotations

import asyncio
import math
import time

import msgspec
import pytest

from rigs.consuming import take
from weir.client.client import connect
from weir.client.connection.connection import Connection
from weir.client.consumer.delivery import Holding
from weir.client.core.grants import Grant
from weir.client.core.retries import Backoff
from weir.errors import BadRequest, Disconnected, OffsetOutOfRange, UnknownTopic
from weir.model.batch import Batch
from weir.protocol.client import messages as m
from weir.spark.blocking_client import BlockingClient

QUICK = Backoff(first=0.005, most=0.02)


async def fill(w, topic: str, batches: int, each: int, partition: int = 0) -> None:
    """Publish batches of `each` messages, numbered on from 0."""
    async with w.producer(topic, partition=partition) as p:
        for b in range(batches):
            await p.send_many([b"%d" % (b * each + i) for i in range(each)])


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, count)]


def test_a_reader_that_does_not_follow_ends_at_the_end_it_saw(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 2)
            await fill(w, "t", 10, 10)
            await fill(w, "t", 1, 3, partition=1)
            async with w.reader("t", follow=False) as reader:
                found = [message async for message in reader]
                assert reader.positions == {0: 100, 1: 3}
                assert reader.committed == {0: 100, 1: 3}
            assert [x.value for x in found if x.partition == 0] == numbers(100)
            assert [x.offset for x in found if x.partition == 1] == [0, 1, 2]
            assert {x.topic for x in found} == {"t"}
            # Nothing new: it ends at once.
            assert [x async for x in w.reader("t", start=reader.positions, follow=False)] == []

    asyncio.run(scenario())


def test_what_came_after_the_start_is_not_part_of_a_reader_that_ends(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            group = broker.topic("t").addresses[0].group
            await fill(w, "t", 3, 10)
            whole = broker.logs[group]
            broker.logs[group] = whole[:2]

            def script(request: m.Request) -> None:
                if isinstance(request, m.Fetch):
                    broker.logs[group] = whole

            broker.script = script
            reader = w.reader("t", follow=False)
            assert [x.value async for x in reader] == numbers(20)
            assert reader.positions == {0: 20}
            assert reader.committed == {0: 30}

    asyncio.run(scenario())


def test_a_reader_follows_its_partition_and_its_stamps_are_sent_along(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            info = broker.topic("t")
            async with connect(broker.url) as w:
                broker.stamp = 7_000
                await fill(w, "t", 1, 1)
            async with connect(broker.url, retry=QUICK) as w:
                moved = info.addresses[0]._replace(shard=3)

                def script(request: m.Request) -> m.Refusal | None:
                    if not isinstance(request, m.Fetch) or request.address.shard == 3:
                        return None
                    broker.topics["t"] = m.TopicInfo(info.id, "default", "t", "partition", [moved])
                    return m.Refusal(16, "moved")

                broker.script = script
                assert [x.stamp async for x in w.reader("t", follow=False)] == [7_001]
                await w.publish("t", b"an answer to what was read")
                assert [r.seen for r in broker.seen if isinstance(r, m.Produce)] == [0, 7_001]

    asyncio.run(scenario())


def test_positions_saved_anywhere_continue_without_gap_or_repeat(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            await fill(w, "t", 5, 10)
            positions: dict[int, int] = {}
            found: list[bytes] = []
            while len(found) < 50:
                async with w.reader("t", start=positions, follow=False) as reader:
                    async for message in reader:
                        found.append(message.value)
                        positions = dict(reader.positions)
                        if len(found) % 7 == 0:  # in the midst of batches
                            break
            assert found == numbers(50)

    asyncio.run(scenario())


def test_batches_say_what_to_skip(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            await fill(w, "t", 3, 10)
            reader = w.reader("t", start={0: 14}, follow=False)
            found = [delivered async for delivered in reader.batches()]
            assert [(d.skip, d.offset, d.next_offset, len(d)) for d in found] == [
                (4, 14, 20, 6), (0, 20, 30, 10),
            ]  # fmt: skip
            assert [v for d in found for v in d.values()] == numbers(30, 14)
            await reader.close()

    asyncio.run(scenario())


def test_a_follower_gets_what_comes_later_and_survives_cuts(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            await fill(w, "t", 1, 10)
            async with w.reader("t", start="latest") as reader, w.producer("t") as p:
                first = asyncio.ensure_future(anext(reader))
                while not any(isinstance(r, m.Fetch) for r in broker.seen):
                    await asyncio.sleep(0.001)
                found = []
                for i in range(20):
                    await p.publish(b"%d" % i)
                    found.append(await first)
                    if i % 5 == 0:
                        broker.cut()
                    first = asyncio.ensure_future(anext(reader))
                first.cancel()
                await asyncio.wait([first])
            assert [x.value for x in found] == numbers(20)
            assert [x.offset for x in found] == [*range(10, 30)]

    asyncio.run(scenario())


def test_damaged_batches_are_fetched_again(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            info = broker.topic("t")
            await fill(w, "t", 1, 10)
            log = broker.logs[info.addresses[0].group]
            good = log[0]
            damaged = bytearray(good.view)
            damaged[-9] ^= 1
            log[0] = Batch(damaged)

            def script(request: m.Request) -> None:
                fetches = [r for r in broker.seen if isinstance(r, m.Fetch)]
                if len(fetches) == 3:
                    log[0] = good

            broker.script = script
            found = [x.value async for x in w.reader("t", follow=False)]
            assert found == numbers(10)

    asyncio.run(scenario())


def test_an_offset_past_retention_says_what_to_do(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t")
            await fill(w, "t", 2, 10)
            broker.starts[info.addresses[0].group] = 10
            reader = w.reader("t", start={0: 3})
            with pytest.raises(OffsetOutOfRange, match=r"start=\{0: 10\}") as caught:
                await anext(reader)
            assert caught.value.detail == 10
            assert [x.offset async for x in w.reader("t", follow=False)] == [*range(10, 20)]
            with pytest.raises(UnknownTopic):
                await anext(w.reader("t", partitions=[1]))
            with pytest.raises(UnknownTopic):
                await anext(w.reader("nowhere"))
            with pytest.raises(BadRequest, match="earliest"):
                w.reader("t", start="soonest")

    asyncio.run(scenario())


def test_a_reader_ahead_of_a_partition_is_told_what_the_broker_says_of_that(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")

            def script(request: m.Request) -> m.Refusal | None:
                if isinstance(request, m.Fetch) and request.offset > 17:
                    return m.Refusal(18, "not there. Lineage 1 began at offset 17", 17)
                return None

            broker.script = script
            why = r"Lineage 1 began at offset 17\. To go on, read with start=\{0: 17\}"
            with pytest.raises(OffsetOutOfRange, match=why) as caught:
                await anext(w.reader("t", start={0: 20}))
            assert caught.value.detail == 17

    asyncio.run(scenario())


def test_retention_may_be_faster_than_the_first_fetch(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            group = broker.topic("t").addresses[0].group
            await fill(w, "t", 4, 10)

            def script(request: m.Request) -> None:
                if isinstance(request, m.Fetch):
                    broker.starts[group] = 20

            broker.script = script
            found = [x.offset async for x in w.reader("t", follow=False)]
            assert found == [*range(20, 40)]
            broker.starts[group] = 0
            with pytest.raises(OffsetOutOfRange):
                await anext(w.reader("t", start={0: 0}))

    asyncio.run(scenario())


def test_a_new_partition_may_be_past_retention_before_it_is_noticed(
    fake_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.client.connection.metadata.ASK_EVERY", 0.01)

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            wide = broker.topic("t", 2)
            await fill(w, "t", 1, 1)
            await fill(w, "t", 4, 10, partition=1)
            broker.topics["t"] = msgspec.structs.replace(wide, addresses=wide.addresses[:1])
            async with w.reader("t") as reader:
                assert (await anext(reader)).partition == 0
                broker.starts[wide.addresses[1].group] = 20
                broker.topics["t"] = wide
                message = await asyncio.wait_for(anext(reader), 10)
                assert (message.partition, message.offset) == (1, 20)

    asyncio.run(scenario())


def test_a_reader_goes_on_after_an_error(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topic("t")
            async with connect(broker.url, retry=QUICK) as w:
                await fill(w, "t", 12, 10)  # four answers, of which two are fetched ahead
            async with connect(broker.url, retry=QUICK, request_timeout=1.0) as w:
                reader = w.reader("t", follow=False)
                found = [await anext(reader) for _ in range(15)]
                broker.script = lambda r: m.Refusal(2, "no") if isinstance(r, m.Fetch) else None
                with pytest.raises(BadRequest):  # noqa: PT012  # somewhere in the rest
                    async for message in reader:
                        found.append(message)
                broker.script = lambda _: None
                found += [x async for x in reader]
                assert [x.value for x in found] == numbers(120)

    asyncio.run(scenario())


def test_a_consumer_acks_when_it_is_closed_what_was_said_to_be_done(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            group = broker.topic("t").addresses[0].group
            await fill(w, "t", 2, 5)
            async with w.consumer("t", cluster="c", ack_within="1h") as consumer:
                found = [await anext(consumer) for _ in range(7)]
                for message in found[:6]:
                    await message.ack()
                assert broker.acked == {}
            assert [x.value for x in found] == numbers(7)
            # Closing acks what is done; the seventh is not: nobody said so.
            assert broker.acked == {group: [(1, 0, 6)]}
            pulls = [r for r in broker.seen if isinstance(r, m.Pull)]
            assert {(r.cluster, r.lease_ms) for r in pulls} == {("c", 30_000)}

    asyncio.run(scenario())


def test_acks_go_out_while_messages_come(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            group = broker.topic("t").addresses[0].group
            await fill(w, "t", 4, 5)
            acked = asyncio.Event()

            def script(request: m.Request) -> None:
                if isinstance(request, m.Ack):
                    acked.set()

            broker.script = script
            async with w.consumer("t", cluster="c", ack_within=0) as consumer:
                for _ in range(20):
                    await take(consumer)
                await acked.wait()
                broker.cut()
            done = sorted({i for _, a, b in broker.acked[group] for i in range(a, b)})
            assert done == [*range(20)]

    asyncio.run(scenario())


def test_grants_are_acked_whole_and_stale_ones_are_counted(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            group = broker.topic("t").addresses[0].group
            await fill(w, "t", 5, 4)  # the broker grants three batches at once
            async with w.consumer("t", cluster="c") as consumer:
                grants = consumer.batches()
                first, second = await anext(grants), await anext(grants)
                assert [x.value for x in first.messages()] == numbers(12)
                assert (second.offset, second.next_offset, second.attempts) == (12, 20, 1)
                await first.ack(confirmed=True)
                assert broker.acked == {group: [(1, 0, 12)]}
                broker.script = lambda r: m.Refusal(20, "late") if isinstance(r, m.Ack) else None
                await second.ack(confirmed=True)
                assert consumer.stale == 1

    asyncio.run(scenario())


def test_an_ack_without_an_answer_is_not_forgotten(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            group = broker.topic("t").addresses[0].group
            async with connect(broker.url, retry=QUICK, request_timeout=1.0) as w:
                await fill(w, "t", 1, 4)
                async with w.consumer("t", cluster="c") as consumer:
                    grant = await anext(consumer.batches())
                    broker.script = lambda r: "cut" if isinstance(r, m.Ack) else None
                    with pytest.raises(Disconnected):
                        await grant.ack(confirmed=True)
                    broker.script = lambda _: None
                # Once more is no harm: the last try may have been under way when time ran out.
                assert {*broker.acked[group]} == {(1, 0, 4)}

    asyncio.run(scenario())


def test_one_stale_range_does_not_spoil_the_others(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            group = broker.topic("t").addresses[0].group
            await fill(w, "t", 1, 4)

            def script(request: m.Request) -> m.Refusal | None:
                stale = isinstance(request, m.Ack) and any(f == 9 for f, _, _ in request.ranges)
                return m.Refusal(20, "late") if stale else None

            broker.script = script
            async with w.consumer("t", cluster="c") as consumer:
                grant = await anext(consumer.batches())
                lost = Grant("t", 0, 9, 0, 100, 101, 1, ())
                topic = consumer.settlement.leases.topics["t"]
                topic.outcomes.settle(Holding(lost, math.inf, time.monotonic, topic), 100, 101)
                await grant.ack(confirmed=True)
                assert broker.acked == {group: [(1, 0, 4)]}
                assert consumer.stale == 1

    asyncio.run(scenario())


def test_the_blocking_client_fetches_aligned_batches(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t")
            await fill(w, "t", 2, 10)

            def work() -> list[bytes]:
                with BlockingClient("127.0.0.1", broker.port, timeout=5) as client:
                    assert client.welcome.system == 77
                    assert isinstance(client.request(m.Ping()), m.Pong)
                    with pytest.raises(UnknownTopic):
                        client.request(m.DescribeTopic("nowhere"))
                    empty = client.fetch(info.addresses[0], 20, 1 << 20)
                    assert (empty.next_offset, empty.batches) == (20, ())
                    fetched = client.fetch(info.addresses[0], 0, 1 << 20, wait_ms=100)
                    (view,) = fetched.batches
                    first = Batch(view).check(info.addresses[0].group)
                    second = Batch(view, first.header.total_size).check(info.addresses[0].group)
                    return first.values() + second.values()

            assert await asyncio.to_thread(work) == numbers(20)

    asyncio.run(scenario())


def test_the_blocking_client_gives_up_in_time(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            info = broker.topic("t")

            def work() -> None:
                client = BlockingClient("127.0.0.1", broker.port, timeout=0.5)
                # The fake answers a fetch after its wait: here far later than the client waits.
                with pytest.raises(Disconnected, match="may or may not"):
                    client.request(m.Fetch(info.addresses[0], 0, 1, 5_000))
                with pytest.raises(Disconnected):
                    client.request(m.Ping())

            await asyncio.to_thread(work)
            await broker.stop()
            with pytest.raises(Disconnected, match="check that a broker runs"):
                await asyncio.to_thread(BlockingClient, "127.0.0.1", broker.port, 1.0)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_small_message_is_with_the_user_before_more_is_asked_for(
    fake_broker, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """To encrypt and send a fetch takes longer than to hand over a message. A large one takes the
    user a while, in which the next fetch is under way.
    """
    done: list[str] = []
    send = Connection.send

    def sent(self, request, on_answer):
        if isinstance(request, m.Fetch):
            done.append("asked")
        return send(self, request, on_answer)

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            async with w.reader("t") as reader:

                async def take_one() -> None:
                    await anext(reader)
                    done.append("has it")

                coming = asyncio.ensure_future(take_one())
                while not done:
                    await asyncio.sleep(0.001)
                await w.publish("t", bytes(size))
                await coming
                while len(done) < 3:
                    await asyncio.sleep(0.001)

    monkeypatch.setattr(Connection, "send", sent)
    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert done[0] == "asked"
    assert done[1:3] == (["has it", "asked"] if size == 100 else ["asked", "has it"])
