"""Nodes say of which BrokerSet they are; the registry keeps it, and placements keep to it."""

from __future__ import annotations

from collections import Counter

import pytest

from weir.broker.api.settings import Identity, Layout, Member
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.membership import Membership
from weir.broker.metadata.placement import Nodes
from weir.broker.metadata.spread import UNDECLARED, Declared, Rule
from weir.broker.metadata.topology import check_fit
from weir.broker.promotion import check_promotion
from weir.broker.records.entries import decode_control, encode_control
from weir.broker.records.registry import (
    GroupsFollowed,
    LevelRaised,
    NodeChanged,
    NodeJoined,
    NodeRecord,
    SetJoined,
    SetPromoted,
    TopicCreated,
    TopologyApplied,
)
from weir.broker.runtime.outbox import Caller
from weir.errors import BadRequest, Refused, UnknownNode
from weir.model.ids import REGISTRY_GROUP, SET_UNKNOWN, incarnation_of, node_of
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.protocol.client.nodes import (
    NodeList,
    ReportLost,
    ReportSet,
    ReportSettled,
    SetInfo,
)
from weir.protocol.client.topology import PromoteSet
from weir.topology.sets import SetNode, SetRow, Topology


def core(number: int) -> SetRow:
    """Return a core set of the node with its own number."""
    nodes = (SetNode(number, f"host{number}", 6800),)
    return SetRow(number, f"set{number}", "core", nodes=nodes)


class Leader:
    """The registry's leader; what it proposes is committed by `settle`."""

    def __init__(self, nodes: int, level: int = FORMAT_LEVEL_TOPOLOGY) -> None:
        self.catalog = Catalog()
        members = tuple(Member(node, f"host{node}", 6800) for node in range(1, nodes + 1))
        self.proposed: list[NodeRecord] = []
        self.applied = 0
        self.membership = Membership(
            self.catalog, Identity(7, members=members), Layout(2, 2), level, self, self
        )
        self.membership.lead()
        if level > 1:
            self.propose(LevelRaised(level))
        self.settle()

    def propose(self, record: NodeRecord) -> int:
        self.proposed.append(record)
        return len(self.proposed)

    def reply(self, caller: Caller, reply: NodeList) -> None:
        raise AssertionError("nobody asked")

    def refuse(self, caller: Caller, error: Refused) -> None:
        raise AssertionError("nobody asked")

    def settle(self) -> None:
        for _ in range(20):
            while self.applied < len(self.proposed):
                record = decode_control(encode_control(self.proposed[self.applied]))
                self.applied += 1
                self.membership.apply(self.applied, record)  # type: ignore[arg-type]
            self.membership.rebalance()

    def say(self, *sets: int) -> None:
        """Let nodes from 1 up say of which set they are."""
        for node, brokerset in enumerate(sets, 1):
            self.membership.take_report(ReportSet(node, brokerset))
        self.settle()

    def arrive(self) -> None:
        nodes = self.catalog.nodes
        rows = [(group, list(nodes.voters(group))) for group in nodes.unsettled]
        self.membership.take_report(ReportSettled(rows))
        self.settle()

    def topic(self, partitions: int = 6) -> list[int]:
        record = TopicCreated("default", "t", partitions, "partition", 1)
        return self.catalog.create(record)[0].groups()

    def sets_of(self, group: int) -> list[int]:
        nodes = self.catalog.nodes
        return sorted(nodes.set_of(node_of(v), UNDECLARED) for v in nodes.voters(group))


def test_groups_lie_where_they_did_until_all_nodes_have_said_their_set() -> None:
    leader = Leader(6)
    groups = leader.topic()
    before = dict(leader.catalog.nodes.placements)
    leader.say(1, 1, 2, 2, 3)
    assert leader.catalog.spread.rule is Rule.NONE
    assert leader.catalog.nodes.placements == before
    leader.membership.take_report(ReportSet(6, 3))
    leader.settle()
    assert leader.catalog.spread.rule is Rule.APART
    for group in groups:
        assert leader.sets_of(group) == [1, 2, 3]
    counts = Counter(leader.sets_of(REGISTRY_GROUP))
    assert max(counts.values()) == 2
    assert sum(counts.values()) == 5


