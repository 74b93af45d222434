"""Opening a log again: torn tails, damage, old frames, the page cache (counterexamples 8 to 10)."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from weir.errors import Damaged
from weir.storage.errors import ForeignSegment, LogDamaged, UnknownKind
from weir.storage.format.checkpoint import save
from weir.storage.format.frame import HEADER_SIZE, MAGIC, Kind, pack
from weir.storage.format.record import Record
from weir.storage.format.segment import BLOCK, SMALL_FRAME, Segment, pack_header
from weir.storage.group_index import Stored
from weir.storage.log import Log
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import PowerCut, SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
GROUP = 65536


def indexes(recovered: Recovered, group: int = GROUP) -> list[int]:
    found = recovered.groups.get(group)
    rows = range(1, found.last_index + 1) if found else ()
    return [index for index in rows if recovered.log.reader.stored(group, index)]


def only(disk: SimDisk) -> str:
    (name,) = disk.names()
    return name


def test_an_empty_folder_is_a_new_log(disk: SimDisk, small: Settings) -> None:
    recovered = recover(disk, small)
    assert (recovered.groups, recovered.mark, recovered.tail) == ({}, 0, 0)
    assert disk.names() == []


def test_old_frames_of_a_file_used_again_are_not_believed(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """Counterexample 8: sound frames of the previous use, at aligned boundaries."""
    for index in range(1, 5):
        log.append(control(index))
    settle(log)
    name = only(disk)
    again = Segment(name, 2, 0, small.segment_bytes)
    disk.write(name, 0, [pack_header(again, small.log, small.system)])
    disk.sync(name)
    recovered = recover(disk, small)
    assert recovered.groups == {}
    assert recovered.tail == BLOCK


def test_a_copied_frame_is_not_believed_at_another_position(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """Counterexample 8, within one generation."""
    position = log.append(control(1))
    settle(log)
    name = only(disk)
    disk.write(name, log.tail, [disk.read(name, position, SMALL_FRAME)])
    disk.sync(name)
    assert indexes(recover(disk, small)) == [1]


def test_what_a_restart_believed_survives_the_power_cut_behind_it(
    small: Settings, control: Make
) -> None:
    """Counterexample 9: killed between write and sync, believed from the page cache, acked."""
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        log = recover(disk, small).log
        for index in range(1, 20):
            log.append(control(index, b"c" * 100))
        flush = log.next_flush()
        assert flush is not None
        for run in flush.runs:
            assert run.missing is not None
            run.missing.run(disk)
            disk.write(run.name, run.offset, run.buffers)
        disk.kill()
        believed = recover(disk, small)
        assert indexes(believed) == list(range(1, 20))
        disk.crash()
        after = recover(disk, small)
        assert after.groups == believed.groups


def test_a_flipped_bit_anywhere_below_the_mark_is_damage(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """Counterexample 10: every field of a control frame's header. Nobody knows whose it was."""
    position = log.append(control(1))
    settle(log)
    log.mark_idle()
    settle(log)
    name = only(disk)
    for at in range(position, position + HEADER_SIZE):
        disk.flip(name, at, bit=at % 8)
        found = recover(copy.deepcopy(disk), small)
        (damaged,) = found.holes
        assert (damaged.position, damaged.segment) == (position, name)
        assert isinstance(damaged, Damaged)
        assert "restore it from a backup" in str(damaged)
        assert found.groups == {}
        assert found.log.groups.lost_of(65536) is damaged
        disk.flip(name, at, bit=at % 8)
    found = recover(disk, small)
    assert indexes(found) == [1]
    assert found.log.groups.lost_of(131072) is None


