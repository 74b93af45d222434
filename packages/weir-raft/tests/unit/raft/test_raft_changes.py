"""Members come and go while the group works."""

from __future__ import annotations

import pytest

from weir_raft import (
    Change,
    ChangePending,
    Config,
    Configuration,
    InvalidChange,
    MemoryStorage,
    Node,
    NotReady,
    Role,
    VoteReply,
)
from weir_raft.testing.rehearsal import Rehearsal


def test_voters_change_through_a_joint_configuration_that_is_left_by_itself(
    group: Rehearsal,
) -> None:
    one = group.lead(1)
    index = one.node.change(Change(add_voters=(4, 5), remove=(3,)))
    assert one.node.configuration == Configuration((1, 2, 4, 5), (1, 2, 3))
    group.pass_ms(200)
    assert one.node.configuration == Configuration((1, 2, 4, 5))
    assert one.node.history.at(index).joint
    assert [group.actors[id].applied for id in (2, 4, 5)] == [one.applied] * 3
    assert group.actors[5].node.configuration == one.node.configuration


def test_a_joint_configuration_decides_nothing_without_both_halves(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 4), (1, 5)}
    one.node.change(Change(add_voters=(4, 5), remove=(2, 3)))
    group.flow()
    assert one.node.log.committed == 1
    assert one.node.configuration.joint
    group.severed.clear()
    group.pass_ms(300)
    assert one.node.configuration == Configuration((1, 4, 5))


def test_one_change_at_a_time_and_only_by_a_leader_that_knows_its_log(group: Rehearsal) -> None:
    one = group.actors[1]
    one.node.campaign()
    while one.node.role is not Role.LEADER:
        group.pass_ms(0)
        group.flow()
    one.node.change(Change(add_learners=(4,)))
    with pytest.raises(ChangePending):
        one.node.change(Change(add_learners=(5,)))
    group.flow()
    with pytest.raises(InvalidChange):
        one.node.change(Change())
    one.node.change(Change(add_learners=(5,)))
    assert one.node.configuration == Configuration((1, 2, 3), (), (4, 5))


def test_a_new_leader_changes_nothing_before_its_own_entry() -> None:
    """Or two changes could be under way that know nothing of each other. (§4.1, its erratum)"""
    node = Node(Config(1, (1, 2, 3)), MemoryStorage())
    node.campaign()
    node.step(VoteReply(1, 2, 1, granted=True, pre=True))
    node.persisted(node.ready().number)
    node.step(VoteReply(1, 2, 1, granted=True))
    assert node.role is Role.LEADER
    with pytest.raises(NotReady, match="the first of term 1"):
        node.change(Change(remove=(2,)))


def test_learners_get_the_log_and_never_count(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.change(Change(add_learners=(4,)))
    group.pass_ms(200)
    assert group.actors[4].applied == one.applied
    for other in (2, 3):
        group.actors[other].crash(group.dice)
    one.node.propose("x", 1)
    group.flow()
    assert one.node.log.committed == one.node.log.last_index - 1
    group.pass_ms(1_000)
    assert one.node.role is not Role.LEADER
    group.pass_ms(3_000)
    assert group.actors[4].node.role is Role.FOLLOWER


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_then_hands_over(
    group: Rehearsal,
) -> None:
    one = group.lead(1)
    one.node.change(Change(remove=(1,)))
    group.flow()
    assert one.node.role is Role.FOLLOWER
    leaders = [id for id in (2, 3) if group.actors[id].node.role is Role.LEADER]
    assert len(leaders) == 1
    assert group.actors[leaders[0]].node.configuration == Configuration((2, 3))


def test_a_voter_that_was_removed_disturbs_nobody(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.change(Change(remove=(3,)))
    group.pass_ms(10_000)
    assert (one.node.role, one.node.term) == (Role.LEADER, 1)
    assert group.actors[3].node.term == 1


def test_who_the_newest_configuration_leaves_out_may_still_be_needed(group: Rehearsal) -> None:
    """It alone holds the entry that would leave the joint phase. (§4.2.2)"""
    one = group.lead(1)
    one.node.change(Change(add_voters=(4, 5), remove=(1, 2, 3)))
    while one.node.configuration.joint:
        mail, group.mail = group.mail, []
        for message in mail:
            group.hand_over(message)
        for actor in group.actors.values():
            actor.serve()
            actor.sync(len(actor.unsynced))
            actor.serve()
        one.node.tick(50)
    group.mail.clear()
    one.sync(len(one.unsynced))
    for actor in group.actors.values():
        actor.crash(group.dice)
    group.mail.clear()
    group.settle()
    leader = next(a for a in group.actors.values() if a.node.role is Role.LEADER)
    assert leader.id in (4, 5)
    assert leader.node.configuration == Configuration((4, 5))


def test_a_change_that_is_superseded_is_no_longer_in_force(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 2), (1, 3), (1, 4), (2, 1), (3, 1)}
    one.node.change(Change(add_voters=(4,)))
    group.flow()
    group.pass_ms(3_000)
    group.severed.clear()
    group.pass_ms(1_000)
    assert one.node.configuration == Configuration((1, 2, 3))


def test_only_a_voter_can_be_handed_the_leadership(group: Rehearsal) -> None:
    one = group.lead(1)
    with pytest.raises(InvalidChange, match="4 is no voter"):
        one.node.transfer_leadership(4)
