"""Worlds in which a part of the network is cut off while its cables to others are whole."""

from __future__ import annotations

import pytest

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