def test_a_hole_of_unknown_groups_is_remembered(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """Counterexample 11: a vote may have lain there, also when checkpoints have passed the place.

    A group that begins anew behind it is sound, and so is one that begins there for the first time.
    """
    old, back, new = 65536, 131072, 196608
    log.append(control(1, group=old))
    log.append(control(1, group=back))
    position = log.append(control(1, group=new))
    settle(log)
    log.append(control(2, group=old))
    settle(log)
    log.mark_idle()
    settle(log)
    disk.flip(only(disk), position + 30)
    for _ in range(2):
        found = recover(disk, small)
        assert {g for g, one in found.groups.items() if one.hard_state_lost} == {old, back}
        assert all(one.damage is not None for one in found.groups.values())
        assert found.groups[old].last_index == 2
        assert found.log.groups.lost_of(new) is not None
    found.log.install(back, 1, 1, 1, 1, (b"state",))
    found.log.append(control(1, group=new))
    for _ in range(4):
        found.log.append(control(2, b"c" * 1900, group=back))
        settle(found.log)
    for _ in range(2):
        save(disk, found.log.checkpoint({back: 2, new: 1}, b""))
        found.log.checkpoint_saved()
        disk.crash()
        found = recover(disk, small)
        lost = {g for g, one in found.groups.items() if one.damage and one.hard_state_lost}
        assert lost == {old}
        assert found.log.groups.lost_of(new) is None
        assert found.log.groups.lost_of(4 << 16) is not None
        found.log.groups.know_all()
        assert found.log.groups.lost_of(4 << 16) is None


def test_damage_changes_nothing_on_the_disk(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 12):
        log.append(control(index, b"c" * 1000))
        settle(log)
    spare = log.spares.wants()
    assert spare is not None
    spare.run(disk)
    disk.flip("segment-00000004", 16)
    before = {name: disk.read(name, 0, disk.size(name)) for name in disk.names()}
    with pytest.raises(LogDamaged, match="unreadable"):
        recover(disk, small)
    assert {name: disk.read(name, 0, disk.size(name)) for name in disk.names()} == before


def test_above_the_mark_all_behind_the_first_bad_frame_is_dropped_and_zeroed(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    positions = [log.append(control(index)) for index in range(1, 6)]
    settle(log)
    name = only(disk)
    disk.flip(name, positions[2] + HEADER_SIZE)
    recovered = recover(disk, small)
    assert indexes(recovered) == [1, 2]
    assert recovered.tail == positions[2]
    rest = disk.read(name, positions[2], small.segment_bytes - positions[2])
    assert not any(rest)


def test_a_power_cut_in_a_recovery_does_no_harm(small: Settings, control: Make) -> None:
    for cut in range(40):
        disk = SimDisk(random.Random(cut))
        log = recover(disk, small).log
        for index in range(1, 9):
            log.append(control(index, b"c" * 1000))
        flush = log.next_flush()
        assert flush is not None
        flush.run(disk)
        log.append(control(9, b"d" * 1000))
        last = control(10, b"d" * 1000)
        log.append(last)
        log.flushed(flush)
        torn = log.next_flush()
        assert torn is not None
        for run in torn.runs:
            if run.missing:
                run.missing.run(disk)
            disk.write(run.name, run.offset, run.buffers)
        disk.crash()
        disk.cut_after(cut)
        try:
            first = recover(disk, small)
        except PowerCut:
            disk.crash()
            first = recover(disk, small)
        disk.crash()
        assert indexes(first)[:8] == list(range(1, 9))
        assert recover(disk, small).groups == first.groups


def test_a_flush_over_many_segments_may_lose_any_of_their_headers(
    small: Settings, control: Make
) -> None:
    """A hole in the row above the mark is a torn tail too, and its files are removed."""
    holes = 0
    for seed in range(60):
        disk = SimDisk(random.Random(seed))
        log = recover(disk, small).log
        log.append(control(1))
        flush = log.next_flush()
        assert flush is not None
        flush.run(disk)
        log.flushed(flush)
        for index in range(2, 16):
            log.append(control(index, b"c" * 1000))
        flush = log.next_flush()
        assert flush is not None
        for run in flush.runs:
            if run.missing:
                run.missing.run(disk)
            disk.write(run.name, run.offset, run.buffers)
        disk.crash()
        headers = [any(disk.read(run.name, 0, BLOCK)) for run in flush.runs]
        holes += False in headers and any(headers[headers.index(False) :])
        recovered = recover(disk, small)
        assert indexes(recovered) == list(range(1, len(indexes(recovered)) + 1))
        in_use = [name for name in disk.names() if any(disk.read(name, 0, BLOCK))]
        assert len(in_use) == 1 + recovered.tail // small.segment_bytes
        disk.crash()
        assert recover(disk, small).groups == recovered.groups
    assert holes > 5


def test_an_end_without_a_next_segment_is_written_anew(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 4):
        log.append(control(index, b"c" * 1000))
    settle(log)
    log.append(control(4, b"c" * 1000))
    settle(log)
    disk.remove("segment-00000002")
    recovered = recover(disk, small)
    assert indexes(recovered) == [1, 2, 3]
    assert not any(disk.read(only(disk), recovered.tail, SMALL_FRAME))
    small_one, large_one = control(4), control(5, b"c" * 1000)
    recovered.log.append(small_one)
    recovered.log.append(large_one)
    settle(recovered.log)
    assert indexes(recover(disk, small)) == [1, 2, 3, 4, 5]


def test_a_header_torn_above_the_mark_is_a_torn_tail(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    """A process killed in the middle of its first write to a segment."""
    for index in range(1, 4):
        log.append(control(index, b"c" * 1000))
    settle(log)
    log.append(control(4, b"c" * 1000))
    flush = log.next_flush()
    assert flush is not None
    for run in flush.runs:
        if run.missing:
            run.missing.run(disk)
        disk.write(run.name, run.offset, [b"".join(run.buffers)[: 20 if run.missing else None]])
    disk.kill()
    assert indexes(recover(disk, small)) == [1, 2, 3]


def test_a_strangers_segment_is_refused(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    for other in (replace(small, system=78), replace(small, log=2)):
        with pytest.raises(ForeignSegment, match="its own folder"):
            recover(disk, other)


def test_a_newer_kind_stops_the_log(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    header = pack(1, log.tail, 42, (b"newer!!!",), 8, group=GROUP, index=2)
    disk.write(only(disk), log.tail, [header, b"newer!!!"])
    with pytest.raises(UnknownKind, match="kind 42"):
        recover(disk, small)


def test_other_files_are_left_alone(disk: SimDisk, small: Settings) -> None:
    disk.replace("checkpoint", b"of somebody")
    disk.replace("segment-notes", b"text")
    recover(disk, small)
    assert sorted(disk.names()) == ["checkpoint", "segment-notes"]


def test_a_mark_inside_a_payload_is_not_believed(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    forged = pack(1, 1 << 30, Kind.MARK, ((1 << 29).to_bytes(8, "little"),), 8)
    assert forged.startswith(MAGIC)
    position = log.append(control(1, forged + (1 << 29).to_bytes(8, "little")))
    settle(log)
    disk.flip(only(disk), position)
    assert indexes(recover(disk, small)) == []


def test_the_log_goes_on_with_a_current_mark(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    recovered = recover(disk, small)
    settle(recovered.log)
    again = recover(disk, small)
    assert again.mark == recovered.tail
    assert indexes(again) == [1]
    again.log.append(control(2))
    settle(again.log)
    assert indexes(recover(disk, small)) == [1, 2]


def test_no_object_an_entry_outlives_the_start(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 6):
        log.append(control(index))
    settle(log)
    gc.collect()
    others = {id(one) for one in gc.get_objects() if isinstance(one, Stored)}  # of other tests
    recovered = recover(disk, small)
    assert recovered.groups[GROUP].last_index == 5
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, Stored)]
    assert not [one for one in left if id(one) not in others]
