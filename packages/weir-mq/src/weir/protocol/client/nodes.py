"""Requests and replies that look after the nodes of a set.

What the registry holds, any shard answers. What one shard leads and holds now, only that shard
knows: a client asks each of them, by its place.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from weir.errors import LevelTooHigh, LevelTooLow, NodeInUse, UnknownNode
from weir.model.ids import NODE_MAX, SET_UNKNOWN, Address, Natural
from weir.model.limits import JOIN_KEY_BYTES, LINK_NODES_MAX
from weir.protocol.client.declaration import (
    Asker,
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)
from weir.topology.sets import SetId

#: Groups that one report speaks of.
SETTLED_MAX = 1_024
NodeId = Annotated[int, msgspec.Meta(ge=1, le=NODE_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class NodeList(ControlReply, frozen=True, array_like=True):
    """The nodes by id, the format level that is written, the ids of the system and of the node that
    answers, and how many logs every node of the system has.
    """

    nodes: list[NodeRow]
    level: int
    system: int
    node: int
    logs: int


class ListNodes(ControlRequest, frozen=True, array_like=True):
    """Ask for the nodes of the set."""

    declaration = Declaration(
        44,
        Scope.HERE,
        NodeList,
        Retry.READ,
        rights=(Right("list", Resource.SYSTEM),),
    )


class NodeRow(Control, frozen=True, array_like=True):
    """A node as the registry has it: where it listens, whether it is active or draining, how many
    shards it runs, which format level it supports, how many groups are to lie on it and to be led
    by it, and how many are to leave it and may still need it.
    """

    id: int
    host: str
    port: int
    state: str
    shards: int
    level: int
    replicas: int
    leaders: int
    leaving: int


class ShardInfo(ControlReply, frozen=True, array_like=True):
    """What a shard leads and holds at this moment.

    `led` and `held` count groups. Of those led here, `moving` are not yet where the registry
    places them; `lagging` counts by node the replicas that are not up to date. `leaderless`
    groups here know no leader. `linked` are the nodes that a link to at least one shard is up
    to.
    """

    node: int
    shard: int
    led: int
    held: int
    moving: int
    leaderless: int
    lagging: dict[int, int]
    linked: list[int]


class DescribeShard(ControlRequest, frozen=True, array_like=True):
    """Ask one shard for what it leads and holds: `place` 0 is the shard that gets the frame."""

    declaration = Declaration(
        45,
        Scope.SHARD,
        ShardInfo,
        Retry.READ,
        rights=(Right("list", Resource.SYSTEM),),
    )

    place: Natural = 0


class ChangeNode(ControlRequest, frozen=True, array_like=True):
    """Add a node at `host` and `port`, or `drain`, `remove` or make `active` a node.

    Answered by `NodeList`. Node 0 to add is the next free id. In a closed set a node that is added
    proves who it is by a certificate, or by the secret that `join_key` was made from.
    """

    declaration = Declaration(
        46,
        Scope.REGISTRY,
        NodeList,
        Retry.SAME,
        rights=(Right("change", Resource.SYSTEM),),
        refusals=(UnknownNode, NodeInUse, LevelTooLow),
    )

    verb: str
    node: Annotated[int, msgspec.Meta(ge=0, le=NODE_MAX)]
    host: str = ""
    port: Port = 0
    join_key: Annotated[bytes, msgspec.Meta(max_length=JOIN_KEY_BYTES)] = b""


class RaiseLevel(ControlRequest, frozen=True, array_like=True):
    """Let every node write format level `level` (0: the highest that all support).

    Answered by `NodeList`.
    """

    declaration = Declaration(
        47,
        Scope.REGISTRY,
        NodeList,
        Retry.SAME,
        rights=(Right("change", Resource.SYSTEM),),
        refusals=(LevelTooHigh,),
    )

    level: Natural = 0


class Transferred(ControlReply, frozen=True, array_like=True):
    """The leader hands over to `node`, which leads once it has won the election; or it leads
    already.
    """

    node: int


class TransferLeader(ControlRequest, frozen=True, array_like=True):
    """Let `node` lead a partition (0: its preferred leader). Its leader answers once it begins."""

    declaration = Declaration(
        51,
        Scope.PARTITION,
        Transferred,
        Retry.SAME,
        rights=(Right("change", Resource.SYSTEM),),
        refusals=(UnknownNode,),
    )

    address: Address
    node: Annotated[int, msgspec.Meta(ge=0, le=NODE_MAX)] = 0


class ReportNode(ControlRequest, frozen=True, array_like=True):
    """Only a shard of a set's node sends this: how many shards its node runs, which format level
    it supports, and what tells its folder from one that was founded anew under the same number.
    """

    declaration = Declaration(
        52,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    node: NodeId
    shards: Natural
    level: Natural
    birth: Natural = 0


class ReportSettled(ControlRequest, frozen=True, array_like=True):
    """Only a shard of a set's node sends this: groups that it leads, and who votes in them now;
    and who is `learning`, before voting or without, in those to which somebody comes back.
    """

    declaration = Declaration(
        53,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    rows: Annotated[list[tuple[Natural, list[Natural]]], msgspec.Meta(max_length=SETTLED_MAX)]
    learning: Annotated[
        list[tuple[Natural, list[Natural]]], msgspec.Meta(max_length=SETTLED_MAX)
    ] = msgspec.field(default_factory=list)


class ReportLost(ControlRequest, frozen=True, array_like=True):
    """Only a shard of a set's node sends this: what `voter` had of a group is damaged, and perhaps
    how it voted is lost. It comes back with nothing, as another voter.
    """

    declaration = Declaration(
        54,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    group: Natural
    voter: Natural


class ReportSet(ControlRequest, frozen=True, array_like=True):
    """Only a shard of a node sends this: of which BrokerSet its node is. It does so from format
    level 3 on, once any node is of a set with another id than 0.
    """

    declaration = Declaration(
        105,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    node: NodeId
    brokerset: SetId


class SetInfo(Control, frozen=True, array_like=True):
    """A BrokerSet: its id, its name in the topology (empty if it has none), its tier, the nodes
    that are known to be of it, and how many groups are to have most of their voters there;
    `has_registry` is whether the registry's group is one of those.
    """

    id: int
    name: str
    tier: str
    nodes: list[int]
    majorities: int
    has_registry: bool


class SetList(ControlReply, frozen=True, array_like=True):
    """The BrokerSets by id; what placements keep to (`none`, `home` or `apart`); and the nodes that
    are not known to be of any set.
    """

    sets: list[SetInfo]
    rule: str
    unknown: list[int]


class ListSets(ControlRequest, frozen=True, array_like=True):
    """Ask for the BrokerSets that nodes are of, and those of the topology."""

    declaration = Declaration(
        106,
        Scope.HERE,
        SetList,
        Retry.READ,
        rights=(Right("list", Resource.SYSTEM),),
    )


class NodeNews(Control, frozen=True, array_like=True):
    """A node as a shard knows it: where it listens, the birth of its folder (0: unknown), its
    BrokerSet (-1: unknown), and by which key it joins while its birth is unknown.
    """

    node: NodeId
    host: str
    port: Port
    birth: Natural = 0
    brokerset: int = SET_UNKNOWN
    join_key: Annotated[bytes, msgspec.Meta(max_length=JOIN_KEY_BYTES)] = b""


class NodesTold(ControlReply, frozen=True, array_like=True):
    """The nodes that the shard knows, those that left excepted."""

    nodes: Annotated[list[NodeNews], msgspec.Meta(max_length=LINK_NODES_MAX)]


class AskNodes(ControlRequest, frozen=True, array_like=True):
    """Only shards of the set ask this, when they have no link to the leader of the registry: it
    may be a node that was added while they were down, and its links are taken once it is known.
    """

    declaration = Declaration(107, Scope.HERE, NodesTold, Retry.READ, asker=Asker.SHARD)


Report = ReportNode | ReportSettled | ReportLost | ReportSet
#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    ListNodes,
    DescribeShard,
    ChangeNode,
    RaiseLevel,
    TransferLeader,
    ReportNode,
    ReportSettled,
    ReportLost,
    ReportSet,
    ListSets,
    AskNodes,
)
