"""Terms and elections, rule by rule. (Ongaro, 2014: chapter 3, §4.2.3, §6.2, §9.6)"""

from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Config,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    MemoryStorage,
    Message,
    Node,
    Role,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from weir_raft.membership import Configuration
from weir_raft.testing.member import Member
from weir_raft.testing.rehearsal import Rehearsal

META = SnapshotMeta(5, 9, Configuration((1, 2, 3)), 5, 9, 0)
OF_TERM_9: tuple[Message, ...] = (
    VoteReply(1, 2, 9, granted=False),
    Append(1, 2, 9, 0, 0, (), 0),
    AppendReply(1, 2, 9, 0),
    Heartbeat(1, 2, 9, 0, 1),
    HeartbeatReply(1, 2, 9, 1),
    InstallSnapshot(1, 2, 9, META, 0, b"", True),
    SnapshotReply(1, 2, 9, 0),
)


@pytest.mark.parametrize("message", OF_TERM_9, ids=lambda m: type(m).__name__)
def test_3_3_whoever_hears_of_a_later_term_takes_it(message: Message) -> None:
    """§3.3: a server whose term is smaller than another's takes the larger one."""
    one = Member(1, 1)
    one.tell(message)
    assert one.node.term == 9
    assert one.disk.hard_state().term == 9


@pytest.mark.parametrize("message", OF_TERM_9, ids=lambda m: type(m).__name__)
def test_3_3_a_leader_whose_term_is_over_becomes_a_follower(message: Message) -> None:
    """§3.3: a candidate or leader that finds its term out of date is a follower at once."""
    one = Member(1)
    one.lead()
    one.tell(message)
    assert one.node.role is Role.FOLLOWER
    assert len(one.lost) == 1


@pytest.mark.parametrize("message", OF_TERM_9, ids=lambda m: type(m).__name__)
def test_3_3_requests_of_an_earlier_term_are_refused(message: Message) -> None:
    """§3.3: a request with a stale term number is rejected: nothing changes but that it is told."""
    one = Member(1, 1, term=10)
    told = one.tell(message)
    assert (one.node.term, one.terms, one.node.leader) == (10, [1], 0)
    assert all(m.term == 10 and isinstance(m, AppendReply) and m.rejected for m in told)


def test_3_4_servers_start_as_followers() -> None:
    """§3.4: when servers start up, they begin as followers."""
    assert Member(1, 1, term=5, vote=1).node.role is Role.FOLLOWER


def test_3_4_a_follower_stays_one_as_long_as_it_hears_of_a_leader() -> None:
    """§3.4: it remains a follower while it gets valid messages from a leader."""
    one = Member(1)
    for round in range(100):
        one.tell(Heartbeat(1, 2, 1, 0, round))
        one.pass_ms(100)
    assert (one.node.role, one.node.term) == (Role.FOLLOWER, 1)


def test_3_4_leaders_send_heartbeats_so_that_nobody_campaigns() -> None:
    """§3.4: leaders send heartbeats to all followers, with or without anything to replicate."""
    one = Member(1)
    one.lead()
    for other in (2, 3):
        one.tell(AppendReply(1, other, 1, 1, commit=1))
    beats = [m for m in one.pass_ms(400) if isinstance(m, Heartbeat)]
    assert {m.to for m in beats} == {2, 3}
    assert len(beats) >= 6


def test_3_4_a_follower_that_hears_nothing_campaigns_within_two_minimal_timeouts() -> None:
    """§3.4: without communication over the election timeout it assumes that there is no leader."""
    one = Member(1)
    one.tell(Heartbeat(1, 2, 1, 0, 1))
    assert one.pass_ms(450) == []
    asked = one.pass_ms(600)
    assert {m.to for m in asked} == {2, 3}
    assert all(isinstance(m, VoteRequest) for m in asked)


def test_3_4_a_candidate_opens_a_term_votes_for_itself_and_asks_all_others() -> None:
    """§3.4: it increments its term, votes for itself, and asks each of the other servers."""
    one = Member(1, 1, 1)
    asked = one.stand()
    assert asked == [VoteRequest(2, 1, 2, 2, 1), VoteRequest(3, 1, 2, 2, 1)]
    assert (one.disk.hard_state().term, one.disk.hard_state().vote) == (2, 1)


