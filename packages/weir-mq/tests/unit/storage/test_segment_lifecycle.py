"""The afterlife of segments: dropped, used again, removed; checkpoints and index files."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from weir.codec import crc32c
from weir.errors import Damaged
from weir.storage.errors import BadIndexFile, LogDamaged, UnknownKind
from weir.storage.format.checkpoint import CHECKPOINT, COPY, Checkpoint, load, save, unpack
from weir.storage.format.frame import Kind
from weir.storage.format.index_file import GONE, IndexFile, index_name, read_index
from weir.storage.format.record import HardState, Record
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.storage.segment_lifecycle import Removal
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
GROUP = 65536


class Keeper:
    """A log whose host does what it is asked at once, and counts what it writes."""

    def __init__(self, disk: SimDisk, settings: Settings, control: Make, settle: Settle) -> None:
        self.disk, self.settings = disk, settings
        self.log = recover(disk, settings).log
        self.control, self.settle = control, settle
        self.last: dict[int, int] = {}
        self.zeroed = 0
        self.removed: list[str] = []

    def fill(self, segments: int = 1, group: int = GROUP) -> None:
        """Append entries that take about so many segments."""
        for _ in range(3 * segments):
            self.last[group] = self.last.get(group, 0) + 1
            self.log.append(self.control(self.last[group], b"c" * 900, group=group))
            self.settle(self.log)
            self.upkeep()

    def upkeep(self) -> None:
        while spare := self.log.spares.wants():
            self.zeroed += 1
            spare.run(self.disk)
            self.log.spares.made(spare)
        while chore := self.log.next_chore():
            if isinstance(chore, Removal):
                self.removed += chore.names
            chore.run(self.disk)

    def checkpoint(self) -> None:
        save(self.disk, self.log.checkpoint(self.last, b"body"))
        self.log.checkpoint_saved()
        self.upkeep()

    def drop(self, keep: int = 1, group: int = GROUP) -> None:
        """Let go of all entries of a group but the last ones."""
        self.log.drop_below(group, self.last[group] + 1 - keep)

    def names(self) -> list[str]:
        return [segment.name for segment in self.log.segments]

    def restart(self) -> None:
        self.disk.crash()
        self.log = recover(self.disk, self.settings).log


@pytest.fixture
def keeper(disk: SimDisk, small: Settings, control: Make, settle: Settle) -> Keeper:
    return Keeper(disk, small, control, settle)


def test_a_segment_that_nobody_needs_is_used_again_as_it_lies(keeper: Keeper) -> None:
    keeper.fill(4)
    keeper.checkpoint()
    generations = {one.generation for one in keeper.log.segments}
    for round in range(8):
        if round == 3:
            zeroed, files = keeper.zeroed, set(keeper.disk.names())
        keeper.drop()
        keeper.checkpoint()
        keeper.fill(2)
    assert keeper.zeroed == zeroed, "no file was zeroed any more"
    assert {n for n in keeper.disk.names() if n.startswith("segment")} <= files
    assert min(one.generation for one in keeper.log.segments) > max(generations)
    keeper.restart()
    assert keeper.log.reader.stored(GROUP, keeper.last[GROUP]) is not None


def test_nothing_is_given_up_before_the_checkpoint_is_durable(keeper: Keeper) -> None:
    keeper.fill(4)
    keeper.drop()
    names = keeper.names()
    data = keeper.log.checkpoint(keeper.last, b"")
    assert keeper.names() == names
    save(keeper.disk, data)
    keeper.log.checkpoint_saved()
    assert len(keeper.names()) < len(names)


def test_an_entry_that_is_not_applied_keeps_its_segment(keeper: Keeper) -> None:
    keeper.fill(4)
    names = keeper.names()
    keeper.drop()
    keeper.last[GROUP] = 1
    keeper.checkpoint()
    position = keeper.log.reader.stored(GROUP, 12)
    assert position is not None
    found = load(keeper.disk)
    assert found is not None
    assert found.replay <= position.position
    assert keeper.names() != names


def test_another_group_keeps_a_segment_alone(keeper: Keeper) -> None:
    keeper.fill(2)
    keeper.last[7] = 1
    keeper.log.append(keeper.control(1, group=7))
    keeper.settle(keeper.log)
    kept = keeper.names()[-1]
    keeper.fill(3)
    keeper.drop()
    keeper.checkpoint()
    assert keeper.names()[0] == kept
    assert len(keeper.names()) <= 3
    keeper.restart()
    stored = keeper.log.reader.stored(7, 1)
    assert stored is not None
    assert keeper.log.reader.load(stored) == b"control!"


def test_a_hard_state_outlives_its_segment(keeper: Keeper, small: Settings) -> None:
    state = HardState(9, 2, 5)
    keeper.log.append(hard_state(3, state))
    keeper.fill(4)
    keeper.drop()
    keeper.checkpoint()
    keeper.fill(4)
    keeper.disk.crash()
    assert recover(keeper.disk, small).groups[3].hard_state == state


def hard_state(group: int, state: HardState) -> Record:
    return Record(group, state.term, 0, Kind.HARD_STATE, (state.pack(),), 24)


def test_a_segment_that_is_read_is_not_used_again(
    disk: SimDisk, small: Settings, batches: Make, control: Make, settle: Settle
) -> None:
    keeper = Keeper(disk, replace(small, cache_bytes_max=0), control, settle)
    keeper.log.append(batches(1, 0, group=9))
    settle(keeper.log)
    keeper.last[9] = 1
    keeper.fill(4)
    reading = keeper.log.reader.read(9, 0, 1, 1)
    assert reading is not None
    reading.pin()
    keeper.drop()
    keeper.log.drop_below(9, 2)
    keeper.checkpoint()
    pinned = reading.spans[0].segment
    assert pinned.name not in keeper.names()
    for _ in range(4):
        keeper.fill(2)
        keeper.drop()
        keeper.checkpoint()
        assert reading.run(disk), "the bytes are still there"
        assert pinned.name not in keeper.names()
    reading.release()
    for _ in range(4):
        keeper.fill(2)
        keeper.drop()
        keeper.checkpoint()
    with pytest.raises((LogDamaged, OSError)):
        reading.run(disk)


def test_files_that_are_too_many_are_removed_with_their_index_files(keeper: Keeper) -> None:
    keeper.fill(30)
    keeper.checkpoint()
    before = {n for n in keeper.disk.names() if n.startswith("segment")}
    keeper.fill(1)
    keeper.drop()
    keeper.checkpoint()
    assert len(keeper.removed) > 3
    left = set(keeper.disk.names())
    assert not left & {*keeper.removed, *map(index_name, keeper.removed)}
    assert len(before - left) == len(keeper.removed)


def test_a_removal_that_was_cut_short_is_finished(disk: SimDisk) -> None:
    disk.create("segment-00000001", 4096)
    removal = Removal(("segment-00000001", "segment-00000002"))
    removal.run(disk)
    removal.run(disk)
    assert disk.names() == []


def test_a_group_that_is_gone_stays_gone(keeper: Keeper, small: Settings) -> None:
    keeper.fill(1, group=9)
    keeper.log.append(hard_state(9, HardState(3, 1, 0)))
    keeper.fill(2)
    keeper.log.drop_group(9)
    del keeper.last[9]
    keeper.checkpoint()
    keeper.disk.crash()
    found = load(keeper.disk)
    assert found is not None
    assert found.groups[9].start == GONE
    recovered = recover(keeper.disk, small)
    assert 9 not in recovered.groups
    assert keeper.names()[0] != "segment-00000001", "its segment is free"
    keeper.log = recovered.log
    keeper.fill(3)
    keeper.drop()
    for _ in range(2):
        keeper.checkpoint()
    found = load(keeper.disk)
    assert found is not None
    assert 9 not in found.groups, "and once no frame of it is left, it is forgotten"


def test_a_start_is_kept_when_nothing_is_left(keeper: Keeper, batches: Make) -> None:
    for index in range(1, 4):
        keeper.log.append(batches(index, 10 * index, count=10))
    keeper.settle(keeper.log)
    keeper.last[GROUP] = 3
    keeper.log.drop_below(GROUP, 4)
    keeper.fill(3, group=9)
    keeper.checkpoint()
    keeper.restart()
    assert keeper.log.reader.next_offset(GROUP) == 40
    assert keeper.log.reader.stored(GROUP, 3) is None
    keeper.log.append(batches(4, 40))
    keeper.settle(keeper.log)
    assert keeper.log.reader.cut_by_stamp(GROUP, 0) == (4, 40)


def test_a_restart_reads_index_files_and_only_the_last_segments(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.fill(8)
    keeper.checkpoint()
    keeper.fill(1)
    places = [keeper.log.reader.stored(GROUP, index) for index in range(1, 28)]
    keeper.disk.crash()
    read: dict[str, int] = {}
    honest = SimDisk.read

    def count(self: SimDisk, name: str, offset: int, length: int) -> bytes:
        data = honest(self, name, offset, length)
        read[name] = read.get(name, 0) + len(data)
        return data

    monkeypatch.setattr(SimDisk, "read", count)
    log = recover(keeper.disk, keeper.settings).log
    assert [log.reader.stored(GROUP, index) for index in range(1, 28)] == places
    whole = [name for name, size in read.items() if name.startswith("seg") and size > 4096]
    assert len(whole) <= 4, "the last two, and two spares"


@pytest.mark.parametrize("spoil", ["missing", "damaged", "other"])
def test_an_index_file_that_is_not_to_be_believed_is_made_again(keeper: Keeper, spoil: str) -> None:
    keeper.fill(6)
    keeper.checkpoint()
    first = next(iter(keeper.log.segments))
    name = index_name(first.name)
    right = keeper.disk.read(name, 0, 1 << 20)
    if spoil == "missing":
        keeper.disk.remove(name)
    elif spoil == "damaged":
        keeper.disk.flip(name, 40)
    else:
        other = replace(first, generation=99)
        keeper.disk.replace(name, IndexFile(other, []).pack())
    with pytest.raises(BadIndexFile):
        read_index(keeper.disk, first)
    places = [keeper.log.reader.stored(GROUP, index) for index in range(1, 18)]
    keeper.restart()
    assert [keeper.log.reader.stored(GROUP, index) for index in range(1, 18)] == places
    keeper.upkeep()
    assert keeper.disk.read(name, 0, 1 << 20) == right


def test_an_index_file_waits_until_its_segment_is_durable(
    disk: SimDisk, log: Log, control: Make
) -> None:
    for index in range(1, 4):
        log.append(control(index, b"c" * 1500))
    flush = log.next_flush()
    assert flush is not None
    flush.run(disk)
    assert log.next_chore() is None
    log.flushed(flush)
    assert isinstance(log.next_chore(), IndexFile)
    assert log.next_chore() is None


def test_a_checkpoint_is_read_back_and_not_believed_when_it_changed(keeper: Keeper) -> None:
    keeper.fill(2)
    keeper.checkpoint()
    data = keeper.disk.read(CHECKPOINT, 0, 1 << 20)
    assert data == keeper.disk.read(COPY, 0, 1 << 20)
    found = unpack(data)
    assert found.pack() == data
    assert (found.body, found.serial) == (b"body", 1)
    for at in range(len(data)):
        with pytest.raises(Damaged):
            unpack(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        with pytest.raises(Damaged):
            unpack(data[:at])
    newer = data[:4] + b"\x09" + data[5:-4]
    with pytest.raises(UnknownKind, match="version 9"):
        unpack(newer + crc32c(newer).to_bytes(4, "little"))


def test_a_checkpoint_of_the_cache_is_made_durable_before_it_counts() -> None:
    """Counterexample 9: killed between the rename and the folder's sync, then the power fails."""
    for seed in range(30):
        disk = SimDisk(random.Random(seed))
        save(disk, checkpoint_of(1))
        disk.cut_after(4)  # replace, write, sync, rename: not the folder
        with pytest.raises(Exception, match="sync folder"):
            save(disk, checkpoint_of(2))
        disk.kill()
        believed = load(disk)
        disk.crash()
        after = load(disk)
        assert believed is not None
        assert after == believed


