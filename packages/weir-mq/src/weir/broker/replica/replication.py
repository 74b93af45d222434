"""How the replicas of this node's groups talk: times and sizes, as an operator or a simulator sets
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.model.limits import KIB, MIB


@dataclass(frozen=True, slots=True)
class Replication:
    """Of all groups of a shard; what they mean, `weir_raft.Config` says."""

    #: How often a leader is heard by the others, over a link that carries nothing else.
    heartbeat_ms: int = 100
    #: A follower that heard nothing for this long, up to twice as long, seeks to lead.
    election_ms: int = 500
    #: Entries that one message carries, unless the first alone is larger.
    append_bytes_max: int = MIB
    #: What is sent to one follower of a group before it answers.
    inflight_bytes_max: int = 8 * MIB
    #: One message of a snapshot.
    snapshot_chunk_bytes: int = 256 * KIB


REPLICATION_DEFAULT = Replication()
