"""Routes of the kernel of a switch: to each rack by those neighbours that lead there.

A cable that the controller has taken out carries no data then, as it carries no barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from weir_toc.errors import InvalidTopology
from weir_toc.topology import Routes, Switch

#: Stands for the number of a rack in the network of its hosts.
RACK = "RACK"


class Forwarding:
    """What the kernel of a switch is told, as `ip -batch` takes it."""

    def __init__(self, network: str) -> None:
        """`network` is that of the hosts of a rack: `10.0.RACK.0/24`.

        Raises InvalidTopology for one that is the same for all racks.
        """
        if RACK not in network or set(network) & set(" \n"):
            raise InvalidTopology(
                f"--forward {network!r}: take a network such as 10.0.{RACK}.0/24, where {RACK} "
                "stands for the number of a rack"
            )
        self._network = network

    def lines(
        self, switch: Switch, racks: Set[int], routes: Routes, vias: Mapping[int, str]
    ) -> Iterator[str]:
        """Yield a line for each of all `racks` but its own, whose hosts are linked to it.

        Downward if that is possible, as a packet never goes up again; else by all upper ports that
        lead there: the kernel spreads flows over them. `vias` are neighbours as `nexthop` takes
        them. If none that leads to a rack is among them, nothing is said of it.
        """
        own: Set[int] = frozenset() if switch.lower else switch.racks
        for rack in sorted(racks - own):
            below = [id for id in switch.lower if rack in routes[id]]
            hops = below or [id for id in switch.upper if rack in routes[id]]
            words = [f"nexthop {vias[id]}" for id in hops if id in vias]
            network = self._network.replace(RACK, str(rack))
            if words:
                yield f"route replace {network} {' '.join(words)}"
            elif not hops:
                yield f"route replace unreachable {network}"
