"""Membership changes and leadership transfer, rule by rule. (Ongaro, 2014: §3.10, chapter 4)"""

from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Change,
    ChangePending,
    Configuration,
    Entry,
    EntryKind,
    HeartbeatReply,
    NotReady,
    Role,
    TimeoutNow,
    VoteReply,
)
from weir_raft.testing.member import Member
from weir_raft.testing.rehearsal import Rehearsal


def settled(id: int, voters: tuple[int, ...]) -> Member:
    """A leader of term 1 whose no-op all others have."""
    member = Member(id, voters=voters)
    others = [voter for voter in voters if voter != id]
    member.lead(others)
    member.tell(*(AppendReply(id, other, 1, 1, commit=1) for other in others))
    return member


def test_3_10_a_leader_that_hands_over_takes_no_new_commands() -> None:
    """§3.10: the prior leader stops accepting new client requests."""
    one = settled(1, (1, 2, 3))
    one.node.transfer_leadership(2)
    with pytest.raises(NotReady, match="handed to 2"):
        one.node.propose("x", 1)


def test_3_10_it_first_brings_the_other_up_to_date() -> None:
    """§3.10: it updates the target's log to match its own, and then sends TimeoutNow."""
    one = settled(1, (1, 2, 3))
    one.node.propose("x", 1)
    one.sent()
    one.node.transfer_leadership(2)
    assert not any(isinstance(m, TimeoutNow) for m in one.sent())
    assert one.tell(AppendReply(1, 2, 1, 2))[-1] == TimeoutNow(2, 1, 1)


def test_3_10_it_goes_on_if_the_other_does_not_take_over() -> None:
    """§3.10: if no transfer completes in about an election timeout, it aborts it."""
    one = settled(1, (1, 2, 3))
    one.node.transfer_leadership(2)
    for round in range(1, 30):
        one.pass_ms(50)
        one.tell(HeartbeatReply(1, 3, 1, round))
    assert one.node.accepts


def test_4_1_a_server_uses_the_newest_configuration_in_its_log() -> None:
    """§4.1: a new configuration is in force as soon as it is in the log, committed or not."""
    two = Member(2)
    configuration = Configuration((1, 2, 3, 4), (1, 2, 3))
    data = configuration.pack()
    two.tell(Append(2, 1, 1, 0, 0, (Entry(1, 1, EntryKind.CONFIGURATION, data, len(data)),), 0))
    assert two.node.configuration == configuration
    assert two.node.log.committed == 0


def test_4_1_a_server_falls_back_when_the_entry_is_replaced() -> None:
    """§4.1: a follower that loses the entry must fall back to the configuration before it."""
    two = Member(2)
    data = Configuration((1, 2, 3, 4), (1, 2, 3)).pack()
    entry = Entry(1, 1, EntryKind.CONFIGURATION, data, len(data))
    two.tell(Append(2, 1, 1, 0, 0, (entry,), 0))
    two.tell(Append(2, 3, 2, 0, 0, (Entry(1, 2, EntryKind.NOOP, None, 0),), 0))
    assert two.node.configuration == Configuration((1, 2, 3))


def test_4_1_a_change_waits_for_the_one_before_it() -> None:
    """§4.1: a leader must not begin a change until the previous one is committed."""
    one = settled(1, (1, 2, 3))
    one.node.change(Change(add_learners=(4,)))
    with pytest.raises(ChangePending):
        one.node.change(Change(add_learners=(5,)))


def test_4_1_votes_and_appends_of_strangers_are_heeded() -> None:
    """§4.1: a server takes requests from leaders that are not part of its configuration."""
    two = Member(2, voters=(2, 3))
    (reply,) = two.tell(Append(2, 9, 1, 0, 0, (Entry(1, 1, EntryKind.NOOP, None, 0),), 0))
    assert reply == AppendReply(9, 2, 1, 1)
    assert two.node.leader == 9


def test_4_2_1_a_new_server_catches_up_before_it_counts() -> None:
    """§4.2.1: it joins as a non-voting member: the leader sends to it and does not count it."""
    one = settled(1, (1, 2, 3))
    one.node.change(Change(add_learners=(4,)))
    one.sent()
    one.tell(AppendReply(1, 4, 1, 2))
    assert one.node.log.committed == 1
    one.tell(AppendReply(1, 3, 1, 2))
    assert one.node.log.committed == 2


def test_4_2_2_a_leader_removes_itself_last(group: Rehearsal) -> None:
    """§4.2.2: it leads until the new configuration is committed and then steps down."""
    one = group.lead(1)
    one.node.change(Change(add_voters=(4,), remove=(1,)))
    one.serve()
    assert one.node.role is Role.LEADER
    group.flow()
    assert one.node.role is Role.FOLLOWER
    assert one.node.configuration == Configuration((2, 3, 4))


