"""Connect, publish, produce: against a broker that loses, refuses and restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from weir.client.client import connect
from weir.client.core.retries import Backoff
from weir.client.producer.receipts import BatchReceipt
from weir.errors import (
    Disconnected,
    Fenced,
    Overloaded,
    TooLarge,
    UnknownTopic,
    WrongSystem,
)
from weir.model.batch import Batch
from weir.model.limits import BATCH_BYTES_MAX
from weir.model.topic import partition_for
from weir.protocol.client import messages as m

QUICK = Backoff(first=0.005, most=0.02)


def produces(broker) -> list[m.Produce]:
    return [request for request in broker.seen if isinstance(request, m.Produce)]


def test_publish_gives_receipts_and_takes_text_and_json(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            await w.create_topic("doors")
            first = await w.publish("doors", b"raw", key="k", tag="t", headers={"h": b"x"})
            second = await w.publish("doors", {"a": 1}, time=99)
            assert (first.topic, first.partition, first.offset) == ("doors", 0, 0)
            assert second.offset == 1
            assert second.stamp > first.stamp
            assert broker.values("doors") == [b"raw", b'{"a":1}']
            log = broker.logs[broker.topics["doors"].addresses[0].group]
            assert (log[0].keys(), log[0].tags(), log[0].headers()) == (
                [b"k"], ["t"], [{"h": b"x"}],
            )  # fmt: skip
            assert log[1].times() == [99]

    asyncio.run(scenario())


def test_an_awaited_connect_lives_until_closed(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            w = await connect(broker.url, name="tester")
            assert broker.seen == [m.Hello("tester", notices=True)]
            await w.ping()
            assert [topic.name for topic in await w.topics()] == []
            await w.close()
            with pytest.raises(Disconnected, match="closed"):
                await w.ping()

    asyncio.run(scenario())


def test_no_broker_says_what_to_check(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            await broker.stop()
            with pytest.raises(Disconnected, match=rf"127.0.0.1:{broker.port}.*weir serve"):
                await connect(broker.url, retry=QUICK, request_timeout=0.1)
            with pytest.raises(Disconnected, match="given up after 3 attempts"):
                await connect(broker.url, retry=Backoff(0.001, 0.002, attempts=3))

    asyncio.run(scenario())


def test_a_broker_that_drops_everybody_is_dialled_less_and_less_often(fake_broker) -> None:
    """A connection that ends at once counts as a failure: else everybody would dial a broker that
    lets them in and hangs up, again and again without a pause.
    """
    waits: list[int] = []

    class Noted(Backoff):
        def delay(self, attempt: int, dice: float) -> float:
            waits.append(attempt)
            return 0.0

    async def drops(broker: Any, w: Any) -> list[int]:
        """Return how manieth in a row each of three dials was."""
        waits.clear()
        for _ in range(3):
            hellos = len(broker.seen)
            broker.cut()
            while len(broker.seen) == hellos:
                await asyncio.sleep(0.001)
            await w.ping()
        return [*waits]

    async def scenario() -> None:
        async with fake_broker() as broker:
            async with connect(broker.url, retry=Noted(first=0.001, most=60.0)) as w:
                assert await drops(broker, w) == [1, 2, 3]
            # One that lasts for as long as the longest wait was a good one.
            async with connect(broker.url, retry=Noted(first=0.0, most=0.0)) as w:
                assert await drops(broker, w) == [1, 1, 1]

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_the_next_host_is_tried(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as dead, fake_broker() as broker:
            await dead.stop()
            async with connect(f"{dead.url},127.0.0.1:{broker.port}", retry=QUICK) as w:
                broker.topic("only here")
                assert [topic.name for topic in await w.topics()] == ["only here"]

    asyncio.run(scenario())


def test_publishes_of_one_turn_share_a_batch(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            await w.publish("t", b"opens the producer")
            receipts = await asyncio.gather(*(w.publish("t", b"%d" % i) for i in range(50)))
            assert [receipt.offset for receipt in receipts] == [*range(1, 51)]
            assert len(produces(broker)) == 2

    asyncio.run(scenario())


def test_a_refusal_reaches_the_publisher_and_the_next_publish_works(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            with pytest.raises(UnknownTopic):
                await w.publish("t", b"")
            broker.topic("t")
            await w.publish("t", b"a")
            broker.script = lambda r: m.Refusal(11, "f", 5) if isinstance(r, m.Produce) else None
            with pytest.raises(Fenced) as caught:
                await w.publish("t", b"lost")
            assert caught.value.detail == 5
            broker.script = lambda _: None
            assert (await w.publish("t", b"b")).offset == 1
            with pytest.raises(TooLarge):
                await w.publish("t", b"", headers={"h": bytes(2 << 20)})  # over the broker's limit
            assert (await w.publish("t", b"c")).offset == 2
            assert broker.producers == 2

    asyncio.run(scenario())


def test_a_producer_survives_refusals_cuts_and_lost_answers(fake_broker) -> None:
    orders = [
        "cut after", m.Refusal(8, "damaged"), None, m.Refusal(15, "busy", 1), "cut after", None,
        m.Refusal(17, "starting"), "cut", None, m.Refusal(16, "moved"), m.Refusal(8, "damaged"),
    ]  # fmt: skip

    async def scenario() -> None:
        confirmed: list[BatchReceipt] = []
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            left = orders * 4

            def script(request: m.Request) -> object:
                return left.pop(0) if left and isinstance(request, m.Produce) else None

            broker.script = script
            values = [b"%06d" % i for i in range(2_000)]
            async with w.producer("t", batch_bytes=500, on_confirm=confirmed.append) as p:
                for value in values[:1_000]:
                    p.send(value)
                await p.send_many(values[1_000:])
            assert not left
            assert broker.values("t") == values
            assert p.buffered == 0
            sequence = 0
            for done in confirmed:
                assert (done.first_sequence, done.offset) == (sequence, sequence)
                sequence += done.count
            assert sequence == len(values)
            assert any(done.duplicate for done in confirmed)

    asyncio.run(scenario())


def test_what_is_sent_while_the_broker_is_away_arrives_when_it_is_back(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            async with w.producer("t", linger=0) as p:
                await p.publish(b"before")
                await broker.stop()
                sent = [p.send(b"%d" % i) for i in range(3)]
                waiting = asyncio.ensure_future(w.ping())
                await broker.start()
                assert [(await s).offset for s in sent] == [1, 2, 3]
                await waiting
                assert {r.system for r in broker.seen if isinstance(r, m.Hello)} == {0, 77}

    asyncio.run(scenario())


def test_waiting_ends_after_the_request_timeout(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topic("t")
            w = await connect(broker.url, retry=QUICK, request_timeout=0.7)
            p = await w.producer("t", linger=0).open()
            await broker.stop()
            with pytest.raises(Disconnected, match="nothing sent to t was confirmed"):
                await p.publish(b"x")
            with pytest.raises(Disconnected, match="1 batches are still tried"):
                await p.flush()
            with pytest.raises(Disconnected, match="no connection"):
                await w.ping()
            late = p.send(b"y")
            await p.close()
            with pytest.raises(Disconnected, match="producer is closed"):
                await late
            await w.close()

    asyncio.run(scenario())


def test_a_broker_of_another_system_ends_the_client(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            refused = asyncio.Event()

            def script(request: m.Request) -> object:
                if isinstance(request, m.Hello):
                    refused.set()
                    return m.Refusal(23, "another system lives here")
                return None

            broker.script = script
            broker.cut()
            await refused.wait()
            with pytest.raises(WrongSystem):
                await w.ping()

    asyncio.run(scenario())


def test_partitions_by_hand_by_key_and_by_turn(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 4)
            async with w.producer("t", linger=0) as p:
                receipts = [await p.publish(b"", partition=3), await p.publish(b"", key="k")]
                assert [r.partition for r in receipts] == [3, partition_for(b"k", 4)]
                turns = Counter([(await p.publish(b"")).partition for _ in range(8)])
                assert turns == {0: 2, 1: 2, 2: 2, 3: 2}
                # All of one turn of the loop stay together.
                sent = [p.send(b"") for _ in range(10)]
                assert len({(await s).partition for s in sent}) == 1
                with pytest.raises(UnknownTopic, match="0 to 3"):
                    await p.publish(b"", partition=4)
                with pytest.raises(UnknownTopic, match="0 to 3"):
                    p.send(b"", partition=4)

    asyncio.run(scenario())


def test_send_many_with_keys_keeps_each_keys_order(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 3)
            keys = [b"%d" % (i % 7) for i in range(100)]
            values = [b"%d" % i for i in range(100)]
            async with w.producer("t") as p:
                handed = await p.send_many(values, keys=keys, tags=["x"] * 100)
                assert sum([(await batch).count for batch in handed]) == 100
            for partition, address in enumerate(info.addresses):
                batches = broker.logs[address.group]
                expected = [
                    v for v, k in zip(values, keys, strict=True) if partition_for(k, 3) == partition
                ]
                assert [v for b in batches for v in b.values()] == expected
                assert {tag for b in batches for tag in b.tags()} <= {"x"}

    asyncio.run(scenario())


def test_the_window_and_the_buffer_are_bounded(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            p = await w.producer("t", batch_bytes=120, window=2, max_buffered=1_000).open()
            await broker.stop()
            done = asyncio.ensure_future(p.send_many([bytes(100)] * 50))
            while p.buffered <= 1_000:
                p.send(bytes(100))
            with pytest.raises(Overloaded, match=r"await producer\.ready"):
                p.send(bytes(100))
            assert p.buffered <= 1_000 + 200
            ready = asyncio.ensure_future(p.ready())
            await asyncio.sleep(0)
            assert not ready.done()
            assert not done.done()
            await broker.start()
            await done
            await ready
            await p.flush()
            sequences = [Batch(r.batch).header.sequence for r in produces(broker)]
            assert sorted(set(sequences)) == [*range(len(broker.values("t")))]
            await p.close()

    asyncio.run(scenario())


def test_a_bad_message_fails_alone(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            p = await w.producer("t", linger=0).open()
            with pytest.raises(TooLarge):
                p.send(b"x", key=bytes(70_000))
            bad = p.send(b"x", headers={"h": bytes(BATCH_BYTES_MAX)})
            good = p.send(b"good")
            with pytest.raises(TooLarge):
                await bad
            assert (await good).offset == 0
            assert [(await p.send(value)).offset for value in ("text", {"n": 1}, None)] == [1, 2, 3]
            with pytest.raises(TooLarge):  # the first error since the last flush
                await p.flush()
            await p.flush()
            await p.close()

    asyncio.run(scenario())


def test_what_was_seen_is_sent_along(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            broker.stamp = 5_000
            await w.publish("t", b"a")
            receipt = await w.publish("t", b"b")
            assert [request.seen for request in produces(broker)] == [0, 5_001]
            assert receipt.stamp > 5_001

    asyncio.run(scenario())


def test_a_batch_lingers_for_its_own_time(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            confirmed = asyncio.Event()
            p = await w.producer("t", linger="50ms", on_confirm=lambda _: confirmed.set()).open()
            later = []

            def script(request: m.Request) -> None:
                if isinstance(request, m.Produce) and not later:
                    later.append(p.send(b"b"))

            broker.script = script
            p.send(b"a")
            await confirmed.wait()
            p.send(b"c")
            await later[0]
            assert [Batch(r.batch).values() for r in produces(broker)] == [[b"a"], [b"b", b"c"]]
            await p.close()

    asyncio.run(scenario())


def test_a_producer_follows_its_partition(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            info = broker.topic("t")
            await w.publish("t", b"a")
            moved = info.addresses[0]._replace(shard=3)
            broker.topics["t"] = m.TopicInfo(info.id, "default", "t", "partition", [moved])

            def script(request: m.Request) -> m.Refusal | None:
                elsewhere = isinstance(request, m.Produce) and request.address.shard != 3
                return m.Refusal(16, "moved") if elsewhere else None

            broker.script = script
            assert (await w.publish("t", b"b")).offset == 1

    asyncio.run(scenario())


def test_an_error_of_on_confirm_comes_out_of_flush(fake_broker) -> None:
    def ledger(_: BatchReceipt) -> None:
        raise RuntimeError("the ledger is full")

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            p = await w.producer("t", on_confirm=ledger).open()
            p.send(b"x")
            with pytest.raises(RuntimeError, match="ledger"):
                await p.flush()
            assert broker.values("t") == [b"x"]
            await p.close()

    asyncio.run(scenario())
