"""A general Raft library without I/O, after Ongaro's dissertation and etcd-io/raft.

    node = Node(Config(id=1, voters=(1,)), MemoryStorage())
    node.campaign()

The host then serves what `node.ready()` asks for, as `weir_raft.ready` describes. Section and
figure numbers in this package are the dissertation's ("Consensus: Bridging Theory and Practice",
2014).
"""

from __future__ import annotations

from weir_raft.config import Config, NodeContext
from weir_raft.core import Role
from weir_raft.errors import (
    ChangePending,
    CodecError,
    Compacted,
    HostError,
    InvalidChange,
    InvalidConfig,
    NothingReady,
    NotLeader,
    NotReady,
    OutOfOrder,
    Overloaded,
    RaftError,
    StorageError,
    Unavailable,
)
from weir_raft.follower import Arriving
from weir_raft.groups.multi import Multi
from weir_raft.membership import LINEAGE_MAX, Change, Configuration, first_term, lineage_of
from weir_raft.messages import (
    Append,
    AppendReply,
    Beat,
    BeatReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LinkMessage,
    Message,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from weir_raft.node import Node
from weir_raft.ready import Leadership, Load, ReadState, Ready
from weir_raft.replication import Progress, ProgressState
from weir_raft.storage import Entry, EntryKind, HardState, MemoryStorage, Snapshot, Storage

__all__ = [
    "LINEAGE_MAX",
    "Append",
    "AppendReply",
    "Arriving",
    "Beat",
    "BeatReply",
    "Change",
    "ChangePending",
    "CodecError",
    "Compacted",
    "Config",
    "Configuration",
    "Entry",
    "EntryKind",
    "HardState",
    "Heartbeat",
    "HeartbeatReply",
    "HostError",
    "InstallSnapshot",
    "InvalidChange",
    "InvalidConfig",
    "Leadership",
    "LinkMessage",
    "Load",
    "MemoryStorage",
    "Message",
    "Multi",
    "Node",
    "NodeContext",
    "NotLeader",
    "NotReady",
    "NothingReady",
    "OutOfOrder",
    "Overloaded",
    "Progress",
    "ProgressState",
    "RaftError",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "SnapshotMeta",
    "SnapshotReply",
    "Storage",
    "StorageError",
    "TimeoutNow",
    "Unavailable",
    "VoteReply",
    "VoteRequest",
    "__version__",
    "first_term",
    "lineage_of",
]

__version__ = "0.1.0"
