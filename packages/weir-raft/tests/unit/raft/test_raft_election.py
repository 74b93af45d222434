from __future__ import annotations

from weir_raft import Config, MemoryStorage
from weir_raft.election import Candidate, PreCandidate
from weir_raft.membership import VoteResult
from weir_raft.node_state import NodeState


def node_state(*voters: int) -> NodeState:
    return NodeState(Config(1, voters), MemoryStorage())


def test_its_own_vote_wins_for_a_lone_candidate() -> None:
    assert Candidate(node_state(1)).voted(1, granted=True, fence=0) is VoteResult.WON


def test_a_majority_wins_and_a_vote_counts_once() -> None:
    candidate = Candidate(node_state(1, 2, 3))
    assert candidate.voted(1, granted=True, fence=0) is VoteResult.PENDING
    assert candidate.voted(1, granted=True, fence=0) is VoteResult.PENDING
    assert candidate.voted(3, granted=True, fence=0) is VoteResult.WON


def test_a_vote_is_not_taken_back_and_a_majority_of_refusals_loses() -> None:
    candidate = PreCandidate(node_state(1, 2, 3))
    assert candidate.voted(2, granted=False) is VoteResult.PENDING
    assert candidate.voted(2, granted=True) is VoteResult.PENDING
    assert candidate.voted(3, granted=False) is VoteResult.LOST


def test_it_collects_the_highest_fence_of_the_votes_it_got() -> None:
    candidate = Candidate(node_state(1, 2, 3, 4, 5))
    candidate.voted(1, granted=True, fence=40)
    candidate.voted(2, granted=True, fence=70)
    candidate.voted(3, granted=True, fence=60)
    candidate.voted(4, granted=False, fence=90)
    assert candidate.fence == 70
    assert candidate.leader == 0
