"""What Raft refuses, as callers are told."""

from __future__ import annotations

import weir_raft as raft
from weir.errors import NotLeader, Overloaded, Refused, Unavailable
from weir.model.ids import node_of
from weir.model.limits import RETRY_AFTER_MS


def elsewhere(leader: int) -> NotLeader:
    """Return what sends a caller to who leads a group: a voter, 0 for nobody known."""
    node = node_of(leader)
    where = f"node {node} leads" if node else "no leader is known yet: try again shortly"
    return NotLeader(f"this node does not lead this group: {where}", node)


def refusal_of(error: raft.RaftError) -> Refused:
    """Return what a caller is told whom Raft refuses."""
    if isinstance(error, raft.NotLeader):
        return elsewhere(error.leader_hint)
    if isinstance(error, raft.Overloaded):
        return Overloaded(f"too much is under way in this group: {error}", RETRY_AFTER_MS)
    return Unavailable("this group changes its leader: try again shortly")
