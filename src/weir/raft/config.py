"""What a host decides about one node before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from weir.raft.errors import InvalidConfig, UnsupportedConfiguration

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """One node's identity, configuration and limits; sizes are in bytes."""

    #: This node. Ids are positive: 0 stands for "nobody" in a vote.
    id: int
    #: Every node whose vote and durable log counts, this one included.
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

    def validate(self) -> None:
        """Raise InvalidConfig, or UnsupportedConfiguration for what a later release will do."""
        members = (*self.voters, *self.learners)
        if self.id <= 0 or any(member <= 0 for member in members):
            raise InvalidConfig("ids must be positive integers: 0 means nobody")
        if len(set(members)) != len(members):
            raise InvalidConfig(f"an id is named twice in voters {self.voters} and {self.learners}")
        if self.fence < 0 or self.applied < 0:
            raise InvalidConfig("fence and applied must not be negative")
        if self.max_apply_bytes < 1 or self.max_pending_bytes < 1:
            raise InvalidConfig("max_apply_bytes and max_pending_bytes must be at least 1")
        if self.voters != (self.id,) or self.learners:
            raise UnsupportedConfiguration(
                "elections and replication between nodes are not in this release: give exactly one "
                f"voter, and let it be this node ({self.id}); got voters {self.voters} "
                f"and learners {self.learners}"
            )
