"""What a host decides about one node before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
