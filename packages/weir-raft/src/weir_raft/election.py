"""Who gets a vote. (§3.4, §3.6.1, §9.6)"""

from __future__ import annotations

from weir_raft.candidate import Candidate, PreCandidate
from weir_raft.follower import Follower
from weir_raft.ground import Ground
from weir_raft.leader import Leader
from weir_raft.messages import VoteReply, VoteRequest
from weir_raft.storage import NOBODY

State = Follower | PreCandidate | Candidate | Leader


def reply_to_request(ground: Ground, state: State, request: VoteRequest) -> None:
    """Answer a request whose term, unless it is a pre-vote, is not above this node's.

    A vote that is granted waits for the disk: Core sends it.
    """
    fits = (request.last_term, request.last_index) >= ground.log.end
    if request.pre:
        granted = fits and request.term > ground.term
        term = request.term if granted else ground.term
        ground.outbox.append(VoteReply(request.sender, ground.id, term, granted, pre=True))
    elif (
        fits
        and request.term == ground.term
        and isinstance(state, Follower)
        and _free(ground, state, request.sender)
    ):
        _grant(ground, state, request.sender)
    else:
        ground.outbox.append(VoteReply(request.sender, ground.id, ground.term, granted=False))


def _free(ground: Ground, state: Follower, sender: int) -> bool:
    """Whether this term's vote is not given, or to nobody else."""
    vote = ground.hard_state.vote
    return vote == sender or (vote == NOBODY and state.leader == NOBODY)


def _grant(ground: Ground, state: Follower, sender: int) -> None:
    state.heard()
    durable = ground.hard_state.vote == sender and ground.changed is None
    if durable and not any(asked.hard_state is not None for asked in ground.asked):
        ground.outbox.append(
            VoteReply(sender, ground.id, ground.term, granted=True, fence=ground.fence)
        )
        return
    if ground.hard_state.vote != sender:
        ground.enter(ground.term, sender)
    state.owes_vote = sender
