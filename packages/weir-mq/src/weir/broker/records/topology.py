"""The control record of the registry about BrokerSets and their tiers."""

from __future__ import annotations

import msgspec

from weir.model.ids import Natural
from weir.topology.sets import Topology


class TopologyApplied(msgspec.Struct, frozen=True, array_like=True, tag="topology"):
    """Registry: the topology is this from now on, in version `version`; void unless the one before
    has the version before.
    """

    version: Natural
    topology: Topology
