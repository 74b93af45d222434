"""The nodes of a set, as the registry keeps them: founded, added, drained, removed, upgraded."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest

from weir.broker.api.settings import Identity, Layout, Member
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.membership import Membership
from weir.broker.metadata.placement import Nodes
from weir.broker.records.entries import decode_control, encode_control
from weir.broker.records.registry import (
    LevelRaised,
    NodeChanged,
    NodeExpected,
    NodeJoined,
    NodeRecord,
    TopicCreated,
    TopicDeleted,
)
from weir.broker.runtime.outbox import Caller
from weir.errors import (
    BadRequest,
    Halted,
    LevelTooHigh,
    LevelTooLow,
    NodeInUse,
    NotLeader,
    Refused,
    Unavailable,
    UnknownNode,
)
from weir.model.ids import REGISTRY_GROUP, node_of, voter_of
from weir.model.limits import FORMAT_LEVEL, FORMAT_LEVEL_ACCESS, FORMAT_LEVEL_TOPOLOGY
from weir.protocol.client.nodes import (
    ChangeNode,
    NodeList,
    RaiseLevel,
    ReportLost,
    ReportNode,
    ReportSettled,
)

CALLER = Caller(1, 46, 0)


class Replica:
    """A registry of which only the nodes are asked; what is proposed is committed by `settle`."""

    def __init__(self, members: tuple[Member, ...] = (), node: int = 1) -> None:
        self.catalog = Catalog()
        self.identity = Identity(7, node=node, members=members)
        self.proposed: list[NodeRecord] = []
        self.applied = 0
        self.replies: list[NodeList | Refused] = []
        self.membership = Membership(self.catalog, self.identity, Layout(2, 2), 1, self, self)

    def propose(self, record: NodeRecord) -> int:
        self.proposed.append(record)
        return len(self.proposed)

    def reply(self, caller: Caller, reply: NodeList) -> None:
        self.replies.append(reply)

    def refuse(self, caller: Caller, error: Refused) -> None:
        self.replies.append(error)

    def commit(self) -> None:
        while self.applied < len(self.proposed):
            record = decode_control(encode_control(self.proposed[self.applied]))
            self.applied += 1
            self.membership.apply(self.applied, record)  # type: ignore[arg-type]

    def settle(self) -> None:
        for _ in range(20):
            self.commit()
            self.membership.rebalance()

    def change(self, verb: str, node: int, host: str = "", port: int = 0, key: bytes = b"") -> None:
        self.membership.change(CALLER, ChangeNode(verb, node, host, port, key))
        self.settle()

    def topic(self, name: str, partitions: int, replicas: int = 0) -> list[int]:
        record = TopicCreated("default", name, partitions, "partition", 1, replicas=replicas)
        return self.catalog.create(record)[0].groups()

    def arrive(self) -> None:
        """Let the leaders of all groups report that these are where they are wanted."""
        nodes = self.catalog.nodes
        rows = [(group, list(nodes.voters(group))) for group in nodes.unsettled]
        self.membership.arrived(ReportSettled(rows))
        self.settle()

    def nodes_of(self, group: int) -> list[int]:
        return [node_of(voter) for voter in self.catalog.voters(group)]


def a_set(count: int) -> Replica:
    replica = Replica(tuple(Member(node, f"host{node}", 6800) for node in range(1, count + 1)))
    replica.membership.lead()
    replica.settle()
    return replica


def test_a_lone_node_registers_itself() -> None:
    replica = a_set(0)
    (node,) = replica.catalog.nodes.all()
    assert (node.id, node.host, node.port, node.shards, node.level) == (1, "", 0, 2, 1)
    assert replica.catalog.voters(REGISTRY_GROUP) == (voter_of(1),)
    assert [replica.nodes_of(group) for group in replica.topic("a", 3)] == [[1], [1], [1]]


def test_a_set_is_founded_once() -> None:
    replica = a_set(3)
    assert replica.catalog.nodes.active() == [1, 2, 3]
    assert replica.catalog.voters(REGISTRY_GROUP) == tuple(map(voter_of, (1, 2, 3)))
    before = len(replica.proposed)
    replica.membership.lead()
    replica.settle()
    assert len(replica.proposed) == before


@pytest.mark.parametrize(("count", "voters"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (7, 5)])
def test_few_vote_in_the_registry_and_all_others_learn_it(count: int, voters: int) -> None:
    nodes = a_set(count).catalog.nodes
    assert len(nodes.voters(REGISTRY_GROUP)) == voters
    assert len(nodes.learners(REGISTRY_GROUP)) == count - voters
    assert nodes.learners(65536) == ()


def test_a_topic_has_as_many_replicas_as_were_asked_for() -> None:
    replica = a_set(5)
    assert {len(replica.nodes_of(group)) for group in replica.topic("three", 5)} == {3}
    assert {len(replica.nodes_of(group)) for group in replica.topic("one", 5, 1)} == {1}
    assert {len(replica.nodes_of(group)) for group in replica.topic("five", 5, 5)} == {5}


def test_a_node_that_was_added_is_given_groups_once_it_runs() -> None:
    replica = a_set(1)
    groups = replica.topic("a", 6)
    replica.change("add", 0, "host2", 6800)
    replica.change("add", 0, "host3", 6800)
    assert [node.id for node in replica.catalog.nodes.all()] == [1, 2, 3]
    assert all(replica.nodes_of(group) == [1] for group in groups)
    for node in (2, 3):
        replica.membership.report(ReportNode(node, 1, 1))
        replica.settle()
    assert all(sorted(replica.nodes_of(group)) == [1, 2, 3] for group in groups)
    led = Counter(replica.nodes_of(group)[0] for group in (REGISTRY_GROUP, *groups))
    assert sorted(led.values()) == [2, 2, 3]
    assert sorted(replica.nodes_of(REGISTRY_GROUP)) == [1, 2, 3]
    assert replica.catalog.nodes.founders(groups[0]) == (voter_of(1),)


def test_a_report_that_is_no_news_is_no_entry() -> None:
    replica = a_set(3)
    before = len(replica.proposed)
    replica.membership.report(ReportNode(2, 2, 1))
    replica.membership.report(ReportNode(99, 2, 1))
    assert len(replica.proposed) == before
    replica.membership.report(ReportNode(2, 4, 1))
    replica.settle()
    known = replica.catalog.nodes.get(2)
    assert known is not None
    assert (known.shards, known.host) == (4, "host2")


def test_a_leader_that_hands_over_founds_the_set_later_if_it_still_leads() -> None:
    replica = Replica(tuple(Member(node, f"host{node}", 6800) for node in (1, 2, 3)))
    accepting = False

    def propose(record: NodeRecord) -> int:
        if not accepting:
            raise Unavailable("it changes its leader")
        return replica.propose(record)

    log = SimpleNamespace(propose=propose)
    membership = Membership(replica.catalog, replica.identity, Layout(2, 2), 1, replica, log)
    replica.membership = membership
    membership.lead()
    with pytest.raises(Unavailable):
        membership.rebalance()
    accepting = True
    replica.settle()
    assert replica.nodes_of(REGISTRY_GROUP) == [1, 2, 3]
    assert [node.id for node in replica.catalog.nodes.all()] == [1, 2, 3]


def test_the_first_folder_that_a_node_tells_of_is_the_nodes_for_good() -> None:
    replica = a_set(3)
    replica.membership.report(ReportNode(2, 2, 1, 77))
    replica.settle()
    before = len(replica.proposed)
    replica.membership.report(ReportNode(2, 9, 1, 78))
    replica.catalog.nodes.apply(NodeJoined(2, "", 0, 0, 0, 78))
    known = Nodes.decode(replica.catalog.nodes.encode()).get(2)
    assert known is not None
    assert (known.shards, known.birth, len(replica.proposed)) == (2, 77, before)


def test_a_node_that_was_added_is_expected_until_it_has_come() -> None:
    replica, key = a_set(3), bytes(range(32))
    nodes = replica.catalog.nodes
    nodes.apply(LevelRaised(FORMAT_LEVEL_TOPOLOGY))
    before = nodes.encode()
    replica.change("add", 0, "host4", 6800, key)
    assert replica.proposed[-2:] == [NodeJoined(4, "host4", 6800), NodeExpected(4, key)]
    data = nodes.encode()
    assert (len(data), data[-2:]) == (len(before) + 2, ({}, {4: key}))  # type: ignore[arg-type, index]
    assert Nodes.decode(data).get(4) == nodes.get(4)
    replica.change("add", 0, "host4", 6800, bytes(32))
    expected = nodes.get(4)
    assert expected is not None
    assert expected.join_key == bytes(32), "the last one counts"
    replica.membership.report(ReportNode(4, 2, FORMAT_LEVEL_TOPOLOGY, 77))
    replica.settle()
    known = nodes.get(4)
    assert known is not None
    assert (known.birth, known.join_key) == (77, b"")
    assert len(nodes.encode()) == len(before)  # type: ignore[arg-type]
    nodes.apply(NodeExpected(4, key))
    assert nodes.get(4) == known, "it has come"
    replica.change("add", 4, "elsewhere", 6800, key)
    assert replica.proposed[-1] == NodeJoined(4, "elsewhere", 6800)
    golden = "93a86e6f64652d6b657903c420" + "00" * 32
    assert encode_control(NodeExpected(3, bytes(32))).hex() == golden


def test_a_join_key_needs_its_level_and_its_length() -> None:
    replica = a_set(3)
    with pytest.raises(LevelTooLow, match="raise-level"):
        replica.change("add", 0, "host4", 6800, bytes(32))
    replica.catalog.nodes.apply(LevelRaised(FORMAT_LEVEL_TOPOLOGY))
    with pytest.raises(BadRequest, match="32 bytes"):
        replica.change("add", 0, "host4", 6800, b"short")


def test_a_drained_node_holds_nothing_and_can_be_removed() -> None:
    replica = a_set(4)
    groups = [REGISTRY_GROUP, *replica.topic("a", 8)]
    with pytest.raises(NodeInUse, match="weir node drain 2"):
        replica.change("remove", 2)
    replica.change("drain", 2)
    for group in groups:
        assert 2 not in replica.nodes_of(group)
        assert len(replica.nodes_of(group)) == 3
    with pytest.raises(NodeInUse, match="groups still need node 2"):
        replica.change("remove", 2)
    replica.arrive()
    replica.change("remove", 2)
    assert [node.id for node in replica.catalog.nodes.all()] == [1, 3, 4]
    with pytest.raises(UnknownNode):
        replica.change("drain", 2)
    with pytest.raises(UnknownNode, match="add it as 5"):
        replica.change("add", 2, "host2", 6800)
    replica.change("add", 0, "host2", 6800)
    assert replica.catalog.nodes.get(5) is not None


def test_with_three_nodes_a_drained_one_leaves_two_replicas_and_gets_them_back() -> None:
    replica = a_set(3)
    (group,) = replica.topic("a", 1)
    replica.change("drain", 3)
    assert sorted(replica.nodes_of(group)) == [1, 2]
    assert replica.catalog.nodes.leaving(group) == (voter_of(3),)
    replica.change("active", 3)
    assert sorted(replica.nodes_of(group)) == [1, 2, 3]
    # It was needed all the time, and has forgotten nothing.
    assert voter_of(3) in replica.catalog.voters(group)
    replica.change("drain", 3)
    replica.arrive()
    replica.change("active", 3)
    # It may have forgotten how it voted, so it comes back as somebody else.
    assert voter_of(3, 1) in replica.catalog.voters(group)
    # The registry is never forgotten.
    assert voter_of(3) in replica.catalog.voters(REGISTRY_GROUP)


def test_a_group_has_not_arrived_while_others_vote_in_it() -> None:
    replica = a_set(4)
    (group,) = replica.topic("a", 1)
    replica.change("drain", node_of(replica.catalog.voters(group)[0]))
    before = len(replica.proposed)
    replica.membership.arrived(ReportSettled([(group, [*map(voter_of, (1, 2, 3, 4))])]))
    replica.membership.arrived(ReportSettled([(99 << 16, [voter_of(1)])]))
    assert len(replica.proposed) == before
    assert group in replica.catalog.nodes.unsettled


def test_the_last_node_cannot_go() -> None:
    replica = a_set(1)
    for verb in ("drain", "remove"):
        with pytest.raises(NodeInUse):
            replica.change(verb, 1)


def test_a_node_is_added_again_by_whoever_did_not_get_the_answer() -> None:
    replica = a_set(3)
    replica.change("add", 0, "host4", 6800)
    replica.settle()
    replica.change("add", 0, "host4", 6800)
    replica.settle()
    assert [node.id for node in replica.catalog.nodes.all()] == [1, 2, 3, 4]
    replica.membership.report(ReportNode(4, 2, 1))  # it runs
    replica.settle()
    with pytest.raises(BadRequest, match="node 4 listens at host4:6800 already"):
        replica.change("add", 0, "host4", 6800)


@pytest.mark.parametrize(
    ("verb", "node", "host", "port", "error"),
    [
        ("paint", 1, "", 0, "not 'paint'"),
        ("add", 0, "", 0, "HOST:PORT"),
        ("add", 0, "host1", 6800, "node 1 listens at host1:6800 already"),
    ],
)
def test_what_makes_no_sense_is_refused(
    verb: str, node: int, host: str, port: int, error: str
) -> None:
    with pytest.raises(BadRequest, match=error):
        a_set(3).change(verb, node, host, port)


def test_the_format_level_is_raised_when_every_node_supports_it() -> None:
    replica = a_set(3)
    for node in (1, 2):
        replica.membership.report(ReportNode(node, 2, 2))
    replica.settle()
    with pytest.raises(LevelTooHigh, match="node 3 supports format level 1") as refused:
        replica.membership.raise_level(CALLER, RaiseLevel(2))
    assert refused.value.detail == 1
    replica.membership.report(ReportNode(3, 2, 3))
    replica.settle()
    replica.membership.raise_level(CALLER, RaiseLevel())
    replica.settle()
    assert replica.catalog.nodes.level == 2
    with pytest.raises(BadRequest, match="never again a lower one"):
        replica.membership.raise_level(CALLER, RaiseLevel(1))


def test_a_set_is_not_closed_while_a_founder_has_never_come() -> None:
    """So nobody can come in the place of one in a closed set: its level is that of the first."""
    replica = a_set(3)
    for node in (1, 2):
        replica.membership.report(ReportNode(node, 2, FORMAT_LEVEL))
    replica.settle()
    with pytest.raises(LevelTooHigh, match="node 3 supports format level 1"):
        replica.membership.raise_level(CALLER, RaiseLevel(FORMAT_LEVEL_ACCESS))
    assert replica.catalog.nodes.level < FORMAT_LEVEL_ACCESS, "which users and the mode need"


def test_the_format_level_stays_while_not_all_founders_are_known() -> None:
    """It was a crash where no node was, and a founder that had said nothing was taken to know what
    its leader knew.
    """
    replica = Replica(tuple(Member(n, f"host-{n}", 6800) for n in (1, 2, 3)))
    replica.membership.lead()
    with pytest.raises(Unavailable, match="founded"):
        replica.membership.raise_level(CALLER, RaiseLevel(1))
    replica.commit()
    replica.membership.raise_level(CALLER, RaiseLevel(1))
    newer = Replica(replica.identity.members)
    newer.membership = Membership(newer.catalog, newer.identity, Layout(2, 2), 2, newer, newer)
    newer.membership.lead()
    newer.commit()
    assert [node.level for node in newer.catalog.nodes.all()] == [2, 1, 1]


def test_who_waits_is_answered_or_refused() -> None:
    replica = a_set(3)
    replica.change("drain", 3)
    (reply,) = replica.replies
    assert isinstance(reply, NodeList)
    assert [row.state for row in reply.nodes] == ["active", "active", "draining"]
    assert [row.replicas for row in reply.nodes][:2] == [1, 1]
    replica.membership.change(CALLER, ChangeNode("active", 3))
    replica.membership.lose(NotLeader("node 2 leads", 2))
    assert isinstance(replica.replies[-1], NotLeader)


def test_a_record_that_comes_too_late_is_refused() -> None:
    replica = a_set(3)
    replica.change("drain", 3)
    replica.arrive()
    for verb in ("remove", "drain"):
        replica.membership.change(CALLER, ChangeNode(verb, 3))
    replica.settle()
    assert isinstance(replica.replies[-1], UnknownNode)


def test_a_state_that_is_not_known_stops_the_group() -> None:
    with pytest.raises(Halted, match="'paused'"):
        a_set(3).catalog.nodes.apply(NodeChanged(1, "paused"))


def test_who_only_learns_the_registry_comes_back_as_another_learner() -> None:
    """Nodes above the first three or five that lost their logs waited for ever: only of voters it
    was heeded what they had lost.
    """
    replica = a_set(4)
    nodes, voting = replica.catalog.nodes, tuple(map(voter_of, (1, 2, 3)))
    for incarnation in (0, 1, 2):  # twice it loses what it was given anew
        replica.membership.take_report(ReportLost(REGISTRY_GROUP, voter_of(4, incarnation)))
        replica.commit()
        assert nodes.voters(REGISTRY_GROUP) == voting
        assert nodes.learners(REGISTRY_GROUP) == (voter_of(4, incarnation + 1),)
    replica.arrive()
    assert nodes.learners(REGISTRY_GROUP) == (voter_of(4, 3),)
    assert not nodes.unsettled
    replica.membership.take_report(ReportLost(REGISTRY_GROUP, voter_of(4, 1)))
    assert not nodes.unsettled, "that was said by who it is no more"


def test_a_node_that_leaves_as_one_of_many_it_was_comes_back_as_none_of_them() -> None:
    replica = a_set(4)
    (group,) = replica.topic("a", 1)
    nodes, holder = replica.catalog.nodes, replica.nodes_of(group)[1]
    for incarnation in (0, 1):
        replica.membership.take_report(ReportLost(group, voter_of(holder, incarnation)))
        replica.commit()
    replica.change("drain", holder)
    replica.arrive()
    assert holder not in replica.nodes_of(group)
    assert nodes.voter(group, holder) == voter_of(holder, 3)


def test_a_copy_decides_as_the_original() -> None:
    replica = a_set(4)
    groups = replica.topic("a", 5, 2)
    replica.topic("b", 5)
    replica.change("drain", 4)
    replica.arrive()
    replica.change("drain", 3)
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(replica.catalog.encode()))
    copy = Catalog.decode(data)
    assert copy.encode() == replica.catalog.encode()
    assert (copy.nodes.load.held, copy.nodes.load.led) == (
        {n: c for n, c in replica.catalog.nodes.load.held.items() if c},
        {n: c for n, c in replica.catalog.nodes.load.led.items() if c},
    )
    assert copy.nodes.voter(groups[0], 4) == replica.catalog.nodes.voter(groups[0], 4)
    one = TopicCreated("default", "c", 7, "partition", 2)
    made = [catalog.create(one)[0].groups() for catalog in (copy, replica.catalog)]
    assert made[0] == made[1]
    assert [copy.voters(g) for g in made[0]] == [replica.catalog.voters(g) for g in made[0]]


def test_what_a_deleted_topic_had_is_forgotten() -> None:
    replica = a_set(3)
    before = replica.catalog.nodes.encode()
    groups = replica.topic("a", 5, 2)
    replica.catalog.delete(TopicDeleted(groups[0] >> 16))
    assert replica.catalog.nodes.encode() == before
    assert not any(replica.catalog.voters(group) for group in groups)
