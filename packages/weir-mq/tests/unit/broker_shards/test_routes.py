"""Whom a shard asks about a group that has no replica here."""

from __future__ import annotations

from weir.broker.api.events import LinkClosed, LinkOpened
from weir.broker.api.settings import Layout
from weir.broker.forwarding.forwarder import Routes
from weir.broker.metadata.catalog import Catalog
from weir.broker.records.registry import GroupsPlaced, NodeJoined, TopicCreated
from weir.model.ids import node_of, place_node, place_of, voter_of


class NoLeaders:
    """No group lies here, so nobody is known to lead one."""

    def leader_of(self, group: int) -> int:
        return 0


def test_who_has_no_replica_asks_a_voter_that_it_reaches() -> None:
    catalog = Catalog()
    for node in (1, 2, 3, 4):
        catalog.nodes.apply(NodeJoined(node, f"host{node}", 6800, 1))
    (group,) = catalog.create(TopicCreated("default", "t", 1, "partition", 1))[0].groups()
    catalog.nodes.apply(GroupsPlaced([(group, (voter_of(3), voter_of(1), voter_of(2)))]))
    routes = Routes(Layout(), 4, 0, catalog, NoLeaders(), 4)
    assert routes.leader(group) == 3, "nobody is reached, so the preferred leader is named"
    for node in (1, 2, 3):
        routes.link(LinkOpened(place_of(node, 0), 1, 7, 3))
    assert place_node(routes.toward(group)) == 3
    routes.link(LinkClosed(place_of(3, 0)))
    assert place_node(routes.toward(group)) == 1
    assert routes.address(group).node == 1
    routes.link(LinkClosed(place_of(1, 0)))
    assert routes.leader(group) == 2
    assert routes.replicas(group) == [place_of(node_of(v), 0) for v in catalog.voters(group)]
