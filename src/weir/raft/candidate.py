"""The role between two leaders: votes exist only here."""

from __future__ import annotations

from weir.raft.quorum import VoteResult, vote_result
from weir.raft.storage import NOBODY


class Candidate:
    """A voter that seeks election in the current term; it knows of no leader."""

    __slots__ = ("_voters", "_votes", "fence", "leader")

    def __init__(self, voters: tuple[int, ...]) -> None:
        self._voters = voters
        self._votes: dict[int, bool] = {}
        self.leader = NOBODY
        #: The highest fence that a vote granted so far has carried.
        self.fence = 0

    def granted(self, voter: int, fence: int) -> VoteResult:
        """Count the durable vote of `voter`, itself included, and say how the election stands."""
        self._votes[voter] = True
        self.fence = max(self.fence, fence)
        return vote_result(self._voters, self._votes)