def checkpoint_of(serial: int) -> Checkpoint:
    return Checkpoint(1, 77, serial, 0, 0, {}, (), b"")


def test_two_damaged_checkpoints_are_no_loss_while_the_log_is_whole(keeper: Keeper) -> None:
    keeper.fill(4)
    keeper.checkpoint()
    for name in (CHECKPOINT, COPY):
        keeper.disk.flip(name, 30)
    keeper.restart()
    assert keeper.log.reader.stored(GROUP, 1) is not None
    assert keeper.log.reader.stored(GROUP, 12) is not None
    keeper.settle(keeper.log)
    keeper.drop()
    keeper.checkpoint()
    for name in (CHECKPOINT, COPY):
        keeper.disk.flip(name, 30)
    with pytest.raises(LogDamaged, match=r"used again|missing"):
        recover(keeper.disk, keeper.settings)


def test_what_was_superseded_does_not_come_back_when_what_superseded_it_is_gone(
    keeper: Keeper,
) -> None:
    """Entries 2 to 4 of an old term lie beside what another group keeps; those of the new term,
    which end at 3, are applied and let go of, and their segment is used again.
    """
    keeper.log.append(keeper.control(1, group=7))
    for index in range(1, 5):
        keeper.log.append(keeper.control(index, b"old term"))
    keeper.settle(keeper.log)
    keeper.fill(2, group=9)
    for index in (2, 3):
        keeper.log.append(keeper.control(index, b"new term", term=2))
    keeper.settle(keeper.log)
    keeper.fill(2, group=9)
    keeper.last |= {7: 1, GROUP: 3}
    keeper.drop(group=9)
    keeper.log.drop_below(GROUP, 4)
    for _ in range(2):
        keeper.checkpoint()
    held = {segment.base for segment in keeper.log.segments}
    assert 0 in held, "the other group keeps what was superseded"
    assert 8192 not in held, "what superseded it is gone"
    for name in ("with", "without"):
        if name == "without":
            keeper.disk.remove(index_name("segment-00000001"))
        keeper.restart()
        assert keeper.log.reader.stored(GROUP, 4) is None
        assert keeper.log.reader.stored(7, 1) is not None
