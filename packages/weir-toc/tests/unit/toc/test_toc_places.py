"""The three places of aggregation: who sends where, and what carries barriers."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir_toc.cli import WRONG_USE, main
from weir_toc.errors import InvalidTopology
from weir_toc.forwarding import Forwarding
from weir_toc.places import Place, place_named
from weir_toc.topology import Link, Topology, switch_id


@pytest.mark.parametrize(("name", "is_direct", "barriers_in_data"), [
    ("host", False, True), ("switch", True, False), ("xdp", False, True),
])  # fmt: skip
def test_a_place_says_where_data_go_and_what_they_carry(
    name: str, is_direct: bool, barriers_in_data: bool
) -> None:
    place = place_named(name)
    assert place is Place(name)
    assert (place.is_direct, place.barriers_in_data) == (is_direct, barriers_in_data)


def test_an_unknown_place_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidTopology, match="take one of host, switch, xdp"):
        place_named("nowhere")


@pytest.mark.parametrize("shape", [("--racks", "65", "--spines", "1"),
                                   ("--racks", "2", "--spines", "64")])  # fmt: skip
def test_a_network_with_switches_that_are_too_wide_for_the_kernel_is_not_founded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: tuple[str, ...]
) -> None:
    words = ["controller", "--id", "1", "--members", "toc://127.0.0.1:1", "--folder",
             str(tmp_path), "--place", "xdp"]  # fmt: skip
    assert main([*words, *shape]) == WRONG_USE
    assert "neighbours, and with --place xdp a switch has at most 64" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_more_hosts_than_a_switch_of_the_kernel_can_have_are_not_built(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["net", "up", "--racks", "1", "--spines", "1", "--cores", "0", "--place", "xdp"]
    assert main([*words, "--hosts", "64"]) == WRONG_USE
    assert "rack-0 would have 65 neighbours" in capsys.readouterr().err
    Place.XDP.check(Topology.tree(1, 1), 63)
    Place.HOST.check(Topology.tree(70, 1), 64)


def test_the_kernel_is_told_of_neighbours_that_are_known_and_lead_to_a_rack() -> None:
    topology = Topology.tree(3, 2)
    rack, spines = switch_id("rack-0"), [switch_id("spine-0"), switch_id("spine-1")]
    one = topology.switches[rack]
    forwarding = Forwarding("10.0.RACK.0/24")

    def told(vias: dict[int, str], *dead: Link) -> list[str]:
        routes = topology.routes(rack, frozenset(dead))
        return [*forwarding.lines(one, topology.racks, routes, vias)]

    vias = {spine: f"via 10.2.{number}.1" for number, spine in enumerate(spines)}
    assert told(vias) == [
        f"route replace 10.0.{number}.0/24 nexthop via 10.2.0.1 nexthop via 10.2.1.1"
        for number in (1, 2)
    ]
    assert told({spines[1]: "via 10.2.1.1"}, Link(switch_id("rack-2"), spines[1])) == [
        "route replace 10.0.1.0/24 nexthop via 10.2.1.1"
    ]  # by which address spine 0 leads to rack 2 is not known yet
    cut = [Link(switch_id("rack-2"), spine) for spine in spines]
    assert told(vias, *cut)[1] == "route replace unreachable 10.0.2.0/24"


@pytest.mark.parametrize(("options", "why"), [
    (["--forward", "10.0.RACK.0/24"], "does not forward"),
    (["--place", "switch", "--forward", "10.0.0.0/24"], "RACK"),
    (["--place", "switch", "--forward", "10.0.RACK.0/24\nlink"], "RACK"),
])  # fmt: skip
def test_a_network_that_cannot_be_forwarded_is_refused(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["aggregator", "toc://127.0.0.1:1", *options]) == WRONG_USE
    assert why in capsys.readouterr().err
