"""What to answer where no leader is reached: who is to blame, and what to look at."""

from __future__ import annotations

from collections.abc import Iterable

from weir.broker.api.identity import Member
from weir.errors import NotLeader, Unavailable


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
        f"this node has not met its set yet, and {missing}: start them, and see this node's status"
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
