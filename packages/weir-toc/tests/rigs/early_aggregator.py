"""The switch of the only rack, which no controller has told anything yet."""

from __future__ import annotations

import socket

from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.udp import OpenSocket
from weir_toc.node import SwitchNode
from weir_toc.topology import Topology, switch_id


class EarlyAggregator:
    """An aggregator that has started and whose timer rings when a test says so."""

    def __init__(self, open_socket: OpenSocket) -> None:
        id, topology = switch_id("rack-0"), Topology.tree(1)
        self.aggregator = Aggregator([("127.0.0.1", 1)], id, ("127.0.0.1", 0),
                                     open_socket=open_socket)  # fmt: skip
        self.node = SwitchNode(topology.switches[id], topology, self.aggregator.link.now())
        self.aggregator._node = self.node

    def damaged(self, count: int) -> None:
        """Let so many packets come that are damaged."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for _ in range(count):
                stranger.sendto(b"damaged", self.aggregator.socket.address)

    def rings(self) -> None:
        """Let the timer ring."""
        self.aggregator._tick()

    def close(self) -> None:
        """Take no more packets, and ring no more."""
        self.aggregator._alarm.cancel()
        self.aggregator.socket.close()
