"""Requests and replies about the topology: the BrokerSets of the system, and their tiers.

By the last ones an operator lets a core set go on alone whose home set is lost. First the copies of
all groups are looked at, then the registry's are forced, then the registry decides: see
`weir.client.promotion`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weir.errors import LevelTooLow, TopologyChanged
from weir.model.ids import LIMIT_MAX, LINEAGE_MAX, NODE_MAX, VOTER_MAX, Natural
from weir.model.limits import SET_ID_MAX, SET_NODES_MAX
from weir.protocol.client.declaration import (
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
from weir.protocol.client.nodes import NodeList
from weir.topology.sets import SetId, Topology

#: A reply tells of no more groups.
COPIES_MAX = 1_024
Lineage = Annotated[int, Meta(ge=1, le=LINEAGE_MAX)]
Voter = Annotated[int, Meta(ge=1, le=VOTER_MAX)]
Voters = Annotated[list[Voter], Meta(min_length=1, max_length=SET_NODES_MAX)]
Node = Annotated[int, Meta(ge=1, le=NODE_MAX)]
NodeIds = Annotated[list[Node], Meta(min_length=1, max_length=SET_NODES_MAX)]


class TopologyState(ControlReply, frozen=True, array_like=True):
    """The topology, and its version: 0 before any was applied.

    It is an array of the id of the home set and of its sets; each set is an array of id, name,
    tier, level, region, carrier, nodes (number, host, port), tags by topic (nil: all topics; topic
    and its tags, nil: all tags), caps (bytes held above, for how many seconds, bytes stored; 0: no
    limit), and the ids of its uppers.
    """

    version: Natural
    topology: Topology


class ApplyTopology(ControlRequest, frozen=True, array_like=True):
    """Let the topology be another one, in place of version `after` (0: of none)."""

    declaration = Declaration(
        100,
        Scope.REGISTRY,
        TopologyState,
        Retry.SAME,
        rights=(Right("change", Resource.SYSTEM),),
        refusals=(LevelTooLow, TopologyChanged),
        methods=("SystemTopology.apply",),
    )

    after: Natural
    topology: Topology


class DescribeTopology(ControlRequest, frozen=True, array_like=True):
    """Ask for the topology."""

    declaration = Declaration(
        101,
        Scope.REGISTRY,
        TopologyState,
        Retry.READ,
        rights=(Right("list", Resource.SYSTEM),),
        methods=("SystemTopology.describe",),
    )


class CopyRow(Control, frozen=True, array_like=True):
    """What a shard has of a group: of which topic, and as which voter; the node that leads it (0:
    none is known); the lineage of its Raft term, and the one that has `begun` by an entry in the
    log; the term and the index of the last entry; through where a leader said that the log is
    committed, and how many ms ago one was heard of (-1: not since the start). Messages below
    `offset` are here, and `stamp` is the highest of their stamps. The nodes that vote, by the
    newest configuration in the log, or by what was forced.
    """

    group: Natural
    topic: str
    voter: Natural
    leader: Natural
    lineage: Natural
    begun: Natural
    last_term: Natural
    last: Natural
    committed: Natural
    heard_ms: Annotated[int, Meta(ge=-1, le=LIMIT_MAX)]
    offset: Natural
    stamp: Natural
    voting: list[Natural]


class CopyList(ControlReply, frozen=True, array_like=True):
    """The copies that a shard has, rising by group; there are `more`.

    The shard's node and its set are for good. The rest is what is applied of the registry there,
    through `applied` (0 where another shard has it): the name of the set, its `members` with how
    many shards each has, the home set where there are two (-1: there are not), and the last
    promotion (0: none); the nodes of other core sets that the shard is linked to; the groups of
    which no node of the set is to have a copy, by group and topic, as far as there is room. While a
    node is `starting`, it does not know all of the registry, nor its copies of topics.
    """

    rows: list[CopyRow]
    more: bool
    node: Natural
    brokerset: Natural
    applied: Natural
    name: str
    members: list[tuple[Natural, Natural]]
    home: Annotated[int, Meta(ge=-1, le=SET_ID_MAX)]
    promoted: Natural
    others: list[Natural]
    absent: list[tuple[Natural, str]]
    starting: bool


class DescribeCopies(ControlRequest, frozen=True, array_like=True):
    """Ask one shard which copies of groups above `after` it has (-1: of all); `place` 0 is the
    shard that gets the frame.
    """

    declaration = Declaration(
        111,
        Scope.SHARD,
        CopyList,
        Retry.READ,
        rights=(Right("list", Resource.SYSTEM), Right("promote", Resource.SYSTEM)),
        methods=("SystemTopology.plan_promotion", "SystemTopology.describe_copies"),
    )

    place: Natural = 0
    after: Annotated[int, Meta(ge=-1, le=LIMIT_MAX)] = -1


class ForceRegistry(ControlRequest, frozen=True, array_like=True):
    """Let the registry's copy at a `place` go on in a lineage, as one of these voters alone. It is
    refused by nodes of another set than `brokerset`, and, unless `forced`, while the registry has a
    leader or the node is linked to a node of another core set.
    """

    declaration = Declaration(
        112,
        Scope.SHARD,
        CopyList,
        Retry.SAME,
        rights=(Right("change", Resource.SYSTEM), Right("promote", Resource.SYSTEM)),
        methods=("SystemTopology.promote",),
    )

    place: Natural
    brokerset: SetId
    lineage: Lineage
    voters: Voters
    forced: bool = False


class PromoteSet(ControlRequest, frozen=True, array_like=True):
    """Let a core set go on alone with these of its nodes, and remove all other nodes. Answered by
    `NodeList` once that is committed, or was before.
    """

    declaration = Declaration(
        113,
        Scope.REGISTRY,
        NodeList,
        Retry.SAME,
        rights=(Right("change", Resource.SYSTEM), Right("promote", Resource.SYSTEM)),
        refusals=(LevelTooLow,),
        methods=("SystemTopology.promote",),
    )

    brokerset: SetId
    lineage: Lineage
    nodes: NodeIds


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    ApplyTopology,
    DescribeTopology,
    DescribeCopies,
    ForceRegistry,
    PromoteSet,
)
