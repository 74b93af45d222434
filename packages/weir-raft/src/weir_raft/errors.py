"""What can go wrong, as a tree.

    RaftError
    ├── InvalidConfig              a Config or Configuration that contradicts itself
    │   └── InvalidChange              a Change that leads to no configuration
    ├── NotLeader                  propose to `leader_hint` instead
    ├── NotReady                   leading, but not yet, or no longer, able to take this
    │   └── ChangePending              another change of the configuration is under way
    ├── Overloaded                 too many bytes proposed and not yet applied
    ├── HostError                  the host broke a contract of Node; a bug in the host
    │   ├── NothingReady           ready() although has_ready is False
    │   └── OutOfOrder             an acknowledgement that skips, repeats or invents something
    ├── CodecError                 bytes that are no message, or a message that no bytes can hold
    └── StorageError               Storage and the rest of the state contradict each other
        ├── Compacted              the index lies below the snapshot
        └── Unavailable            the index lies above the log's end

A caller may retry after NotLeader, NotReady and Overloaded. The others mean that something must be
repaired; the node itself is left as it was before the refused call.
"""

from __future__ import annotations


class RaftError(Exception):
    """Root of every error this library raises."""


class InvalidConfig(RaftError):
    """The Config contradicts itself; the message names the field."""


class InvalidChange(InvalidConfig):
    """The change names nobody, somebody twice, or leaves no voter."""


class NotLeader(RaftError):
    """A proposal reached a node that does not lead; `leader_hint` is 0 while no leader is known."""

    def __init__(self, leader_hint: int) -> None:
        known = f"propose to node {leader_hint}" if leader_hint else "no leader is known, try again"
        super().__init__(f"this node does not lead: {known}")
        self.leader_hint = leader_hint


class NotReady(RaftError):
    """The leader has not applied an entry of its own term yet, or hands its leadership over."""


class ChangePending(NotReady):
    """A change of the configuration is not committed yet, or its joint phase not left."""


class Overloaded(RaftError):
    """Config.max_pending_bytes are proposed and not yet both durable and applied."""


class HostError(RaftError):
    """The host called Node against its contract."""


class NothingReady(HostError):
    """ready() was called although has_ready is False."""


class OutOfOrder(HostError):
    """An acknowledgement came out of order, twice, or for something never handed out."""


class CodecError(RaftError):
    """`weir_raft.codec` was given what is no message of its version, or what it cannot encode."""


class StorageError(RaftError):
    """Storage lost something, or its answers contradict each other: do not run on it."""


class Compacted(StorageError):
    """The entry was replaced by a snapshot."""


class Unavailable(StorageError):
    """The entry does not exist yet."""
