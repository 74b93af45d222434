"""Arrow columns through a producer: where rows go, in which order, and what stops them."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import weir
from weir.client.client import connect
from weir.errors import BadRequest
from weir.model.topic import partition_for

N = 900
TABLE = pa.table(
    {
        "key": [b"k%d" % (n % 7) for n in range(N)],
        "value": [b"%d" % n for n in range(N)],
        "tag": [None if n % 3 else "third" for n in range(N)],
    }
)


async def published(fake_broker: Any, table: Any, **options: Any) -> tuple[Any, list[Any]]:
    async with fake_broker() as broker, connect(broker.url) as w:
        broker.topic("t", 3)
        async with w.producer("t", batch_bytes=2_000) as producer:
            return broker, await producer.publish_arrow(table, **options)


def test_rows_go_to_the_partitions_of_their_keys_in_order(fake_broker: Any) -> None:
    broker, confirmed = asyncio.run(published(fake_broker, TABLE))
    assert sum(done.count for done in confirmed) == N
    assert len(confirmed) > 3  # cut by bytes
    keys = TABLE["key"].to_pylist()
    for partition in range(3):
        wanted = [b"%d" % n for n in range(N) if partition_for(keys[n], 3) == partition]
        assert broker.values("t", partition) == wanted


def test_a_partition_by_hand_takes_all_and_without_keys_each_has_its_turn(fake_broker: Any) -> None:
    broker, _ = asyncio.run(published(fake_broker, TABLE, partition=2))
    assert broker.values("t", 2) == TABLE["value"].to_pylist()
    broker, _ = asyncio.run(published(fake_broker, TABLE.drop_columns(["key"])))
    found = [broker.values("t", partition) for partition in range(3)]
    assert all(found)
    assert sorted(value for part in found for value in part) == sorted(TABLE["value"].to_pylist())


def test_nothing_is_sent_of_a_table_that_has_a_bad_part(fake_broker: Any) -> None:
    bad = pa.concat_tables(
        [TABLE, TABLE.slice(0, 1).set_column(1, "value", pa.array([None], "binary"))]
    )

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            async with w.producer("t") as producer:
                with pytest.raises(BadRequest, match="nulls"):
                    await producer.publish_arrow(bad)
                with pytest.raises(TypeError, match="RecordBatch or Table"):
                    await producer.publish_arrow(TABLE.to_pydict())
                assert await producer.publish_arrow(TABLE.slice(0, 0)) == []
            assert broker.values("t") == []

    asyncio.run(scenario())


def test_the_blocking_client_has_it_too(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topic("t")

            def blocking() -> int:
                with weir.sync.connect(broker.url) as w, w.producer("t") as producer:
                    return sum(done.count for done in producer.publish_arrow(TABLE))

            assert await asyncio.to_thread(blocking) == N

    asyncio.run(scenario())
