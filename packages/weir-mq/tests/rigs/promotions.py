"""Lets a node in memory hear that another core set was promoted without it."""

from __future__ import annotations

from weir.broker.api import events as ev
from weir.testing.memory_node import Node


def leave_behind(node: Node, lineage: int = 1) -> None:
    """Let the node hear, as from a node of that set, in which lineage the groups go on there."""

    async def outlive() -> None:
        assert node._host is not None
        node._host.handle(ev.Outlived(2, lineage))

    assert node._background is not None
    node._background.run(outlive())


def set_lineages(node: Node, group: int, *forks: tuple[int, int]) -> None:
    """Let a partition have begun these lineages, by rising number, each at an offset."""

    async def begin() -> None:
        assert node._host is not None
        partition = node._host._shard.topics.find(group)
        assert partition is not None
        partition.state.membership.forks = forks

    assert node._background is not None
    node._background.run(begin())
