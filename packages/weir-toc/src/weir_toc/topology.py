"""Networks: switches in tiers, each split into an up and a down half, and routes between them.

A packet goes up as far as it must, and then down. So the halves of all switches are a graph
without cycles, in which barriers flow from every process to every process. A switch has lower and
upper ports. What comes from a lower port enters the up half. It leaves by an upper port, or turns
round: it crosses a virtual link to the down half of the same switch. What comes from an upper port
enters the down half and leaves by a lower port.

A process id says in which rack the process is, as an IP address says in which network a host is:
the upper 16 bits are the rack's number, the lower ones tell its processes apart. Ids of switches
have their highest bit set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from weir_toc.errors import InvalidTopology

_SWITCH = 1 << 31
_SERIAL_BITS = 16
RACKS_MAX = (1 << 15) - 1
#: The variable of the environment that has the number of the rack to which a host is linked.
RACK_VARIABLE = "WEIR_TOC_RACK"
_TIERS = ("rack", "spine", "core")
PROCESSES_PER_RACK_MAX = (1 << _SERIAL_BITS) - 1
#: The highest id of a process.
PROCESS_MAX = RACKS_MAX << _SERIAL_BITS | PROCESSES_PER_RACK_MAX


def process_id(rack: int, serial: int) -> int:
    """Return the id of a process; `serial` counts from 1 in each rack."""
    if not 0 <= rack <= RACKS_MAX or not 1 <= serial <= PROCESSES_PER_RACK_MAX:
        raise InvalidTopology(f"no process {serial} in rack {rack}: ids have 15 and 16 bits")
    return rack << _SERIAL_BITS | serial


def rack_of(process: int) -> int:
    """Return the number of the rack in which a process is."""
    return process >> _SERIAL_BITS


def rack_switch(process: int) -> int:
    """Return the id of the switch of the rack in which a process is."""
    return _SWITCH | rack_of(process)


def name_of_switch(id: int) -> str:
    """Return the name of a switch, as `switch_id` takes it; any id can be shown."""
    tier = (id & ~_SWITCH) >> _SERIAL_BITS
    if tier >= len(_TIERS):
        return f"switch {id:#x}"
    return f"{_TIERS[tier]}-{id & PROCESSES_PER_RACK_MAX}"


def switch_id(name: str) -> int:
    """Return the id of the switch `rack-N`, `spine-N` or `core-N`. Raises InvalidTopology."""
    tier, _, number = name.partition("-")
    if tier not in _TIERS or not number.isdigit() or int(number) >= 1 << _SERIAL_BITS:
        raise InvalidTopology(f"{name!r} names no switch: take rack-0, spine-0, core-0 or the like")
    return _SWITCH | _TIERS.index(tier) << _SERIAL_BITS | int(number)


#: The racks to which a neighbour leads.
Routes = Mapping[int, frozenset[int]]


class Link(NamedTuple):
    """Two switches, the lower one first, that are joined by a cable: a link in each direction."""

    lower: int
    upper: int


@dataclass(frozen=True)
class Switch:
    """One switch of a network: the switches below and above it, by their ids."""

    id: int
    name: str
    #: Empty for the switch of a rack: processes are below it.
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    #: The racks that can be reached downward.
    racks: frozenset[int]

    def next_hops(self, to: int, routes: Routes, may_rise: bool) -> Sequence[int]:
        """Return the neighbours that lead to process `to`: downward if that is possible.

        `may_rise` is false for what came down, and does not go up again.
        """
        rack = rack_of(to)
        if not self.lower and rack in self.racks:
            return (to,)
        below = [port for port in self.lower if rack in routes[port]]
        if below or not may_rise:
            return below
        return [port for port in self.upper if rack in routes[port]]


class Topology:
    """All switches of a network, and the cables between them."""

    def __init__(self, switches: Sequence[Switch]) -> None:
        self.switches: Mapping[int, Switch] = {switch.id: switch for switch in switches}

    @classmethod
    def tree(cls, racks: int, spines: int = 0, cores: int = 0) -> Topology:
        """Return a tree of up to three tiers; each switch is joined to all of the next tier.

        With cores and four spines or more, racks and spines form two pods that the cores join.
        Raises InvalidTopology for several racks without a spine, or cores without one.
        """
        if racks < 1 or racks > RACKS_MAX:
            raise InvalidTopology(f"{racks} racks: 1 to {RACKS_MAX} are possible")
        if not spines and (racks > 1 or cores):
            raise InvalidTopology("several racks need a spine, and cores do: add spines")
        pods = 2 if cores and spines >= 4 and racks >= 2 else 1
        pod_of_rack = [rack * pods // racks for rack in range(racks)]
        pod_of_spine = [spine * pods // spines for spine in range(spines)]
        rack_ids = [_SWITCH | rack for rack in range(racks)]
        spine_ids = [_SWITCH | 1 << 16 | spine for spine in range(spines)]
        core_ids = [_SWITCH | 2 << 16 | core for core in range(cores)]
        made = []
        for rack, id in enumerate(rack_ids):
            above = [s for n, s in enumerate(spine_ids) if pod_of_spine[n] == pod_of_rack[rack]]
            made.append(Switch(id, f"rack-{rack}", (), tuple(above), frozenset({rack})))
        for spine, id in enumerate(spine_ids):
            below = [n for n in range(racks) if pod_of_rack[n] == pod_of_spine[spine]]
            lower = tuple(rack_ids[n] for n in below)
            made.append(Switch(id, f"spine-{spine}", lower, tuple(core_ids), frozenset(below)))
        everywhere = frozenset(range(racks))
        for core, id in enumerate(core_ids):
            made.append(Switch(id, f"core-{core}", tuple(spine_ids), (), everywhere))
        return cls(made)

    def switch_of_rack(self, rack: int) -> Switch:
        """Return the switch of a rack. Raises InvalidTopology for a rack that is not there."""
        found = self.switches.get(_SWITCH | rack)
        if found is None:
            raise InvalidTopology(f"there is no rack {rack}")
        return found

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """All cables, the lower end first, in the order of the switches."""
        return tuple(
            Link(switch.id, above) for switch in self.switches.values() for above in switch.upper
        )

    @cached_property
    def racks(self) -> frozenset[int]:
        """The numbers of all racks."""
        return frozenset[int]().union(*(one.racks for one in self.switches.values()))

    @cached_property
    def longest_path(self) -> int:
        """The links that a packet crosses at most, those of both processes included."""
        return 2 * len({self._tier(id) for id in self.switches})

    def routes(self, switch: int, dead: frozenset[Link] = frozenset()) -> Routes:
        """Return the racks to which each neighbour of a switch leads when some cables are cut."""
        downward, onward = self._reachable(dead)
        one = self.switches[switch]
        found = {}
        for below in one.lower:
            found[below] = downward[below] if Link(below, switch) not in dead else frozenset()
        for above in one.upper:
            found[above] = onward[above] if Link(switch, above) not in dead else frozenset()
        return found

    def reached(self, dead: frozenset[Link]) -> Mapping[int, frozenset[int]]:
        """Return the racks that each rack reaches when some cables are cut, itself among them."""
        _, onward = self._reachable(dead)
        return {rack: onward[self.switch_of_rack(rack).id] for rack in sorted(self.racks)}

    def _reachable(self, dead: frozenset[Link]) -> tuple[Routes, Routes]:
        """Return the racks that each switch leads to for what comes down, and for what comes up."""
        by_tier = sorted(self.switches.values(), key=lambda one: self._tier(one.id))
        downward: dict[int, frozenset[int]] = {}
        for one in by_tier:
            below = (downward[port] for port in one.lower if Link(port, one.id) not in dead)
            downward[one.id] = frozenset().union(*below) if one.lower else one.racks
        onward: dict[int, frozenset[int]] = {}
        for one in reversed(by_tier):
            above = (onward[port] for port in one.upper if Link(one.id, port) not in dead)
            onward[one.id] = downward[one.id].union(*above)
        return downward, onward

    @staticmethod
    def _tier(id: int) -> int:
        return (id & ~_SWITCH) >> _SERIAL_BITS
