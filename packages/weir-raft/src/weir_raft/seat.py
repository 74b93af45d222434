"""One group's place among all those of a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir_raft.candidate import Candidate, PreCandidate
from weir_raft.context import Clock, Contact, Contacts, Promises
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.link import Link
from weir_raft.membership import Configuration
from weir_raft.node import Node


class Seat:
    """What Multi last saw of a group's node, and which links speak for it."""

    __slots__ = ("claims", "configuration", "follows_through", "group", "halves", "node", "peers",
                 "settled", "state")  # fmt: skip

    def __init__(self, group: int, node: Node) -> None:
        self.group = group
        self.node = node
        #: The role as it was last seen.
        self.state: Follower | PreCandidate | Candidate | Leader = node.core.state
        #: The leader here of whose own term an entry is committed.
        self.settled: Leader | None = None
        #: The configuration whose members' peers were told, while leading.
        self.configuration: Configuration | None = None
        self.peers: set[int] = set()
        #: The links to the voters of that configuration, None for this one's own vote: of each half
        #: that a majority is needed of.
        self.halves: list[list[Link | None]] = []
        #: By peer, the links whose other end says that it leads this group.
        self.claims: dict[int, Link] = {}
        #: The link that stands for the leader's presence.
        self.follows_through: Link | None = None

    def timeout(self) -> int:
        """A whole election timeout, drawn."""
        return self.node.core.ground.timeout()

    def draw(self) -> float:
        """From [0, 1)."""
        return self.node.core.ground.random()


class SeatContacts(Contacts):
    """Members of a group share the contacts of their peers' links."""

    __slots__ = ("_contact", "_group")

    shared = True

    def __init__(self, contact: Callable[[int, int], Contact], group: int) -> None:
        self._contact = contact
        self._group = group

    def of(self, member: int) -> Contact:
        """The contact of the link that leads to `member`."""
        return self._contact(self._group, member)


@dataclass(frozen=True, slots=True)
class SharedContext:
    """What the node of one group shares with those of all others."""

    clock: Clock
    promises: Promises
    contacts: Contacts
    group: int
    active: set[int]
    asking: set[int]
