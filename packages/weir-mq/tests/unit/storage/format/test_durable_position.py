"""The durable position file: what it believes of itself, and what a log that ends below it is."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from weir.errors import DiskFailed
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import save
from weir.storage.format.durable_position import (
    BLOCK,
    NAME,
    DurablePosition,
    Owner,
    look,
    pack_block,
)
from weir.storage.format.record import Record
from weir.storage.log import Log
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import PowerCut, SimDisk

OWNER = Owner(1, 7, 99)
GROUP = 65536
GOLDEN = Path(__file__).parents[3] / "golden" / "durable_position_v1.bin"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(5))


def test_blocks_are_written_by_turns_and_the_higher_one_counts(disk: SimDisk) -> None:
    file = DurablePosition(disk, OWNER)
    for position in (100, 200, 300):
        file.save(position)
    data = disk.read(NAME, 0, 2 * BLOCK)
    assert data == pack_block(OWNER, 2, 200) + pack_block(OWNER, 3, 300)
    assert (look(disk, OWNER).position, look(disk, OWNER).count) == (300, 3)
    file = DurablePosition(disk, OWNER)
    file.save(250)
    assert file.position == 300, "a position never falls"
    file.save(400)
    assert disk.read(NAME, 0, BLOCK) == pack_block(OWNER, 4, 400)


def test_the_bytes_on_the_disk_are_those_of_the_first_release() -> None:
    made = pack_block(Owner(3, 0x5157, 0xABCDEF), 6, 81_920) + pack_block(
        Owner(3, 0x5157, 0xABCDEF), 7, 98_304
    )
    assert made == GOLDEN.read_bytes()


@pytest.mark.parametrize("at", [0, 9, 33, 41, 2_000, BLOCK - 1])
def test_a_block_that_rots_leaves_the_other_one(disk: SimDisk, at: int) -> None:
    file = DurablePosition(disk, OWNER)
    file.save(100)
    file.save(200)
    disk.flip(NAME, at)  # the block of position 200
    found = look(disk, OWNER)
    assert found.position == 100
    assert "CRC" in found.bad
    disk.flip(NAME, BLOCK + at)
    found = look(disk, OWNER)
    assert (found.position, found.count) == (0, 0)
    assert "CRC" in found.bad


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_a_position_that_was_named(seed: int) -> None:
    dice = random.Random(seed)
    disk = SimDisk(random.Random(seed + 1))
    file, kept = DurablePosition(disk, OWNER), 0
    for position in range(1, 30):
        disk.cut_after(dice.randrange(7))
        try:
            file.save(position)
        except PowerCut:
            disk.crash()
            file = DurablePosition(disk, OWNER)
            assert file.position in (kept, position)
            kept = file.position
        else:
            disk.kill()
            kept = position
    assert kept


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_save_that_failed_may_be_tried_again(disk: SimDisk, operation: str) -> None:
    file = DurablePosition(disk, OWNER)
    file.save(100)
    disk.fail_next(operation, 5)
    with pytest.raises(DiskFailed):
        file.save(200)
    assert look(disk, OWNER).position in (100, 200)
    file.save(300)
    disk.crash()
    assert look(disk, OWNER).position == 300


@pytest.mark.parametrize(
    "other", [Owner(2, 7, 99), Owner(1, 8, 99), Owner(1, 7, 98)], ids=["log", "system", "begun"]
)
def test_what_another_log_left_counts_for_nothing(disk: SimDisk, other: Owner) -> None:
    before = DurablePosition(disk, other)
    for position in (100, 500, 900):
        before.save(position)
    file = DurablePosition(disk, OWNER)
    assert (file.position, file.found.count) == (0, 0)
    assert "another log" in file.found.bad
    file.save(50)
    assert look(disk, OWNER).position == 50
    file.save(60)
    assert look(disk, other).position == 0


def test_no_file_and_one_cut_short_name_nothing_and_are_made(disk: SimDisk) -> None:
    assert look(disk, OWNER).bad == "there is none"
    DurablePosition(disk, OWNER).save(100)
    DurablePosition(disk, OWNER).save(200)
    disk.truncate(NAME, 100)
    file = DurablePosition(disk, OWNER)
    assert file.position == 0
    file.save(300)
    assert look(disk, OWNER).position == 300
    assert disk.size(NAME) == 2 * BLOCK


# -- logs that lost their tail ------------------------------------------------------------------


@dataclass
class Written:
    """A log on a disk: positions behind its flushes, with the last entry that each holds."""

    disk: SimDisk
    settings: Settings
    ends: list[tuple[int, int]]
    #: What the disk held after each of these flushes.
    before: list[SimDisk]


def write(settings: Settings, batches: Callable[..., Record], saves: int, flushes: int) -> Written:
    disk = SimDisk(random.Random(3))
    log = recover(disk, settings).log
    made = Written(disk, settings, [], [])
    for index in range(1, flushes + 1):
        log.append(batches(index, index - 1, size=300))
        flush_all(disk, log)
        made.ends.append((log.reader.durable, index))
        if index == saves:
            save(disk, log.checkpoint({GROUP: index}, b""))
            log.checkpoint_saved()
            while chore := log.next_chore():
                chore.run(disk)
        if index % 10 == 0:
            made.before.append(copy.deepcopy(disk))
    return made


def flush_all(disk: SimDisk, log: Log) -> None:
    while spare := log.spares.wants():
        spare.run(disk)
        log.spares.made(spare)
    flush = log.next_flush()
    assert flush is not None
    flush.run(disk)
    log.flushed(flush)


def zeroed(disk: SimDisk, name: str, at: int, older: SimDisk) -> None:
    size = disk.size(name)
    disk.write(name, at, [bytes(size - at)])
    disk.sync(name)


def cut(disk: SimDisk, name: str, at: int, older: SimDisk) -> None:
    disk.truncate(name, at)


def set_back(disk: SimDisk, name: str, at: int, older: SimDisk) -> None:
    data = bytes(disk.size(name))
    if name in older.names():
        data = older.read(name, 0, older.size(name))
    disk.write(name, at, [data[at:]])
    disk.sync(name)


def lose(made: Written, place: int, ruin: Callable[..., None], older: SimDisk) -> SimDisk:
    """Return a copy of the disk that lost all from a place on, as `ruin` does it."""
    disk = copy.deepcopy(made.disk)
    base = 0
    for name in sorted(n for n in disk.names() if n.startswith("segment-")):
        size = made.settings.segment_bytes
        if base + size > place:
            ruin(disk, name, max(place - base, 0), older)
        base += size
    return disk


def told(disk: SimDisk, settings: Settings, durable: int) -> Recovered | None:
    try:
        return recover(disk, settings, durable)
    except LogDamaged:
        return None


@pytest.mark.parametrize("ruin", [zeroed, cut, set_back])
@pytest.mark.parametrize("saves", [0, 30], ids=["whole", "checkpoint"])
def test_a_synced_tail_that_vanishes_is_told_at_100_places(
    small: Settings, batches: Callable[..., Record], ruin: Callable[..., None], saves: int
) -> None:
    """Of 80 flushes the last 3 were not named yet; whatever else vanishes is told."""
    made = write(small, batches, saves, 80)
    durable, named = made.ends[-4]
    tail = made.ends[-1][0]
    silent = unnoticed = 0
    for number in range(100):
        place = number * tail // 100
        disk = lose(made, place, ruin, made.before[number // 15])
        found = told(copy.deepcopy(disk), small, durable)
        if found is not None and found.groups[GROUP].damage is None:
            assert found.groups[GROUP].last_index >= named, f"lost in silence from {place:,} on"
            silent += 1
        found = told(disk, small, 0)
        group = found.groups.get(GROUP) if found else None
        unnoticed += found is not None and (group is None or group.damage is None)
    assert silent <= 6, "only what lies above the position may go without words"
    if ruin is not cut:
        assert unnoticed > silent, "without the file nothing would be told"


def test_a_log_that_lost_its_tail_goes_on_behind_it_and_is_told_so_again(
    small: Settings, batches: Callable[..., Record]
) -> None:
    made = write(small, batches, 0, 5)
    durable, _ = made.ends[-1]
    disk = lose(made, made.ends[2][0], zeroed, made.disk)
    found = recover(disk, small, durable)
    damage = found.groups[GROUP].damage
    assert damage is not None
    assert f"all below position {durable:,} had been durable" in str(damage)
    assert found.groups[GROUP].hard_state_lost
    assert found.tail == durable, "no position is used twice"
    flush_all(disk, found.log)
    disk.crash()
    for position in (durable, 0, found.log.reader.durable):
        again = recover(copy.deepcopy(disk), small, position)
        assert again.groups[GROUP].damage is not None
        assert again.tail == found.log.reader.durable


def test_a_log_that_reaches_the_position_is_judged_by_its_marks_alone(
    small: Settings, batches: Callable[..., Record]
) -> None:
    made = write(small, batches, 0, 5)
    disk = lose(made, made.ends[3][0] + 20, zeroed, made.disk)
    found = recover(disk, small, made.ends[3][0])
    assert found.groups[GROUP].damage is None
    assert found.groups[GROUP].last_index == 4


def test_a_log_of_which_nothing_is_left_is_refused_and_not_begun_anew(small: Settings) -> None:
    with pytest.raises(LogDamaged, match="all below position 5,000 had been durable"):
        recover(SimDisk(random.Random(1)), small, 5_000)
