from __future__ import annotations

from weir.raft.leader import Leader


def test_it_counts_itself_as_one_voter_among_others() -> None:
    leader = Leader(1, (1, 2, 3), first_index=1, fence=0)
    assert leader.durable(1, 3) == 0
    assert leader.durable(2, 1) == 1
    assert leader.durable(3, 2) == 2


def test_a_majority_of_others_commits_before_its_own_disk() -> None:
    leader = Leader(1, (1, 2, 3), first_index=1, fence=0)
    leader.durable(2, 4)
    assert leader.durable(3, 4) == 4


def test_an_older_term_commits_only_through_its_own() -> None:
    leader = Leader(1, (1, 2, 3), first_index=5, fence=0)
    leader.durable(1, 4)
    assert leader.durable(2, 4) == 0
    leader.durable(1, 5)
    assert leader.durable(2, 5) == 5


def test_it_starts_unannounced_and_knows_itself_as_leader() -> None:
    leader = Leader(4, (4,), first_index=1, fence=9)
    assert (leader.leader, leader.fence, leader.announced) == (4, 9, False)
