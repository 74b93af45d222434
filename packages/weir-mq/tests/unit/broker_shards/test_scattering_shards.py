"""Scatterings over the shards of one node: any of them coordinates."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.errors import Unavailable
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part


def request(info: m.TopicInfo, grant: m.ProducerGrant, number: int) -> m.Scatter:
    """A message for each partition, the `number`th of its producer."""
    parts = tuple(sorted(batch_part(address.group) for address in info.addresses))
    scattered = Scattered(number, parts)
    found = [
        Part(address, bytes(encode(
            [b"%d" % number], group=address.group, producer=grant.producer, epoch=grant.epoch,
            sequence=number, scattered=scattered,
        )))
        for address in info.addresses
    ]  # fmt: skip
    return m.Scatter(grant.producer, grant.epoch, number, 0, found)


def read(node: Any, address: Any) -> list[tuple[bytes, int]]:
    fetched = node.answer(1, m.Fetch(address, 0, 1 << 20))
    found, data = [], b"".join(map(bytes, fetched.batches))
    while data:
        batch = Batch(data)
        found += [(value, batch.header.stamp) for value in batch.values()]
        data = data[batch.header.total_size :]
    return found


@pytest.fixture
def info(node: Any) -> m.TopicInfo:
    found: m.TopicInfo = node.answer(0, m.CreateTopic("t", 4))
    return found


def test_any_shard_coordinates(node: Any, info: m.TopicInfo) -> None:
    grant = node.answer(1, m.OpenProducer())
    stamps = []
    for number in range(6):
        confirm = node.answer(number % 3, request(info, grant, number))
        assert isinstance(confirm, m.ScatterConfirm), confirm
        assert [offset for _, offset in confirm.offsets] == [number] * 4
        stamps.append(confirm.stamp)
    node.settle()
    for address in info.addresses:
        assert read(node, address) == [(b"%d" % n, stamp) for n, stamp in enumerate(stamps)]
    assert all(one.shard.budget.used == 0 for one in node.all)


def test_a_shard_that_goes_in_between_decides_nothing(node: Any, info: m.TopicInfo) -> None:
    grant = node.answer(0, m.OpenProducer())
    node.blocked = {(1, 2)}
    asked = node.ask(1, request(info, grant, 0))
    node.kill(2)
    node.blocked.clear()
    node.boot(2)
    for _ in range(400):
        node.settle()
        if node.reply(1, asked) is not None:
            break
        node.clock.wall += 50
        node.clock.monotonic += 50
        for one in node.all:
            one.handle(ev.Ticked())
    reply = node.reply(1, asked)
    if isinstance(reply, m.Refusal):
        assert reply.code == Unavailable.code
        reply = node.answer(1, request(info, grant, 0))
    assert isinstance(reply, m.ScatterConfirm), reply
    node.settle()
    assert {tuple(read(node, address)) for address in info.addresses} == {((b"0", reply.stamp),)}
