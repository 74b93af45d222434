"""What changes from one topology to another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from rigs.topologies import COMPANY, topologies
from weir.topology.difference import difference
from weir.topology.file import read
from weir.topology.sets import Topology


def read_whole(text: str) -> Topology:
    found = read(text).topology
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('home = "beijing"', 'home = "unicom"', ["home: beijing → unicom"]),
        ('name = "unicom"', 'name = "union"', ["~ unicom: name unicom → union"]),
        ('region = "north"', 'region = "n"', ["~ beijing: region north → n"]),
        ('region = "north"\n', "", ["~ beijing: region north → -"]),
        ("4=10.0.0.4", "7=10.0.0.4", ["~ shanghai: nodes 4=10.0.0.4:6800 → 7=10.0.0.4:6800"]),
        ('"mobile", "beijing"', '"mobile"', ["~ shanghai: upper mobile, beijing → mobile"]),
        ('"10G"', '"1G"', ["~ hangzhou: hold_bytes 10737418240 → 1073741824"]),
        (
            'orders = ["hangzhou", ""]',
            'orders = ["hangzhou", "x"]',
            ['~ shanghai: tags of default/orders "", hangzhou → hangzhou, x'],
        ),
        ('"shop/prices" = "*"\n', "", ["~ shanghai: tags of shop/prices all → -"]),
        (
            COMPANY[COMPANY.index("[[set]]\nid = 5") :],
            "",
            [
                "- hangzhou: id 5; access; level 2; nodes 5=[fd00::5]:6800, 6=host6:6800; upper "
                "shanghai"
            ],
        ),
    ],
)
def test_changes_are_told(before: str, after: str, expected: list[str]) -> None:
    assert COMPANY.count(before) == 1
    old, new = read_whole(COMPANY), read_whole(COMPANY.replace(before, after))
    assert [*map(str, difference(old, new))] == expected


def test_a_first_topology_is_all_new() -> None:
    told = [*map(str, difference(Topology(), read_whole(COMPANY)))]
    assert told[0] == "home: - → beijing"
    assert [line[:4] for line in told[1:]] == ["+ be", "+ mo", "+ un", "+ sh", "+ ha"]


@settings(max_examples=40)
@given(topologies(4), topologies(4))
def test_nothing_changes_between_equal_ones_alone(one: Topology, other: Topology) -> None:
    assert difference(one, one) == []

    def meant(topology: Topology) -> object:
        return topology.home, sorted(
            (s.id, s.name, s.tier, s.level, s.region, s.nodes, s.caps.hold_bytes,
             s.tags is None, sorted(str(row) for row in s.tags or ()), s.upper)
            for s in topology.sets
        )  # fmt: skip

    if meant(one) != meant(other):
        # Tags of one topic may be told in another order: that is no change.
        assert difference(one, other) or "tags" in str(other)
