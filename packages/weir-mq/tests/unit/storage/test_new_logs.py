"""A new log takes little of its disk: a small first segment, and no reserve before it is used."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from weir.storage.errors import BadSettings
from weir.storage.format.record import Record
from weir.storage.format.segment import BLOCK
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
_SMALL, _WHOLE = 8192, 65_536


@pytest.fixture
def small() -> Settings:
    return Settings(
        log=1, system=77, segment_bytes=_WHOLE, entry_bytes_max=2000, first_segment_bytes=_SMALL
    )


def sizes(disk: SimDisk) -> list[int]:
    return [disk.size(name) for name in sorted(disk.names())]


def write(log: Log, control: Make, settle: Settle, indices: range) -> None:
    for index in indices:
        log.append(control(index, b"c" * 1000))
        settle(log)


def make_spares(log: Log, disk: SimDisk) -> int:
    made = 0
    while spare := log.next_spare():
        spare.run(disk)
        log.spares.made(spare)
        made += 1
    return made


def test_a_log_in_which_hardly_anything_is_takes_one_small_file(
    disk: SimDisk, log: Log, small: Settings, settle: Settle, control: Make
) -> None:
    settle(log)
    assert log.next_spare() is None
    assert sizes(disk) == [_SMALL]
    log = recover(disk, small).log
    settle(log)
    assert log.next_spare() is None, "a start is no use"
    assert sizes(disk) == [_SMALL]


def test_the_reserve_comes_as_soon_as_a_part_of_the_first_segment_is_used(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    settle(log)
    before = log.tends_at
    write(log, control, settle, range(1, 2))
    assert log.tail >= before
    assert make_spares(log, disk) == 2
    assert sizes(disk) == [_SMALL, _WHOLE, _WHOLE]
    assert log.tends_at == _SMALL, "the next thing to happen is that the segment is full"
    log.lifecycle.trim()
    log.lifecycle.trim()
    write(log, control, settle, range(2, 12))
    assert [segment.size for segment in log.segments] == [_SMALL, _WHOLE]
    assert log.tends_at == _SMALL + _WHOLE


def test_a_roll_that_comes_before_any_reserve_makes_a_whole_segment(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    write(log, control, settle, range(1, 12))
    assert [segment.size for segment in log.segments] == [_SMALL, _WHOLE]
    disk.crash()
    again = recover(disk, small)
    assert again.groups[65536].last_index == 11
    assert [segment.size for segment in again.log.segments] == [_SMALL, _WHOLE]
    assert again.log.spares.has_begun
    assert make_spares(again.log, disk) == 2


def test_what_a_start_left_of_the_first_file_is_no_spare(small: Settings, settle: Settle) -> None:
    """Killed at each step of the first flush, a log begins with a small file all the same."""
    for steps in range(1, 8):
        disk = SimDisk(random.Random(steps))
        log = recover(disk, small).log
        flush = log.next_flush()
        assert flush is not None
        disk.cut_after(steps)
        try:
            flush.run(disk)
        except Exception:  # the power was cut
            disk.kill()
        log = recover(disk, small).log
        while (flush := log.next_flush()) is not None:
            flush.run(disk)
            log.flushed(flush)
        assert log.next_spare() is None
        assert sizes(disk) == [_SMALL]


def test_a_first_segment_is_used_again_by_nobody(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    write(log, control, settle, range(1, 12))
    log.drop_below(65536, 12)
    log.checkpoint({65536: 11}, b"")
    log.checkpoint_saved()
    names = {segment.name for segment in log.segments}
    removed = [chore for chore in iter(log.next_chore, None) if hasattr(chore, "names")]
    assert [set(chore.names) & names for chore in removed] == [set()]
    assert log.spares.ready_bytes == 0


@pytest.mark.parametrize("first", [BLOCK, _SMALL + 1, _WHOLE + BLOCK])
def test_a_first_segment_that_holds_no_entry_or_more_than_others_is_refused(
    first: int, small: Settings
) -> None:
    with pytest.raises(BadSettings, match="first_segment_bytes"):
        replace(small, first_segment_bytes=first).validate()
