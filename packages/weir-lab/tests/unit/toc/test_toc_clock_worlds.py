"""Worlds in which clocks are set by a second, or stop."""

from __future__ import annotations

from random import Random

import pytest

from weir_lab.toc.checkers import violations
from weir_lab.toc.clocks import HostClock
from weir_lab.toc.network import Faults
from weir_lab.toc.rest import is_settled
from weir_lab.toc.scenario import CLOCK_FAULTS, drawn, play
from weir_lab.toc.world import Shape, T, World
from weir_toc.clock import Clock
from weir_toc.endpoint.events import Service
from weir_toc.node import SwitchNode

SECOND = 1_000 * T
START = (1 << 48) - 20 * T
QUIET = Faults(delay=50_000, jitter=20_000)


def world_of(seed: int, racks: int = 2) -> World:
    world = World(
        seed,
        Shape(
            racks,
            racks - 1,
            0,
            4,
            QUIET,
            T // 2,
            50,
            start=START,
            skews_switches=True,
        ),
    )
    world.run(10 * T)
    return world


def run(world: World, intervals: int, random: Random) -> None:
    """Let all processes send by both services while time passes."""
    for _ in range(intervals):
        for process in world.hosts:
            to = random.sample([*world.hosts], 2)
            world.send(process, random.choice([*Service]), [(one, b"x") for one in to])
        world.run(T)


@pytest.mark.parametrize("step", [-SECOND, SECOND])
@pytest.mark.parametrize("kind", ["process", "rack", "spine"])
def test_a_clock_that_is_set_by_a_second_removes_nobody(kind: str, step: int) -> None:
    world, random = world_of(1), Random(1)
    node = {"process": 1, "rack": world.hosts[1].switch, "spine": max(world.switches)}[kind]
    run(world, 5, random)
    world.set_clock(node, step)
    run(world, 30, random)
    assert not world.controller.failed
    assert len(world.correct) == 4
    until = step // T if kind == "process" and step > 0 else 0
    world.run((until + 60) * T)
    assert is_settled(world)
    assert violations(world) == []


def test_what_a_process_sends_whose_clock_is_ahead_is_as_late() -> None:
    """What others send is not, also what they send to it."""
    world = world_of(2, racks=1)
    world.set_clock(1, 40 * T)
    world.run(2 * T)
    before = len(world.hosts[2].deliveries)
    world.send(1, Service.RELIABLE, [(2, b"ahead")])
    world.send(3, Service.RELIABLE, [(2, b"on time"), (1, b"on time")])
    world.run(20 * T)
    assert [one.message.payload for one in world.hosts[2].deliveries[before:]] == [b"on time"]
    assert b"on time" in [one.message.payload for one in world.hosts[1].deliveries]
    world.run(25 * T)
    assert world.hosts[2].deliveries[-1].message.payload == b"ahead"


@pytest.mark.parametrize("is_idle", [False, True])
def test_others_go_on_without_a_process_whose_clock_has_stopped(is_idle: bool) -> None:
    world, random = world_of(3), Random(3)
    world.stop_clock(2)
    for _ in range(40):
        if is_idle:
            world.run(T)
        else:
            run(world, 1, random)
    assert [*world.controller.failed] == [2]
    world.run(60 * T)
    assert violations(world) == []


