"""The tree of `net up`, as `ip` is told of it: addresses, devices and routes."""

from __future__ import annotations

import pytest

from weir_toc.errors import InvalidTopology
from weir_toc.net.network import switch_words
from weir_toc.net.tree import NODES_MAX, Tree, announced, controller_url, described
from weir_toc.places import Place
from weir_toc.topology import Link, switch_id


def lines_of(tree: Tree, name: str) -> list[str]:
    return [*tree.node_lines(tree.nodes[name])]


def test_addresses_can_be_guessed() -> None:
    tree = Tree(8, 4, 2, 1)
    assert {name: node.address for name, node in tree.nodes.items()} == {
        "host-0": "10.0.0.1", "host-1": "10.0.1.1", "host-2": "10.0.2.1", "host-3": "10.0.3.1",
        "host-4": "10.0.0.2", "host-5": "10.0.1.2", "host-6": "10.0.2.2", "host-7": "10.0.3.2",
        "rack-0": "10.1.0.1", "rack-1": "10.1.1.1", "rack-2": "10.1.2.1", "rack-3": "10.1.3.1",
        "spine-0": "10.2.0.1", "spine-1": "10.2.1.1", "core-0": "10.3.0.1",
    }  # fmt: skip
    assert controller_url(2) == "toc://10.9.0.1:7001,10.9.0.1:7002"
    every = [node.address for node in tree.nodes.values()]
    every += [node.control for node in tree.nodes.values()]
    assert len({*every, "10.9.0.1"}) == 2 * len(tree.nodes) + 1


def test_each_link_has_two_ends_that_know_each_other() -> None:
    tree = Tree(8, 4, 2, 1)
    assert len(tree.cables) == 8 + 4 * 2 + 2
    macs = [port.mac for cable in tree.cables for port in (cable.lower, cable.upper)]
    assert len({*macs}) == len(macs)
    for cable in tree.cables:
        for near, far in ((cable.lower, cable.upper), (cable.upper, cable.lower)):
            line = (
                f"neighbour add {far.node.address} lladdr {far.mac} dev {near.device} nud permanent"
            )
            assert line in lines_of(tree, near.node.name)
    (line,) = (line for line in tree.link_lines() if "netns host-5 address" in line)
    assert line == (
        "link add name eth0 netns host-5 address 02:00:05:01:01:00 numtxqueues 1 numrxqueues 1 "
        "type veth peer name host-5 netns rack-1 address 02:01:01:00:05:00 "
        "numtxqueues 1 numrxqueues 1"
    )


def test_packets_go_up_by_all_next_hops_and_down_by_those_that_lead_there() -> None:
    tree = Tree(4, 4, 4, 2)  # two pods
    up = "nexthop via 10.2.0.1 dev spine-0 onlink nexthop via 10.2.1.1 dev spine-1 onlink"
    assert f"route replace 10.0.3.0/24 {up}" in lines_of(tree, "rack-0")
    assert not any("10.0.0.0/24" in line for line in lines_of(tree, "rack-0"))
    assert "route add 10.0.0.1/32 dev host-0 src 10.1.0.1" in lines_of(tree, "rack-0")
    down = "nexthop via 10.1.0.1 dev rack-0 onlink"
    assert f"route replace 10.0.0.0/24 {down}" in lines_of(tree, "spine-0")
    onward = "nexthop via 10.3.0.1 dev core-0 onlink nexthop via 10.3.1.1 dev core-1 onlink"
    assert f"route replace 10.0.2.0/24 {onward}" in lines_of(tree, "spine-0")
    down = "nexthop via 10.2.2.1 dev spine-2 onlink nexthop via 10.2.3.1 dev spine-3 onlink"
    assert f"route replace 10.0.2.0/24 {down}" in lines_of(tree, "core-0")
    assert "route add default via 10.1.2.1 dev eth0 onlink" in lines_of(tree, "host-2")


def test_routes_follow_the_cables_that_are_left() -> None:
    tree = Tree(2, 2, 2)
    rack = switch_id("rack-0")
    cut = frozenset(
        {Link(rack, switch_id("spine-0")), Link(switch_id("rack-1"), switch_id("spine-1"))}
    )
    routes = tree.topology.routes(rack, cut)
    assert [*tree.route_lines(rack, routes)] == ["route replace unreachable 10.0.1.0/24"]
    routes = tree.topology.routes(rack, frozenset({Link(rack, switch_id("spine-0"))}))
    assert [*tree.route_lines(rack, routes)] == [
        "route replace 10.0.1.0/24 nexthop via 10.2.1.1 dev spine-1 onlink"
    ]


def test_what_runs_in_a_switch_depends_on_the_place() -> None:
    tree = Tree(2, 1)
    host, rack = tree.nodes["host-0"], tree.nodes["rack-0"]
    for place in (Place.HOST, Place.SWITCH):
        words = switch_words(tree, rack, place, "toc://x:1")
        assert words[1:] == [
            "-m", "weir_toc", "aggregator", "toc://x:1", "--switch", "rack-0", "--listen",
            "10.1.0.1:7100", "--place", place.value, "--json",
            *(["--forward", "10.0.RACK.0/24"] if place is Place.SWITCH else []),
        ]  # fmt: skip
        assert not switch_words(tree, host, place, "toc://x:1")
    words = switch_words(tree, rack, Place.XDP, "toc://x:1")
    assert words[-2:] == ["--xdp", "host-0,host-1"]
    assert switch_words(tree, host, Place.XDP, "toc://x:1")[-2:] == ["pass", "eth0"]


def test_the_description_has_all_that_a_program_needs() -> None:
    tree = Tree(2, 2, 1)
    found = described(tree, {name: ["in", name] for name in tree.nodes})
    assert found["hosts"] == [
        {"name": "host-0", "address": "10.0.0.1", "rack": 0, "run": ["in", "host-0"]},
        {"name": "host-1", "address": "10.0.1.1", "rack": 1, "run": ["in", "host-1"]},
    ]
    assert found["links"] == [
        ["host-0", "rack-0"], ["host-1", "rack-1"], ["rack-0", "spine-0"], ["rack-1", "spine-0"],
    ]  # fmt: skip


def test_people_are_told_of_a_tree_in_a_line_for_each_host() -> None:
    tree = Tree(2, 2, 1)
    hosts = described(tree, {name: ["in", f"{name} x"] for name in tree.nodes})
    facts = {"url": "toc://x:1", "place": "host", "interval_ms": 5.0, "loss": 0.0, **hosts}
    assert [*announced(facts, as_json=True)] == [("up", facts)]
    assert [*announced(facts, as_json=False)] == [
        ("host", {"name": "host-0", "address": "10.0.0.1", "rack": 0, "run": "in 'host-0 x'"}),
        ("host", {"name": "host-1", "address": "10.0.1.1", "rack": 1, "run": "in 'host-1 x'"}),
        ("up", {"url": "toc://x:1", "place": "host", "interval_ms": 5.0, "loss": 0.0}),
    ]


@pytest.mark.parametrize("shape", [
    (0, 1), (251, 1), (1, 251, 1), (1, 2), (1, 1, 0, 1), (250, 200, 1), (-1, 1), (1, 0),
])  # fmt: skip
def test_what_is_no_tree_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTopology):
        Tree(*shape)
    assert Tree(250, NODES_MAX - 251, 1)
