"""Whatever the power, the process and the disk do, the log keeps what it promised and no more.

What drives it, and what it is held against, is in `rigs/log_driver.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rigs.logs import KEEP_GROUP
from weir.codec import Buffer
from weir.storage import log as log_module
from weir.storage.format import record
from weir.storage.format.checkpoint import Kept
from weir.storage.format.durable_position import DurablePosition
from weir.storage.format.frame import Frame
from weir.storage.group_index import GroupIndex, GroupTable
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

#: What the first and only part says of itself.
_FIRST = (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_log_keeps_what_it_promised_and_believes_nothing_else(drive: Any, seed: int) -> None:
    drive(seed)


def test_segments_are_used_again_in_these_runs(drive: Any) -> None:
    drivers = [drive(seed) for seed in range(60)]
    assert sum(driver.reused for driver in drivers) > 3
    assert sum(driver.copied for driver in drivers) > 3
    assert sum(driver.installed for driver in drivers) > 3
    assert sum(driver.revived for driver in drivers) > 3


class Careless(SimDisk):
    """The same disk, whose recovery or flush leaves something out."""

    recovering = False


class Unzeroed(Careless):
    """Recovery rewrites what it believed, and leaves what lies behind the tail."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        super().write(name, offset, buffers[:1] if self.recovering else buffers)


class Trusting(Careless):
    """Recovery believes the page cache: it neither rewrites nor syncs (counterexample 9)."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        if not self.recovering:
            super().write(name, offset, buffers)

    def sync(self, name: str) -> None:
        if not self.recovering:
            super().sync(name)


class Unsynced(Careless):
    """A flush counts as durable without a sync."""

    def sync(self, name: str) -> None:
        if self.recovering:
            super().sync(name)


def careless(disk: Careless, settings: Settings, durable: int) -> Recovered:
    disk.recovering = True
    try:
        return recover(disk, settings, durable)
    finally:
        disk.recovering = False


@pytest.mark.parametrize("disk", [Unzeroed, Trusting, Unsynced])
def test_a_planted_bug_is_found(drive: Any, disk: type[Careless]) -> None:
    assert drive.caught(500, careless, disk)


def test_a_mark_ahead_of_what_is_durable_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = log_module.mark_frame

    def boastful(generation: int, position: int, durable: int, bound: int) -> tuple[bytes, bytes]:
        return honest(generation, position, durable + 512, bound)

    monkeypatch.setattr(log_module, "mark_frame", boastful)
    assert drive.caught(100)


def test_a_durable_position_ahead_of_the_log_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DurablePosition.save
    monkeypatch.setattr(DurablePosition, "save", lambda self, end: honest(self, end + 512))
    assert drive.caught(20)


def test_positions_are_saved_in_these_runs(drive: Any) -> None:
    assert sum(drive(seed).saves for seed in range(10)) > 60


def test_a_segment_used_again_although_it_is_to_be_replayed_is_found(
    drive: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GroupIndex, "uses", lambda self, start, end: False)
    assert drive.caught(100)


def test_a_segment_used_again_before_what_supersedes_it_is_durable_is_found(
    drive: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = property(lambda self: -1, lambda self, at: None)
    monkeypatch.setattr(GroupTable, "superseded", never, raising=False)
    assert drive.caught(600)


def test_a_checkpoint_without_hard_states_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(*KEEP_GROUP)

    def forgetful(self: GroupTable, group: int, applied: Mapping[int, int], durable: int) -> Kept:
        return honest(self, group, applied, durable)._replace(term=0, vote=0, fence=0)

    monkeypatch.setattr(*KEEP_GROUP, forgetful)
    assert drive.caught(100)


def test_a_part_of_a_snapshot_believed_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = record.Gathering.take

    def hasty(self: record.Gathering, frame: Frame, payload: memoryview) -> object:
        return honest(self, frame, memoryview(bytes(payload[:40]) + _FIRST + payload[48:]))

    monkeypatch.setattr(record.Gathering, "take", hasty)
    assert drive.caught(200)


def test_a_checkpoint_that_forgets_where_a_group_begins_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(*KEEP_GROUP)

    def forgetful(self: GroupTable, group: int, applied: Mapping[int, int], durable: int) -> Kept:
        return honest(self, group, applied, durable)._replace(floor=0)

    monkeypatch.setattr(*KEEP_GROUP, forgetful)
    assert drive.caught(100)
