"""The company's data centres, the links between them, and its topology."""

from __future__ import annotations

import pytest

from weir.topology.file import read
from weir_lab.company.sites import (
    CITIES,
    EVERYBODY,
    OPERATOR,
    SITES,
    Site,
    distance_km,
    is_backbone,
    link,
    links,
    sites,
    topology,
)


def site(name: str) -> Site:
    return next(one for one in SITES if one.name == name)


def test_there_are_three_core_three_tandem_and_six_access_sets() -> None:
    assert [len(sites(tier)) for tier in ("core", "tandem", "access", "office")] == [3, 3, 6, 4]
    assert {one.carrier for one in sites("core")} == {"telecom", "mobile", "unicom"}
    assert [one.city for one in sites("tandem")] == ["beijing", "shanghai", "guangzhou"]
    assert len({one.name for one in SITES}) == len(SITES)
    numbers = [one.number for one in SITES if one.number]
    assert sorted(numbers) == [*range(1, 13)]
    for one in sites("access"):
        assert one.tags == (one.city, EVERYBODY)
        assert [site(upper).carrier for upper in one.upper] == [one.carrier] * 2


def test_distances_are_those_of_a_map() -> None:
    assert distance_km("beijing", "tianjin") == pytest.approx(110, abs=5)
    assert distance_km("beijing", "shanghai") == pytest.approx(1_068, abs=10)
    assert distance_km("shenzhen", "beijing") == pytest.approx(1_944, abs=15)
    assert all(distance_km(one, one) == 0 for one in CITIES)


def test_links_take_as_long_as_light_and_crossings_between_carriers_do() -> None:
    near = link(site("beijing-telecom"), site("beijing-office"))
    assert (near.delay_ms, near.loss, near.rate_mbit) == (0.2, 0, 1_000)
    crossing = link(site("beijing-telecom"), site("beijing-mobile"))
    assert (crossing.delay_ms, crossing.loss) == (2.2, 0.0005)
    far = link(site("beijing-mobile"), site("shanghai-mobile-tandem"))
    assert (far.delay_ms, far.rate_mbit) == (pytest.approx(8.2, abs=0.1), 200)
    found = links()
    assert len(found) == len(SITES) * (len(SITES) - 1) + 2 * len(SITES)
    assert found["beijing-office", OPERATOR] == found[OPERATOR, "beijing-office"]
    for one in found.values():
        one.check()


def test_the_backbone_is_between_cities() -> None:
    assert is_backbone("beijing-telecom", "tianjin-telecom-1")
    assert not is_backbone("beijing-telecom", "beijing-telecom-tandem")
    assert not is_backbone(OPERATOR, "tianjin-telecom-1")


def test_the_topology_has_no_problems() -> None:
    nodes = {
        one.name: [f"{one.number}=10.0.0.{one.number}:1"] for one in SITES if one.tier != "office"
    }
    found = read(topology(nodes, "tiers"))
    assert not found.problems
    assert found.topology is not None
    assert {one.name for one in found.topology.sets} == {*nodes}