def test_3_4_a_majority_of_the_full_cluster_wins() -> None:
    """§3.4: it wins with votes from a majority of all servers, for the same term."""
    one = Member(1, voters=(1, 2, 3, 4, 5))
    one.stand((2, 3))
    one.tell(VoteReply(1, 2, 1, granted=True))
    one.tell(VoteReply(1, 2, 1, granted=True))
    assert one.node.role is Role.CANDIDATE
    one.tell(VoteReply(1, 3, 1, granted=True))
    assert one.node.role is Role.LEADER


def test_3_4_a_server_votes_once_a_term_first_come_first_served() -> None:
    """§3.4: each server votes for at most one candidate in a term."""
    one = Member(1)
    assert one.tell(VoteRequest(1, 2, 1, 0, 0)) == [VoteReply(2, 1, 1, granted=True)]
    assert one.tell(VoteRequest(1, 3, 1, 0, 0)) == [VoteReply(3, 1, 1, granted=False)]
    assert one.tell(VoteRequest(1, 3, 2, 0, 0)) == [VoteReply(3, 1, 2, granted=True)]


def test_3_4_a_new_leader_says_so_to_all_at_once() -> None:
    """§3.4: once it wins it sends heartbeats to everybody, to prevent new elections."""
    one = Member(1)
    sent = one.lead()
    assert {m.to for m in sent if isinstance(m, Append) and m.term == 1} == {2, 3}


@pytest.mark.parametrize("pre", [True, False])
def test_3_4_a_candidate_yields_to_a_leader_of_its_term(pre: bool) -> None:
    """§3.4: if the leader's term is at least as large as its own, the candidate follows it."""
    one = Member(1, term=3)
    one.node.campaign() if pre else one.stand()
    one.tell(Heartbeat(1, 2, one.node.term, 0, 1))
    assert (one.node.role, one.node.leader) == (Role.FOLLOWER, 2)


def test_3_4_a_candidate_ignores_a_leader_of_an_earlier_term() -> None:
    """§3.4: if the term is smaller, it rejects the request and stays a candidate."""
    one = Member(1, term=3)
    one.stand()
    one.tell(Heartbeat(1, 2, 3, 0, 1))
    assert (one.node.role, one.node.term) == (Role.CANDIDATE, 4)


def test_3_4_votes_that_split_lead_to_another_election() -> None:
    """§3.4: candidates that neither win nor lose time out and begin a new election."""
    one = Member(1)
    one.stand()
    assert one.node.role is Role.CANDIDATE
    asked = one.pass_ms(1_050)
    assert [m for m in asked if isinstance(m, VoteRequest) and m.pre and m.term == 2]


def test_3_4_timeouts_are_drawn_anew_from_an_interval() -> None:
    """§3.4: each timeout is chosen at random from a fixed interval, also the one after a loss."""
    waited = set()
    for draw in (0.0, 0.5, 0.99):
        node = Node(Config(1, (1, 2, 3), random=lambda draw=draw: draw), MemoryStorage())  # type: ignore[misc]
        node.step(Heartbeat(1, 2, 1, 0, 1))
        passed = 0
        while node.role is Role.FOLLOWER:
            node.tick(10)
            passed += 10
        waited.add(passed)
    assert waited == {500, 750, 1000}


@pytest.mark.parametrize(
    ("last_term", "last_index", "granted"),
    [(2, 9, False), (3, 2, False), (3, 3, True), (3, 4, True), (4, 1, True)],
)
def test_3_6_1_votes_go_to_logs_that_are_as_complete(
    last_term: int, last_index: int, granted: bool
) -> None:
    """§3.6.1: the log with the later last term, then the longer one, is more up to date."""
    one = Member(1, 1, 1, 3, term=5)
    (reply,) = one.tell(VoteRequest(1, 2, 6, last_index, last_term))
    assert reply == VoteReply(2, 1, 6, granted=granted)


def test_3_8_a_vote_survives_a_restart() -> None:
    """§3.8: term and vote are on stable storage, or a server could vote twice in a term."""
    one = Member(1)
    one.tell(VoteRequest(1, 2, 1, 0, 0))
    one.restart()
    assert one.tell(VoteRequest(1, 3, 1, 0, 0)) == [VoteReply(3, 1, 1, granted=False)]


