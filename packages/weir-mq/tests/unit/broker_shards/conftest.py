"""Several shards of a node in one process."""

from __future__ import annotations

import pytest

from rigs.shards_of_a_node import Node


@pytest.fixture
def node() -> Node:
    node = Node(3)
    for shard in range(3):
        node.connect(shard)
    return node
