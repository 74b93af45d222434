"""Switches and clocks that cannot be right: those of processes stop, and their own one leaps."""

from __future__ import annotations

import pytest

from rigs.one_rack import T
from weir_toc import packet as wire
from weir_toc.clock import Clock
from weir_toc.node import SILENT_INTERVALS, Effect, Silent, SwitchConfig, SwitchNode
from weir_toc.packet import Packet
from weir_toc.topology import Topology, process_id

START = ((1 << 48) - 1_000_000_000) // T * T
SECOND = 1_000 * T
A, B = process_id(0, 1), process_id(0, 2)


class Rack:
    """The switch of a rack with A and B, of which A does as it should."""

    def __init__(self) -> None:
        topology = Topology.tree(1)
        config = SwitchConfig(interval=T)
        self.now = START
        self.node = SwitchNode(topology.switch_of_rack(0), topology, START, config)
        self.take(A, wire.JOIN)
        self.take(A, wire.BEACON, START)

    def take(self, process: int, opcode: int, barrier: int = 0) -> list[Effect]:
        packet = Packet(opcode, process, barrier=barrier, commit=barrier, epoch=1)
        return self.node.receive(self.now, process, wire.encode(packet))

    def run(self, intervals: int, barrier: int, rise: int = 0) -> list[Silent]:
        """Let B send beacons whose barrier rises by so much in each interval."""
        found: list[Effect] = []
        for _ in range(intervals):
            self.now += T
            barrier += rise
            self.take(A, wire.BEACON, self.now)
            self.take(B, wire.BEACON, barrier)
            found += self.node.tick(self.now)
        return [one for one in found if isinstance(one, Silent)]


def joined() -> Rack:
    rack = Rack()
    rack.take(B, wire.JOIN)
    assert rack.run(3, START + 1, T) == []
    return rack


@pytest.mark.parametrize("rise", [0, 1, T // 20])
def test_a_process_whose_clock_stops_is_fenced_while_its_packets_come(rise: int) -> None:
    rack = joined()
    stopped = rack.now
    (silent,) = rack.run(SILENT_INTERVALS + 2, stopped, rise)
    assert silent.neighbour == B
    assert rack.now - stopped <= (SILENT_INTERVALS + 2) * T
    rack.node.remove(rack.now, B, 1)
    rack.run(1, stopped, rise)
    assert rack.node.up.barrier == rack.node.up.commit == rack.now


@pytest.mark.parametrize("rise", [T * 999 // 1_000, T // 2, T])
def test_a_process_whose_clock_slews_or_is_late_is_not(rise: int) -> None:
    rack = joined()
    assert rack.run(5 * SILENT_INTERVALS, rack.now, rise) == []


@pytest.mark.parametrize("sends", [0, 1, 200])
def test_a_process_that_joins_may_send_before_its_clock_has_come_to_its_floor(sends: int) -> None:
    """Its stamps follow each other above the floor, so its barrier is above it as well."""
    rack = Rack()
    rack.run(20, 0)
    rack.take(B, wire.JOIN)
    floor = max(rack.node.up.barrier, rack.node.up.commit)
    assert rack.run(5 * SILENT_INTERVALS, floor, sends) == []
    (silent,) = rack.run(SILENT_INTERVALS + 3, floor + T)  # it came there, and has stopped
    assert silent.neighbour == B


def test_a_process_that_joins_may_stand_until_its_clock_has_come_to_its_floor() -> None:
    rack = Rack()
    rack.run(20, 0)
    rack.take(B, wire.JOIN)
    floor = max(rack.node.up.barrier, rack.node.up.commit)
    assert rack.run(5 * SILENT_INTERVALS, floor) == []
    assert rack.run(5, floor, T) == []
    (silent,) = rack.run(SILENT_INTERVALS + 2, floor + 5 * T)  # and no longer
    assert silent.neighbour == B


def test_the_link_of_a_switch_is_not_fenced_for_a_barrier_that_others_hold_back() -> None:
    topology = Topology.tree(2, 1)
    spine = next(one for one in topology.switches.values() if one.lower)
    node = SwitchNode(spine, topology, START, SwitchConfig(interval=T))
    found: list[Effect] = []
    for interval in range(1, 4 * SILENT_INTERVALS):
        now = START + interval * T
        for below in spine.lower:
            packet = Packet(wire.BEACON, below, barrier=START, commit=START, epoch=1)
            node.receive(now, below, wire.encode(packet))
        found += node.tick(now)
    assert not any(isinstance(one, Silent) for one in found)


def test_a_clock_of_a_switch_that_leaps_makes_no_input_silent() -> None:
    """Nor is one that is silent then found much later."""
    rack = joined()
    rack.now += SECOND
    found = [one for one in rack.node.tick(rack.now) if isinstance(one, Silent)]
    assert found == []
    for _ in range(SILENT_INTERVALS + 2):  # B has been killed
        rack.now += T
        rack.take(A, wire.BEACON, rack.now)
        found += [one for one in rack.node.tick(rack.now) if isinstance(one, Silent)]
    assert [one.neighbour for one in found] == [B]


def test_a_switch_that_is_called_a_little_late_each_time_finds_who_is_silent() -> None:
    rack = joined()
    found: list[Silent] = []
    for _ in range(4):
        rack.now += 5 * T
        rack.take(A, wire.BEACON, rack.now)
        found += [one for one in rack.node.tick(rack.now) if isinstance(one, Silent)]
    assert [one.neighbour for one in found] == [B]


def test_a_raw_clock_that_is_set_back_goes_on_from_where_it_was() -> None:
    clock = Clock(START)
    before = clock.read(START + T)
    assert clock.read(START + T - SECOND) == before
    assert clock.read(START + 2 * T - SECOND) == before + T
