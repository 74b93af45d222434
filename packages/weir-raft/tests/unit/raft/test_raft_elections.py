"""Who may lead: pre-votes, durable votes, protected leaders, leaders without a majority."""

from __future__ import annotations

import weir_raft as raft
from weir_raft import HardState, Role, VoteReply, VoteRequest
from weir_raft.testing.rehearsal import Rehearsal


def test_a_leader_is_elected_by_the_others_and_stays(group: Rehearsal) -> None:
    group.settle()
    leaders = [a for a in group.actors.values() if a.node.role is Role.LEADER]
    assert len(leaders) == 1
    term = leaders[0].node.term
    group.pass_ms(10_000)
    assert (leaders[0].node.role, leaders[0].node.term) == (Role.LEADER, term)


def test_a_vote_is_sent_only_when_it_is_durable(group: Rehearsal) -> None:
    two = group.actors[2]
    two.node.step(VoteRequest(2, 1, 1, 0, 0))
    two.serve()
    assert group.mail == []
    assert [ready.hard_state for ready in two.unsynced] == [HardState(1, 1)]
    two.sync(1)
    two.serve()
    assert group.mail == [VoteReply(1, 2, 1, granted=True)]


def test_a_vote_asked_for_again_is_given_again_and_to_nobody_else(group: Rehearsal) -> None:
    two = group.actors[2]
    two.node.step(VoteRequest(2, 1, 1, 0, 0))
    group.flow()
    two.crash(group.dice)
    two.start()
    two.node.step(VoteRequest(2, 3, 1, 0, 0))
    two.node.step(VoteRequest(2, 1, 1, 0, 0))
    two.serve()
    assert group.mail == [
        VoteReply(3, 2, 1, granted=False),
        VoteReply(1, 2, 1, granted=True),
    ]


def test_a_candidate_asks_only_when_its_term_is_durable(group: Rehearsal) -> None:
    one = group.actors[1]
    one.node.campaign()
    one.node.step(VoteReply(1, 2, 1, granted=True, pre=True))
    one.serve()
    assert all(isinstance(m, VoteRequest) and m.pre for m in group.mail)
    group.mail.clear()
    one.sync(1)
    one.serve()
    assert group.mail == [VoteRequest(2, 1, 1, 0, 0), VoteRequest(3, 1, 1, 0, 0)]


def test_a_vote_that_was_superseded_before_it_was_durable_is_not_sent(group: Rehearsal) -> None:
    two = group.actors[2]
    two.node.step(VoteRequest(2, 1, 1, 0, 0))
    two.serve()
    two.node.step(VoteRequest(2, 3, 2, 0, 0))
    two.serve()
    two.sync(1)
    two.serve()
    assert group.mail == []
    two.sync(1)
    two.serve()
    assert group.mail == [VoteReply(3, 2, 2, granted=True)]


def test_a_vote_carries_the_voters_fence_and_a_pre_vote_none(group: Rehearsal) -> None:
    two = group.actors[2]
    two.node.raise_fence(70)
    two.node.step(VoteRequest(2, 1, 1, 0, 0, pre=True))
    two.node.step(VoteRequest(2, 1, 1, 0, 0))
    two.serve()
    two.node.raise_fence(80)
    two.sync(1)
    two.serve()
    assert group.mail == [
        VoteReply(1, 2, 1, granted=True, pre=True),
        VoteReply(1, 2, 1, granted=True, fence=80),
    ]


def test_a_voter_refuses_who_lacks_entries(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 3), (3, 1)}
    one.node.propose("x", 1)
    group.flow()
    one.crash(group.dice)
    group.severed.clear()
    group.actors[3].node.campaign()
    group.pass_ms(400)
    assert group.actors[3].node.role is not Role.LEADER
    group.pass_ms(4_000)
    assert group.actors[2].node.role is Role.LEADER


def test_a_node_that_was_cut_off_deposes_nobody_when_it_comes_back(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 3), (3, 1), (2, 3), (3, 2)}
    group.pass_ms(10_000)
    assert group.actors[3].node.term == 1
    group.severed.clear()
    group.pass_ms(2_000)
    assert (one.node.role, one.node.term) == (Role.LEADER, 1)
    assert group.actors[3].node.leader == 1


def test_a_vote_for_somebody_else_is_not_considered_while_the_leader_is_heard(
    group: Rehearsal,
) -> None:
    group.lead(1)
    two = group.actors[2]
    two.node.step(VoteRequest(2, 3, 9, 99, 9))
    two.serve()
    assert (two.node.term, group.mail) == (1, [])
    two.node.step(VoteRequest(2, 3, 9, 99, 9, forced=True))
    two.serve()
    assert two.node.term == 9


