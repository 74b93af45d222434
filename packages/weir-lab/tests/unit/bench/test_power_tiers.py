"""The machines of the power cuts with tiers: who they are, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from weir.topology.file import read
from weir_lab.bench.faults.powercut import machines, tiers


class Paper:
    """A machine of which there is nothing but what it was made with."""

    def __init__(
        self, name: str, _: Path, network: object, address: str, command: Sequence[str], up: str
    ) -> None:
        """Keep it."""
        self.name = name
        self.address = address
        self.command = command


@pytest.fixture
def all_tiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tiers.TierMachines:
    """Machines that cannot be booted."""
    monkeypatch.setattr(machines, "Machine", Paper)
    monkeypatch.setattr(tiers, "Machine", Paper)
    return tiers.TierMachines(2, tmp_path, None, never_sync=False)  # type: ignore[arg-type]


def test_each_tier_is_cut_as_often_as_wanted(all_tiers: tiers.TierMachines) -> None:
    dice = Random(1)
    turns = [all_tiers.victims(number, dice) for number in range(all_tiers.rounds(20))]
    assert Counter(one.name for some in turns for one in some) == {
        "core": 20, "tandem": 20, "access": 20,
    }  # fmt: skip


def test_the_access_relay_is_below_the_tandem_relay(all_tiers: tiers.TierMachines) -> None:
    found = read(all_tiers.topology())
    assert found.topology is not None, found.problems
    sets = {one.name: one for one in found.topology.sets}
    assert {name: one.tier for name, one in sets.items()} == {name: name for name in tiers.TIERS}
    assert sets["tandem"].upper == (sets["core"].id,)
    assert sets["access"].upper == (sets["tandem"].id,)


def test_machines_say_who_they_are_in_the_topology(all_tiers: tiers.TierMachines) -> None:
    found = read(all_tiers.topology())
    assert found.topology is not None
    sets = {one.name: one for one in found.topology.sets}
    for one in all_tiers.all:
        words = [*one.command]  # type: ignore[attr-defined]
        (place,) = sets[one.name].nodes
        assert words[words.index("--node") + 1] == str(place.number)
        if one.name == tiers.CORE:
            assert (sets[one.name].id, place.host) == (0, words[words.index("--hosts") + 1])
            continue
        assert words[words.index("--set") + 1] == str(sets[one.name].id)
        assert words[words.index("--host") + 1] == place.host == one.address  # type: ignore[attr-defined]
        assert all_tiers.publish_at in words
    assert all_tiers.consume_at == f"weir://{sets['access'].nodes[0].host}:6800"


def test_bytes_are_counted_over_restarts_of_the_relay() -> None:
    assert tiers.grown({}, {"core": 5}) == {"core": 5}
    assert tiers.grown({"core": 5, "tandem": 7}, {"core": 6, "tandem": 7}) == {
        "core": 1, "tandem": 0,
    }  # fmt: skip
    assert tiers.grown({"core": 5, "tandem": 7}, {"tandem": 3}) == {"tandem": 3}
