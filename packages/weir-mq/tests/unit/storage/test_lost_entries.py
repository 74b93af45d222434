"""What stands in for entries that lay in a damaged place, found by simulated bit rot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import Kept, save
from weir.storage.format.frame import Frame, Kind
from weir.storage.format.index_file import is_index
from weir.storage.format.record import HardState, Record
from weir.storage.format.segment import BLOCK
from weir.storage.group_index import GroupIndex, LostEntries
from weir.storage.group_scan import FoundCopies, Joining
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

HOLE = 4_000


def one_lost(first: int = 1) -> GroupIndex:
    """Entry 1 held offsets 0 to 4 and is lost; 2 and 3 are control entries."""
    index = GroupIndex(first)
    index.base = 0
    LostEntries(index).add(1, HOLE, HOLE)
    index.add(2, 1, Kind.CONTROL, 5_000, 40)
    index.add(3, 1, Kind.CONTROL, 5_100, 40)
    return index


def test_a_lost_entry_held_the_messages_and_not_a_control_entry_behind_it() -> None:
    index = one_lost()
    LostEntries(index).hold(1, 5)
    index.add(4, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    for offset in range(5):
        stored, behind = next(index.holding(offset, 4, 1 << 30))
        assert (stored.position, behind) == (HOLE, 5)
    stored, behind = next(index.holding(5, 4, 1 << 30))
    assert (stored.position, behind) == (6_000, 8)


def test_a_lost_entry_that_was_dropped_leaves_no_offset_to_others() -> None:
    index = one_lost()
    index.drop(2)
    LostEntries(index).hold(1, 5)
    index.add(4, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    assert list(index.holding(4, 4, 1 << 30)) == []
    stored, _ = next(index.holding(5, 4, 1 << 30))
    assert stored.position == 6_000


def test_what_is_not_known_to_be_old_does_not_go_by_age() -> None:
    index = one_lost()
    LostEntries(index).hold(1, 5)
    assert index.at_stamp(0, 1 << 30) == (1, 0)
    assert index.at_stamp(1 << 60, 1 << 30) == (1, 0)
    assert index.stamp_of(2) is None


def test_lost_entries_are_as_old_as_the_messages_behind_them_allow() -> None:
    index = one_lost()
    LostEntries(index).hold(1, 5)
    index.add(4, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    assert index.at_stamp(70, 1 << 30) == (1, 0)
    assert index.at_stamp(71, 1 << 30) is None
    assert index.stamp_of(2) == index.stamp_of(6) == 70


def test_rows_of_an_index_file_tell_how_old_a_lost_entry_was() -> None:
    whole = GroupIndex(1)
    whole.add(1, 1, Kind.BATCHES, HOLE, 300, 0, 5, 60)
    whole.add(2, 1, Kind.CONTROL, 5_000, 40)
    whole.add(3, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    index = GroupIndex(1)
    index.base = 0
    LostEntries(index).add(1, HOLE, HOLE)
    LostEntries(index).hold(1, 5)
    index.join(whole.rows(5_000, 7_000))
    assert index.stamp_of(2) == 60
    assert index.at_stamp(61, 1 << 30) == (3, 5)


def test_a_log_goes_on_behind_a_last_segment_of_which_nothing_is_left(
    disk: SimDisk,
    small: Settings,
    log: Log,
    batches: Callable[..., Any],
    settle: Callable[[Log], object],
) -> None:
    log.append(batches(1, 0))
    settle(log)
    log.append(batches(2, 1))
    settle(log)
    save(disk, log.checkpoint({65536: 2}, b"state"))
    log.checkpoint_saved()
    (name,) = (name for name in disk.names() if name.startswith("segment"))
    disk.write(name, BLOCK, [b"\xff" * (log.tail - BLOCK)])
    found = recover(disk, small)
    assert [hole.segment for hole in found.holes] == [name]
    assert found.tail == log.reader.durable
    found.log.append(batches(3, 2))
    settle(found.log)
    again = recover(disk, small).log
    for index in (1, 2):
        lost = again.reader.stored(65536, index)
        assert lost is not None
        with pytest.raises(LogDamaged, match=name):
            again.reader.load(lost)
    there = again.reader.stored(65536, 3)
    assert there is not None
    assert again.reader.load(there)


def test_a_short_file_without_a_header_was_no_unfinished_one(
    disk: SimDisk,
    small: Settings,
    log: Log,
    batches: Callable[..., Any],
    settle: Callable[[Log], object],
) -> None:
    log.append(batches(1, 0))
    settle(log)
    (name,) = (name for name in disk.names() if name.startswith("segment"))
    disk.truncate(name, BLOCK - 1)
    disk.flip(name, 0)
    with pytest.raises(LogDamaged, match=name):
        recover(disk, small)


def test_a_lost_copy_held_the_messages_and_not_a_control_entry_behind_it(
    small: Settings, make_node: Callable[..., Any], batches: Callable[..., Record]
) -> None:
    slow = 2 << 16
    node = make_node(replace(small, cache_bytes_max=0, segment_bytes=16_384))
    node.log.append(batches(1, 0, count=5, group=slow))
    node.log.append(Record(slow, 1, 2, Kind.CONTROL, (b"kept",), 4))
    node.log.append(batches(3, 5, count=3, group=slow))
    node.last[slow] = 3
    node.round(16, 3 << 16)
    stored = node.log.reader.stored(slow, 1)
    (segment,) = node.log.segments.copies
    assert segment.base <= stored.place < segment.end
    node.disk.flip(segment.name, stored.place - segment.base + 70)
    for name in filter(is_index, node.disk.names()):
        node.disk.remove(name)
    node.restart()
    assert node.log.reader.stored(slow, 1).place == stored.place
    for offset in range(5):
        reading = node.log.reader.read(slow, offset, 1, 3)
        assert reading.next_offset == 5
        with pytest.raises(LogDamaged, match=segment.name):
            reading.run(node.disk)
    assert node.log.reader.stamp_of(slow, 0) == node.log.reader.stamp_of(slow, 5) is not None
    reading = node.log.reader.read(slow, 5, 1, 3)
    assert reading.next_offset == 8
    assert len(reading.run(node.disk)) == 1


def test_what_was_lost_and_superseded_hides_nothing_that_was_lost_later() -> None:
    group = 65536
    holes = [LogDamaged(1, "segment", 1_000, "rot")]
    joining = Joining(1, {}, FoundCopies(1, {}), holes, 0)

    def add(index: int, position: int, first: int = -1, behind: int = -1) -> None:
        kind = Kind.CONTROL if first < 0 else Kind.BATCHES
        frame = Frame(position, 40, group, 1, index, kind, first, behind, first)
        joining.add(None, frame, position)

    add(1, 500, 0, 5)
    add(2, 600)
    add(4, 1_100)  # 3 was lost
    add(2, 1_200)  # supersedes all from 2 on
    add(3, 1_300)
    holes.append(LogDamaged(1, "segment", 1_400, "rot"))
    add(5, 1_500)  # 4 was lost
    add(6, 1_600, 8, 9)
    index = joining.index[group]
    stored, behind = next(index.holding(5, 6, 1 << 30))
    assert (stored.index, behind) == (4, 8)


def test_what_only_lost_entries_superseded_is_lost_too() -> None:
    """Or others would be given what never was committed."""
    group = 65536
    holes = [LogDamaged(1, "segment", 1_000, "cut short")]
    # Entry 2 was the first of term 3, and those through 4 were durable when it was let go of.
    kept = {group: Kept(3, 1, 0, start=3, applied=5, base=2, behind=5, last=5, before=3)}
    joining = Joining(1, kept, FoundCopies(1, kept), holes, 2_000)
    for index in (1, 2, 3, 4):
        offset = index - 1
        frame = Frame(400 + index, 40, group, 2, index, Kind.BATCHES, offset, index, offset)
        joining.add(None, frame, frame.position)
    frame = Frame(1_500, 40, group, 3, 5, Kind.BATCHES, 4, 5, 4)
    joining.add(None, frame, frame.position)
    joining.finish()
    index = joining.index[group]
    assert [index.term_of(one) for one in (3, 4, 5)] == [0, 0, 3]
    assert joining.unreadable(group) == 2
    stored, behind = next(index.holding(4, 5, 1 << 30))
    assert (stored.index, behind) == (5, 5)


@pytest.mark.parametrize("saved", [False, True])
def test_the_first_messages_of_a_group_may_be_the_lost_ones(
    disk: SimDisk,
    small: Settings,
    log: Log,
    batches: Callable[..., Any],
    settle: Callable[[Log], object],
    saved: bool,
) -> None:
    """Whoever asks for them is told so, and not that there is nothing."""
    group = 65536
    log.append(Record(group, 1, 1, Kind.NOOP, (b"\0",), 1))
    position = log.append(batches(2, 0, count=12))
    settle(log)
    if saved:
        save(disk, log.checkpoint({group: 1}, b"state"))
        log.checkpoint_saved()
    log.append(batches(3, 12, count=3))
    settle(log)
    log.mark_idle()
    settle(log)
    (name,) = (name for name in disk.names() if name.startswith("segment"))
    disk.flip(name, position + 80)
    found = recover(disk, small)
    assert found.groups[group].damage is not None
    for offset in (0, 5, 11):
        reading = found.log.reader.read(group, offset, 1, 9)
        assert reading is not None
        assert reading.next_offset == 12
        with pytest.raises(LogDamaged, match=name):
            reading.run(disk)
    reading = found.log.reader.read(group, 12, 1, 9)
    assert reading is not None
    assert reading.next_offset == 15
    assert len(reading.run(disk)) == 1


def test_a_hole_that_begins_below_what_must_be_applied_may_reach_into_it(
    disk: SimDisk,
    small: Settings,
    log: Log,
    batches: Callable[..., Any],
    settle: Callable[[Log], object],
) -> None:
    """A file that was cut short took a vote, and an entry that nobody had applied (simulated sets
    916 and 989): the group took part, and stopped the node when it came to that entry.
    """
    group = 65536
    first = log.append(batches(1, 0))
    log.append(batches(2, 1))
    settle(log)
    vote = HardState(7, 2, 0).pack()
    log.append(Record(group, 7, 0, Kind.HARD_STATE, (vote,), len(vote)))
    log.append(batches(3, 2))
    settle(log)
    checkpoint = log.checkpoint({group: 2}, b"state")
    save(disk, checkpoint)
    log.checkpoint_saved()
    (name,) = (name for name in disk.names() if name.startswith("segment"))
    assert first + 8 < checkpoint.replay < log.tail
    disk.truncate(name, first + 8)
    for _ in range(2):
        found = recover(disk, small)
        assert found.groups[group].damage is not None
        assert found.groups[group].hard_state_lost
    found.log.install(group, 3, 7, 3, 7, (b"from another",))
    settle(found.log)
    assert recover(disk, small).groups[group].damage is None
