"""Elections: the roles between two leaders, and who gets a vote. (§3.4, §3.6.1, §9.6)

Votes are counted only here.
"""

from __future__ import annotations

from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.membership import VoteResult
from weir_raft.messages import VoteReply, VoteRequest
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
        return self._node_state.vote_result(self._votes)

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
        return self._node_state.vote_result(self._votes)

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
            node_state.pending.messages.append(
                VoteRequest(voter, node_state.id, term, last_index, last_term, pre, forced)
            )


State = Follower | PreCandidate | Candidate | Leader


def reply_to_request(node_state: NodeState, state: State, request: VoteRequest) -> None:
    """Answer a request whose term, unless it is a pre-vote, is not above this node's.

    A vote that is granted waits for the disk: Core sends it.
    """
    fits = (request.last_term, request.last_index) >= node_state.log.end
    if request.pre:
        granted = fits and request.term > node_state.term
        term = request.term if granted else node_state.term
        node_state.pending.messages.append(
            VoteReply(request.sender, node_state.id, term, granted, pre=True)
        )
    elif (
        fits
        and request.term == node_state.term
        and isinstance(state, Follower)
        and _free(node_state, state, request.sender)
    ):
        _grant(node_state, state, request.sender)
    else:
        node_state.pending.messages.append(
            VoteReply(request.sender, node_state.id, node_state.term, granted=False)
        )


def _free(node_state: NodeState, state: Follower, sender: int) -> bool:
    """Whether this term's vote is not given, or to nobody else."""
    vote = node_state.hard_state.vote
    return vote == sender or (vote == NOBODY and state.leader == NOBODY)


def _grant(node_state: NodeState, state: Follower, sender: int) -> None:
    state.heard()
    durable = node_state.hard_state.vote == sender and node_state.pending.hard_state is None
    if durable and not any(asked.hard_state is not None for asked in node_state.pending.asked):
        node_state.pending.messages.append(
            VoteReply(sender, node_state.id, node_state.term, granted=True, fence=node_state.fence)
        )
        return
    if node_state.hard_state.vote != sender:
        node_state.enter(node_state.term, sender)
    state.owes_vote = sender
