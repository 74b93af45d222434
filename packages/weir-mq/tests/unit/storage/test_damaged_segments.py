"""Segments that are missing, rotted or cut short below the mark are damage, and told as such."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import Checkpoint, load, save
from weir.storage.format.frame import frame_size
from weir.storage.format.index_file import index_name
from weir.storage.format.record import Record
from weir.storage.format.segment import BLOCK, SMALL_FRAME
from weir.storage.log import Log
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SECTOR, SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
GROUP = 65536


def indexes(recovered: Recovered, group: int = GROUP) -> list[int]:
    found = recovered.groups.get(group)
    rows = range(1, found.last_index + 1) if found else ()
    return [index for index in rows if recovered.log.reader.stored(group, index)]


def only(disk: SimDisk, kind: str = "") -> str:
    (name,) = (name for name in disk.names() if name.startswith(kind))
    return name


def replace_checkpoint(disk: SimDisk, small: Settings) -> None:
    """Give the log a checkpoint, as one that was saved before anything was written."""
    save(disk, Checkpoint(small.log, small.system, 1, 0, 0, {}, (), b""))


def test_a_missing_segment_below_the_mark_is_damage(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 12):
        log.append(control(index, b"c" * 1000))
        settle(log)
    disk.remove("segment-00000002")
    with pytest.raises(LogDamaged, match="missing"):
        recover(disk, small)
    replace_checkpoint(disk, small)
    found = recover(disk, small)
    assert "missing" in str(found.holes[0])
    assert indexes(found) == list(range(1, 12))
    assert found.groups[65536].hard_state_lost
    for index in range(1, 12):
        stored = found.log.reader.stored(65536, index)
        assert stored is not None
        if 4 <= index <= 6:
            with pytest.raises(LogDamaged):
                found.log.reader.load(stored)
        else:
            assert found.log.reader.load(stored) == b"c" * 1000


@pytest.mark.parametrize("name", ["segment-00000001", "segment-00000002", "segment-00000003"])
def test_a_rotted_segment_header_is_damage(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle, name: str
) -> None:
    """Of the last one nobody knows how far it was written; its marks tell that it was in use."""
    for index in range(1, 9):
        log.append(control(index, b"c" * 1000))
        settle(log)
    assert len(disk.names()) == 3
    disk.flip(name, 16)
    with pytest.raises(LogDamaged, match=r"missing|unreadable"):
        recover(disk, small)
    replace_checkpoint(disk, small)
    if name == "segment-00000003":
        with pytest.raises(LogDamaged, match="unreadable"):
            recover(disk, small)
    else:
        found = recover(disk, small)
        assert found.groups[65536].hard_state_lost
        assert found.groups[65536].last_index == 8


def closed(disk: SimDisk, log: Log, control: Make, settle: Settle) -> list[str]:
    """Write three segments, of which two are closed and have index files; return all names."""
    for index in range(1, 9):
        log.append(control(index, b"c" * 1000))
        settle(log)
    log.mark_idle()
    settle(log)
    while chore := log.next_chore():
        chore.run(disk)
    assert len(disk.names()) == 5
    return disk.names()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("name", ["segment-00000001", "segment-00000002"])
def test_what_a_closed_segment_is_tells_its_index_file_too(
    disk: SimDisk,
    log: Log,
    small: Settings,
    control: Make,
    settle: Settle,
    name: str,
    saved: bool,
) -> None:
    """One bit of a header kept a lone node without a checkpoint from starting (seed 9831)."""
    closed(disk, log, control, settle)
    if saved:
        replace_checkpoint(disk, small)
    disk.flip(name, 42)
    for _ in range(2):
        found = recover(disk, small)
        assert found.holes == ()
        assert found.groups[GROUP].damage is None
        for index in range(1, 9):
            stored = found.log.reader.stored(GROUP, index)
            assert stored is not None
            assert found.log.reader.load(stored) == b"c" * 1000
        disk.crash()


def test_an_index_file_of_an_earlier_use_tells_nothing(
    small: Settings, make_node: Callable[..., Any]
) -> None:
    """Or the segment that is written to would pass for one that waits for its next use."""
    node = make_node(small)
    node.round(8)
    listed = load(node.disk).segments
    while index_name(node.log.segments.last.name) not in node.disk.names():
        node.write(1)
    last = node.log.segments.last
    assert last not in listed, "or the checkpoint says what it is"
    node.log.mark_idle()
    flush = node.log.next_flush()
    flush.run(node.disk)
    assert flush.end < last.end
    node.disk.flip(last.name, 39)
    with pytest.raises(LogDamaged, match=f"{last.name}: the header"):
        node.restart()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("how", ["gone", "empty", "zeros"])
def test_the_last_segment_is_missed_by_the_index_file_of_the_one_before(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle, how: str, saved: bool
) -> None:
    """All that was confirmed since the last roll, votes too, was forgotten without a word."""
    (*_, last) = sorted(name for name in closed(disk, log, control, settle) if "segment" in name)
    if saved:
        replace_checkpoint(disk, small)
    if how == "gone":
        disk.remove(last)
    elif how == "empty":
        disk.truncate(last, 0)
    else:
        disk.zero(last)
    before = {name: disk.read(name, 0, disk.size(name)) for name in disk.names()}
    with pytest.raises(LogDamaged, match="behind this segment is missing") as refused:
        recover(disk, small)
    assert refused.value.segment == "segment-00000002"
    assert before == {name: disk.read(name, 0, disk.size(name)) for name in disk.names()}


def test_rot_of_a_closed_segment_is_no_torn_tail_though_no_mark_covers_it(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """The last flush, whole and confirmed, was dropped: only the next one says that it is durable.
    But the index file of a segment that it closed says so, too.
    """
    for index in range(1, 4):
        log.append(control(index, b"c" * 1000))
        settle(log)
    for index in range(4, 10):  # one flush, over the end of a segment
        log.append(control(index, b"c" * 1000))
    settle(log)
    stored = log.reader.stored(GROUP, 4)
    assert stored is not None
    first = log.segments.find(stored.place)
    assert first is not log.segments.last
    disk.flip(first.name, stored.place - first.base + 100)
    assert indexes(recover(copy.deepcopy(disk), small)) == [1, 2, 3], "torn, for all that is known"
    while chore := log.next_chore():
        chore.run(disk)
    found = recover(disk, small)
    assert [hole.position for hole in found.holes] == [stored.position]
    assert indexes(found) == [*range(1, 10)]
    assert found.groups[GROUP].damage is not None
    for index in (1, 2, 3, 5, 6, 7, 8, 9):
        kept = found.log.reader.stored(GROUP, index)
        assert kept is not None
        assert found.log.reader.load(kept) == b"c" * 1000


def test_a_last_segment_with_a_rotten_header_is_named(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """Only the flush that began it was written: its mark is below the segment."""
    (*_, last) = sorted(name for name in closed(disk, log, control, settle) if "segment" in name)
    replace_checkpoint(disk, small)
    behind = BLOCK + frame_size(1000)  # its first entry
    disk.write(last, behind, [bytes(small.segment_bytes - behind)])
    disk.flip(last, 0, 1)
    with pytest.raises(LogDamaged, match="the header of this segment is unreadable") as refused:
        recover(disk, small)
    assert refused.value.segment == last


@pytest.mark.parametrize("left", [8192, 0])
def test_a_start_that_is_refused_names_the_file_that_is_spoilt(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle, left: int
) -> None:
    """Not the sound one behind it (seed 9831)."""
    closed(disk, log, control, settle)
    disk.remove("index-00000001")
    disk.truncate("segment-00000001", left)
    if left:
        disk.flip("segment-00000001", 42)
    with pytest.raises(LogDamaged, match="header of this segment") as refused:
        recover(disk, small)
    assert (refused.value.segment, refused.value.position) == ("segment-00000001", 0)


def test_each_segment_that_is_missing_is_told(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 16):
        log.append(control(index, b"c" * 1000))
        settle(log)
    replace_checkpoint(disk, small)
    for name in ("segment-00000002", "segment-00000004"):
        disk.remove(name)
    found = recover(disk, small)
    told = [(hole.segment, hole.position) for hole in found.holes]
    assert told == [("segment-00000003", 8192), ("segment-00000005", 3 * 8192)]
    for index in range(1, 16):
        stored = found.log.reader.stored(GROUP, index)
        assert stored is not None
        if index in (4, 5, 6, 10, 11, 12):
            with pytest.raises(LogDamaged, match="missing"):
                found.log.reader.load(stored)
        else:
            assert found.log.reader.load(stored) == b"c" * 1000


def test_what_lay_in_the_first_segment_is_refused_when_that_is_missing(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """It was asked for in front of the beginning of a file."""
    closed(disk, log, control, settle)
    save(disk, log.checkpoint({GROUP: 8}, b"state"))
    log.checkpoint_saved()
    disk.remove("segment-00000001")
    found = recover(disk, small)
    assert [hole.segment for hole in found.holes] == ["segment-00000001"]
    stored = found.log.reader.stored(GROUP, 1)
    assert stored is not None
    with pytest.raises(LogDamaged, match=r"position 0 in segment-00000002: .* before"):
        found.log.reader.load(stored)


def test_a_sector_of_zeros_below_the_mark_is_damage(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 4):
        log.append(control(index, b"c" * 900))
        settle(log)
    disk.write(only(disk), BLOCK + SECTOR, [bytes(SECTOR)])
    damage = recover(disk, small).groups[GROUP].damage
    assert damage is not None
    assert damage.position == BLOCK + SMALL_FRAME


def test_two_files_for_the_same_positions_are_damage(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    disk.replace("segment-00000009", disk.read(only(disk), 0, small.segment_bytes))
    with pytest.raises(LogDamaged, match="another file"):
        recover(disk, small)


@pytest.mark.parametrize(
    ("size", "left", "lost"), [(5000, [1, 2], False), (4280, [1, 2], True), (4224, [1], True)]
)
def test_a_segment_cut_short_is_damage(
    disk: SimDisk,
    log: Log,
    small: Settings,
    control: Make,
    settle: Settle,
    size: int,
    left: list[int],
    lost: bool,
) -> None:
    """No mark tells that what is gone was durable, but a log's own files are never shorter."""
    log.append(control(1))
    log.append(control(2))
    settle(log)
    name = only(disk)
    disk.replace(name, disk.read(name, 0, size))
    for _ in range(3):
        found = recover(disk, small)
        assert indexes(found) == left
        assert found.groups[65536].hard_state_lost == lost
        assert disk.size(name) == small.segment_bytes
        found.log.append(control(1, group=131072))
        settle(found.log)
        disk.crash()
    assert not found.groups[131072].hard_state_lost


@pytest.mark.parametrize("size", [BLOCK + 10, BLOCK + 70, 4700])
def test_a_cut_below_a_checkpoint_of_all_that_was_durable_reaches_behind_it(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle, size: int
) -> None:
    """No mark was left that told of what had come since, and groups took part as if nothing had:
    what was confirmed was gone in silence, votes perhaps with it (seeds 1521, 3126 and 7369).
    """
    log.append(control(1, b"c" * 900))
    settle(log)
    log.mark_idle()
    settle(log)
    checkpoint = log.checkpoint({GROUP: 1}, b"state")
    assert checkpoint.replay == checkpoint.durable == log.reader.durable
    save(disk, checkpoint)
    log.checkpoint_saved()
    log.append(control(2))
    settle(log)
    log.mark_idle()
    settle(log)
    disk.truncate(only(disk, "segment"), size)
    for _ in range(3):
        found = recover(disk, small)
        assert found.groups[GROUP].damage is not None
        assert found.groups[GROUP].hard_state_lost
        assert found.tail > checkpoint.replay
        disk.crash()