def test_nothing_moves_to_a_node_that_has_not_said_its_set() -> None:
    leader = Leader(3)
    leader.say(1, 2, 3)
    groups = leader.topic(12)
    before = dict(leader.catalog.nodes.placements)
    leader.propose(NodeJoined(4, "host4", 6800, 2, FORMAT_LEVEL_TOPOLOGY))
    leader.settle()
    assert leader.catalog.nodes.placements == before
    leader.membership.take_report(ReportSet(4, 3))
    leader.settle()
    assert leader.catalog.nodes.placements != before
    for group in groups:
        assert leader.sets_of(group) == [1, 2, 3]


def test_the_registry_is_spread_as_well() -> None:
    """It is founded on the first three nodes, which are one set."""
    leader = Leader(5)
    leader.say(1, 1, 1, 2, 3)
    # Five voters could not miss the first set: three do.
    assert leader.sets_of(REGISTRY_GROUP) == [1, 2, 3]
    assert not leader.catalog.nodes.leaving(65536)
    leader.arrive()
    before = len(leader.proposed)
    leader.settle()
    assert len(leader.proposed) == before


def test_new_groups_are_spread_from_the_first() -> None:
    leader = Leader(3)
    leader.say(4, 5, 6)
    for group in leader.topic():
        assert leader.sets_of(group) == [4, 5, 6]


def test_of_two_sets_the_home_set_has_all_voters() -> None:
    leader = Leader(4)
    groups = leader.topic()
    leader.say(8, 8, 9, 9)
    assert leader.catalog.spread.rule is Rule.HOME
    for group in (*groups, REGISTRY_GROUP):
        assert leader.sets_of(group) == [8, 8, 9], "home has two nodes, and three replicas are due"
    nodes = (SetNode(n, f"host{n}", 6800) for n in (1, 2, 3, 4))
    one, two, three, four = nodes
    sets = (SetRow(8, "a", "core", nodes=(one, two)), SetRow(9, "b", "core", nodes=(three, four)))
    leader.catalog.topology.apply(TopologyApplied(1, Topology(9, sets)))
    leader.membership.look_again()
    leader.settle()
    for group in (*groups, REGISTRY_GROUP):
        assert leader.sets_of(group) == [8, 9, 9], "home is the other one now"
        assert node_of(leader.catalog.voters(group)[0]) in (3, 4)


def test_a_set_is_said_once_and_from_level_3_on() -> None:
    leader = Leader(3, level=2)
    leader.say(1, 2, 3)
    assert not any(isinstance(record, SetJoined) for record in leader.proposed)
    leader = Leader(3)
    leader.say(1, 2, 3)
    leader.say(3, 3, 3)
    said = [record for record in leader.proposed if isinstance(record, SetJoined)]
    assert said == [SetJoined(1, 1), SetJoined(2, 2), SetJoined(3, 3)]
    leader.membership.take_report(ReportSet(9, 1))
    leader.settle()
    assert leader.proposed[-1] != SetJoined(9, 1)
    with pytest.raises(UnknownNode):
        leader.catalog.nodes.apply(SetJoined(9, 1))


def test_a_node_is_of_the_set_that_the_topology_has_it_in() -> None:
    leader = Leader(3)
    sets = tuple(map(core, (1, 2, 3)))
    leader.catalog.topology.apply(TopologyApplied(1, Topology(1, sets)))
    leader.say(2)
    assert leader.catalog.nodes.get(1) is not None
    assert leader.catalog.nodes.get(1).brokerset == SET_UNKNOWN  # type: ignore[union-attr]
    leader.say(1)
    assert leader.catalog.nodes.get(1).brokerset == 1  # type: ignore[union-attr]
    # One has said it, and of the others the topology says so.
    assert leader.catalog.spread.rule is Rule.APART


def test_a_topology_fits_what_nodes_have_said() -> None:
    nodes, sets = Nodes(), tuple(map(core, (1, 2)))
    nodes.apply(NodeJoined(1, "host1", 6800, 1))
    with pytest.raises(
        BadRequest,
        match=r"node 1 was founded in BrokerSet 0, or has not said yet.*apply the topology again",
    ):
        check_fit(Topology(1, sets), Topology(), nodes)
    nodes.apply(NodeJoined(2, "host2", 6800, 1))
    nodes.apply(SetJoined(2, 2))
    with pytest.raises(BadRequest, match="node 1 has not said yet of which BrokerSet it is"):
        check_fit(Topology(1, sets), Topology(), nodes)
    nodes.apply(SetJoined(1, 1))
    check_fit(Topology(1, sets), Topology(), nodes)
    nodes.apply(SetJoined(2, 3))
    with pytest.raises(BadRequest, match="set set2, which has the id 2: a node never changes"):
        check_fit(Topology(1, sets), Topology(), nodes)


