"""Ids and addresses. A partition's Raft group has one number everywhere: wire, log, hash seed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from msgspec import Meta

from weir.model.limits import PIPELINE_WINDOW

#: A number that fits a signed field and has no meaning below 0, wherever a body may name one.
#: What fits in every field of the wire and of the log.
LIMIT_MAX = (1 << 63) - 1
Natural = Annotated[int, Meta(ge=0, le=LIMIT_MAX)]

_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}")

PARTITION_BITS = 16
PARTITIONS_MAX = 1 << PARTITION_BITS

#: The Raft group of the registry: topics, producer ids. Topic ids begin at 1, so it is free.
REGISTRY_GROUP = 0


def group_of(topic: int, partition: int) -> int:
    """Return the group id of a partition: topic id · 65,536 + partition."""
    if topic < 1 or not 0 <= partition < PARTITIONS_MAX:
        raise ValueError(f"no group for topic {topic}, partition {partition}")
    return topic << PARTITION_BITS | partition


def topic_of(group: int) -> int:
    """Return the topic id of a group."""
    return group >> PARTITION_BITS


def partition_of(group: int) -> int:
    """Return the partition number of a group."""
    return group & (PARTITIONS_MAX - 1)


def batch_part(group: int) -> int:
    """Return the part that is a batch in a group."""
    return group << 1


def acks_part(group: int) -> int:
    """Return the part that is acks in a group."""
    return group << 1 | 1


def part_group(part: int) -> int:
    """Return the group of a part."""
    return part >> 1


def is_acks(part: int) -> bool:
    """Return whether a part is acks."""
    return bool(part & 1)


def are_parts(parts: Iterable[int]) -> bool:
    """Return whether these rise, and may be parts."""
    last = 0
    for part in parts:
        if not last < part <= LIMIT_MAX:
            return False
        last = part
    return True


#: A producer id is the stamp of its grant, and above that, in three bits, the code of its window.
WINDOW_AT = 60
#: By code, how many batches of a partition a producer may have under way. 0: it was granted without
#: a window, as of releases before format level 3.
WINDOWS = (PIPELINE_WINDOW, 1, 2, 4, 8, 16, 32, PIPELINE_WINDOW)
_GRANT_MASK = (1 << WINDOW_AT) - 1


def producer_of(granted: int, window: int = 0) -> int:
    """Return the producer id that is granted at a stamp with the least window of `WINDOWS` that is
    not below `window`; 0: without one. Raises `ValueError` for a stamp from the year 2527 on.
    """
    if granted > _GRANT_MASK:
        raise ValueError(f"stamp {granted} is too far ahead for a producer id")
    if not window:
        return granted
    return (min(window, PIPELINE_WINDOW) - 1).bit_length() + 1 << WINDOW_AT | granted


def granted_at(producer: int) -> int:
    """Return the stamp of a producer id's grant."""
    return producer & _GRANT_MASK


def window_of(producer: int) -> int:
    """Return how many batches of a partition a producer may have under way."""
    return WINDOWS[producer >> WINDOW_AT & 7]


class Attempt(NamedTuple):
    """One try of a scattering: all its parts are to be stamped `stamp`."""

    producer: int
    epoch: int
    number: int
    stamp: int


def is_loopback(address: str) -> bool:
    """Return whether what goes to or comes from an IP address leaves no machine; "" is none."""
    plain = address.partition("%")[0].lower().removeprefix("::ffff:")
    return not plain or plain == "::1" or bool(_LOOPBACK.fullmatch(plain))


SHARD_BITS = 16
SHARDS_MAX = 1 << SHARD_BITS
INCARNATION_BITS = 16
NODE_MAX = (1 << 31) - 1
#: A Raft term has room for so many lineages: see `weir_raft.lineage_of`.
LINEAGE_MAX = (1 << 14) - 1
#: The BrokerSet of a node that has not said of which it is.
SET_UNKNOWN = -1


#: No voter's id is above it.
VOTER_MAX = NODE_MAX << INCARNATION_BITS | (1 << INCARNATION_BITS) - 1


def voter_of(node: int, incarnation: int = 0) -> int:
    """Return the id by which Raft knows a node: it changes if the node lost what it had voted."""
    return node << INCARNATION_BITS | incarnation


def node_of(voter: int) -> int:
    """Return the node of a voter."""
    return voter >> INCARNATION_BITS


def incarnation_of(voter: int) -> int:
    """Return how often the node of a voter has come back to a group without what it had voted."""
    return voter & ((1 << INCARNATION_BITS) - 1)


def place_of(node: int, shard: int) -> int:
    """Return a shard anywhere as one number; `node` 0 is this node, whose places are its shards."""
    return node << SHARD_BITS | shard


def place_node(place: int) -> int:
    """Return the node of a place; 0 is this one."""
    return place >> SHARD_BITS


def place_shard(place: int) -> int:
    """Return the shard of a place, a number of its node."""
    return place & (SHARDS_MAX - 1)


class Address(NamedTuple):
    """Where a partition is served: shard and log of its leader, its group, and the leader's node;
    node 0 is the node that answered.

    The bounds are those of `ADDRESS`; they hold wherever an address is read from a control body.
    """

    shard: Annotated[int, Meta(ge=0, le=0xFFFF)]
    log: Annotated[int, Meta(ge=0, le=0xFFFF)]
    group: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    node: Annotated[int, Meta(ge=0, le=NODE_MAX)] = 0


#: shard u16, log u16, node u32, group u64: the first 16 bytes of every data frame.
ADDRESS = struct.Struct("<HHIQ")
