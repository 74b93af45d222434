"""The topology through the registry's group: compared, set, kept, and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import catalog_of
from rigs.topologies import row
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.topology import AppliedTopology, check_fit
from weir.broker.records.registry import NodeJoined, TopologyApplied
from weir.errors import BadRequest, LevelTooLow, TopologyChanged
from weir.protocol.client.topology import ApplyTopology, DescribeTopology, TopologyState
from weir.topology.sets import SetRow, Topology

ONE = Topology(0, (row(0),))
TWO = Topology(0, (row(0), row(5, "access", (0,), 1)))


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig()
    rig.connect()
    return rig


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_topology_is_kept(rig: Any, checkpoint: bool) -> None:
    assert rig.answer(1, DescribeTopology()) == TopologyState(0, Topology())
    assert rig.answer(1, ApplyTopology(0, ONE)) == TopologyState(1, ONE)
    assert rig.answer(1, ApplyTopology(1, TWO)) == TopologyState(2, TWO)
    if checkpoint:
        rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    rig.disk.crash()
    rig.boot()
    rig.connect()
    assert rig.answer(1, DescribeTopology()) == TopologyState(2, TWO)


def test_another_version_is_not_replaced(rig: Any) -> None:
    rig.answer(1, ApplyTopology(0, ONE))
    refused = rig.answer(1, ApplyTopology(0, TWO))
    assert (refused.code, refused.detail) == (TopologyChanged.code, 1)
    assert "has version 1, and the change was made of version 0" in refused.message
    assert rig.answer(1, ApplyTopology(7, TWO)).code == TopologyChanged.code
    assert rig.answer(1, DescribeTopology()) == TopologyState(1, ONE)
    # Who lost the answer asks again, and is told that it is done.
    assert rig.answer(1, ApplyTopology(0, ONE)) == TopologyState(1, ONE)


def test_of_two_that_are_proposed_together_one_is_refused_where_it_is_applied(rig: Any) -> None:
    rig.ask(1, ApplyTopology(0, ONE), ApplyTopology(0, TWO))
    rig.settle()
    first, second = (reply for _, reply in rig.replies[1][-2:])
    assert first == TopologyState(1, ONE)
    assert (second.code, second.detail) == (TopologyChanged.code, 1)
    assert catalog_of(rig.shard).topology.topology == ONE


def test_a_replica_applies_no_version_but_the_next() -> None:
    applied = AppliedTopology()
    applied.apply(TopologyApplied(1, ONE))
    for version in (1, 3):
        with pytest.raises(TopologyChanged):
            applied.apply(TopologyApplied(version, TWO))
    assert (applied.version, applied.topology) == (1, ONE)


def test_a_set_of_a_lower_level_has_no_topology(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(level=2)
    rig.connect()
    assert rig.answer(1, ApplyTopology(0, ONE)).code == LevelTooLow.code
    assert rig.answer(1, DescribeTopology()) == TopologyState(0, Topology())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (ONE, Topology(), "there is no core set"),
        (ONE, Topology(0, (row(0), row(1, "access", (9,), 1))), "set set1: upper names set 9"),
        (ONE, Topology(1, (row(1),)), "node 1 is in no core set of the file"),
        (
            Topology(0, (row(0), row(1), row(2))),
            Topology(0, (row(0), row(1, "tandem", (0,), 1), row(2))),
            "set set1 was core, and is tandem",
        ),
        (
            Topology(0, (row(0), row(1), row(2))),
            Topology(0, (row(0), SetRow(7, "new", "core", nodes=row(1).nodes))),
            "node 2 belongs to set set1, for good",
        ),
    ],
)
def test_what_does_not_fit_the_system_is_refused(old: Topology, new: Topology, why: str) -> None:
    catalog = Catalog()
    catalog.nodes.apply(NodeJoined(1, "host0", 6800))
    check_fit(old, Topology(), catalog.nodes)
    with pytest.raises(BadRequest, match=why):
        check_fit(new, old, catalog.nodes)


def test_a_catalog_keeps_it_behind_all_else() -> None:
    catalog = Catalog()
    without = catalog.encode()
    catalog.topology.apply(TopologyApplied(1, TWO))
    again = Catalog.decode(catalog.encode())
    assert (again.topology.version, again.topology.topology) == (1, TWO)
    assert Catalog().encode() == without
    assert not Catalog.decode(without).topology
