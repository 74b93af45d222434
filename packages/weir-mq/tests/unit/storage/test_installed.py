"""Snapshots from a peer in the log: a group begins anew with them, whatever was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.storage.errors import BadRecord
from weir.storage.format.checkpoint import load, save
from weir.storage.format.frame import Kind
from weir.storage.format.index_file import GONE
from weir.storage.format.record import Base, HardState, Installed, Raw, Record, snapshot_records
from weir.storage.log import Log
from weir.storage.recovery import RecoveredGroup, recover
from weir.storage.scrub import ScrubPiece
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
GROUP = 65536
STATE = b"state" * 1000


def indexes(log: Log, group: int = GROUP) -> list[int]:
    return [index for index in range(100) if log.reader.stored(group, index)]


def checkpoint(log: Log, disk: SimDisk, applied: dict[int, int]) -> None:
    save(disk, log.checkpoint(applied, b"body"))
    log.checkpoint_saved()


def promise(log: Log, term: int, group: int = GROUP) -> None:
    data = HardState(term, 2, 0).pack()
    log.append(Record(group, term, 0, Kind.HARD_STATE, (data,), len(data)))


def test_the_bytes_of_a_snapshot_frame_never_change() -> None:
    made = list(
        snapshot_records(GROUP, (9, 4), Base(7, 3), HardState(4, 2, 1), (b"abc", b"de"), 1000)
    )
    assert [b"".join(one.payload).hex() for one in made] == [
        "0700000000000000" "0300000000000000"
        "0400000000000000" "0200000000000000" "0100000000000000"
        "00000000" "01000000" "6162636465"
    ]  # fmt: skip
    assert (made[0].term, made[0].index, made[0].kind) == (4, 9, 8)


def test_a_group_goes_on_behind_an_installed_state(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 9):
        log.append(control(index))
    promise(log, 5)
    log.install(GROUP, 40, 5, 30, 4, (STATE,), "installed")
    assert indexes(log) == []
    for index in (31, 32):
        log.append(control(index, term=4))
    assert settle(log) == ("installed",)
    disk.crash()
    found = recover(disk, small)
    group = found.groups[GROUP]
    assert group == RecoveredGroup(
        HardState(5, 2, 0), 32, None, 30, 4, Installed(40, 5, STATE), False, anew=True
    )
    assert indexes(found.log) == [31, 32]


def test_a_checkpoint_that_holds_the_state_stands_for_it(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    """Also while entries below that state are still being filled in (counterexample 13)."""
    for index in range(1, 9):
        log.append(control(index, b"c" * 1500))
    settle(log)
    log.install(GROUP, 40, 5, 3, 1, (STATE,))
    log.append(control(4))
    settle(log)
    checkpoint(log, disk, {GROUP: 40})
    disk.crash()
    group = recover(disk, small).groups[GROUP]
    assert (group.base_index, group.base_term, group.last_index) == (3, 1, 4)
    assert (group.snapshot, group.damage) == (None, None)


def test_older_entries_do_not_come_back_when_nothing_was_filled_in_yet(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    for index in range(1, 9):
        log.append(control(index))
    settle(log)
    log.install(GROUP, 40, 5, 3, 1, (STATE,))
    settle(log)
    checkpoint(log, disk, {GROUP: 40})
    for _ in range(2):
        disk.crash()
        found = recover(disk, small)
        assert indexes(found.log) == []
        assert (found.groups[GROUP].base_index, found.groups[GROUP].last_index) == (3, 3)


def test_a_segment_stays_while_no_checkpoint_holds_its_snapshot(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    log.install(GROUP, 40, 5, 40, 5, (STATE,))
    other = 2 << 16
    for index in range(1, 30):
        log.append(control(index, b"c" * 1500, group=other))
        settle(log)
    for _ in range(2):
        checkpoint(log, disk, {GROUP: 39, other: 29})
        log.drop_below(other, 29)
    disk.crash()
    found = recover(disk, small)
    assert found.groups[GROUP].snapshot == Installed(40, 5, STATE)
    log = found.log
    before = len(list(log.segments))
    for _ in range(2):
        checkpoint(log, disk, {GROUP: 40, other: 29})
    assert len(list(log.segments)) < before
    disk.crash()
    assert recover(disk, small).groups[GROUP].snapshot is None


def test_a_part_of_a_snapshot_is_none(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    log.mark_idle()
    settle(log)
    position = log.install(GROUP, 40, 5, 40, 5, (STATE,))
    settle(log)
    second = position + small.entry_bytes_max
    while disk.read("segment-00000001", second, 4) != b"WFRM":
        second += 8
    disk.flip("segment-00000001", second + 30)
    found = recover(disk, small)
    assert found.groups[GROUP].last_index == 1
    assert found.groups[GROUP].snapshot is None
    found.log.append(control(2))
    settle(found.log)
    assert recover(disk, small).groups[GROUP].last_index == 2


def test_rot_in_a_snapshot_that_is_needed_damages_its_group_alone(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    position = log.install(GROUP, 40, 5, 40, 5, (b"state",))
    log.append(control(1, group=2 << 16))
    settle(log)
    log.mark_idle()
    settle(log)
    disk.flip("segment-00000001", position + 60)
    groups = recover(disk, small).groups
    assert groups[GROUP].damage is not None
    assert not groups[GROUP].hard_state_lost
    assert groups[2 << 16].damage is None


def test_an_installed_snapshot_mends_a_damaged_group(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    promise(log, 3)
    position = log.append(control(1))
    settle(log)
    log.mark_idle()
    settle(log)
    disk.flip("segment-00000001", position + 60)
    disk.flip("segment-00000001", position - 8)
    log = recover(disk, small).log
    damaged = recover(disk, small).groups[GROUP]
    assert damaged.damage is not None
    assert damaged.hard_state_lost
    log.install(GROUP, 7, 3, 7, 3, (b"state",))
    promise(log, 4)
    settle(log)
    mended = recover(disk, small).groups[GROUP]
    assert (mended.damage, mended.hard_state_lost) == (None, False)
    assert mended.snapshot == Installed(7, 3, b"state")
    assert mended.hard_state == HardState(4, 2, 0)


@pytest.mark.parametrize("saved", [False, True])
def test_a_group_that_was_dropped_may_come_back(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle, saved: bool
) -> None:
    for index in range(1, 9):
        log.append(control(index))
    promise(log, 9)
    settle(log)
    checkpoint(log, disk, {GROUP: 8})
    log.drop_below(GROUP, 5)
    checkpoint(log, disk, {GROUP: 8})
    log.drop_group(GROUP)
    if saved:
        checkpoint(log, disk, {})
        found = load(disk)
        assert found is not None
        assert found.groups[GROUP].start == GONE
    promise(log, 1)
    for index in (1, 2):
        log.append(control(index, b"again"))
    settle(log)
    disk.crash()
    found_again = recover(disk, small)
    assert found_again.groups[GROUP] == RecoveredGroup(HardState(1, 2, 0), 2, anew=True)
    assert indexes(found_again.log) == [1, 2]


def test_a_state_that_stands_on_later_entries_is_refused(log: Log) -> None:
    with pytest.raises(BadRecord, match="cannot stand"):
        log.install(GROUP, 7, 3, 8, 3, (b"state",))
    assert log.reader.stored(GROUP, 7) is None


def test_copies_of_what_a_group_held_do_not_come_back(
    small: Settings, make_node: Callable[..., Any]
) -> None:
    node = make_node(small)
    slow = 2 << 16
    node.round(12, slow)
    assert node.classes()
    count = node.last[slow]
    node.log.install(slow, count + 9, 2, count - 5, 1, (b"state",))
    node.last[slow] = count - 5
    node.append(slow, 60)
    node.last[slow] = count + 9
    node.round(4)
    node.round(4)
    for _ in range(2):
        node.restart()
        assert [i for i in range(count + 10) if node.log.reader.stored(slow, i)] == [count - 4]


def test_a_snapshot_is_scrubbed_as_any_frame(log: Log, disk: SimDisk, settle: Settle) -> None:
    log.install(GROUP, 7, 3, 7, 3, (STATE,))
    log.install(GROUP, 8, 3, 8, 3, (STATE,))
    settle(log)
    found = ScrubPiece(1, next(iter(log.segments))).run(disk)
    assert not found.bad


def test_a_peer_that_lags_is_served_from_memory_and_from_the_disk(
    log: Log, disk: SimDisk, small: Settings, batches: Make, control: Make, settle: Settle
) -> None:
    made = [batches(1, 0), control(2), batches(3, 1), control(4)]
    for record in made:
        log.append(record)
    raw = [Raw(one.index, one.term, one.kind, one.payload, one.size) for one in made]
    assert log.reader.cached(GROUP, 2, 5, 1 << 20) == raw[1:]
    assert log.reader.cached(GROUP, 1, 5, 1) == raw[:1]
    assert log.reader.cached(GROUP, 5, 6, 1 << 20) is None
    assert log.reader.read_raw(GROUP, 1, 5, 1 << 20) is None, "nothing is durable yet"
    settle(log)
    log = recover(disk, small).log
    assert log.reader.cached(GROUP, 1, 5, 1 << 20) is None
    reading = log.reader.read_raw(GROUP, 2, 5, 1 << 20)
    assert reading is not None
    assert [(one.index, one.kind) for one in reading.entries] == [
        (2, Kind.CONTROL),
        (3, Kind.BATCHES),
        (4, Kind.CONTROL),
    ]
    assert reading.run(disk) == [b"".join(one.payload) for one in made[1:]]


def test_the_term_before_the_first_entry_is_known_after_a_restart(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    assert log.reader.base(GROUP) == (0, 0)
    for index in range(1, 30):
        log.append(control(index, bytes(700), term=index // 3))
        settle(log)
    checkpoint(log, disk, {GROUP: 20})
    log.drop_below(GROUP, 14)
    assert log.reader.base(GROUP) == (13, 4)
    checkpoint(log, disk, {GROUP: 20})
    disk.crash()
    assert recover(disk, small).log.reader.base(GROUP) == (13, 4)
