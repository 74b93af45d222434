"""The life of one log alone: segments used again, kills and power cuts."""

from __future__ import annotations

import pytest

from weir.storage.segment_files import SpareFiles
from weir_lab.sim.scenarios.lone_log import play_log
from weir_lab.sim.shape import NODE


def test_a_log_keeps_what_was_durable_however_often_its_files_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again: list[str] = []
    honest = SpareFiles.recycle

    def recycle(self: SpareFiles, names: list[str]) -> list[str]:
        again.extend(names)
        return honest(self, names)

    monkeypatch.setattr(SpareFiles, "recycle", recycle)
    outcomes = [play_log(seed, NODE) for seed in range(12)]
    assert not [one.report() for one in outcomes if one.violations]
    assert min(one.operations for one in outcomes) >= 200
    assert sum(one.faults for one in outcomes) > 24
    assert len(again) > 100


def test_a_life_replays() -> None:
    assert (
        play_log(3, NODE).trace_hash == play_log(3, NODE).trace_hash != play_log(4, NODE).trace_hash
    )
