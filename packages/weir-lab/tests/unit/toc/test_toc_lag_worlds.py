"""The lag alarm in simulated worlds: it names what lags in time, and nothing in quiet ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
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
    """Reads all links each ten intervals, while processes send: each node in an interval drawn."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.alarm = LagAlarm(world.topology, T)
        self.told: list[Lagging] = []
        self.promises = PromiseAlarm(self.alarm, T)
        self.held: list[Held] = []
        self._ages: dict[int, int] = {}
        self._random = Random(seed)
        self._intervals = 0
        self._phases = {process: self._random.randrange(10) for process in world.hosts}
        #: The last reading of a process, when it ran last, and how late it was since that reading.
        self._readings: dict[int, int] = {}
        self._ran_at = dict.fromkeys(world.hosts, world.network.now)
        self._late = dict.fromkeys(world.hosts, 0)
        random.seed(seed)  # it draws in which intervals each switch reads
        self._switches = {
            id: Alarm(cast(ControlLink, SwitchLink(self, id)), lambda: None)
            for id in world.switches
        }

    def run(self, rounds: int) -> None:
        for _ in range(10 * rounds):
            self.run_interval()

    def run_until_told(self, do: Callable[[int], None]) -> int:
        """Do something before each interval until a link is reported; return how many passed."""
        for interval in range(100):
            do(interval)
            self.run_interval()
            if self.told:
                return interval + 1
        raise AssertionError("nothing was reported")

    def run_interval(self) -> None:
        self._send()
        self.world.run(T)
        self._intervals += 1
        self._watch()
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
            if host.paused_until > now:
                continue
            late = now - self._ran_at[process] - T
            self._ran_at[process] = now
            self._late[process] = max(self._late[process], late)
            number = (self._intervals + self._phases[process]) // 10
            if number == self._readings.get(process, 0):
                continue
            self._readings[process], late = number, self._late[process]
            self._late[process] = 0
            link = host.endpoint.read_link(rack_switch(process))
            links = {link.neighbour: link}
            self.told += self.alarm.read(NodeReading(process, now, host.now(now), late, links))
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


CAUSES = {"pause": Cause.STOPPED, "queue": Cause.QUEUE, "loss": Cause.LOSS}
AT_PROCESSES, AT_SWITCHES = [*CAUSES], ["queue", "loss"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("what", "is_switch"),
    [*((one, False) for one in AT_PROCESSES), *((one, True) for one in AT_SWITCHES)],
)
def test_a_link_whose_packets_come_late_is_named_with_its_cause_and_all_above_it(
    seed: int, what: str, is_switch: bool
) -> None:
    """Its barriers come in jumps, or in a queue; it is never silent for ten intervals."""
    watch = Watch(world := world_of(seed), seed)
    dice = Random(seed)
    watch.run(5)
    for _ in range(dice.randrange(10)):
        watch.run_interval()
    late = dice.choice([*world.hosts])
    rack = rack_switch(late)
    hop = Link(*world.topology.switches[rack].upper, rack) if is_switch else Link(rack, late)
    link = hop.neighbour, hop.node
    # A beacon that is lost as well would make a silence of ten intervals.
    world.network.faults = replace(world.network.faults, loss=0.0)

    def do(interval: int) -> None:
        turn = interval % 9
        if what == "pause" and not turn:
            world.pause(late, 7 * T)
        elif what == "queue":
            world.network.late = {link: 7 * T}
        elif what == "loss" and turn in (0, 7):
            world.network.cut = {link} if not turn else set()

    passed = watch.run_until_told(do)
    assert passed <= 50
    for interval in range(passed, passed + 15):
        do(interval)
        watch.run_interval()
    assert {(one.hop, one.cause) for one in watch.told} == {(hop, CAUSES[what])}
    links = [one.link for one in watch.told]
    assert hop in links
    assert {one.neighbour for one in {*links} - {hop}} <= {rack}
