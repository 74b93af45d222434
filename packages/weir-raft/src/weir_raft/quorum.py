"""Majorities: pure functions over what each voter has said, right for any number of voters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum


class VoteResult(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def committed_index(match: Collection[int]) -> int:
    """The highest index that a majority of voters hold durably, given one match index a voter.

    ValueError without voters. (Ongaro's dissertation, Figure 3.1, "Rules for Servers".)
    """
    if not match:
        raise ValueError("a configuration has at least one voter")
    # In falling order, the value at place n // 2 is reached by n // 2 + 1 voters: a majority.
    return sorted(match, reverse=True)[len(match) // 2]


def vote_result(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """How an election among `voters` stands; votes of anyone else do not count. (§3.4)"""
    majority = len(voters) // 2 + 1
    granted = sum(votes.get(voter, False) for voter in voters)
    if granted >= majority:
        return VoteResult.WON
    silent = sum(voter not in votes for voter in voters)
    return VoteResult.PENDING if granted + silent >= majority else VoteResult.LOST
