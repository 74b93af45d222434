"""The format level of a set is raised once every node supports it, and never below what is written.

Nodes of later releases are played by this one, which is told that it supports more.
"""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import Halted, LevelTooHigh
from weir.protocol.client.nodes import ListNodes, NodeList, RaiseLevel


def levels(trio: Any) -> list[int]:
    reply = trio.told(ListNodes(), 0)
    assert isinstance(reply, NodeList)
    return [row.level for row in reply.nodes]


def upgrade(trio: Any, node: int, level: int) -> None:
    """Let one node run another release."""
    trio[node].kill()
    trio[node].settings = {**trio[node].settings, "level": level}
    trio[node].boot()
    trio.until(lambda: levels(trio)[node - 1] == level, "the registry never hears of it")


def test_the_level_waits_for_the_last_node(trio: Any) -> None:
    trio.leader()
    trio.until(lambda: levels(trio) == [1, 1, 1])
    upgrade(trio, 1, 2)
    upgrade(trio, 2, 2)
    refused = trio.told(RaiseLevel(2), 0)
    assert (refused.code, refused.detail) == (LevelTooHigh.code, 1)
    assert "node 3 supports format level 1" in refused.message
    upgrade(trio, 3, 3)
    raised = trio.told(RaiseLevel(), 0)
    assert isinstance(raised, NodeList)
    assert raised.level == 2


def test_a_node_that_cannot_read_what_is_written_does_not_serve(trio: Any) -> None:
    for node in (1, 2, 3):
        upgrade(trio, node, 2)
    assert trio.told(RaiseLevel(2), 0).level == 2
    trio.run(500)
    trio[3].kill()
    trio[3].settings = {**trio[3].settings, "level": 1}
    trio[3].boot()
    with pytest.raises(Halted, match="reads up to 1: upgrade this node"):
        trio.run(5_000)
