"""How the replicas of groups stand, as those of them that are here see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from weir.broker.metadata.reassignment import Led, current_members
from weir.model.ids import node_of


@dataclass(slots=True)
class Standing:
    """Groups of one shard: how many it holds and leads, and how many know no leader here.

    `lagging` counts, by node, the replicas of groups led here that are not up to date.
    """

    held: int = 0
    led: int = 0
    leaderless: int = 0
    lagging: Counter[int] = field(default_factory=Counter)


def standing_of(groups: Iterable[Led]) -> Standing:
    """Return how the groups of a shard stand now."""
    found = Standing()
    for group in groups:
        found.held += 1
        # Who is yet to join a group knows nobody there.
        found.leaderless += bool(group.node.configuration.members) and not group.node.leader
        found.led += group.leads
        found.lagging.update(behind(group))
    return found


def holders(group: Led) -> list[int]:
    """Return the nodes that hold a group, rising; [] as far as none is known here."""
    return sorted({node_of(member) for member in group.node.configuration.members})


def behind(group: Led) -> list[int]:
    """Return the nodes whose replica of a group is not up to date; [] where it is not led here."""
    node = group.node
    if not group.leads:
        return []
    is_current = current_members(node)
    members = node.configuration.members
    return sorted(node_of(m) for m in members if m != group.voter and not is_current(m))