def test_3_8_nothing_is_answered_before_it_is_durable() -> None:
    """§3.8: the state is persisted before a server responds."""
    one = Member(1, prompt=False)
    assert one.tell(VoteRequest(1, 2, 1, 0, 0)) == []
    assert one.sync() == [VoteReply(2, 1, 1, granted=True)]


@pytest.mark.parametrize("pre", [True, False])
def test_4_2_3_who_hears_of_a_leader_gives_no_vote_and_takes_no_term(pre: bool) -> None:
    """§4.2.3: within a minimal timeout of hearing from a leader, requests for votes are ignored."""
    one = Member(1)
    one.tell(Heartbeat(1, 2, 1, 0, 1))
    one.pass_ms(450)
    assert one.tell(VoteRequest(1, 3, 7, 9, 6, pre=pre)) == []
    assert one.node.term == 1
    one.pass_ms(50)
    one.tell(VoteRequest(1, 3, 7, 9, 6, pre=False))
    assert one.node.term == 7


def test_4_2_3_an_election_that_the_leader_asked_for_is_let_through() -> None:
    """§4.2.3: leadership transfer tells voters that the leader permits the disruption."""
    one = Member(1)
    one.tell(Heartbeat(1, 2, 1, 0, 1))
    assert one.tell(VoteRequest(1, 3, 2, 0, 0, forced=True)) == [VoteReply(3, 1, 2, granted=True)]


def test_6_2_a_leader_that_reaches_no_majority_steps_down() -> None:
    """§6.2: if an election timeout passes without heartbeats to a majority, it steps down."""
    one = Member(1)
    one.lead()
    for round in range(1, 20):
        one.pass_ms(100)
        one.tell(HeartbeatReply(1, 2, 1, round))
    assert one.node.role is Role.LEADER
    one.pass_ms(700)
    assert one.node.role is not Role.LEADER
    assert [ready.lost_quorum for ready in one.lost] == [True]


def test_9_6_a_node_that_nobody_would_elect_opens_no_term() -> None:
    """§9.6: a candidate first asks whether others would vote for it, without raising its term."""
    one = Member(1, term=4)
    one.pass_ms(60_000)
    assert (one.node.term, one.disk.hard_state().term) == (4, 4)


def test_9_6_a_pre_vote_binds_nobody() -> None:
    """§9.6: the one who would grant a vote may tell the same to another, and keeps its term."""
    one = Member(1, term=4)
    for candidate in (2, 3):
        (reply,) = one.tell(VoteRequest(1, candidate, 5, 0, 0, pre=True))
        assert reply == VoteReply(candidate, 1, 5, granted=True, pre=True)
    assert (one.node.term, one.disk.hard_state().vote) == (4, 0)


@pytest.mark.parametrize(("last_term", "granted"), [(1, False), (2, True)])
def test_9_6_pre_votes_go_only_to_logs_that_could_win(last_term: int, granted: bool) -> None:
    """§9.6: others would only vote for a log that is complete enough."""
    one = Member(1, 1, 2)
    (reply,) = one.tell(VoteRequest(1, 2, 3, 2, last_term, pre=True))
    assert reply == VoteReply(2, 1, 3 if granted else 2, granted=granted, pre=True)


def test_9_6_a_node_comes_back_from_behind_a_partition_without_a_stir(group: Rehearsal) -> None:
    """§9.6: a server that was cut off does not disrupt the group when it returns."""
    one = group.lead(1)
    group.severed |= {(3, 1), (1, 3), (3, 2), (2, 3)}
    group.pass_ms(5_000)
    group.severed.clear()
    group.pass_ms(1_000)
    assert (one.node.role, one.node.term, group.actors[3].node.leader) == (Role.LEADER, 1, 1)


def test_3_10_a_transferee_campaigns_at_once() -> None:
    """§3.10: it acts as if its election timer had elapsed, without waiting and without PreVote."""
    two = Member(2, 1)
    two.tell(Heartbeat(2, 1, 1, 0, 1))
    asked = two.tell(TimeoutNow(2, 1, 1))
    assert asked == [
        VoteRequest(1, 2, 2, 1, 1, forced=True),
        VoteRequest(3, 2, 2, 1, 1, forced=True),
    ]
