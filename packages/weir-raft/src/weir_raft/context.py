"""What a node is given when it is made: time, promises, who answers, and whom to tell of its work.

A host of one group leaves it out, and the node has its own. The nodes of one `Multi` share a clock,
a promise and the contacts of links: each is made with what `Multi.context` returns for its group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

#: Later than any deadline: nothing to wait for.
NEVER = 1 << 62


class Clock:
    """Time in milliseconds, and rounds of heartbeats; the groups of one host share one."""

    __slots__ = ("now", "round")

    def __init__(self) -> None:
        self.now = 0
        #: The newest round of heartbeats that was sent.
        self.round = 0


class Promises(Protocol):
    """The highest fence that was promised to anybody; their durability is the host's.

    A vote carries it, so whoever is elected knows of every promise that a majority gave. A host
    that promises nothing leaves it at 0.
    """

    @property
    def fence(self) -> int:
        """The highest fence yet."""

    def raise_to(self, fence: int) -> None:
        """Keep `fence` if it is the highest yet."""


class Promise:
    """Promises that nodes of one host share, or that one has alone.

    What was promised for other groups is in it too, which may say more than is needed, never less.
    """

    __slots__ = ("fence",)

    def __init__(self, fence: int = 0) -> None:
        self.fence = fence

    def raise_to(self, fence: int) -> None:
        """Keep `fence` if it is the highest yet."""
        self.fence = max(self.fence, fence)


class Contact:
    """When somebody was heard of, and whether messages can reach them at all."""

    __slots__ = ("heard_at", "up")

    def __init__(self) -> None:
        self.heard_at = -NEVER
        self.up = True


class Contacts:
    """Where a leader finds the contact of a member: one of its own, unless links are shared."""

    __slots__ = ()

    #: Whether heartbeats go out for many groups at once, and not by this node.
    shared = False

    def of(self, member: int) -> Contact:
        """The contact that tells whether `member` answers."""
        return Contact()


class NodeContext(Protocol):
    """What a node takes of its host, and goes on using: nothing of it is replaced later."""

    @property
    def clock(self) -> Clock:
        """The time that passed. `Node.tick` moves it, or `Multi.tick` for all nodes of a host."""

    @property
    def promises(self) -> Promises:
        """Raised to `Config.fence` when the node is made, and by `Node.raise_fence`."""

    @property
    def contacts(self) -> Contacts:
        """Whether the members of a leader's group answer."""

    @property
    def group(self) -> int:
        """Which group of the host the node belongs to."""

    @property
    def active(self) -> set[int]:
        """Where the node puts `group` whenever something happens to it."""

    @property
    def asking(self) -> set[int]:
        """Where the node puts `group` when a read waits for a round of heartbeats."""


@dataclass(frozen=True, slots=True)
class OwnContext:
    """That of a node which shares nothing: the default."""

    clock: Clock = field(default_factory=Clock)
    promises: Promises = field(default_factory=Promise)
    contacts: Contacts = field(default_factory=Contacts)
    group: int = 0
    active: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)
