"""What a node is made with: what its host decides about it, and what the two share.

A host of one group leaves the context out, and the node has its own. The nodes of one `Multi` share
a clock, a promise and the contacts of links: each is made with what `Multi.context` returns for its
group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from weir_raft.errors import InvalidConfig
from weir_raft.membership import Configuration

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """One node's identity, first configuration and limits; sizes in bytes, times in milliseconds.

    Who belongs to the group is asked of Storage first: `voters` and `learners` are for a new group.
    A node that joins a running group may know of nobody: it is told by the leader.
    """

    #: This node. Ids are positive: 0 stands for "nobody" in a vote.
    id: int
    #: Every node whose vote and durable log counts.
    voters: tuple[int, ...]
    #: Every node that receives the log and is never counted.
    learners: tuple[int, ...] = ()
    #: The highest value raise_fence() had durably been given when the node last ran.
    fence: int = 0
    #: Entries through here are already in the host's state machine and are not handed out again.
    applied: int = 0
    #: Ready.committed stops here, though it always holds at least one entry.
    max_apply_bytes: int = 8 * _MEBIBYTE
    #: propose() refuses beyond this, counting entries not yet both durable and applied.
    max_pending_bytes: int = 64 * _MEBIBYTE
    #: An Append stops here, though it may hold one entry that is larger.
    max_append_bytes: int = _MEBIBYTE
    #: A leader sends no more to a member while this much is not acknowledged by it.
    max_inflight_bytes: int = 8 * _MEBIBYTE
    #: Of a snapshot, how much one message holds.
    snapshot_chunk_bytes: int = _MEBIBYTE
    #: A larger snapshot is refused before its bytes are kept.
    max_snapshot_bytes: int = 1024 * _MEBIBYTE
    #: How often a leader says that it is there, and how soon it asks again what was not answered.
    heartbeat_ms: int = 100
    #: A follower campaigns when it has heard of no leader for a time drawn from this and twice
    #: this; a leader steps down when it has not heard of a majority for this.
    election_ms: int = 500
    #: Draws from [0, 1). None: a fixed sequence that differs between ids, but not between groups.
    random: Callable[[], float] | None = None

    def validate(self) -> None:
        """Raise InvalidConfig if no node could run like this."""
        if self.id <= 0:
            raise InvalidConfig("ids must be positive integers: 0 means nobody")
        Configuration(self.voters, (), self.learners).validate()
        if self.fence < 0 or self.applied < 0:
            raise InvalidConfig("fence and applied must not be negative")
        limits = (
            ("max_apply_bytes", self.max_apply_bytes),
            ("max_pending_bytes", self.max_pending_bytes),
            ("max_append_bytes", self.max_append_bytes),
            ("max_inflight_bytes", self.max_inflight_bytes),
            ("snapshot_chunk_bytes", self.snapshot_chunk_bytes),
            ("max_snapshot_bytes", self.max_snapshot_bytes),
            ("heartbeat_ms", self.heartbeat_ms),
        )
        for name, value in limits:
            if value < 1:
                raise InvalidConfig(f"{name} must be at least 1")
        if self.election_ms <= self.heartbeat_ms:
            raise InvalidConfig("election_ms must be above heartbeat_ms: several times that is apt")


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