def test_a_leader_without_a_majority_steps_down_and_says_why(group: Rehearsal) -> None:
    one = group.lead(1)
    for other in (2, 3):
        group.actors[other].crash(group.dice)
    lost: list[raft.Ready] = []
    for _ in range(20):
        one.node.tick(50)
        while one.node.has_ready:
            lost.append(one.node.ready())
    assert one.node.role is not Role.LEADER
    assert [ready.lost_quorum for ready in lost if ready.lost_leadership] == [True]


def test_a_follower_that_is_down_costs_no_leadership(group: Rehearsal) -> None:
    one = group.lead(1)
    group.actors[3].crash(group.dice)
    group.pass_ms(5_000)
    assert (one.node.role, one.node.term) == (Role.LEADER, 1)


def test_who_is_no_voter_never_campaigns(group: Rehearsal) -> None:
    group.pass_ms(10_000)
    assert group.actors[4].node.role is Role.FOLLOWER
    group.actors[4].node.campaign()
    assert group.actors[4].node.role is Role.FOLLOWER


def test_leadership_is_handed_over_at_once_to_who_has_everything(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.transfer_leadership(1)
    assert one.node.accepts
    one.node.transfer_leadership(2)
    assert not one.node.accepts
    group.flow()
    assert (group.actors[2].node.role, group.actors[2].node.term) == (Role.LEADER, 2)
    assert one.node.leader == 2


def test_a_leader_hands_over_only_after_the_other_caught_up(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 2), (2, 1)}
    for item in range(20):
        one.node.propose(item, 10)
    group.flow()
    one.node.transfer_leadership(2)
    group.severed.clear()
    group.pass_ms(600)
    assert group.actors[2].node.role is Role.LEADER
    assert group.actors[2].node.log.last_index == one.node.log.last_index


def _flow_without_the_disk_of(group: Rehearsal, id: int) -> None:
    """As `flow`, but nothing becomes durable at one of them."""
    for _ in range(20):
        for actor in group.actors.values():
            actor.serve()
            if actor.id != id:
                actor.sync(len(actor.unsynced))
                actor.serve()
        mail, group.mail = group.mail, []
        for message in mail:
            group.hand_over(message)


def test_a_leader_hands_over_only_after_it_applied_what_it_proposed(group: Rehearsal) -> None:
    """Who proposed it would be refused though it is committed, and nobody would know of it."""
    one = group.lead(1)
    index = one.node.propose("last", 10)
    one.node.transfer_leadership(2)
    _flow_without_the_disk_of(group, 1)
    assert one.node.log.committed == index == group.actors[2].node.log.last_index
    assert (one.node.role, one.applied) == (Role.LEADER, index - 1)
    one.sync(len(one.unsynced))
    one.serve()
    assert (one.node.role, one.applied) == (Role.LEADER, index)
    assert [type(message) for message in group.mail].count(raft.TimeoutNow) == 1
    group.flow()
    assert group.actors[2].node.role is Role.LEADER


def test_a_leader_has_more_to_do_once_the_last_of_a_transfer_is_applied(group: Rehearsal) -> None:
    """The host looks whether it has, and need not come back for the message that hands over."""
    one = group.lead(1)
    index = one.node.propose("last", 10)
    one.node.transfer_leadership(2)
    _flow_without_the_disk_of(group, 1)
    for asked in one.unsynced:
        one.node.persisted(asked.number)
    ready = one.node.take()
    assert ready is not None
    assert [entry.index for entry in ready.committed] == [index]
    assert not one.node.touched
    one.node.applied(index)
    assert one.node.touched
    handed = one.node.take()
    assert handed is not None
    assert [type(message) for message in handed.messages] == [raft.TimeoutNow]


def test_a_leader_whose_disk_hangs_hands_over_later(group: Rehearsal) -> None:
    one = group.lead(1)
    index = one.node.propose("last", 10)
    one.node.transfer_leadership(2)
    election_ms = one.node.core.node_state.config.election_ms
    for passed in range(50, election_ms + 100, 50):
        for actor in group.actors.values():
            actor.tick(50)
        _flow_without_the_disk_of(group, 1)
        assert (one.node.role is Role.LEADER) == (passed < election_ms)
    assert (group.actors[2].node.role, one.applied) == (Role.LEADER, index - 1)


def test_a_transfer_that_fails_is_given_up(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 2), (2, 1)}
    one.node.transfer_leadership(2)
    group.pass_ms(2_000)
    assert one.node.accepts


def test_a_transfer_that_fails_is_given_up_however_often_it_is_asked_for(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 2), (2, 1)}
    refused = 0
    while not one.node.accepts or not refused:
        one.node.transfer_leadership(2)
        group.pass_ms(100)
        refused += 1
        assert refused <= 2_000 // 100
