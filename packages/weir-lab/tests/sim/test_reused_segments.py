"""Runs that write so much and keep so little that segments are used again, under all faults."""

from __future__ import annotations

import os

import pytest

from weir.broker.produce import appender
from weir.storage.segment_lifecycle import SegmentLifecycle
from weir.storage.segment_scan import Scan
from weir.testing.simulator.world import MS
from weir_lab.sim.run import run_seeds
from weir_lab.sim.shape import Shape

SEEDS = int(os.environ.get("WEIR_REUSE_SEEDS", "4"))
SHAPE = Shape(faults_until=2_500 * MS, batches=90, device_messages=60, retentions=(600,))


def test_every_promise_is_kept_while_segments_are_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[str] = []
    known: list[str] = []
    saved, taken = SegmentLifecycle.saved, Scan.known

    def save(self: SegmentLifecycle) -> None:
        freed.extend(segment.name for segment in self._planned)
        saved(self)

    def take(self: Scan, *arguments: object) -> None:
        known.append("by its index file")
        taken(self, *arguments)  # type: ignore[arg-type]

    # Small segments take small entries only.
    monkeypatch.setattr(appender, "ENTRY_BYTES_MAX", 5_000)
    monkeypatch.setattr(SegmentLifecycle, "saved", save)
    monkeypatch.setattr(Scan, "known", take)
    broken = [one.report() for one in run_seeds(0, SEEDS, SHAPE) if one.violations]
    assert not broken, "\n\n".join(broken[:3])
    assert 2 * len(freed) > SEEDS
    assert len(known) > SEEDS
