"""What a shard has its host do about links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from weir.broker.api.effects import Connect, Disconnect, GuardLinks
from weir.broker.api.settings import Identity
from weir.broker.brokerset import NodeLinks
from weir.broker.metadata.placement import Nodes
from weir.broker.metadata.spread import UNDECLARED
from weir.broker.records.registry import NodeChanged, NodeJoined
from weir.protocol.client.nodes import NodeNews


def test_links_are_guarded_at_once_and_freed_by_a_current_registry_only() -> None:
    effects: list[object] = []
    outbox: Any = SimpleNamespace(put=effects.append)
    links = NodeLinks(Identity(7), outbox)
    links.guard("open", is_current=False)  # it may be closed since
    assert not effects
    links.guard("closed", is_current=False)
    links.guard("closed", is_current=True)
    assert effects == [GuardLinks(named_only=True)]
    links.guard("open", is_current=False)
    links.guard("watch", is_current=True)
    assert effects[1:] == [GuardLinks(named_only=False)]


def test_what_others_tell_of_nodes_counts_where_less_is_known() -> None:
    effects: list[Any] = []
    links = NodeLinks(Identity(7), cast(Any, SimpleNamespace(put=effects.append)))
    nodes = Nodes()
    nodes.apply(NodeJoined(1, "host1", 6800, birth=1))
    nodes.apply(NodeJoined(2, "host2", 6800, birth=2))
    nodes.apply(NodeJoined(3, "host3", 6800))
    nodes.apply(NodeJoined(4, "host4", 6800))
    nodes.apply(NodeChanged(4, "removed"))
    links.follow(nodes, UNDECLARED)
    effects.clear()
    told = [NodeNews(node, "told", 6800, 50 + node) for node in (1, 2, 3, 4, 5)]
    links.hear([*told, NodeNews(6, "nowhere", 0, 56)], nodes)
    assert effects == [Connect(3, "told", 6800, 53), Connect(5, "told", 6800, 55)]
    links.hear(told, nodes)
    assert len(effects) == 2, "it is told once"
    nodes.apply(NodeJoined(9, "host9", 6800))
    links.follow(nodes, UNDECLARED)
    assert effects[2:] == [Connect(9, "host9", 6800)], "what was heard stays until it is known"
    nodes.apply(NodeJoined(5, "host5", 6800, birth=55))
    nodes.apply(NodeChanged(5, "removed"))
    links.follow(nodes, UNDECLARED)
    assert effects[3:] == [Disconnect(5)]


def test_the_host_is_told_once_of_a_removed_node_that_it_never_linked_to() -> None:
    """Counterexample: it knew the birth of the node from its last run, and served it for ever."""
    effects: list[Any] = []
    links = NodeLinks(Identity(7), cast(Any, SimpleNamespace(put=effects.append)))
    nodes = Nodes()
    for node in (1, 2, 3):
        nodes.apply(NodeJoined(node, f"host{node}", 6800, birth=node))
    nodes.apply(NodeChanged(3, "removed"))
    copy = Nodes()
    copy.apply(NodeJoined(3, "host3", 6800, birth=3))
    copy.apply(NodeChanged(3, "removed"))
    links.follow(copy, UNDECLARED)
    assert effects == [], "it is older than this node"
    links.follow(nodes, UNDECLARED)
    assert sorted(effects, key=repr) == [Connect(2, "host2", 6800, 2), Disconnect(3)]
    nodes.apply(NodeChanged(2, "removed"))
    links.follow(nodes, UNDECLARED)
    nodes.apply(NodeJoined(4, "host4", 6800, birth=4))
    links.follow(nodes, UNDECLARED)
    assert effects[2:] == [Disconnect(2), Connect(4, "host4", 6800, 4)]
