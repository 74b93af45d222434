"""Where barriers are aggregated: what packets cross, and which of them carry barriers."""

from __future__ import annotations

from enum import Enum

from weir_toc.errors import InvalidTopology


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


def place_named(name: str) -> Place:
    """Return the place of this name. Raises InvalidTopology."""
    try:
        return Place(name)
    except ValueError:
        names = ", ".join(one.value for one in Place)
        raise InvalidTopology(f"{name!r} is no place for barriers: take one of {names}") from None
