"""The roles between two leaders: votes exist only here."""

from __future__ import annotations

from weir_raft.ground import Ground
from weir_raft.messages import VoteRequest
from weir_raft.quorum import VoteResult
from weir_raft.storage import NOBODY


class PreCandidate:
    """A voter that asks whether it could win before it opens a term. (§9.6)

    Nothing of it is durable: it costs nobody a term to be refused.
    """

    __slots__ = ("_ground", "_votes", "deadline", "leader")

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._votes: dict[int, bool] = {}
        self.leader = NOBODY
        self.deadline = ground.clock.now + ground.timeout()

    def voted(self, voter: int, granted: bool) -> VoteResult:
        """Count what `voter`, itself included, would do, and say how it stands."""
        self._votes.setdefault(voter, granted)
        return self._ground.configuration.vote_result(self._votes)

    def ask(self) -> None:
        """Ask everybody else who votes."""
        request_votes(self._ground, self._ground.term + 1, pre=True)


class Candidate:
    """A voter that seeks election in the current term; it knows of no leader. (§3.4)"""

    __slots__ = ("_forced", "_ground", "_votes", "deadline", "fence", "leader")

    def __init__(self, ground: Ground, *, forced: bool = False) -> None:
        self._ground = ground
        self._votes: dict[int, bool] = {}
        self._forced = forced
        self.leader = NOBODY
        self.deadline = ground.clock.now + ground.timeout()
        #: The highest fence that a vote granted so far has carried.
        self.fence = 0

    def voted(self, voter: int, granted: bool, fence: int) -> VoteResult:
        """Count the durable vote of `voter`, itself included, and say how the election stands."""
        self._votes.setdefault(voter, granted)
        if granted:
            self.fence = max(self.fence, fence)
        return self._ground.configuration.vote_result(self._votes)

    def ask(self) -> None:
        """Ask everybody else who votes: only now that term and log are durable here.

        A request sent earlier could be granted after a crash here, for a log that is gone.
        """
        request_votes(self._ground, self._ground.term, forced=self._forced)


def request_votes(ground: Ground, term: int, *, pre: bool = False, forced: bool = False) -> None:
    """Ask all voters, of both halves if joint, for `term`."""
    last_term, last_index = ground.log.end
    for voter in ground.configuration.members:
        if voter != ground.id and ground.configuration.counts(voter):
            ground.outbox.append(
                VoteRequest(voter, ground.id, term, last_index, last_term, pre, forced)
            )
