"""Drives a log through appends, flushes, checkpoints, copies and power cuts, beside its twin.

The twin is a plain list of what was appended, which forgets nothing durable. Segments and records
are tiny and mostly of equal size, so that the boundaries of dropped and new frames do align.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from rigs.log_lives import Appended, Begun, Life, lives
from weir.codec import U64
from weir.errors import DiskFailed
from weir.model.batch import stamped
from weir.model.batch_builder import encode
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import Kept, load, save
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.format.frame import Kind
from weir.storage.format.index_file import GONE
from weir.storage.format.record import HardState, Installed, Record
from weir.storage.log import Log
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import PowerCut, SimDisk

SETTINGS = Settings(log=3, system=0x5157, segment_bytes=8192, entry_bytes_max=1500, spares=1)

OWNER = Owner(SETTINGS.log, SETTINGS.system, 1)

GROUPS = (1 << 16, 2 << 16, 2 << 16 | 1)

#: Gets few entries and keeps them for long, so that they outlive all others in their segments.
SLOW = GROUPS[2]

KINDS = (Kind.BATCHES, Kind.CONTROL, Kind.NOOP, Kind.HARD_STATE)

Open = Callable[..., Recovered]


class Driver:
    """Appends, flushes and crashes as the dice say, and holds every recovery against the twin."""

    def __init__(self, seed: int, open_log: Open, disk: type[SimDisk]) -> None:
        self.dice = random.Random(seed)
        self.disk = disk(random.Random(seed + 1))
        #: Another disk, with the durable position file, and dice of its own.
        self.other = SimDisk(random.Random(seed + 2))
        self.other_dice = random.Random(seed + 3)
        self.saves = 0
        self.open_log = open_log
        # Half of the seeds stage long rows of frames of one size, so that a flush spans sectors
        # and what a later one leaves free begins exactly at a dropped frame.
        self.uniform = self.dice.random() < 0.5
        self.serial = 0
        #: By position, everything that was appended and is not known to be dropped.
        self.appended: Appended = {}
        self.hard: dict[int, HardState] = {}
        self.floors: dict[int, int] = {}
        #: Groups that were dropped and not appended to since.
        self.gone: set[int] = set()
        self.installed = self.revived = 0
        self.conflicts = 0.4 if self.dice.random() < 0.3 else 0.1
        self.moving = self.dice.random() < 0.5
        self.promised = 0
        #: Per group: through which index it is applied, and from which on it is needed.
        self.applied = dict.fromkeys(GROUPS, 0)
        self.needed = dict.fromkeys(GROUPS, 1)
        self.saved = 0
        self.reused = self.copied = 0
        self.lasting = self.dice.random() < 0.7
        self.log = self.open()

    def open(self) -> Log:
        """Recover until it is not cut short, then compare."""
        while True:
            if self.dice.random() < 0.4:
                self.disk.cut_after(self.dice.randrange(40))
            try:
                self.position = DurablePosition(self.other, OWNER)
                recovered = self.open_log(self.disk, SETTINGS, self.position.position)
            except PowerCut:
                self.stop()
            else:
                self.disk.kill()  # disarm the cut; nothing is running
                self.compare(recovered)
                return recovered.log

    def stop(self) -> None:
        if self.dice.random() < 0.6:
            self.disk.crash()
            self.other.crash()
        else:
            self.disk.kill()
            self.other.kill()

    def compare(self, recovered: Recovered) -> None:
        """All that was promised is there; all that is there was appended, once, at that place."""
        assert recovered.tail >= self.promised
        found_checkpoint = load(self.disk)
        serial = found_checkpoint.serial if found_checkpoint else 0
        assert serial >= self.saved
        self.saved = serial
        kept = found_checkpoint.groups if found_checkpoint else {}
        believed = {
            position: item
            for position, item in self.appended.items()
            if (item.end if isinstance(item, Begun) else position + 1) <= recovered.tail
        }
        self.note(kept)
        self.floors = {g: min(floor, recovered.tail) for g, floor in self.floors.items()}
        found = lives(believed, self.floors)
        self.gone = {g for g, one in kept.items() if one.start == GONE and g not in found}
        for group in GROUPS:
            life, one, has = found.get(group, Life()), kept.get(group), recovered.groups.get(group)
            begun = life.begun
            if begun and one and begun[0] == one.floor and begun[1].state.index <= one.applied:
                begun = None  # the checkpoint holds it
            if begun:
                at, what = begun
                assert has is not None
                state = what.state if what.state.index else None
                assert (has.base_index, has.snapshot) == (what.base, state)
                assert recovered.log.groups.index[group].floor == at
                self.needed[group], self.applied[group] = what.base + 1, what.state.index
            elif one is None or one.start in (0, GONE):
                self.needed[group] = 1
                self.applied[group] = one.applied if one else 0
            else:
                # What was dropped after this checkpoint may be gone from index files.
                start = recovered.log.groups.index[group].first
                assert start in range(one.start, max(one.start, one.applied + 1) + 1)
                assert has is not None
                assert has.snapshot is None
                life.entries = {i: at for i, at in life.entries.items() if i >= start}
                self.needed[group], self.applied[group] = start, one.applied
            self._hold(recovered, group, life, one.hard_state if one and not begun else None)
        for group, has in recovered.groups.items():
            assert group in found or group in kept
            assert (has.damage, has.hard_state_lost) == (None, False)
        self.appended = believed
        self.promised = recovered.tail

    def _hold(self, recovered: Recovered, group: int, life: Life, saved: HardState | None) -> None:
        """Hold hard state and entries of one group against what they ought to be."""
        hard = life.hard_state
        if saved and saved.term:  # also of a flush that the power cut took: no harm, never older
            hard = max(hard or saved, saved)
        has = recovered.groups.get(group)
        assert (has.hard_state if has else None) == hard
        self.hard.pop(group, None)
        if hard:
            self.hard[group] = hard
        rows = [
            stored
            for index in range(1, (has.last_index if has else 0) + 1)
            if (stored := recovered.log.reader.stored(group, index))
        ]
        assert {e.index: e.position for e in rows} == life.entries
        if not rows and has and self.needed[group] > 1:
            assert has.last_index == has.base_index == self.needed[group] - 1
        for stored in rows:
            item = self.appended[stored.position]
            assert isinstance(item, tuple)
            assert (stored.term, stored.kind) == (item[0].term, item[0].kind)
            assert recovered.log.reader.load(stored) == item[1]

    def append(self) -> None:
        dice = self.dice
        group = dice.choice(GROUPS[:2] if self.lasting and dice.random() < 0.8 else GROUPS)
        self.serial += 1
        last = self.last_index(group)
        least = max(self.applied[group], self.needed[group] - 1) + 1
        superseding = last >= least and dice.random() < self.conflicts
        index = dice.randint(least, last) if superseding else last + 1
        kind = Kind.CONTROL if self.uniform else dice.choice(KINDS)
        first = behind = -1
        if kind is Kind.HARD_STATE:
            index = 0
            payload = HardState(self.serial, self.serial % 3, self.serial).pack()
        elif kind is Kind.BATCHES:
            batch = encode([U64.pack(self.serial)], group=group)
            payload = stamped(batch, self.serial, self.serial) + bytes(batch[88:])
            first, behind = self.serial, self.serial + 1
        else:
            size = 8 if self.uniform else dice.choice((8, 104, 105, 1400))
            payload = U64.pack(self.serial).ljust(size, b"x")
        cut = dice.randrange(len(payload))
        pieces = (payload[:cut], memoryview(payload)[cut:])
        record = Record(group, self.serial, index, kind, pieces, len(payload), first, behind)
        position = self.log.append(record)
        if group in self.gone:
            began = self.log.groups.index.get(group)
            if began is not None and (at := began.floor):
                self.begin(group, at, Installed(0, 0, b""), 0, at + 1)
            self.gone.discard(group)  # one of which nothing is left at all begins as any new one
        self.appended[position] = (record, payload)
        if kind is Kind.HARD_STATE:
            self.hard[group] = HardState.unpack(payload)

    def begin(self, group: int, at: int, state: Installed, base: int, end: int) -> None:
        self.appended[at] = Begun(group, end, base, state, self.hard.get(group))
        self.applied[group], self.needed[group] = state.index, base + 1
        self.revived += group in self.gone
        self.gone.discard(group)

    def install(self) -> None:
        """A peer's snapshot takes the place of all that a group held, or the group is dropped."""
        dice, group = self.dice, self.dice.choice(GROUPS)
        if dice.random() < 0.3:
            if group not in self.gone:
                self.log.drop_group(group)
                self.gone.add(group)
                self.hard.pop(group, None)
                self.applied[group], self.needed[group] = 0, 1
            return
        self.serial += 1
        index = self.applied[group] + dice.randint(-3, 12)
        base = max(index - dice.randrange(9), 0)
        state = Installed(max(index, base, 1), self.serial, dice.randbytes(dice.randrange(4000)))
        at = self.log.install(group, state.index, state.term, base, self.serial, (state.data,))
        self.begin(group, at, state, base, self.log.tail)
        self.installed += 1

    def last_index(self, group: int) -> int:
        if group in self.gone:
            return 0
        last = self.needed[group] - 1
        for position in sorted(self.appended):
            item = self.appended[position]
            if position < self.floors.get(group, 0):
                continue
            if isinstance(item, Begun):
                last = item.base if item.group == group else last
            elif item[0].group == group and item[0].kind is not Kind.HARD_STATE:
                last = item[0].index
        return max(last, self.needed[group] - 1)

    def durable_index(self, group: int) -> int:
        index = self.last_index(group)
        while (
            stored := self.log.reader.stored(group, index)
        ) and stored.position >= self.log.reader.durable:
            index -= 1
        return index

    def checkpoint(self) -> None:
        """Apply some more, save it, and let go of some of what the last checkpoint covered."""
        for group in GROUPS:
            if self.dice.random() < 0.7:
                last = max(self.durable_index(group), self.applied[group])
                self.applied[group] = self.dice.randint(self.applied[group], last)
        applied = {g: index for g, index in self.applied.items() if g not in self.gone}
        data = self.log.checkpoint(applied, b"body")
        if self.dice.random() < 0.3:
            self.disk.cut_after(self.dice.randrange(12))
        save(self.disk, data)
        self.disk.kill()
        self.saved += 1
        self.note(data.groups)
        before = len(list(self.log.segments))
        copies = len(self.log.lifecycle.copies._saving.copies)
        self.log.checkpoint_saved()
        self.copied += copies
        self.reused += before - len(list(self.log.segments))
        for group in GROUPS:
            if self.dice.random() < (0.05 if self.lasting and group == SLOW else 0.7):
                index = self.applied[group] + 1 - self.dice.choice((0, 0, 1, 3))
                index = min(index, self.last_index(group) + 1)
                if index > self.needed[group] and group not in self.gone:
                    self.needed[group] = index
                    self.log.drop_below(group, index)

    def note(self, kept: Mapping[int, Kept]) -> None:
        """Learn where groups begin: of one that is gone, a later checkpoint may not tell it."""
        for group, one in kept.items():
            self.floors[group] = max(self.floors.get(group, 0), one.floor)

    def tidy(self) -> None:
        while chore := self.log.next_chore():
            if self.dice.random() < 0.2:
                self.disk.cut_after(self.dice.randrange(6))
            chore.run(self.disk)
            self.disk.kill()

    def copy(self) -> None:
        """Copy some of what outlived its segments, or begin to."""
        self.log.lifecycle.copies.set_class(SLOW, self.dice.randint(1, 5))
        for _ in range(self.dice.randrange(24)):
            piece = self.log.lifecycle.copies.next_piece()
            if piece is None:
                continue
            if self.dice.random() < 0.1:
                self.disk.cut_after(self.dice.randrange(6))
            elif self.dice.random() < 0.05:
                self.disk.fail_next("create", 28)
            try:
                found = piece.run(self.disk)
            except OSError:
                found = None
            self.disk.kill()
            self.log.lifecycle.copies.copied(piece, found)
        if self.dice.random() < 0.7:
            self.checkpoint()
        self.look()
        if self.dice.random() < 0.4:
            self.tidy()

    def look(self) -> None:
        """All that is durable and needed is there to be read, wherever it lies now."""
        for group in GROUPS:
            for index in range(self.needed[group], self.durable_index(group) + 1):
                stored = self.log.reader.stored(group, index)
                assert stored is not None
                item = self.appended[stored.position]
                assert isinstance(item, tuple)
                assert (item[0].group, item[0].index) == (group, index)
                assert self.log.reader.load(stored) == item[1]

    def flush(self) -> None:
        flush = self.log.next_flush()
        if flush is None:
            return
        assert self.log.next_flush() is None
        # What is appended now is staged behind the flush in flight, and must not be promised.
        for _ in range(self.dice.randrange(3)):
            self.append()
        if self.dice.random() < 0.3:
            self.disk.cut_after(self.dice.randrange(8))
        elif self.dice.random() < 0.05:
            self.disk.fail_next("sync", 5)
        flush.run(self.disk)
        self.disk.kill()
        self.log.flushed(flush)
        self.promised = self.log.reader.durable
        self.save_position()

    def save_position(self) -> None:
        """Name what is durable in the second file, unless that waits for a later flush."""
        dice = self.other_dice
        if dice.random() < 0.5:
            if dice.random() < 0.2:
                self.other.cut_after(dice.randrange(9))
            elif dice.random() < 0.1:
                self.other.fail_next(dice.choice(("write", "sync", "replace")), 5)
            try:
                self.position.save(self.promised)
                self.saves += 1
            except (OSError, DiskFailed):
                pass  # nothing that was promised depends on it
            self.other.kill()

    def step(self) -> None:
        try:
            roll = self.dice.random()
            if roll < 0.5:
                for _ in range(self.dice.randrange(12) if self.uniform else 1):
                    self.append()
            elif roll < 0.75:
                self.log.mark_idle()
                self.flush()
            elif roll < 0.8 and (spare := self.log.spares.wants()):
                if self.dice.random() < 0.2:
                    self.disk.cut_after(self.dice.randrange(4))
                spare.run(self.disk)
                self.disk.kill()
                self.log.spares.made(spare)
            elif roll < 0.9:
                self.checkpoint()
            elif roll < 0.96:
                self.copy()
            elif roll < 0.97:
                self.tidy()
            elif roll < 0.985 and self.moving:
                self.install()
            else:
                raise PowerCut
        except (PowerCut, DiskFailed):
            self.stop()
            self.log = self.open()


class Drive:
    """Whole lives of a log, one for each seed."""

    def __call__(
        self, seed: int, open_log: Open = recover, disk: type[SimDisk] = SimDisk
    ) -> Driver:
        """Drive one; raise `AssertionError` or `LogDamaged` where a promise is broken."""
        driver = Driver(seed, open_log, disk)
        for _ in range(120):
            driver.step()
        driver.disk.crash()
        driver.open()
        return driver

    def caught(self, seeds: int, open_log: Open = recover, disk: type[SimDisk] = SimDisk) -> bool:
        """Whether one of so many seeds finds that something is wrong."""
        for seed in range(seeds):
            try:
                self(seed, open_log, disk)
            except (AssertionError, LogDamaged):
                return True
        return False
