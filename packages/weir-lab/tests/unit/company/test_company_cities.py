"""Bytes between the core and cities: what cannot be measured, and what is counted."""

from __future__ import annotations

import json
import subprocess

import pytest

from weir.cli.main import main
from weir.server.interpreter import environment, python
from weir_lab.company.cities import CORE, Settings, links, places
from weir_lab.company.sites import OPERATOR


@pytest.mark.parametrize(
    "wrong", [{"cities": 0}, {"readers": 0}, {"rate": 3}, {"seconds": 1}, {"size": 79}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, int]) -> None:
    Settings().check()
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        Settings(**wrong).check()


def test_wrong_options_are_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "tiers", "--cities", "3", "--readers", "0"]) == 2
    assert "readers=0" in capsys.readouterr().err


def test_cities_are_joined_to_the_core_and_not_to_each_other() -> None:
    settings = Settings(cities=2)
    assert places(settings) == [OPERATOR, CORE, "city-1", "city-2"]
    found = links(settings)
    assert {pair for pair in found if OPERATOR not in pair} == {
        (CORE, "city-1"), ("city-1", CORE), (CORE, "city-2"), ("city-2", CORE),
    }  # fmt: skip
    assert found[CORE, "city-1"].delay_ms == 10


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_readers_at_relays_cost_the_backbone_less() -> None:
    words = ("--cities", "2", "--readers", "5", "--seconds", "3", "--rate", "60", "--json")
    done = subprocess.run(
        python("weir.cli", "bench", "tiers", *words), capture_output=True, text=True,
        env=environment(), timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["schema"] == "weir.bench.tiers-cities/1"
    assert [told[one] for one in ("lost", "repeated", "out_of_order", "differing")] == [0] * 4
    assert (told["messages"], told["direct"]["matching"]) == (180, 2 * 120 * 1_000)
    assert told["direct"]["delivery"]["messages"] == 2 * 5 * 120
    assert told["ratio"] == told["relays"]["moved"] / told["direct"]["moved"]
    assert told["relays"]["moved"] > told["relays"]["matching"]
    assert told["direct"]["moved"] > 5 * told["direct"]["matching"], "each reader gets its own"
    assert told["ratio"] < 0.6
