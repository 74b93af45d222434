"""What callers and operators are told when a group does not answer here: who is to blame, what to
do.
"""

from __future__ import annotations

from collections.abc import Iterable

import weir_raft as raft
from weir.broker.api.settings import Member
from weir.errors import Damaged, Halted, NotLeader, Overloaded, Refused, Unavailable, UnknownVersion
from weir.model.ids import REGISTRY_GROUP, node_of
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


def no_registry() -> Unavailable:
    """Return why nothing can be said or changed of topics and nodes from here."""
    return Unavailable(
        "the registry's leader is not reached from this node: more than half of the nodes must "
        "run and reach each other. `weir node status` tells what it sees; try again shortly"
    )


def unfounded(members: Iterable[Member], node: int, linked: Iterable[int]) -> Unavailable:
    """Return why a node that was founded in a set, and never met it, knows no nodes yet."""
    there = {node, *linked}
    away = [f"node {one.node} at {one.host}:{one.port}" for one in members if one.node not in there]
    missing = f"does not reach {', '.join(away)}" if away else "waits for a leader of the registry"
    return Unavailable(
        f"this node is not connected to its set yet, and {missing}: "
        "start them, and see this node's status"
    )


def no_leader(node: int) -> NotLeader:
    """Return why a partition does not answer here: `node` leads it, or nobody as far as known."""
    if node:
        return NotLeader(f"node {node} leads this partition: ask it", node)
    return NotLeader(
        "this partition has no leader now: more than half of the nodes that hold it must run and "
        "reach each other. `weir node status` tells what is down; try again shortly",
        0,
    )


def out_of_reach(node: int) -> NotLeader:
    """Return why a request was not passed on."""
    return NotLeader(
        f"node {node} leads this, as far as is known here, and is not reached from here: ask it, "
        "or see `weir node status`",
        node,
    )


class ReplicaHalt(Damaged):
    """A committed entry, or a state, cannot be applied to what is here. It is never skipped: what
    it meant would be missing here for ever, and there alone.
    """

    def __init__(self, group: int, what: str, error: Exception) -> None:
        """Name the group, what it is that cannot be applied, and what came of it."""
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, Halted | UnknownVersion):
            cause = "it was written by a newer release of weir: upgrade this node"
        else:
            cause = "either a leader broke the rules, or this release of weir has a bug"
        later = " at the next start of this node" if group == REGISTRY_GROUP else ""
        super().__init__(
            f"the replica of group {group} has stopped, for {what} cannot be applied ({said}): "
            f"{cause}. It neither votes nor serves from here on, and all other groups go on. "
            f"Where the other replicas go on without it, it is filled anew from them{later}; where "
            "they do not, restore what it holds from a backup. Until then its log frees no space"
        )


def why_no_state(error: Exception) -> str:
    """Return why a snapshot that came is not taken."""
    if isinstance(error, UnknownVersion) and error.is_newer:
        return (
            f"a snapshot came that was written by a newer release of weir (level {error.version}, "
            f"this one reads up to {error.newest}): upgrade this node"
        )
    if isinstance(error, Halted):
        return f"a snapshot came that is not for this node: {error}"
    return "a snapshot came that cannot be decoded"
