"""A tree of hosts and switches: names, addresses, devices and routes, as `ip` takes them.

    host K, the s-th of rack R   10.0.R.s    eth0 leads to its rack
    rack R                       10.1.R.1    each device is named as the neighbour to which it leads
    spine S                      10.2.S.1
    core C                       10.3.C.1
    controller                   10.9.0.1

Host K is in rack K modulo the number of racks. The controller has a network of its own, to which
the device `ctl` of each node leads. Addresses of switches are those of no device, so one socket of
a switch has one address whichever way a packet takes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weir_toc.errors import InvalidTopology
from weir_toc.forwarding import RACK, Forwarding
from weir_toc.topology import Routes, Switch, Topology, name_of_switch

#: Numbers of hosts, racks, spines and cores are a byte of an address.
NUMBER_MAX = 250
#: Namespaces, each with devices and a process: so many are built.
NODES_MAX = 400
CONTROLLER = "10.9.0.1"
SWITCH_PORT, CONTROLLER_PORT = 7_100, 7_001
#: The hosts of a rack.
HOSTS_NETWORK = f"10.0.{RACK}.0/24"
#: The device of a host that leads to its rack, and that of each node to the controller.
HOST_DEVICE, CONTROL_DEVICE = "eth0", "ctl"
_TIERS = ("host", "rack", "spine", "core")
#: The second bytes of addresses in the network of the controller lie so far above.
_CONTROL = 10
#: One queue each way: a link with several of them is not FIFO.
_ONE_QUEUE = "numtxqueues 1 numrxqueues 1"


@dataclass(frozen=True, slots=True)
class Node:
    """A host or a switch: a network namespace of its own."""

    name: str
    tier: int
    number: int
    #: In the network of data, and in that of the controller.
    address: str
    control: str
    #: The rack of a host, or of the switch of a rack; None of others.
    rack: int | None


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a veth link: a device of a node."""

    node: Node
    device: str
    far: Node

    @property
    def mac(self) -> str:
        """The hardware address: the node, and to which other one this device leads."""
        return "02:" + ":".join(
            f"{byte:02x}"
            for one in (self.node, self.far)
            for byte in (one.tier, one.number)
        ) + ":00"  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cable:
    """A link between two nodes, the lower one first."""

    lower: Port
    upper: Port


