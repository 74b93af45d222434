"""What a shard is made with: its identity, the logs that it serves, and the operator's settings.

The identity is in every hello, so that no node joins or refills from a stranger. A group never
leaves its log; the shard that serves the log may change with every start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from weir.access.wrapping import KeyRing
from weir.model.ids import REGISTRY_GROUP, Address, partition_of, topic_of, voter_of
from weir.model.limits import (
    BUDGET_BYTES_DEFAULT,
    CUTOFF_SECONDS_DEFAULT,
    DEVICE_IN_HAND_DEFAULT,
    FORMAT_LEVEL,
    KIB,
    MIB,
    RETENTION_EVERY_MS,
    STALE_SECONDS_DEFAULT,
)

CHECKPOINT_BYTES = 256 * MIB


def registry_voters(nodes: int) -> int:
    """Return how many of so many nodes vote in the registry's group; more would make it slower."""
    return 5 if nodes >= 5 else min(nodes, 3)


class Member(NamedTuple):
    """A node of a BrokerSet, and where its shards listen."""

    node: int
    host: str
    port: int


class Identity(msgspec.Struct, frozen=True):
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
    #: By what it proves that it is the node that was added, until its birth is known; or nothing.
    join_key: bytes = b""

    @property
    def voter(self) -> int:
        """This node, as groups know it that it never had to join anew."""
        return voter_of(self.node)

    @property
    def founding_voters(self) -> tuple[int, ...]:
        """The first voters of the registry's group."""
        founders = sorted(member.node for member in self.members) or [self.node]
        return tuple(voter_of(node) for node in founders[: registry_voters(len(founders))])


class Layout(msgspec.Struct, frozen=True):
    """The numbered logs of a node, fixed when it is founded, dealt to its shards in turn.

    How many shards there are may change with every start: no group ever moves to another log.
    """

    logs: int = 1
    shards: int = 1

    def log_of(self, group: int) -> int:
        """Return the log of a group: neighbours of a topic, and topics, begin one further."""
        return (topic_of(group) + partition_of(group)) % self.logs

    def shard_of(self, group: int) -> int:
        """Return the shard that serves a group."""
        return self.log_of(group) % self.shards

    def place(self, group: int) -> Address:
        """Return where a group is served."""
        log = self.log_of(group)
        return Address(log % self.shards, log, group)

    def logs_of(self, shard: int) -> list[int]:
        """Return the numbers of a shard's logs."""
        return [*range(shard, self.logs, self.shards)]

    @property
    def registry_shard(self) -> int:
        """The shard that leads the registry."""
        return self.shard_of(REGISTRY_GROUP)


class Replication(msgspec.Struct, frozen=True):
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
#: After how long a shard without news of the registry is stale, and cut off.
STALE_MS, CUTOFF_MS = STALE_SECONDS_DEFAULT * 1_000, CUTOFF_SECONDS_DEFAULT * 1_000


class ShardSettings(msgspec.Struct, frozen=True):
    """What an operator may set."""

    budget_bytes: int = BUDGET_BYTES_DEFAULT
    #: A checkpoint is saved after so many bytes of a log: what a restart has to apply again.
    checkpoint_bytes: int = CHECKPOINT_BYTES
    #: How often each partition is looked at for messages that are past their retention.
    retention_every_ms: int = RETENTION_EVERY_MS
    #: The format level that this node supports.
    level: int = FORMAT_LEVEL
    #: The shards' own ports, by number; empty if there is but one.
    ports: tuple[int, ...] = ()
    #: How replicas of a group talk.
    replication: Replication = REPLICATION_DEFAULT
    #: Draws from [0, 1), so that replicas do not all seek to lead at once; None: always the same.
    random: Callable[[], float] | None = None
    #: Gives so many bytes that nobody can guess; without it nobody can log in.
    secret_bytes: Callable[[int], bytes] | None = None
    #: Opens secrets at rest; without it devices of fleets cannot come in here.
    key_ring: KeyRing | None = None
    #: How many messages a device holds at most, unless its subscription says so.
    device_in_hand: int = DEVICE_IN_HAND_DEFAULT
    #: After so long without news of the metadata nobody is let in, and nothing begins, in a closed
    #: set; and then the sessions end that were let in.
    stale_ms: int = STALE_MS
    cutoff_ms: int = CUTOFF_MS
    #: Whether the set was closed when this node heard last, before it started.
    was_closed: bool = False
