"""Segments that are missing, rotted or cut short below the mark are damage, and told as such."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.log.checkpoint import Checkpoint, save
from weir.log.errors import LogDamaged
from weir.log.log import Log
from weir.log.record import Record
from weir.log.recovery import Recovered, recover
from weir.log.segment import BLOCK, SMALL_FRAME
from weir.log.settings import Settings
from weir.sim.disk import SECTOR, SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
GROUP = 65536


def indexes(recovered: Recovered, group: int = GROUP) -> list[int]:
    found = recovered.groups.get(group)
    rows = range(1, found.last_index + 1) if found else ()
    return [index for index in rows if recovered.log.stored(group, index)]


def only(disk: SimDisk) -> str:
    (name,) = disk.names()
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
        stored = found.log.stored(65536, index)
        assert stored is not None
        if 4 <= index <= 6:
            with pytest.raises(LogDamaged):
                found.log.load(stored)
        else:
            assert found.log.load(stored) == b"c" * 1000


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