def test_sets_are_kept_and_leave_snapshots_without_them_as_they_were() -> None:
    nodes = Nodes()
    nodes.apply(NodeJoined(1, "host1", 6800, 1, 3, 77))
    without = nodes.encode()
    assert len(without) == 7  # type: ignore[arg-type]
    assert without[1] == [(1, "host1", 6800, "active", 1, 3, 77)]  # type: ignore[index]
    assert Nodes.decode(without).get(1).brokerset == SET_UNKNOWN  # type: ignore[union-attr]
    nodes.apply(SetJoined(1, 0))
    assert not nodes.uses_sets
    assert Nodes.decode(nodes.encode()).get(1) == nodes.get(1)
    assert nodes.get(1).brokerset == 0  # type: ignore[union-attr]
    assert encode_control(SetJoined(3, 7)).hex() == "93a86e6f64652d7365740307"


def test_sets_are_listed_with_what_lies_in_them() -> None:
    leader = Leader(4)
    leader.topic(2)
    leader.say(1, 1, 1)
    listed = leader.membership.listed_sets()
    assert (listed.rule, listed.unknown) == ("none", [4])
    assert listed.sets == [SetInfo(1, "", "core", [1, 2, 3], 3, True)]
    sets = (
        SetRow(1, "near", "core", nodes=tuple(SetNode(n, f"host{n}", 6800) for n in (1, 2, 3))),
        SetRow(2, "far", "core", nodes=(SetNode(4, "host4", 6800),)),
        SetRow(5, "door", "access", 1, nodes=(SetNode(9, "host9", 6800),), upper=(1,)),
    )
    leader.catalog.topology.apply(TopologyApplied(1, Topology(1, sets)))
    listed = leader.membership.listed_sets()
    assert (listed.rule, listed.unknown) == ("home", [])
    assert listed.sets == [
        SetInfo(1, "near", "core", [1, 2, 3], 3, True),
        SetInfo(2, "far", "core", [4], 0, False),
        SetInfo(5, "door", "access", [], 0, False),
    ]


def test_a_node_that_was_removed_counts_no_more() -> None:
    nodes = Nodes()
    for node, brokerset in ((1, 1), (2, 2), (3, 3)):
        nodes.apply(NodeJoined(node, "h", node, 1))
        nodes.apply(SetJoined(node, brokerset))
    assert nodes.spread(UNDECLARED).rule is Rule.APART
    nodes.apply(NodeChanged(3, "draining"))
    assert nodes.spread(UNDECLARED).rule is Rule.APART, "it may come back"
    nodes.apply(NodeChanged(3, "removed"))
    assert nodes.spread(Declared({}, 2)).rule is Rule.HOME
    assert nodes.spread(Declared({}, 2)).rank(1, ()) == 1
    assert nodes.voters(REGISTRY_GROUP) == ()


def learners_of(leader: Leader, groups: list[int]) -> list[list[int]]:
    nodes = leader.catalog.nodes
    return [sorted(map(node_of, nodes.learners(group))) for group in groups]


def held(leader: Leader) -> Counter[int]:
    """Return how many groups each node holds, counted anew."""
    nodes = leader.catalog.nodes
    rows = (*nodes.placements.values(), *nodes.followers.values())
    return Counter(node_of(voter) for voters in rows for voter in voters)


def two_sets(home: int = 3, away: int = 3) -> Leader:
    leader = Leader(home + away)
    leader.say(*[1] * home, *[2] * away)
    leader.arrive()
    return leader


def learning(leader: Leader, partitions: int = 1) -> list[int]:
    groups = leader.topic(partitions)
    leader.membership.placed_new()
    leader.settle()
    return groups


def test_of_two_sets_the_other_one_learns_what_is_voted_on_at_home() -> None:
    leader = two_sets()
    groups = learning(leader, 6)
    assert [leader.sets_of(group) for group in groups] == [[1, 1, 1]] * 6
    assert learners_of(leader, groups) == [[4, 5, 6]] * 6
    assert +Counter(leader.catalog.nodes.load.held) == held(leader)
    before = len(leader.proposed)
    leader.membership.look_again()
    leader.settle()
    assert len(leader.proposed) == before


