"""Worlds in which a part of the network is cut off while its cables to others are whole."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from weir_lab.toc.checkers import violations
from weir_lab.toc.network import Faults
from weir_lab.toc.rest import is_settled
from weir_lab.toc.world import Shape, T, World
from weir_toc.endpoint.events import Service

#: Cables that are cut: pairs of the index of a rack and of a spine.
SPINE_WITHOUT_RACKS = Shape(racks=2, spines=2, cores=1, is_calm=True), [(0, 1), (1, 1)]
RACK_BESIDE_ANOTHER = Shape(racks=3, spines=2, processes=6, is_calm=True), [(0, 0), (2, 1)]


def oldest(world: World) -> int:
    """Return how many intervals the oldest commit barrier lags."""
    commits = [host.endpoint.barriers[1] for host in world.correct.values()]
    return (world.network.now - min(commits)) // T


@pytest.mark.parametrize(("shape", "cut"), [SPINE_WITHOUT_RACKS, RACK_BESIDE_ANOTHER])
def test_what_is_cut_off_joins_others_once_it_can_go_on(
    shape: Shape, cut: list[tuple[int, int]]
) -> None:
    """It stands still, and would hold commit barriers back each time that it joins."""
    world = World(1, shape)
    world.run(20 * T)
    racks = [world.topology.switch_of_rack(rack).id for rack in range(shape.racks)]
    spines = world.topology.switches[racks[0]].upper
    cables = [(racks[rack], spines[spine]) for rack, spine in cut]
    for cable in cables:
        world.cut(*cable)
    world.run(100 * T)
    ages = []
    for _ in range(50):
        world.run(5 * T)
        ages.append(oldest(world))
    assert max(ages) < 5
    for cable in cables:
        world.heal(*cable)
    world.run(100 * T)
    assert not world.controller.racks_cut_off()
    for id in world.switches:
        assert world.controller.current_routes(id) == world.topology.routes(id)
        assert all(one.live for one in world.switches[id].registers().values())
    assert oldest(world) < 5
    last = world.join(shape.racks - 1)
    world.run(20 * T)
    first = min(world.correct)
    for source, to in ((first, last), (last, first)):
        world.send(source, Service.RELIABLE, [(to, b"back")])
    world.run(20 * T)
    for process in (first, last):
        assert [one.message.payload for one in world.hosts[process].deliveries] == [b"back"]


class _Behind(Random):
    """Dice that put a clock as far behind as it may be."""

    def randint(self, a: int, b: int) -> int:
        return a


@pytest.mark.parametrize("skew", [0, 60 * T])
@pytest.mark.parametrize("seed", range(3))
def test_processes_join_a_rack_that_comes_back_while_its_cable_is_behind(
    seed: int, skew: int
) -> None:
    """What they send before others have waited for their barriers is delivered by all or none."""
    shape = Shape(racks=2, spines=1, faults=Faults(delay=5_000, jitter=1_000))
    world, random = World(seed, shape), Random(seed)
    world.run(20 * T)
    rack = world.topology.switch_of_rack(1).id
    (spine,) = world.topology.switches[rack].upper
    world.cut(rack, spine)
    world.run(60 * T)
    assert world.controller.racks_cut_off() == {1}
    world.heal(rack, spine)
    world.run(T)
    while not world.switches[spine].registers()[rack].is_behind:
        world.run(T // 4)
    while world.controller.racks_cut_off():
        world.run(T // 4)
    dice, world.random, world.shape = world.random, _Behind(), replace(shape, skew=skew)
    new = [world.join(1) for _ in range(2)]
    world.random = dice
    assert world.switches[spine].registers()[rack].is_behind
    for _ in range(100):
        here = sorted(world.correct)
        source, service = random.choice(here), random.choice([*Service])
        world.send(source, service, [(to, b"x") for to in here])
        world.run(T // 2)
    world.run(200 * T)
    assert world.correct.keys() >= {*new}
    assert all(world.hosts[process].deliveries for process in new)
    assert not violations(world)


@pytest.mark.parametrize("both", [False, True])
def test_a_process_that_joins_by_a_cut_cable_is_awaited_once_that_heals(both: bool) -> None:
    world = World(1, Shape(racks=1, faults=Faults(delay=50_000, jitter=20_000)))
    world.run(10 * T)
    switch = world.hosts[1].switch
    world.network.cut |= {(5, switch), (switch, 5)} if both else {(5, switch)}
    assert world.join(0) == 5
    world.run(30 * T)
    assert world.correct.keys() == {1, 2, 3, 4}
    assert is_settled(world)
    assert violations(world) == []
    world.heal(5, switch)
    assert "I14 5 has not joined" in " ".join(violations(world))
    world.run(20 * T)
    assert world.hosts[5].has_joined
    assert world.correct.keys() == {1, 2, 3, 4, 5}
    assert violations(world) == []


@pytest.mark.parametrize("seed", [1, 2, 5, 7])
def test_a_process_answers_failures_that_it_was_told_of_before_it_had_joined(seed: int) -> None:
    """Its switch counts it as an input, and it does not hear of that before its cable is whole."""
    faults = Faults(delay=50_000, jitter=20_000)
    world = World(seed, Shape(racks=1, spines=0, processes=3, faults=faults))
    world.run(10 * T)
    switch = world.hosts[1].switch
    world.crash(3)
    world.run(8 * T)
    world.network.cut |= {(switch, 4)}
    assert world.join(0) == 4
    world.run(8 * T)
    world.heal(switch, 4)
    world.run(45 * T)
    assert world.hosts[4].has_joined
    assert not world.hosts[4].held
    assert oldest(world) <= 2
    world.run(80 * T)
    assert [*world.controller.failed] == [3]
    assert violations(world) == []
