"""A node that was down while others were added or removed, in a closed set."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.access import set_mode
from rigs.shards import catalog_of
from weir.broker.api import effects as ef
from weir.protocol.client import nodes as n


@pytest.fixture
def back(trio: Any) -> tuple[Any, Any, Any]:
    """Return the leader of the registry, a node that follows it, and one that was down while node
    4 was added, and does not hear the leader now that it is back.
    """
    leader = trio.leader()
    other, down = [node for node in trio.live() if node is not leader]
    trio.run(500)
    trio.isolate(down.id)
    assert isinstance(trio.answer(leader, n.ChangeNode("add", 0, "host4", 6800)), n.NodeList)
    trio.until(lambda: 4 in other.wants)
    pair = leader.id, down.id
    trio.apart = {pair, pair[::-1]}
    assert 4 not in down.wants
    return leader, other, down


def close(*nodes: Any) -> None:
    for node in nodes:
        set_mode(catalog_of(node.shard).access, "closed")


def test_a_node_that_was_down_hears_from_others_who_was_added(trio: Any, back: Any) -> None:
    """Counterexample: if those lead its groups, nobody could tell it of them any more."""
    _, _, down = back
    close(*trio.live())
    trio.until(lambda: 4 in down.wants)
    assert down.connects[-1] == ef.Connect(4, "host4", 6800)
    assert catalog_of(down.shard).nodes.get(4) is None, "the registry has not come yet"
    trio.heal()
    trio.until(lambda: catalog_of(down.shard).nodes.get(4) is not None)
    trio.run(2_000)
    assert down.disconnects == []


def test_nobody_is_asked_in_an_open_set(trio: Any, back: Any) -> None:
    """Nodes that are not known may link there."""
    _, _, down = back
    trio.run(5_000)
    assert 4 not in down.wants


def test_nobody_is_asked_while_the_leader_is_reached(trio: Any, back: Any) -> None:
    leader, other, down = back
    close(leader, other, down)
    trio.heal()
    trio.until(lambda: catalog_of(down.shard).nodes.get(4) is not None)
    trio.run(3_000)
    told = [one for one in down.connects if one.node == 4]
    assert len(told) == 1, "by the registry, once"


def test_a_node_that_was_down_tells_its_host_who_was_removed(trio: Any) -> None:
    """Its host may know that node from the last run, and this run never heard that it was there."""
    leader = trio.leader()
    down = next(node for node in trio.live() if node is not leader)
    assert isinstance(trio.answer(leader, n.ChangeNode("add", 0, "host4", 6800)), n.NodeList)
    trio.until(lambda: 4 in down.wants)
    down.kill()
    for change in ("drain", "remove"):
        assert isinstance(trio.answer(leader, n.ChangeNode(change, 4)), n.NodeList)
    down.wants.clear()
    down.boot()
    trio.until(lambda: down.disconnects)
    trio.run(2_000)
    assert down.disconnects == [4], "once"
