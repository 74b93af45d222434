"""Trees of switches: what is joined to what, routes, and what a cut leaves."""

from __future__ import annotations

import pytest

from weir_toc.errors import InvalidTopology
from weir_toc.topology import Link, Topology, name_of_switch, process_id, rack_of, switch_id


def test_a_process_id_names_its_rack() -> None:
    assert rack_of(process_id(3, 7)) == 3
    for rack, serial in ((-1, 1), (0, 0), (1 << 15, 1), (0, 1 << 16)):
        with pytest.raises(InvalidTopology):
            process_id(rack, serial)


def test_one_rack_needs_no_spine() -> None:
    topology = Topology.tree(1)
    assert topology.links == ()
    assert topology.longest_path == 2
    assert topology.switch_of_rack(0).name == "rack-0"


def test_several_switches_upward() -> None:
    topology = Topology.tree(racks=4, spines=2, cores=1)
    assert len(topology.links) == 4 * 2 + 2
    assert len(topology.switch_of_rack(2).upper) == 2
    assert topology.longest_path == 6


def test_cores_join_two_pods() -> None:
    topology = Topology.tree(racks=4, spines=4, cores=2)
    rack = topology.switch_of_rack(0)
    spine = topology.switches[rack.upper[0]]
    assert spine.racks == {0, 1}
    assert set(spine.next_hops(process_id(3, 1), topology.routes(spine.id), True)) == {*spine.upper}
    assert spine.next_hops(process_id(3, 1), topology.routes(spine.id), False) == []
    core = topology.switches[spine.upper[0]]
    assert core.racks == {0, 1, 2, 3}
    hops = core.next_hops(process_id(3, 1), topology.routes(core.id), False)
    assert hops
    assert all(3 in topology.switches[hop].racks for hop in hops)


def test_a_cut_takes_away_what_leads_through_it() -> None:
    topology = Topology.tree(racks=2, spines=2)
    rack, spine = topology.switch_of_rack(1), topology.switches[topology.links[0].upper]
    cut, other = frozenset({Link(rack.id, spine.id)}), topology.links[1].upper
    assert topology.routes(spine.id)[rack.id] == {1}
    assert topology.routes(spine.id, cut)[rack.id] == frozenset()
    near = topology.switch_of_rack(0)
    assert set(near.next_hops(process_id(1, 1), topology.routes(near.id), True)) == {*near.upper}
    assert near.next_hops(process_id(1, 1), topology.routes(near.id, cut), True) == [other]


def test_what_cannot_go_down_here_goes_round() -> None:
    topology = Topology.tree(racks=2, spines=2, cores=1)
    rack, spine = topology.switch_of_rack(1), topology.switches[topology.links[0].upper]
    cut = frozenset({Link(rack.id, spine.id)})
    routes = topology.routes(spine.id, cut)
    assert spine.next_hops(process_id(1, 1), routes, may_rise=True) == list(spine.upper)
    assert spine.next_hops(process_id(1, 1), routes, may_rise=False) == []


@pytest.mark.parametrize(("racks", "spines", "cores"), [(0, 0, 0), (2, 0, 0), (1, 0, 1)])
def test_networks_that_join_nothing_are_refused(racks: int, spines: int, cores: int) -> None:
    with pytest.raises(InvalidTopology):
        Topology.tree(racks, spines, cores)


def test_any_id_of_a_switch_can_be_shown() -> None:
    for name in ("rack-0", "spine-3", "core-65535"):
        assert name_of_switch(switch_id(name)) == name
    assert name_of_switch(switch_id("core-0") + (1 << 16)) == "switch 0x80030000"


def test_a_rack_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidTopology, match="no rack 9"):
        Topology.tree(1).switch_of_rack(9)
