"""The roles between two leaders: votes exist only here."""

from __future__ import annotations

from weir_raft.membership import VoteResult
from weir_raft.messages import VoteRequest
from weir_raft.node_state import NodeState
from weir_raft.storage import NOBODY


class PreCandidate:
    """A voter that asks whether it could win before it opens a term. (§9.6)

    Nothing of it is durable: it costs nobody a term to be refused.
    """

    __slots__ = ("_node_state", "_votes", "deadline", "leader")

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        self._votes: dict[int, bool] = {}
        self.leader = NOBODY
        self.deadline = node_state.clock.now + node_state.timeout()

    def voted(self, voter: int, granted: bool) -> VoteResult:
        """Count what `voter`, itself included, would do, and say how it stands."""
        self._votes.setdefault(voter, granted)
        return self._node_state.configuration.vote_result(self._votes)

    def ask(self) -> None:
        """Ask everybody else who votes."""
        request_votes(self._node_state, self._node_state.term + 1, pre=True)


class Candidate:
    """A voter that seeks election in the current term; it knows of no leader. (§3.4)"""

    __slots__ = ("_forced", "_node_state", "_votes", "deadline", "fence", "leader")

    def __init__(self, node_state: NodeState, *, forced: bool = False) -> None:
        self._node_state = node_state
        self._votes: dict[int, bool] = {}
        self._forced = forced
        self.leader = NOBODY
        self.deadline = node_state.clock.now + node_state.timeout()
        #: The highest fence that a vote granted so far has carried.
        self.fence = 0

    def voted(self, voter: int, granted: bool, fence: int) -> VoteResult:
        """Count the durable vote of `voter`, itself included, and say how the election stands."""
        self._votes.setdefault(voter, granted)
        if granted:
            self.fence = max(self.fence, fence)
        return self._node_state.configuration.vote_result(self._votes)

    def ask(self) -> None:
        """Ask everybody else who votes: only now that term and log are durable here.

        A request sent earlier could be granted after a crash here, for a log that is gone.
        """
        request_votes(self._node_state, self._node_state.term, forced=self._forced)


def request_votes(
    node_state: NodeState, term: int, *, pre: bool = False, forced: bool = False
) -> None:
    """Ask all voters, of both halves if joint, for `term`."""
    last_term, last_index = node_state.log.end
    for voter in node_state.configuration.members:
        if voter != node_state.id and node_state.configuration.counts(voter):
            node_state.outbox.append(
                VoteRequest(voter, node_state.id, term, last_index, last_term, pre, forced)
            )
