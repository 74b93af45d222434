"""Who this shard is: in every hello, so that nobody joins or refills from a stranger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weir.model.ids import voter_of


def registry_voters(nodes: int) -> int:
    """Return how many of so many nodes vote in the registry's group; more would make it slower."""
    return 5 if nodes >= 5 else min(nodes, 3)


class Member(NamedTuple):
    """A node of a BrokerSet, and where its shards listen."""

    node: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Identity:
    """System, BrokerSet, node and shard ids. The system id is drawn once, when it is founded.

    `members` are the nodes that the set was founded with, the same on each of them; none of them
    may be this one, which joined later. Empty on a node that was founded alone.
    """

    system: int
    brokerset: int = 0
    node: int = 1
    shard: int = 0
    members: tuple[Member, ...] = ()
    #: What tells the node's folder from another that is founded under the same number; 0: nothing.
    birth: int = 0

    @property
    def voter(self) -> int:
        """This node, as groups know it that it never had to join anew."""
        return voter_of(self.node)

    @property
    def founding_voters(self) -> tuple[int, ...]:
        """Who votes in the registry's group to begin with."""
        founders = sorted(member.node for member in self.members) or [self.node]
        return tuple(voter_of(node) for node in founders[: registry_voters(len(founders))])
