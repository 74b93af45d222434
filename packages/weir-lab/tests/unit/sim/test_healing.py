"""When a node of a set is whole again, as the judge of what rotted sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from weir.broker.metadata.catalog import Catalog
from weir.broker.records.registry import GroupsPlaced, GroupsSettled
from weir.model.ids import REGISTRY_GROUP, group_of, node_of, voter_of
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.host import Host
from weir.testing.simulator.world import SECOND, World
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.scenarios.healing import Healing
from weir_lab.sim.shape import UNORDERED, machine

_GROUP = group_of(1, 0)
_NODES = (1, 2, 3, 4)


def met(nodes: int = len(_NODES)) -> BrokerSet:
    """Four nodes, or as many, that have met."""
    world = World(1)
    brokers = BrokerSet(world, machine(world, UNORDERED), nodes)
    brokers.start()
    world.run(6 * SECOND)
    return brokers


def healing(brokers: BrokerSet) -> Healing:
    return Healing(cast("Scene", SimpleNamespace(brokers=brokers)), 1)


def catalogs(host: Host) -> list[Catalog]:
    return [one.shard.topics.catalog for one in host.running if one.shard is not None]


def test_nothing_rots_while_two_vote_of_which_none_can_be_missed() -> None:
    assert healing(met()).can_miss_one()
    assert not healing(met(nodes=2)).can_miss_one()


def test_a_node_that_only_learns_of_the_registry_is_not_whole_without_it() -> None:
    brokers = met()
    judge = healing(brokers)
    voting = set(map(node_of, catalogs(brokers.one)[0].voters(REGISTRY_GROUP)))
    (learner,) = set(_NODES) - voting
    host = brokers.hosts[learner]
    assert judge.is_whole(host)
    for process in host.running:
        assert process.shard is not None
        for writer in process.shard.writers:
            writer.groups.pop(REGISTRY_GROUP, None)
    assert not judge.is_whole(host)


def test_a_node_is_whole_only_with_the_groups_of_each_topic_that_lie_on_it() -> None:
    brokers = met(nodes=3)
    judge = healing(brokers)
    assert judge.is_whole(brokers.one)  # whatever ids topics may have that others make
    for host in brokers.all:
        for catalog in catalogs(host):
            catalog.nodes.place_new([group_of(2, 0)], 3)
    assert not judge.is_whole(brokers.one)  # it is not open there


def test_what_a_node_believes_that_is_sent_the_registry_anew_makes_it_not_whole() -> None:
    brokers = met()
    judge = healing(brokers)
    for host in brokers.all:
        for catalog in catalogs(host):
            catalog.nodes.place_new([_GROUP], 3)
    holders = list(map(node_of, catalogs(brokers.one)[0].voters(_GROUP)))
    (other,) = set(_NODES) - set(holders)
    assert judge.is_whole(brokers.hosts[other])
    # The group is not open there; and there alone it is known to lie on the three others, as once.
    host = brokers.hosts[holders[0]]
    others = tuple(voter_of(node) for node in _NODES if node != host.node)
    for catalog in catalogs(host):
        catalog.nodes.apply(GroupsPlaced([(_GROUP, others)]))
        catalog.nodes.apply(GroupsSettled([(_GROUP, others)]))
    assert not judge.is_whole(host)
