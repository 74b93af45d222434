"""`weir bench tiers`: what it refuses, and how it tells that relays fall behind."""

from __future__ import annotations

import json

import pytest

from weir.cli.main import main
from weir_lab.bench.tiers import Settings, lags


@pytest.mark.parametrize(
    "wrong", [{"depth": 0}, {"rate": 1}, {"seconds": 3}, {"size": 7}, {"batch": 0}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, int]) -> None:
    Settings().check()
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        Settings(**wrong).check()


@pytest.mark.parametrize(
    ("each", "found"),
    [
        ([0] * 8, (0, 0, 0)),
        ([900, 0, 0, 0, 0, 0, 0, 0], (0, 0, 0)),
        ([100, 100, 100, 100, 100, 100, 600, 600], (100, 600, 0)),
        ([0, 100, 200, 300, 400, 500, 900, 900], (250, 900, 1)),
        ([5], (5, 5, 0)),
    ],
    ids=["none", "at first", "on its way", "growing", "one"],
)
def test_relays_fall_behind_if_they_lack_more_and_more(
    each: list[int], found: tuple[float, float, int]
) -> None:
    assert lags(each, 1_000) == found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_chain_of_relays_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "tiers", "--depth", "2", "--rate", "1000", "--seconds", "4", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["depth"]) == ("weir.bench.tiers/1", 2)
    assert told["core"]["messages"] == told["total_last"]["messages"] == 500
    assert told["bulk"]["messages"] == 4_000
    assert told["bulk"]["batches"] == told["bulk"]["delivered"]["messages"] == 40
    assert told["bulk"]["cpu_us_per_batch_and_hop"] > 0
