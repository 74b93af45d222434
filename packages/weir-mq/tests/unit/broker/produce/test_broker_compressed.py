"""Compressed batches at the broker: looked into before they are taken."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from weir.errors import BadRequest
from weir.model.batch import HEADER_SIZE, Batch, Compression, Packed, parse, seal, split
from weir.protocol.client import messages as m


def fetched(rig: Any, info: m.TopicInfo, offset: int = 0) -> list[Batch]:
    reply = rig.answer(1, m.Fetch(info.addresses[0], offset, 1 << 20))
    return [batch for part in reply.batches for batch in split(part, info.addresses[0].group)]


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_compressed_batches_are_looked_into_before_they_are_taken(large: Any, kind: int) -> None:
    rig, publisher = large
    values = [b"the same again and again " * 9] * 9
    confirm = publisher.ask(*values, compression=kind)
    assert confirm.offset == 0
    (batch,) = fetched(rig, publisher.info)
    assert batch.header.compression == kind
    assert batch.values() == values
    produce = rig.batch(publisher.info, publisher.grant, 9, *values, compression=kind)
    bad = spoilt(bytes(produce.batch), publisher.info.addresses[0].group)
    refusal = rig.answer(1, m.Produce(produce.address, 0, memoryview(bad)))
    assert refusal.code == BadRequest.code
    assert "inflate" in refusal.message


def spoilt(batch: bytes, group: int) -> bytearray:
    """The same batch, its compressed part nonsense, its checksums right: nobody could read it."""
    h = parse(batch)
    bad = bytearray(batch)
    bad[HEADER_SIZE : HEADER_SIZE + h.packed_size] = b"\xff" * h.packed_size
    fields = (h.columns, h.producer, h.epoch, h.count, h.sequence, h.base_time)
    seal(bad, fields, group, Packed(h.compression, h.raw_size, h.packed_size))
    return bad


def test_a_broker_without_the_library_says_so(large: Any, monkeypatch: Any) -> None:
    rig, publisher = large
    produce = rig.batch(publisher.info, publisher.grant, 0, b"x" * 999, compression=Compression.LZ4)
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    refusal = rig.answer(1, produce)
    assert refusal.code == BadRequest.code
    assert "weir-mq[compress]" in refusal.message