@pytest.mark.parametrize("pause", [0, 40 * T])
def test_a_process_that_nobody_has_heard_ends_if_its_clock_stops(pause: int) -> None:
    """By its clock the time to repeat its wish never comes, and no switch can fence it."""
    world = world_of(5, racks=1)
    switch = world.hosts[1].switch
    world.network.cut |= {(5, switch)}
    assert world.join(0) == 5
    world.run(T // 2)
    world.stop_clock(5)
    world.pause(5, pause)
    world.heal(5, switch)
    assert 5 in world.correct
    world.run((pause and 28 * T) + 8 * T)
    assert 5 in world.correct
    assert "I14 5 has not joined" in " ".join(violations(world))
    world.run(20 * T)
    assert not world.hosts[5].has_joined
    assert world.correct.keys() == {1, 2, 3, 4}
    assert not world.controller.failed
    assert is_settled(world)
    assert violations(world) == []


def test_a_process_whose_clock_stops_before_it_hears_of_its_admission_fails() -> None:
    world, random = world_of(6, racks=1), Random(6)
    switch = world.hosts[1].switch
    world.network.cut |= {(switch, 5)}
    assert world.join(0) == 5
    world.run(T // 2)
    world.stop_clock(5)
    world.heal(5, switch)
    run(world, 40, random)
    assert not world.hosts[5].has_joined
    assert [*world.controller.failed] == [5]
    world.run(60 * T)
    assert violations(world) == []


@pytest.mark.parametrize("seed", range(6, 10))
def test_a_process_ends_whose_clock_stops_before_it_has_passed_its_floor(seed: int) -> None:
    """To the switch it looks like one that waits for its clock, as long as others send to it."""
    world, random = world_of(seed, racks=1), Random(seed)
    assert world.join(0) == 5
    while not world.hosts[5].has_joined:
        world.run(T // 20)
    world.stop_clock(5)
    run(world, 40, random)
    assert [*world.controller.failed] == [5]
    world.run(60 * T)
    assert world.hosts[5].has_recovered
    assert violations(world) == []


def test_others_go_on_without_a_switch_whose_clock_has_stopped() -> None:
    world, random = world_of(4), Random(4)
    switch = world.hosts[1].switch
    world.stop_clock(switch)
    run(world, 120, random)  # the controller waits for its answer in vain
    behind = {process for process, host in world.hosts.items() if host.switch == switch}
    assert {*world.controller.failed} == behind
    world.run(80 * T)
    assert violations(world) == []


def test_seeds_draw_clocks_that_are_set_or_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[tuple[str, bool]] = set()

    def noted(name: str) -> None:
        call = getattr(World, name)

        def note(world: World, node: int, *given: int) -> None:
            kind = name if not given else f"{name} {'ahead' if given[0] > 0 else 'back'}"
            met.add((kind, node in world.switches))
            call(world, node, *given)

        monkeypatch.setattr(World, name, note)

    noted("set_clock")
    noted("stop_clock")
    seeds = [
        seed
        for seed in range(400)
        if not drawn(seed).is_calm and Random(f"faults of clocks {seed}").random() < CLOCK_FAULTS
    ]
    assert 15 < len(seeds) < 60
    assert not any(play(seed).violations for seed in seeds)
    kinds = ("set_clock ahead", "set_clock back", "stop_clock")
    assert met == {(kind, is_switch) for kind in kinds for is_switch in (False, True)}


def test_switches_of_some_worlds_take_beacons_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    call = SwitchNode.receive_beacons

    def counted(node: SwitchNode, now: int, neighbours: list[int], beacons: list[bytes]) -> object:
        taken.append(len(beacons))
        return call(node, now, neighbours, beacons)

    monkeypatch.setattr(SwitchNode, "receive_beacons", counted)
    seeds = [seed for seed in range(20) if drawn(seed).reads_late]
    assert 2 < len(seeds) < 12
    for seed in seeds:
        taken.clear()
        assert not play(seed).violations
        assert max(taken) > 1
    taken.clear()
    play(next(seed for seed in range(20) if not drawn(seed).reads_late))
    assert not taken


@pytest.mark.parametrize("seed", range(20))
def test_a_node_reads_a_clock_over_its_raw_one(seed: int) -> None:
    """Also before somebody sets the raw one: what it has read by then is never taken back."""
    random = Random(seed)
    clock = HostClock(Random(seed), START, 5 * T, 2_000)
    dice = Random(seed)
    offset, drift = dice.randint(-5 * T, 5 * T), dice.randint(-2_000, 2_000)
    over, true = Clock(START + offset), START
    for _ in range(40):
        true += random.randrange(3 * T)
        if random.random() < 0.1:
            step = random.choice((-SECOND, -T, T, SECOND))
            clock.set(step)
            offset += step
        elif random.random() < 0.8:
            raw = true + offset + (true - START) * drift // 1_000_000
            assert clock.now(true) == over.read(raw)