def test_where_away_has_fewer_nodes_than_voters_each_learns_and_loads_are_even() -> None:
    leader = two_sets(3, 4)
    groups = learning(leader, 8)
    counts = Counter(node for nodes in learners_of(leader, groups) for node in nodes)
    assert set(counts.values()) == {6}
    few = two_sets(3, 1)
    assert learners_of(few, learning(few, 2)) == [[4]] * 2


def test_one_set_has_no_learners_and_a_third_set_ends_them() -> None:
    leader = Leader(3)
    assert learners_of(leader, learning(leader)) == [[]]
    leader = two_sets()
    groups = learning(leader, 6)
    leader.propose(NodeJoined(7, "host7", 6800, 2, FORMAT_LEVEL_TOPOLOGY))
    leader.settle()
    leader.membership.take_report(ReportSet(7, 3))
    leader.settle()
    assert leader.catalog.spread.rule is Rule.APART
    assert learners_of(leader, groups) == [[]] * 6


def test_a_drained_learner_makes_way_and_comes_back_as_another() -> None:
    leader = two_sets(3, 3)
    groups = learning(leader)
    nodes = leader.catalog.nodes
    before = nodes.voter(groups[0], 4)
    leader.propose(NodeChanged(4, "draining"))
    leader.settle()
    assert learners_of(leader, groups) == [[5, 6]]
    leader.propose(NodeChanged(4, "active"))
    leader.settle()
    assert learners_of(leader, groups) == [[4, 5, 6]]
    after = nodes.voter(groups[0], 4)
    assert (node_of(after), incarnation_of(after)) == (4, incarnation_of(before) + 1)


def test_a_learner_that_lost_its_log_comes_back_as_another() -> None:
    leader = two_sets()
    groups = learning(leader)
    nodes = leader.catalog.nodes
    lost = nodes.voter(groups[0], 5)
    for _ in range(2):  # the second time it is known by then
        leader.membership.take_report(ReportLost(groups[0], lost))
        leader.settle()
        assert learners_of(leader, groups) == [[4, 5, 6]]
        assert incarnation_of(nodes.voter(groups[0], 5)) == incarnation_of(lost) + 1


def test_another_home_makes_voters_of_learners_without_a_copy() -> None:
    leader = two_sets()
    groups = learning(leader)
    nodes = leader.catalog.nodes
    learners = nodes.learners(groups[0])
    hosts = [tuple(SetNode(n, f"host{n}", 6800) for n in range(at, at + 3)) for at in (1, 4)]
    rows = [SetRow(n, f"set{n}", "core", nodes=there) for n, there in enumerate(hosts, 1)]
    leader.catalog.topology.apply(TopologyApplied(1, Topology(2, tuple(rows))))
    leader.membership.look_again()
    leader.settle()
    assert set(nodes.voters(groups[0])) == set(learners)
    assert learners_of(leader, groups) == [[1, 2, 3]]
    assert {nodes.voter(groups[0], node) for node in (1, 2, 3)} == set(nodes.leaving(groups[0]))
    leader.arrive()
    leader.settle()
    assert learners_of(leader, groups) == [[1, 2, 3]]
    assert not any(map(incarnation_of, nodes.learners(groups[0])))
    assert +Counter(nodes.load.held) == held(leader)


def test_learners_are_kept() -> None:
    leader = two_sets()
    groups = learning(leader, 6)
    nodes = leader.catalog.nodes
    copy = Nodes.decode(nodes.encode())
    assert copy.followers == nodes.followers
    assert Counter(copy.load.held) == +Counter(nodes.load.held)
    nodes.drop(groups)
    assert not nodes.followers
    assert +Counter(nodes.load.held) == held(leader)
    nodes.apply(GroupsFollowed([(groups[0], (4 << 20,))]))  # of a topic that is gone
    assert not nodes.followers


def promoted(leader: Leader, lineage: int = 1, *nodes: int) -> None:
    leader.propose(SetPromoted(lineage, 2, nodes or (4, 5, 6)))
    leader.settle()


