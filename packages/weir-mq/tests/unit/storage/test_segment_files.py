"""The reserve: spares outlive a restart, and the log knows how much room it has (DESIGN §4)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from weir.storage.format.record import Record
from weir.storage.format.segment import BLOCK
from weir.storage.log import Flush, Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings, Spare
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]


def make_spares(log: Log, disk: SimDisk) -> list[Spare]:
    made = []
    while spare := log.spares.wants():
        spare.run(disk)
        log.spares.made(spare)
        made.append(spare)
    return made


def next_flush(log: Log) -> Flush:
    flush = log.next_flush()
    assert flush is not None
    return flush


def test_spares_outlive_a_restart_and_count_when_they_are_zeroed_again(
    disk: SimDisk, log: Log, small: Settings, settle: Settle
) -> None:
    settle(log)
    spares = make_spares(log, disk)
    assert len(spares) == 2
    disk.write(spares[0].name, BLOCK, [b"of a flush that lost its header"])
    again = recover(disk, small).log
    assert {spare.name for spare in spares} < set(disk.names())
    room = again.room_bytes
    assert room < small.segment_bytes
    for _ in range(3):
        disk.fail_next("create", errno.ENOSPC)
    assert make_spares(again, disk) == spares
    disk.crash()
    assert again.room_bytes == room + 2 * small.segment_bytes
    for spare in spares:
        assert not any(disk.read(spare.name, 0, spare.size))


def test_a_kept_spares_folder_entry_is_synced_before_it_is_used(
    small: Settings, control: Make
) -> None:
    """Killed between the sync of a new file and that of its folder."""
    one = replace(small, spares=1)
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        log = recover(disk, one).log
        flush = next_flush(log)
        flush.run(disk)
        log.flushed(flush)
        spare = log.spares.wants()
        assert spare is not None
        disk.cut_after(4)  # names, create, write, sync: the folder's sync does not come
        with pytest.raises(Exception, match="sync folder"):
            spare.run(disk)
        disk.kill()
        log = recover(disk, one).log
        make_spares(log, disk)
        for index in range(1, 6):
            log.append(control(index, b"c" * 1000))
        flush = next_flush(log)
        assert spare.name in [run.name for run in flush.runs]
        flush.run(disk)
        disk.crash()
        assert recover(disk, one).groups[65536].last_index == 5


def test_no_more_files_are_kept_than_are_wanted_and_none_that_is_unfinished(
    disk: SimDisk, log: Log, small: Settings, settle: Settle
) -> None:
    settle(log)
    spares = make_spares(log, disk)
    disk.create("segment-00000077", BLOCK)
    recover(disk, replace(small, spares=1))
    assert sorted(disk.names()) == ["segment-00000001", spares[0].name]
    new = recover(disk, replace(small, spares=0)).log
    assert disk.names() == ["segment-00000001"]
    assert new.spares.wants() is None


def test_a_roll_takes_a_kept_spare_and_its_flush_waits_until_that_is_zeroed(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """A restart on a full disk, so close to the end of a segment that the first flush rolls."""
    settle(log)
    (first, second) = make_spares(log, disk)
    log = recover(disk, small).log
    disk.fail_next("create", errno.ENOSPC)
    for index in range(1, 5):
        log.append(control(index, b"c" * 1000))
    assert log.next_flush() is None
    asked = log.spares.wants()
    assert asked == first
    log.spares.failed(asked)
    assert log.spares.wants() == first, "asked for again"
    assert log.spares.wants() == second
    second.run(disk)
    log.spares.made(second)
    assert log.next_flush() is None
    first.run(disk)
    log.spares.made(first)
    flush = next_flush(log)
    assert [run.name for run in flush.runs][-1] == first.name
    flush.run(disk)
    log.flushed(flush)
    disk.crash()
    assert recover(disk, small).groups[65536].last_index == 4


def test_a_roll_waits_for_a_spare_that_is_being_made(
    disk: SimDisk, log: Log, control: Make, settle: Settle
) -> None:
    """Another file beside it might be one too many for the disk, and its flush waits for ever."""
    settle(log)
    spare = log.spares.wants()
    assert spare is not None
    for index in range(1, 5):
        log.append(control(index, b"c" * 1000))
    assert log.next_flush() is None
    spare.run(disk)
    log.spares.made(spare)
    flush = next_flush(log)
    assert [run.name for run in flush.runs][-1] == spare.name
    assert all(run.missing is None for run in flush.runs)


def test_a_spare_that_could_not_be_made_is_wanted_again_under_another_name(
    disk: SimDisk, log: Log, settle: Settle
) -> None:
    settle(log)
    spare = log.spares.wants()
    assert spare is not None
    disk.fail_next("create", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        spare.run(disk)
    log.spares.failed(spare)
    made = make_spares(log, disk)
    assert len(made) == 2
    assert spare not in made


def test_room_is_the_rest_of_the_last_segment_and_the_ready_spares(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    assert log.room_bytes < small.segment_bytes
    settle(log)
    make_spares(log, disk)
    before = log.room_bytes
    start = log.tail
    log.append(control(1, b"c" * 1000))
    assert before - log.room_bytes == log.tail - start
    while log.room_bytes > small.segment_bytes:
        log.append(control(log.tail, b"c" * 1000, group=log.tail))
    settle(log)
    assert len(disk.names()) == 3, "all of it went into files that were there"
