"""Runs in which one partition lets go of nearly all and its neighbours keep much, under all faults.

So what is kept outlives the segments that it lies in, and is copied, as often as can be.
"""

from __future__ import annotations

import os

import pytest
from msgspec import structs
from msgspec.structs import replace

from rigs.drawn_mutants import one_in
from weir.broker.partition.retention import Retained, RetentionSweep
from weir.broker.produce import appender
from weir.model.ids import partition_of
from weir.model.limits import KIB
from weir.model.topic import Topic
from weir.storage import compaction
from weir.storage.compaction import ClassSegment, Copies
from weir.storage.format.segment import Segment
from weir.storage.group_scan import FoundCopies
from weir.testing.simulator.world import MS
from weir_lab.sim.run import run_seeds
from weir_lab.sim.shape import Shape

SEEDS = int(os.environ.get("WEIR_COPY_SEEDS", "6"))
SHAPE = Shape(faults_until=2_500 * MS, batches=90, device_messages=60, retentions=(600,))


def test_every_promise_is_kept_while_survivors_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, 0, SEEDS)


@one_in(3)
def test_no_hub_is_refused_before_it_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard refused publishes while the welcome was on its way from another one."""
    play(monkeypatch, 6, 1)


def play(monkeypatch: pytest.MonkeyPatch, first: int, count: int) -> None:
    """Play seeds in which survivors are copied, and judge them."""
    moved: list[int] = []
    found: list[ClassSegment] = []
    retain, saved, read = RetentionSweep.retain, Copies.saved, FoundCopies.read

    def keep(self: RetentionSweep, topic: Topic, partition: Retained) -> None:
        if partition_of(partition.group.id):
            settings = structs.replace(topic.settings, retention_bytes=16 * KIB)
            topic = replace(topic, settings=settings)
        retain(self, topic, partition)

    def save(self: Copies) -> list[Segment]:
        moved.extend(len(move.places) for copy in self._saving.copies for move in copy.moves)
        return saved(self)

    def look(self: FoundCopies, *arguments: object) -> None:
        read(self, *arguments)  # type: ignore[arg-type]
        found.extend(self.segments)

    # Small segments take small entries only; all that is not quite alive is copied.
    monkeypatch.setattr(appender, "ENTRY_BYTES_MAX", 5_000)
    monkeypatch.setattr(compaction, "LIVE_PART", 1)
    monkeypatch.setattr(RetentionSweep, "retain", keep)
    monkeypatch.setattr(Copies, "saved", save)
    monkeypatch.setattr(FoundCopies, "read", look)
    broken = [one.report() for one in run_seeds(first, count, SHAPE) if one.violations]
    assert not broken, "\n\n".join(broken[:3])
    assert sum(moved) > count
    assert found
