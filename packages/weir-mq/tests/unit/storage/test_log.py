"""Appending, flushing and rolling."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest

from weir.errors import DiskFailed, TooLarge
from weir.storage.errors import BadRecord, BadSettings
from weir.storage.format.frame import Kind
from weir.storage.format.record import HardState, Record
from weir.storage.format.segment import BLOCK, SMALL_FRAME
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]


def test_one_flush_is_in_flight(log: Log, disk: SimDisk, control: Make) -> None:
    log.append(control(1))
    first = log.next_flush()
    assert first is not None
    log.append(control(2))
    assert log.next_flush() is None
    first.run(disk)
    log.flushed(first)
    second = log.next_flush()
    assert second is not None
    assert second.start == first.end == log.reader.durable


def test_a_flush_is_reported_once(log: Log, disk: SimDisk, control: Make, settle: Settle) -> None:
    log.append(control(1))
    flush = log.next_flush()
    assert flush is not None
    flush.run(disk)
    log.flushed(flush)
    with pytest.raises(ValueError, match="in flight"):
        log.flushed(flush)


def test_tokens_come_in_the_order_of_their_records(log: Log, control: Make, settle: Settle) -> None:
    for index in range(1, 5):
        log.append(control(index), None if index == 2 else f"ready {index}")
    assert settle(log) == ("ready 1", "ready 3", "ready 4")


def test_a_flush_writes_each_segment_once_and_copies_nothing(
    log: Log, control: Make, settle: Settle
) -> None:
    settle(log)
    payload = b"p" * 1000
    record = Record(65536, 1, 1, Kind.CONTROL, (payload,), 1000)
    log.append(record)
    flush = log.next_flush()
    assert flush is not None
    (run,) = flush.runs
    assert any(buffer is payload for buffer in run.buffers)
    assert sum(map(len, run.buffers)) == flush.end - flush.start


def test_positions_rise_and_a_full_segment_ends_with_an_end_frame(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    positions = [log.append(control(index, b"c" * 1000)) for index in range(1, 9)]
    settle(log)
    assert positions == sorted(set(positions))
    assert positions[0] == BLOCK + SMALL_FRAME
    assert len(disk.names()) == 3
    assert positions[3] == small.segment_bytes + BLOCK
    found = [recover(disk, small).log.reader.stored(65536, index) for index in range(1, 9)]
    assert [stored.position for stored in found if stored] == positions


def test_how_much_of_the_last_segment_is_used(log: Log, small: Settings, control: Make) -> None:
    seen = []
    for index in range(1, 9):
        position = log.append(control(index, b"c" * 1000))
        seen.append((position // small.segment_bytes, log.filled))
    assert all(0 < used < 1 for _, used in seen)
    for (segment, before), (other, after) in pairwise(seen):
        assert (after > before) == (segment == other)


def test_a_spare_is_used_before_a_new_file(
    log: Log, disk: SimDisk, control: Make, settle: Settle
) -> None:
    settle(log)
    spare = log.spares.wants()
    assert spare is not None
    other = log.spares.wants()
    assert other is not None
    assert other.name != spare.name
    assert log.spares.wants() is None
    spare.run(disk)
    log.spares.made(spare)
    assert log.spares.wants() is None
    for index in range(1, 6):
        log.append(control(index, b"c" * 1000))
    flush = log.next_flush()
    assert flush is not None
    assert [run.name for run in flush.runs][-1] == spare.name
    assert all(run.missing is None for run in flush.runs)
    assert log.spares.wants() is not None


def test_a_full_disk_leaves_the_flush_to_be_run_again(
    log: Log, disk: SimDisk, small: Settings, control: Make
) -> None:
    log.append(control(1))
    flush = log.next_flush()
    assert flush is not None
    disk.fail_next("create", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        flush.run(disk)
    flush.run(disk)
    log.flushed(flush)
    disk.crash()
    assert recover(disk, small).groups[65536].last_index == 1


def test_a_failed_sync_ends_it(log: Log, disk: SimDisk, control: Make) -> None:
    log.append(control(1))
    flush = log.next_flush()
    assert flush is not None
    disk.fail_next("create", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        flush.run(disk)
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(DiskFailed):
        flush.run(disk)
    assert log.reader.durable == 0


def test_the_idle_mark_makes_the_mark_current_once(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    durable = log.reader.durable
    assert recover(disk, small).mark < durable
    log.mark_idle()
    settle(log)
    log.mark_idle()
    assert log.next_flush() is None
    assert recover(disk, small).mark == durable


def test_an_idle_mark_adds_nothing_to_what_is_staged(log: Log, control: Make) -> None:
    log.append(control(1))
    tail = log.tail
    log.mark_idle()
    assert log.tail == tail


def test_what_does_not_fit_is_refused_before_anything_is_staged(
    log: Log, control: Make, settle: Settle
) -> None:
    settle(log)
    tail = log.tail
    with pytest.raises(TooLarge, match="entry_bytes_max") as refused:
        log.append(control(1, bytes(2001)))
    assert refused.value.detail == 2000
    for record in (
        control(1, b""),
        Record(1, 1, 1, Kind.CONTROL, (b"abc",), 4),
        Record(1, 1, 1, Kind.MARK, (b"abc",), 3),
        Record(1, 1, 1, Kind.END, (b"abc",), 3),
        Record(1, 1, 0, Kind.HARD_STATE, (b"abc",), 3),
    ):
        with pytest.raises(BadRecord):
            log.append(record)
    assert log.tail == tail
    assert log.next_flush() is None


def test_a_gap_is_refused_and_a_lower_index_supersedes(log: Log, control: Make) -> None:
    for index in (5, 6, 7):
        log.append(control(index))
    with pytest.raises(BadRecord, match="entry 9 cannot follow entry 7"):
        log.append(control(9))
    position = log.append(control(6, term=2))
    stored = log.reader.stored(65536, 6)
    assert stored is not None
    assert (stored.term, stored.position) == (2, position)
    assert log.reader.stored(65536, 7) is None
    assert log.reader.stored(65536, 4) is None
    assert log.reader.stored(1, 1) is None


def test_a_hard_state_is_no_entry(log: Log, disk: SimDisk, small: Settings, settle: Settle) -> None:
    for term in (1, 2):
        state = HardState(term, 3, 1 << 60).pack()
        log.append(Record(9, term, 0, Kind.HARD_STATE, (state,), len(state)))
    settle(log)
    group = recover(disk, small).groups[9]
    assert group.hard_state == HardState(2, 3, 1 << 60)
    assert group.last_index == 0


@pytest.mark.parametrize(
    ("segment_bytes", "entry_bytes_max"), [(8192, 2049), (8000, 10), (4096, 16), (8192, 0)]
)
def test_sizes_that_cannot_work_are_refused(
    disk: SimDisk, segment_bytes: int, entry_bytes_max: int
) -> None:
    settings = Settings(1, 1, segment_bytes=segment_bytes, entry_bytes_max=entry_bytes_max)
    with pytest.raises(BadSettings, match="segment_bytes"):
        recover(disk, settings)
    assert disk.names() == []
