from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_raft.membership import VoteResult, committed_index, vote_result


def naive_committed_index(match: list[int]) -> int:
    """Try every majority: an index is committed if all of some majority reach it."""
    majority = len(match) // 2 + 1
    return max(min(group) for group in combinations(match, majority))


def naive_vote_result(voters: list[int], votes: dict[int, bool]) -> VoteResult:
    """Imagine the silent all saying no, then all saying yes."""
    least = sum(1 for voter in voters if votes.get(voter) is True)
    most = sum(1 for voter in voters if votes.get(voter) is not False)
    if least * 2 > len(voters):
        return VoteResult.WON
    return VoteResult.PENDING if most * 2 > len(voters) else VoteResult.LOST


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9))
def test_committed_index_is_the_naive_one(match: list[int]) -> None:
    assert committed_index(match) == naive_committed_index(match)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True),
    st.dictionaries(st.integers(1, 12), st.booleans()),
)
def test_vote_result_is_the_naive_one(voters: list[int], votes: dict[int, bool]) -> None:
    assert vote_result(voters, votes) is naive_vote_result(voters, votes)


@pytest.mark.parametrize(
    ("match", "committed"),
    [([5], 5), ([5, 3], 3), ([5, 3, 4], 4), ([9, 9, 1, 1], 1), ([9, 9, 9, 1, 1], 9)],
)
def test_committed_index_by_hand(match: list[int], committed: int) -> None:
    assert committed_index(match) == committed


def test_no_voters_have_no_majority() -> None:
    with pytest.raises(ValueError, match="at least one voter"):
        committed_index([])


@pytest.mark.parametrize(
    ("votes", "result"),
    [
        ({}, VoteResult.PENDING),
        ({1: True}, VoteResult.PENDING),
        ({1: True, 2: False}, VoteResult.PENDING),
        ({1: True, 3: True}, VoteResult.WON),
        ({2: False, 3: False}, VoteResult.LOST),
        ({1: True, 7: True, 8: True}, VoteResult.PENDING),
    ],
)
def test_votes_by_hand(votes: dict[int, bool], result: VoteResult) -> None:
    assert vote_result((1, 2, 3), votes) is result