class Tree:
    """What `net up` builds. Raises InvalidTopology for what is no tree, or too large a one."""

    def __init__(self, hosts: int, racks: int, spines: int = 0, cores: int = 0) -> None:
        if hosts < 1 or max(hosts, racks, spines, cores) > NUMBER_MAX:
            raise InvalidTopology(
                f"1 to {NUMBER_MAX} hosts, and at most {NUMBER_MAX} racks, spines and cores are "
                "possible"
            )
        if hosts + racks + spines + cores > NODES_MAX:
            raise InvalidTopology(f"at most {NODES_MAX} hosts and switches are possible")
        self.topology = Topology.tree(racks, spines, cores)
        self.hosts: Sequence[Node] = [_host(number, racks) for number in range(hosts)]
        #: The switches by their ids.
        self.switches: Mapping[int, Node] = {
            id: _switch(one) for id, one in self.topology.switches.items()
        }
        self.nodes: Mapping[str, Node] = {
            one.name: one for one in (*self.hosts, *self.switches.values())
        }

    @cached_property
    def cables(self) -> Sequence[Cable]:
        """All links that data cross, those of hosts first."""
        found = []
        for host in self.hosts:
            rack = self.switches[self.topology.switch_of_rack(host.number % self._racks).id]
            found.append(Cable(Port(host, HOST_DEVICE, rack), Port(rack, host.name, host)))
        for link in self.topology.links:
            lower, upper = self.switches[link.lower], self.switches[link.upper]
            found.append(Cable(Port(lower, upper.name, upper), Port(upper, lower.name, lower)))
        return found

    @cached_property
    def ports(self) -> Mapping[str, Sequence[Port]]:
        """The devices of each node that lead to others."""
        found: dict[str, list[Port]] = {name: [] for name in self.nodes}
        for cable in self.cables:
            for port in (cable.lower, cable.upper):
                found[port.node.name].append(port)
        return found

    @property
    def _racks(self) -> int:
        return len(self.topology.racks)

    # -- what `ip -batch` takes ----------------------------------------------------------------

    def link_lines(self) -> Iterator[str]:
        """Lines that make all links, from the namespace of the controller."""
        for cable in self.cables:
            ends = [
                f"name {port.device} netns {port.node.name} address {port.mac} {_ONE_QUEUE}"
                for port in (cable.lower, cable.upper)
            ]
            yield f"link add {ends[0]} type veth peer {ends[1]}"
        for node in self.nodes.values():
            device = control_device(node)
            yield f"link add name {device} type veth peer name {CONTROL_DEVICE} netns {node.name}"
            yield f"link set dev {device} up"
            yield f"route add {node.control}/32 dev {device}"

    def controller_lines(self) -> Iterator[str]:
        """Lines that set up the namespace of the controller itself, before its links."""
        yield "link set dev lo up"
        yield f"address add {CONTROLLER}/32 dev lo"

    def node_lines(self, node: Node) -> Iterator[str]:
        """Lines that set up devices, addresses, neighbours and routes of a node, inside it."""
        yield "link set dev lo up"
        yield f"link set dev {CONTROL_DEVICE} up"
        yield f"address add {node.control}/32 dev {CONTROL_DEVICE}"
        yield f"route add {CONTROLLER}/32 dev {CONTROL_DEVICE} src {node.control}"
        yield f"address add {node.address}/32 dev {'lo' if node.tier else HOST_DEVICE}"
        for port in self.ports[node.name]:
            mac = Port(port.far, port.device, node).mac
            yield f"link set dev {port.device} up"
            yield f"route add {port.far.address}/32 dev {port.device} src {node.address}"
            yield f"neighbour add {port.far.address} lladdr {mac} dev {port.device} nud permanent"
        if node.tier:
            id = next(id for id, one in self.switches.items() if one is node)
            yield from self.route_lines(id, self.topology.routes(id))
        else:
            (port,) = self.ports[node.name]
            yield f"route add default via {port.far.address} dev {port.device} onlink"

    def route_lines(self, switch: int, routes: Routes) -> Iterator[str]:
        """Lines that let the kernel of a switch forward to each rack that it can reach."""
        vias = {
            id: f"via {self.switches[id].address} dev {self.switches[id].name} onlink"
            for id in routes
        }
        one, topology = self.topology.switches[switch], self.topology
        return Forwarding(HOSTS_NETWORK).lines(one, topology.racks, routes, vias)


def control_device(node: Node) -> str:
    """The device by which the controller reaches a node."""
    return f"c-{node.name}"


def controller_url(members: int) -> str:
    """The address of a controller of so many members, as programs in the tree take it."""
    ports = range(CONTROLLER_PORT, CONTROLLER_PORT + members)
    return "toc://" + ",".join(f"{CONTROLLER}:{port}" for port in ports)


def described(tree: Tree, commands: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return the tree for JSON. `commands` are the words before a command that runs in a node."""

    def shown(nodes: Iterable[Node]) -> list[dict[str, object]]:
        return [
            {"name": one.name, "address": one.address, "rack": one.rack,
             "run": list(commands[one.name])} for one in nodes
        ]  # fmt: skip

    links = [[cable.lower.node.name, cable.upper.node.name] for cable in tree.cables]
    return {"hosts": shown(tree.hosts), "switches": shown(tree.switches.values()), "links": links}


def announced(facts: Mapping[str, Any], as_json: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield events that tell of a tree that is up, and their facts: for people a line each host."""
    if as_json:
        yield "up", dict(facts)
        return
    for one in facts["hosts"]:
        yield "host", {**one, "run": shlex.join(one["run"])}
    yield "up", {key: facts[key] for key in ("url", "place", "interval_ms", "loss")}


def _host(number: int, racks: int) -> Node:
    rack, serial = number % racks, number // racks + 1
    return Node(f"host-{number}", 0, number, f"10.0.{rack}.{serial}",
                f"10.{_CONTROL}.{rack}.{serial}", rack)  # fmt: skip


def _switch(one: Switch) -> Node:
    name, _, number = name_of_switch(one.id).partition("-")
    tier = _TIERS.index(name)
    rack = int(number) if not one.lower else None
    return Node(one.name, tier, int(number), f"10.{tier}.{number}.1",
                f"10.{_CONTROL + tier}.{number}.1", rack)  # fmt: skip
