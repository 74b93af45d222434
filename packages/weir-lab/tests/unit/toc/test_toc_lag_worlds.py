"""The lag alarm in simulated worlds: it names what lags in time, and nothing in quiet ones."""

from __future__ import annotations

from random import Random

import pytest

from weir_lab.toc.network import Faults
from weir_lab.toc.world import Shape, T, World
from weir_toc.clock import Clock
from weir_toc.controller.lag import Cause, LagAlarm, Lagging, Link, NodeReading
from weir_toc.endpoint.events import Service
from weir_toc.topology import rack_of, rack_switch

START = (1 << 48) - 2_000 * T


def world_of(seed: int) -> World:
    """Two racks below a spine, two processes each, with some jitter, skew and loss."""
    faults = Faults(delay=50_000, jitter=300_000, loss=0.01)
    return World(seed, Shape(2, 1, 0, 4, faults, T // 4, 50, True, START, 3_500_000, 32_768))


class Watch:
    """Reads all links each ten intervals, while processes send."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.alarm = LagAlarm(world.topology, T)
        self.told: list[Lagging] = []
        self._random = Random(seed)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for _ in range(10):
                self._send()
                self.world.run(T)
            self._read()

    def _send(self) -> None:
        processes = [*self.world.hosts]
        to = self._random.sample(processes, 3)
        service = self._random.choice([*Service])
        self.world.send(self._random.choice(processes), service, [(one, b"x" * 64) for one in to])

    def _read(self) -> None:
        world, now = self.world, self.world.network.now
        for process, host in world.hosts.items():
            link = host.endpoint.read_link(rack_switch(process))
            links = {link.neighbour: link}
            self.told += self.alarm.read(NodeReading(process, now, host.now(now), 0, links))
        for id, node in world.switches.items():
            links = {one.neighbour: one for one in node.read_links(now)}
            self.told += self.alarm.read(NodeReading(id, now, now, 0, links))


def set_back(world: World, process: int, time: int) -> None:
    """Let a process begin anew with a clock that shows less than before."""
    host = world.hosts[process]
    host.offset -= time
    host.clock = Clock(world.network.now + host.offset)


@pytest.mark.parametrize("seed", range(2))
def test_a_quiet_world_reports_nothing(seed: int) -> None:
    watch = Watch(world_of(seed), seed)
    watch.run(30)
    assert watch.told == []


@pytest.mark.parametrize("seed", range(2))
def test_a_clock_that_falls_behind_is_named_within_fifty_intervals(seed: int) -> None:
    watch = Watch(world := world_of(seed), seed)
    watch.run(5)
    late = Random(seed).choice([*world.hosts])
    for _ in range(7):  # its beacons must not stop for ten intervals
        set_back(world, late, T)
        world.run(2 * T)
    watch.run(4)
    first = watch.told[0]
    assert first.hop == Link(rack_switch(late), late)
    assert first.cause is Cause.CLOCK
    assert {one.hop for one in watch.told} == {first.hop}
    assert first.link.node == rack_switch(late)
    assert rack_of(first.link.neighbour) == rack_of(late)
    set_back(world, late, -7 * T)
    watch.run(4)
    assert watch.alarm.lagging == {}
    assert watch.told[-1].is_over
