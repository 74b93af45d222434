"""The topology of a system: its BrokerSets, their tiers, and what each of them holds."""

from __future__ import annotations

from weir.client.connection.network_client import NetworkClient
from weir.protocol.client.topology import ApplyTopology, DescribeTopology, TopologyState
from weir.topology.sets import Topology


class SystemTopology:
    """The topology of the system that a client is connected to."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `topology` this is."""
        self._network = network

    async def describe(self) -> TopologyState:
        """Return the topology and its version, which is 0 before any was applied."""
        return await self._network.request(DescribeTopology(), TopologyState)

    async def apply(self, topology: Topology, after: int) -> TopologyState:
        """Let the topology be another one, in place of version `after`.

        Raises `TopologyChanged` where that is not the last version, `BadRequest` for a topology
        that does not fit, and `LevelTooLow`.
        """
        return await self._network.request(ApplyTopology(after, topology), TopologyState)
