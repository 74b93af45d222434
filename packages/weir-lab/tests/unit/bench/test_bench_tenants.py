"""`weir bench tenants` measures what it says: who floods waits, who is steady does not."""

from __future__ import annotations

import json

import pytest

from weir.cli.main import main
from weir_lab.bench.tenants import Settings, measure


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_lab.bench.tenants._WARM_S", 0.5)


def test_a_flood_waits_and_the_other_is_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "tenants", "--seconds", "2", "--quota", "100000", "--connections", "4"]
    assert main([*words, "--pace", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["throttled_ms"] > 0
    assert found["flood_bytes_per_s"] > 0
    assert found["kept"] == pytest.approx(found["beside"]["per_s"] / found["alone"]["per_s"])
    assert found["share"] == pytest.approx(found["flood_bytes_per_s"] / 100_000)


@pytest.mark.parametrize("change", [{"quota": 1}, {"connections": 0}, {"seconds": 0.1}])
def test_what_cannot_be_measured_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        measure(Settings(**change), print)  # type: ignore[arg-type]
