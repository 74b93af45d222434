"""Where barriers are aggregated: what packets cross, and which of them carry barriers."""

from __future__ import annotations

from enum import Enum

from weir_toc.errors import InvalidTopology
from weir_toc.topology import Topology

#: A program in the data path has a bit of one word for each neighbour of its switch.
XDP_NEIGHBOURS_MAX = 64


class Place(Enum):
    """One of three kinds of switches; all switches of a network are of one kind."""

    #: The host representative: a process at each switch, through which all packets go.
    HOST = "host"
    #: The switch processor: the kernel forwards data, a process of the switch sends beacons.
    SWITCH = "switch"
    #: The programmable switch: a program in the data path forwards packets and rewrites barriers.
    XDP = "xdp"

    @property
    def is_direct(self) -> bool:
        """Whether processes send data to the addresses of their receivers, and not to a switch."""
        return self is Place.SWITCH

    @property
    def barriers_in_data(self) -> bool:
        """Whether all packets carry the barriers of switches. Otherwise only beacons do."""
        return self is not Place.SWITCH

    def processes_max(self, topology: Topology, rack: int) -> int | None:
        """How many processes can be linked to the switch of a rack at once; None for no limit."""
        if self is not Place.XDP:
            return None
        return XDP_NEIGHBOURS_MAX - len(topology.switch_of_rack(rack).upper)

    def check(self, topology: Topology, processes: int = 1) -> None:
        """Raise InvalidTopology if a switch would have too many neighbours.

        `processes` are those of each rack at least.
        """
        if self is not Place.XDP:
            return
        for one in topology.switches.values():
            links = len(one.lower) + len(one.upper) + (0 if one.lower else processes)
            if links > XDP_NEIGHBOURS_MAX:
                raise InvalidTopology(
                    f"{one.name} would have {links} neighbours, and with --place xdp a switch has "
                    f"at most {XDP_NEIGHBOURS_MAX}: take fewer racks and spines, or fewer "
                    "processes in a rack, or --place host"
                )


def place_named(name: str) -> Place:
    """Return the place of this name. Raises InvalidTopology."""
    try:
        return Place(name)
    except ValueError:
        names = ", ".join(one.value for one in Place)
        raise InvalidTopology(f"{name!r} is no place for barriers: take one of {names}") from None
