from __future__ import annotations

from weir.raft.candidate import Candidate
from weir.raft.quorum import VoteResult


def test_its_own_vote_wins_for_a_lone_candidate() -> None:
    assert Candidate((1,)).granted(1, 0) is VoteResult.WON


def test_a_majority_wins_and_a_vote_counts_once() -> None:
    candidate = Candidate((1, 2, 3))
    assert candidate.granted(1, 0) is VoteResult.PENDING
    assert candidate.granted(1, 0) is VoteResult.PENDING
    assert candidate.granted(3, 0) is VoteResult.WON


def test_it_collects_the_highest_fence_of_its_votes() -> None:
    candidate = Candidate((1, 2, 3))
    candidate.granted(1, 40)
    candidate.granted(2, 70)
    candidate.granted(3, 60)
    assert candidate.fence == 70
    assert candidate.leader == 0
