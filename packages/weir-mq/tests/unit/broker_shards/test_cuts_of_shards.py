"""A cut through partitions that different shards of a node lead."""

from __future__ import annotations

import pytest

from rigs.shards_of_a_node import Node
from weir.protocol.client import messages as m


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_any_shard_resolves_it(node: Node, shard: int) -> None:
    info = node.answer(0, m.CreateTopic("t", 6))
    grant = node.answer(0, m.OpenProducer())
    confirms = [node.answer(shard, node.batch(address, grant)) for address in info.addresses]
    reply = node.answer(shard, m.ResolveCut(["t"]))
    assert isinstance(reply, m.ResolvedCut), reply
    (topic,) = reply.topics
    assert topic.ends == [1] * 6
    assert reply.stamp >= max(confirm.stamp for confirm in confirms)
