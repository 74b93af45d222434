"""Requests and replies about the topology: the BrokerSets of the system, and their tiers."""

from __future__ import annotations

from weir.errors import LevelTooLow, TopologyChanged
from weir.model.ids import Natural
from weir.protocol.client.declaration import (
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)
from weir.topology.sets import Topology


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


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (ApplyTopology, DescribeTopology)
