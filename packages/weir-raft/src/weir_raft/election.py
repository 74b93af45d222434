"""Who gets a vote. (§3.4, §3.6.1, §9.6)"""

from __future__ import annotations

from weir_raft.candidate import Candidate, PreCandidate
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.messages import VoteReply, VoteRequest
from weir_raft.node_state import NodeState
from weir_raft.storage import NOBODY

State = Follower | PreCandidate | Candidate | Leader


def reply_to_request(node_state: NodeState, state: State, request: VoteRequest) -> None:
    """Answer a request whose term, unless it is a pre-vote, is not above this node's.

    A vote that is granted waits for the disk: Core sends it.
    """
    fits = (request.last_term, request.last_index) >= node_state.log.end
    if request.pre:
        granted = fits and request.term > node_state.term
        term = request.term if granted else node_state.term
        node_state.outbox.append(VoteReply(request.sender, node_state.id, term, granted, pre=True))
    elif (
        fits
        and request.term == node_state.term
        and isinstance(state, Follower)
        and _free(node_state, state, request.sender)
    ):
        _grant(node_state, state, request.sender)
    else:
        node_state.outbox.append(
            VoteReply(request.sender, node_state.id, node_state.term, granted=False)
        )


def _free(node_state: NodeState, state: Follower, sender: int) -> bool:
    """Whether this term's vote is not given, or to nobody else."""
    vote = node_state.hard_state.vote
    return vote == sender or (vote == NOBODY and state.leader == NOBODY)


def _grant(node_state: NodeState, state: Follower, sender: int) -> None:
    state.heard()
    durable = node_state.hard_state.vote == sender and node_state.changed is None
    if durable and not any(asked.hard_state is not None for asked in node_state.asked):
        node_state.outbox.append(
            VoteReply(sender, node_state.id, node_state.term, granted=True, fence=node_state.fence)
        )
        return
    if node_state.hard_state.vote != sender:
        node_state.enter(node_state.term, sender)
    state.owes_vote = sender