def test_4_2_2_it_does_not_count_itself_in_the_configuration_it_is_not_part_of() -> None:
    """§4.2.2: it replicates entries, but does not count itself in majorities."""
    one = settled(1, (1, 2, 3))
    one.node.change(Change(remove=(1,)))
    one.sent()
    # Joint: 1 and 2 of the old half, but of the new one only 2.
    one.tell(AppendReply(1, 2, 1, 2))
    assert one.node.log.committed == 1
    one.tell(AppendReply(1, 3, 1, 2))
    assert one.node.log.committed == 2
    # Left: 2 and 3 alone decide.
    one.tell(AppendReply(1, 2, 1, 3))
    assert (one.node.log.committed, one.node.role) == (2, Role.LEADER)
    one.tell(AppendReply(1, 3, 1, 3))
    assert (one.node.log.committed, one.node.role) == (3, Role.FOLLOWER)


def test_4_2_3_a_removed_server_deposes_nobody(group: Rehearsal) -> None:
    """§4.2.3: whoever was removed hears no heartbeats, times out, and disrupts nothing."""
    one = group.lead(1)
    group.severed |= {(1, 3), (2, 3)}  # it never hears that it was removed
    one.node.change(Change(remove=(3,)))
    group.pass_ms(10_000)
    assert (one.node.role, one.node.term) == (Role.LEADER, 1)
    assert one.node.configuration == Configuration((1, 2))


def test_4_3_entries_go_to_both_configurations() -> None:
    """§4.3: log entries are replicated to all servers of both configurations."""
    one = settled(1, (1, 2, 3))
    one.node.change(Change(add_voters=(4, 5), remove=(2, 3)))
    assert {m.to for m in one.sent() if isinstance(m, Append)} == {2, 3, 4, 5}


def test_4_3_agreement_needs_separate_majorities_of_both() -> None:
    """§4.3: elections and commitment need a majority of the old and one of the new servers."""
    one = settled(1, (1, 2, 3))
    one.node.change(Change(add_voters=(4, 5), remove=(2, 3)))
    one.sent()
    one.tell(AppendReply(1, 2, 1, 2), AppendReply(1, 3, 1, 2))
    assert one.node.log.committed == 1
    one.tell(AppendReply(1, 4, 1, 2))
    assert one.node.log.committed == 2


def test_4_3_an_election_in_the_joint_phase_needs_both_halves() -> None:
    """§4.3: a majority of one half alone elects nobody."""
    one = Member(1)
    data = Configuration((1, 4, 5), (1, 2, 3)).pack()
    one.tell(Append(1, 2, 1, 0, 0, (Entry(1, 1, EntryKind.CONFIGURATION, data, len(data)),), 0))
    one.pass_ms(500)
    one.stand((2, 4))
    assert one.node.role is Role.CANDIDATE
    one.tell(VoteReply(1, 2, 2, granted=True), VoteReply(1, 3, 2, granted=True))
    assert one.node.role is Role.CANDIDATE
    one.tell(VoteReply(1, 5, 2, granted=True))
    assert one.node.role is Role.LEADER


def test_4_3_the_joint_phase_is_left_once_it_is_committed() -> None:
    """§4.3: once the joint configuration is committed, the leader appends the new one."""
    one = settled(1, (1, 2, 3))
    one.node.change(Change(add_voters=(4,), remove=(3,)))
    one.sent()
    assert one.node.configuration == Configuration((1, 2, 4), (1, 2, 3))
    one.tell(AppendReply(1, 2, 1, 2))
    assert one.node.configuration == Configuration((1, 2, 4))
    assert one.node.log.last_index == 3


def test_4_3_a_joint_phase_outlives_its_leader(group: Rehearsal) -> None:
    """§4.3: whoever leads next finds the joint configuration in its log and completes it."""
    one = group.lead(1)
    one.node.change(Change(add_voters=(4, 5), remove=(1,)))
    for _ in range(2):  # the joint entry reaches the others, their answers reach nobody
        mail, group.mail = group.mail, []
        one.serve()
        for message in [*mail, *group.mail]:
            if message.to != 1:
                group.hand_over(message)
        for actor in group.actors.values():
            actor.sync(len(actor.unsynced))
    one.crash(group.dice)
    assert one.node.configuration.joint
    group.pass_ms(5_000)
    leader = next(a for a in group.actors.values() if a.up and a.node.role is Role.LEADER)
    assert leader.node.configuration == Configuration((2, 3, 4, 5))
