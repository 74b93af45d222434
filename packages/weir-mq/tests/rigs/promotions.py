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
