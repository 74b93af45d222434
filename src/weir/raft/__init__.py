"""A general Raft library without I/O, after Ongaro's dissertation and etcd-io/raft.

    node = Node(Config(id=1, voters=(1,)), MemoryStorage())
    node.campaign()

The host then serves what `node.ready()` asks for, as `weir.raft.ready` describes. Section and
figure numbers in this package are the dissertation's ("Consensus: Bridging Theory and Practice",
2014). This release runs one voter a group; more are refused with UnsupportedConfiguration.
"""

from __future__ import annotations

from weir.raft.config import Config
from weir.raft.core import Role
from weir.raft.errors import (
    Compacted,
    HostError,
    InvalidConfig,
    NothingReady,
    NotLeader,
    NotReady,
    OutOfOrder,
    Overloaded,
    RaftError,
    StorageError,
    Unavailable,
    UnsupportedConfiguration,
)
from weir.raft.node import Node
from weir.raft.ready import Leadership, Ready
from weir.raft.storage import Entry, EntryKind, HardState, MemoryStorage, Snapshot, Storage

__all__ = [
    "Compacted",
    "Config",
    "Entry",
    "EntryKind",
    "HardState",
    "HostError",
    "InvalidConfig",
    "Leadership",
    "MemoryStorage",
    "Node",
    "NotLeader",
    "NotReady",
    "NothingReady",
    "OutOfOrder",
    "Overloaded",
    "RaftError",
    "Ready",
    "Role",
    "Snapshot",
    "Storage",
    "StorageError",
    "Unavailable",
    "UnsupportedConfiguration",
]