def test_a_promoted_set_goes_on_with_its_copies_and_without_all_other_nodes() -> None:
    leader = two_sets()
    groups, nodes = learning(leader, 6), leader.catalog.nodes
    learners = {group: nodes.learners(group) for group in groups}
    promoted(leader)
    assert [one.id for one in nodes.all()] == [4, 5, 6]
    for group in groups:
        assert set(nodes.voters(group)) == set(learners[group])
        assert set(nodes.promotions.forced[group].voters) == set(learners[group])
        assert nodes.promotions.forced[group].lineage == 1
    assert set(map(node_of, nodes.voters(REGISTRY_GROUP))) == {4, 5, 6}
    assert nodes.promotions.outlived == {1: 1, 2: 1, 3: 1}
    assert not nodes.followers
    assert +Counter(nodes.load.held) == held(leader)


def test_a_lineage_begins_once() -> None:
    leader = two_sets()
    learning(leader)
    promoted(leader)
    before = leader.catalog.nodes.encode()
    leader.propose(SetPromoted(1, 2, (4,)))
    leader.settle()
    assert leader.catalog.nodes.encode() == before


def test_a_group_without_a_copy_in_the_set_begins_with_nothing() -> None:
    leader = two_sets()
    groups, nodes = leader.topic(2), leader.catalog.nodes  # nobody learns of it yet
    promoted(leader)
    for group in groups:
        forced = nodes.promotions.forced[group]
        assert len(forced.voters) == 1
        assert node_of(forced.voters[0]) in (4, 5, 6)
        assert len(nodes.voters(group)) == 3, "it gets replicas as any other one"
    assert +Counter(nodes.load.held) == held(leader)


def test_a_group_that_keeps_most_of_its_voters_is_not_forced() -> None:
    leader = two_sets(1, 3)
    groups, nodes = learning(leader, 2), leader.catalog.nodes
    assert [leader.sets_of(group) for group in groups] == [[1, 2, 2]] * 2
    promoted(leader, 1, 2, 3, 4)
    assert not any(group in nodes.promotions.forced for group in groups)
    for group in groups:
        assert set(map(node_of, nodes.voters(group))) <= {2, 3, 4}


def test_a_promoted_set_is_home_until_another_topology_comes() -> None:
    leader = two_sets()
    groups, catalog = learning(leader), leader.catalog
    promoted(leader)
    for node in (7, 8, 9):
        leader.propose(NodeJoined(node, f"host{node}", 6800, 2, FORMAT_LEVEL_TOPOLOGY))
        leader.settle()
        leader.membership.take_report(ReportSet(node, 1))
        leader.settle()
    assert catalog.spread.rule is Rule.HOME
    assert catalog.spread.home == 2
    assert learners_of(leader, groups) == [[7, 8, 9]]
    hosts = [tuple(SetNode(n, f"host{n}", 6800) for n in range(at, at + 3)) for at in (7, 4)]
    rows = [SetRow(n, f"set{n}", "core", nodes=there) for n, there in enumerate(hosts, 1)]
    catalog.topology.apply(TopologyApplied(1, Topology(1, tuple(rows))))
    assert catalog.spread.home == 1


def test_promotions_are_kept_and_forgotten_with_their_topics() -> None:
    leader = two_sets()
    groups, nodes = learning(leader, 2), leader.catalog.nodes
    promoted(leader)
    copy = Nodes.decode(nodes.encode())
    assert copy.promotions.encode() == nodes.promotions.encode()
    assert copy.promotions.forced == nodes.promotions.forced
    assert copy.promotions.last == (1, 2)
    nodes.drop(groups)
    assert set(nodes.promotions.forced) == {REGISTRY_GROUP}


def test_what_cannot_be_promoted() -> None:
    def refused(leader: Leader, brokerset: int, lineage: int, *nodes: int) -> str:
        with pytest.raises(BadRequest) as caught:
            check_promotion(leader.catalog, PromoteSet(brokerset, lineage, [*nodes]))
        return str(caught.value)

    leader = two_sets()
    learning(leader)
    check_promotion(leader.catalog, PromoteSet(2, 1, [4, 5]))
    assert "is home already" in refused(leader, 1, 1, 1)
    assert "node 3 is not of BrokerSet 2" in refused(leader, 2, 1, 3, 4)
    assert "node 9 is not of BrokerSet 2" in refused(leader, 2, 1, 9)
    promoted(leader)
    assert "lineage 1 has begun already" in refused(leader, 2, 1, 4)
    assert "exactly two core sets" in refused(leader, 2, 2, 4)
    assert "exactly two core sets" in refused(Leader(3), 0, 1, 1)
