"""The lag alarm in simulated worlds: it names what lags in time, and nothing in quiet ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from weir_lab.toc.network import Faults
from weir_lab.toc.world import Shape, T, World
from weir_toc.controller.codec import reading_from
from weir_toc.controller.lag import Cause, LagAlarm, Lagging, Link, NodeReading
from weir_toc.controller.promises import Held, Promise, PromiseAlarm
from weir_toc.endpoint.events import Service
from weir_toc.hosts.alarm import Alarm
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.udp import UdpSocket
from weir_toc.topology import rack_switch

START = (1 << 48) - 2_000 * T


class RoomySocket:
    """A socket whose kernel has room for all that comes."""

    kernel_drops = 0


NO_DROPS = cast(UdpSocket, RoomySocket())


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
        self.promises = PromiseAlarm(self.alarm, T)
        self.held: list[Held] = []
        self._ages: dict[int, int] = {}
        self._random = Random(seed)
        random.seed(seed)  # it draws in which intervals each switch reads
        self._switches = {
            id: Alarm(cast(ControlLink, SwitchLink(self, id)), lambda: None)
            for id in world.switches
        }

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for interval in range(10):
                self.run_interval(interval)

    def run_until_told(self, do: Callable[[int], None]) -> int:
        """Do something before each interval until a link is reported; return how many passed."""
        for interval in range(100):
            do(interval)
            self.run_interval(interval)
            if self.told:
                return interval + 1
        raise AssertionError("nothing was reported")

    def run_interval(self, interval: int) -> None:
        self._send()
        self.world.run(T)
        self._watch()
        if interval % 10 == 9:
            self._read()

    def _watch(self) -> None:
        for id, alarm in self._switches.items():
            now = self.world.clock_of(id).now(self.world.network.now)
            alarm.watch(self.world.switches[id], now, NO_DROPS)
        for process, host in self.world.hosts.items():
            age = max(0, host.now(self.world.network.now) - host.endpoint.promised)
            self._ages[process] = min(age, self._ages.get(process, age))

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
            age = self._ages.pop(process)
            promise = Promise(host.endpoint.promised, age, *host.endpoint.holds)
            self.held += self.promises.read(process, now, promise)


class SwitchLink:
    """What a switch tells the controller by."""

    def __init__(self, watch: Watch, switch: int) -> None:
        self._watch = watch
        self._switch = switch

    def now(self) -> int:
        world = self._watch.world
        return world.clock_of(self._switch).now(world.network.now)

    def say(self, frame: dict[str, Any]) -> None:
        read = json.loads(json.dumps(frame))  # as it goes to the controller
        reading = reading_from(self._switch, self._watch.world.network.now, read)
        self._watch.told += self._watch.alarm.read(reading)


def set_back(world: World, process: int, time: int) -> None:
    """Let a process begin anew with a clock that shows less than before."""
    clock = world.hosts[process].clock
    clock.set(-time)
    clock.restart(world.network.now)


@pytest.mark.parametrize("seed", range(2))
def test_a_quiet_world_reports_nothing(seed: int) -> None:
    watch = Watch(world_of(seed), seed)
    watch.run(30)
    assert watch.told == []
    assert watch.held == []


@pytest.mark.parametrize("seed", range(6))
def test_a_clock_that_falls_behind_is_named_within_fifty_intervals(seed: int) -> None:
    watch = Watch(world := world_of(seed), seed)
    watch.run(5)
    late = Random(seed).choice([*world.hosts])

    def fall_behind(interval: int) -> None:
        if interval < 14 and interval % 2 == 0:  # its beacons must not stop for ten intervals
            set_back(world, late, T)

    assert watch.run_until_told(fall_behind) <= 50
    watch.run(2)
    hop = Link(rack_switch(late), late)
    assert {one.hop for one in watch.told} == {hop}
    assert {one.cause for one in watch.told} == {Cause.CLOCK}
    links = {one.link for one in watch.told}
    assert hop in links
    assert {one.neighbour for one in links - {hop}} <= {hop.node}  # and what is above
    set_back(world, late, -7 * T)
    watch.run(4)
    assert watch.alarm.lagging == {}
    assert watch.told[-1].is_over


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("what", ["pause", "loss"])
def test_a_link_whose_barriers_come_in_jumps_is_named_within_fifty_intervals(
    seed: int, what: str
) -> None:
    """It is never silent for ten intervals, and often fresh at the moment of a reading."""
    watch = Watch(world := world_of(seed), seed)
    watch.run(5)
    late = Random(seed).choice([*world.hosts])
    hop = Link(rack_switch(late), late)

    def do(interval: int) -> None:
        turn = interval % 9
        if what == "pause" and not turn:
            world.pause(late, 7 * T)
        elif what == "loss" and turn in (0, 7):
            world.network.cut = {(late, hop.node)} if not turn else set()

    assert watch.run_until_told(do) <= 50
    assert {one.hop for one in watch.told} == {hop}
