"""A producer's compression: names, levels, and batches that stay as they are."""

from __future__ import annotations

import asyncio

import pytest

from weir.client.client import connect
from weir.client.core.batcher import Packing
from weir.client.core.delivered_batches import deliver
from weir.errors import BadBatch, BadRequest
from weir.model.batch import HEADER_SIZE, Compression, Packed, parse, seal
from weir.model.batch_builder import encode


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [("none", None, 0), ("lz4", None, 1), ("lz4", 12, 1), ("zstd", None, 2), ("zstd", -7, 2)],
)
def test_users_say_it_by_name(name: str, level: int | None, kind: int) -> None:
    assert Packing.named(name, level) == Packing(kind, level)


@pytest.mark.parametrize(
    ("name", "level", "why"),
    [
        ("gzip", None, '"none", "lz4" or "zstd"'),
        ("LZ4", None, '"none", "lz4" or "zstd"'),
        ("lz4", 0, "give 1 to 12"),
        ("zstd", 23, "give -7 to 22"),
        ("none", 3, "level 3 of none"),
    ],
)
def test_what_cannot_work_is_refused_at_once(name: str, level: int | None, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        Packing.named(name, level)


@pytest.mark.parametrize("name", ["none", "lz4", "zstd"])
def test_batches_are_compressed_where_that_makes_them_smaller(fake_broker, name: str) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            async with w.producer("t", compression=name) as producer:
                await producer.publish(b"x")
                await producer.send_many([b"again and again"] * 500, tags=["a"] * 500)
            small, large = broker.logs[broker.topics["t"].addresses[0].group]
            assert small.header.compression == Compression.NONE
            assert large.header.compression == Compression[name.upper()]
            messages = [message async for message in w.reader("t", follow=False, tag="a")]
            assert [message.value for message in messages] == [b"again and again"] * 500

    asyncio.run(scenario())


def test_a_batch_that_no_reader_can_open_says_where_to_go_on() -> None:
    batch = encode([b"again and again"] * 9, group=5, compression=Compression.LZ4)
    h = parse(batch)
    batch[HEADER_SIZE : HEADER_SIZE + h.packed_size] = b"\xff" * h.packed_size
    fields = (h.columns, h.producer, h.epoch, h.count, h.sequence, h.base_time)
    seal(batch, fields, 5, Packed(h.compression, h.raw_size, h.packed_size))
    (part,) = deliver([batch], 5, "t", 2, 0, 9)
    for step in (part.values, lambda: list(part.messages())):
        with pytest.raises(BadBatch, match=r"messages 0 to 8 of t/2 .* start=\{2: 9\}"):
            step()
