"""Clients of a topic of which a partition ends, on a node in memory: what was sent to it goes where
it is taken, once and in order, and who reads goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rigs.clients import ended_in, merge_of, sender_of
from weir import testing
from weir.client.client import connect
from weir.client.producer.receipts import Receipt
from weir.errors import BadRequest, PartitionEnded, UnknownTopic
from weir.model.topic import partition_for

PARTITIONS = 4
KEYS = [b"k%d" % n for n in range(24)]
#: Those that fall into partition 2, of four.
ENDING = [key for key in KEYS if partition_for(key, PARTITIONS) == 2]


@asynccontextmanager
async def client(order: str = "partition") -> AsyncIterator[Any]:
    with testing.node() as node:
        async with connect(node.url) as w:
            await w.create_topic("t", PARTITIONS, order)
            yield w


async def everything(w: Any, **options: Any) -> list[Any]:
    async with w.reader("t", follow=False, **options) as reader:
        return [message async for message in reader]


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_it_is_told_and_described() -> None:
    async def scenario() -> None:
        async with client() as w:
            assert not (await w.describe("t")).ends
            told = await w.end_partition("t", 2)
            assert told.closed == {2}
            assert await w.end_partition("t", 2) == told
            with pytest.raises(BadRequest, match="partition 0 of t cannot end"):
                await w.end_partition("t", 0)
            with pytest.raises(UnknownTopic, match="no partition 4: it has 0 to 3"):
                await w.end_partition("t", 4)
            for last in (1, 3):
                await w.end_partition("t", last)
            assert (await w.describe("t")).closed == {1, 2, 3}
            assert (await w.publish("t", b"x", key=b"any")).partition == 0
            assert (await w.publish("t", b"x")).partition == 0

    run(scenario)


def test_a_producer_that_runs_sends_elsewhere_once_and_in_order() -> None:
    """What was under way when the partition ended was never taken by it: it goes where its keys
    fall now, in the order in which it was sent.
    """

    async def scenario() -> None:
        async with client("total") as w, w.producer("t", linger=0.001, window=4) as producer:
            sent, dice = [], random.Random(1)
            ending = None
            for number in range(2_000):
                if number == 700:
                    ending = asyncio.ensure_future(w.end_partition("t", 2))
                sent.append((dice.choice(KEYS), b"%d" % number))
                receipt = producer.send(sent[-1][1], key=sent[-1][0])
                if number % 97 == 0:
                    await receipt
                elif number % 7 == 0:
                    await asyncio.sleep(0)
            receipts = [receipt]
            await producer.flush()
            assert ending is not None
            await ending
            assert (await receipts[0]).offset >= 0
            found = await everything(w)
            assert sorted(message.value for message in found) == sorted(v for _, v in sent)
            by_key: dict[bytes, list[int]] = defaultdict(list)
            for message in found:
                by_key[message.key].append(int(message.value))
            assert all(numbers == sorted(numbers) for numbers in by_key.values())
            homes = {key: {m.partition for m in found if m.key == key} for key in by_key}
            for key, partitions in homes.items():
                assert partitions <= {
                    partition_for(key, PARTITIONS), partition_for(key, PARTITIONS, {2})
                }  # fmt: skip
                assert key in ENDING or len(partitions) == 1

    run(scenario)


def test_receipts_say_where_each_message_went() -> None:
    async def scenario() -> None:
        told: list[Any] = []
        async with client() as w, w.producer("t", linger=60, on_confirm=told.append) as producer:
            sent = [producer.send(key + b"/x", key=key) for key in ENDING * 3]
            await w.end_partition("t", 2)
            await producer.flush()
            receipts = [await one for one in sent]
            found = {(m.partition, m.offset): m.value for m in await everything(w)}
            assert len(found) == len(sent) == 3 * len(ENDING)
            for receipt, key in zip(receipts, ENDING * 3, strict=True):
                assert isinstance(receipt, Receipt)
                assert found[receipt.partition, receipt.offset] == key + b"/x"
            assert {receipt.partition for receipt in receipts} == {0, 1, 3}
            assert sum(one.count for one in told) == len(sent)
            assert {one.partition for one in told} == {0, 1, 3}
            assert producer.buffered == 0

    run(scenario)


def test_who_names_the_partition_is_told() -> None:
    async def scenario() -> None:
        async with client() as w, w.producer("t", linger=60) as producer:
            named = producer.send(b"named", partition=2)
            await w.end_partition("t", 2)
            with pytest.raises(PartitionEnded):
                await producer.flush()
            with pytest.raises(PartitionEnded) as caught:
                await named
            assert caught.value.detail == 2
            free = producer.send(b"free", key=ENDING[0])
            await producer.flush()
            assert (await free).partition == partition_for(ENDING[0], PARTITIONS, {2})
            with pytest.raises(PartitionEnded):
                producer.send(b"again", partition=2)
            assert producer.error is None
            other = producer.send(b"other", partition=1)
            await producer.flush()
            assert (await other).partition == 1
            with pytest.raises(PartitionEnded):
                await w.publish("t", b"by a client", partition=2)
            assert (await w.publish("t", b"by a client")).partition != 2

    run(scenario)


def test_many_at_once_and_large_values() -> None:
    async def scenario() -> None:
        async with client() as w, w.producer("t") as producer:
            await producer.publish(b"first", key=ENDING[0])
            await w.end_partition("t", 2)
            large = bytes(9 << 20)
            receipt = await producer.publish(large, key=ENDING[0])
            assert receipt.partition == partition_for(ENDING[0], PARTITIONS, {2})
            batches = await producer.send_many([b"x"] * 24, keys=KEYS)
            await producer.flush()
            assert 2 not in {(await batch).partition for batch in batches}
            await producer.send_many([b"y"] * 9)
            await producer.flush()
            last = [m for m in await everything(w) if m.partition == 2]
            assert [m.value for m in last] == [b"first"]

    run(scenario)


@pytest.mark.parametrize("known", [True, False])
def test_rows_of_arrow_go_elsewhere(known: bool) -> None:
    import pyarrow as pa

    table = pa.table({"key": [*KEYS, None], "value": [b"v" + key for key in KEYS] + [b"none"]})

    async def scenario() -> None:
        async with client() as w, w.producer("t") as producer:
            if known:
                await w.end_partition("t", 2)
                sender_of(producer).partitioner.close_idle({2})
            else:
                await producer.publish_arrow(table)
                await w.end_partition("t", 2)
            confirmed = await producer.publish_arrow(table)
            assert sum(one.count for one in confirmed) == len(table)
            found = await everything(w)
            assert len(found) == len(table) * (1 if known else 2)
            second = [m for m in found if m.partition != 2]
            homes = {m.key: m.partition for m in second if m.key is not None}
            assert homes == {key: partition_for(key, PARTITIONS, {2}) for key in KEYS}

    run(scenario)


def test_a_scattering_goes_elsewhere() -> None:
    async def scenario() -> None:
        async with client() as w:

            async def scatter(**more: Any) -> list[Receipt]:
                async with w.scatter() as s:
                    s.publish("t", b"one", key=ENDING[0])
                    s.publish("t", b"two", **more)
                return s.receipts

            assert (await scatter())[0].partition == 2
            await w.end_partition("t", 2)
            for _ in range(5):
                assert 2 not in {receipt.partition for receipt in await scatter()}
            with pytest.raises(PartitionEnded):
                await scatter(partition=2)

    run(scenario)


@pytest.mark.parametrize("order", ["total", "partition"])
def test_who_reads_gets_all_of_it_and_goes_on(order: str) -> None:
    async def scenario() -> None:
        async with client("total") as w:
            for number in range(40):
                await w.publish("t", b"%d" % number, partition=number % PARTITIONS)
            got: list[bytes] = []
            async with w.reader("t", order=order) as reader:

                async def follow() -> None:
                    async for message in reader:
                        got.append(message.value)
                        if len(got) == 120:
                            return

                following = asyncio.ensure_future(follow())
                await w.end_partition("t", 2)
                for number in range(40, 120):
                    await w.publish("t", b"%d" % number, key=b"%d" % number)
                await following
            expected = [b"%d" % number for number in range(120)]
            assert got == expected if order == "total" else sorted(got) == sorted(expected)
            again = [m.value for m in await everything(w, order=order)]
            assert again == got if order == "total" else sorted(again) == sorted(got)

    run(scenario)


def test_a_reader_in_order_asks_nothing_more_of_what_has_ended() -> None:
    async def scenario() -> None:
        async with client("total") as w:
            await w.publish("t", b"in it", partition=2)
            async with w.reader("t") as reader:
                assert (await anext(aiter(reader))).value == b"in it"
                await w.end_partition("t", 2)
                for number in range(20):
                    await w.publish("t", b"%d" % number, partition=number % 2)
                    assert (await anext(aiter(reader))).value == b"%d" % number
                merge = merge_of(reader)
                assert 2 not in merge.roster.behind()
                assert ended_in(reader) == {2: 1}

    run(scenario)


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
@pytest.mark.parametrize("order", ["total", "partition"])
def test_consumers_work_off_what_is_in_it_and_go_on(order: str, mode: str) -> None:
    async def scenario() -> None:
        async with client(order) as w:
            for number in range(20):
                await w.publish("t", b"%d" % number, key=KEYS[number], partition=number % 4)
            done: list[bytes] = []
            async with w.consumer("t", cluster="crew", mode=mode) as consumer:
                async for message in consumer:
                    done.append(message.value)
                    await message.ack(confirmed=True)
                    if len(done) == 3:
                        await w.end_partition("t", 2)
                        for number in range(20, 40):
                            await w.publish("t", b"%d" % number, key=KEYS[number % 20])
                    if len(done) == 40:
                        break
            assert sorted(done) == sorted(b"%d" % number for number in range(40))
            (cluster,) = await w.clusters("t", "crew")
            assert cluster.lag == 0

    run(scenario)
