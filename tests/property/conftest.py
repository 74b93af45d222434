"""Drives a log through appends, flushes, checkpoints, copies and power cuts, beside its twin.

The twin is a plain list of what was appended, which forgets nothing durable. Segments and records
are tiny and mostly of equal size, so that the boundaries of dropped and new frames do align.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from weir.codec.fields import U64
from weir.errors import DiskFailed
from weir.log.checkpoint import load, save
from weir.log.errors import LogDamaged
from weir.log.frame import Kind
from weir.log.log import Log
from weir.log.record import HardState, Record
from weir.log.recovery import Recovered, recover
from weir.log.settings import Settings
from weir.model.batch import encode
from weir.model.header import stamped
from weir.sim.disk import PowerCut, SimDisk

SETTINGS = Settings(log=3, system=0x5157, segment_bytes=8192, entry_bytes_max=1500, spares=1)
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
        self.open_log = open_log
        # Half of the seeds stage long rows of frames of one size, so that a flush spans sectors
        # and what a later one leaves free begins exactly at a dropped frame.
        self.uniform = self.dice.random() < 0.5
        self.serial = 0
        #: position -> (record, payload bytes), of everything appended and not known to be dropped.
        self.appended: dict[int, tuple[Record, bytes]] = {}
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
                recovered = self.open_log(self.disk, SETTINGS)
            except PowerCut:
                self.stop()
            else:
                self.disk.kill()  # disarm the cut; nothing is running
                self.compare(recovered)
                return recovered.log

    def stop(self) -> None:
        if self.dice.random() < 0.6:
            self.disk.crash()
        else:
            self.disk.kill()

    def compare(self, recovered: Recovered) -> None:
        """All that was promised is there; all that is there was appended, once, at that place."""
        assert recovered.tail >= self.promised
        found_checkpoint = load(self.disk)
        serial = found_checkpoint.serial if found_checkpoint else 0
        assert serial >= self.saved
        self.saved = serial
        kept = found_checkpoint.groups if found_checkpoint else {}
        believed = {p: r for p, r in self.appended.items() if p < recovered.tail}
        groups: dict[int, dict[int, int]] = {}
        hard: dict[int, HardState] = {}
        for position in sorted(believed):
            record, payload = believed[position]
            if record.kind is Kind.HARD_STATE:
                hard[record.group] = HardState.unpack(payload)
                continue
            entries = groups.setdefault(record.group, {})
            for index in [i for i in entries if i >= record.index]:
                del entries[index]
            entries[record.index] = position
        for group, one in kept.items():
            if one.term:  # also of a flush that the power cut took: no harm, but never an older one
                hard[group] = max(hard.get(group, one.hard_state), one.hard_state)
            entries = groups.get(group, {})
            # What was dropped after this checkpoint may be gone from index files.
            start = recovered.log._groups[group].first if one.start else 1
            assert start in range(max(one.start, 1), max(one.start, one.applied + 1) + 1)
            for index in [i for i in entries if i < start]:
                del entries[index]
            self.needed[group], self.applied[group] = start, one.applied
        assert {g: r.hard_state for g, r in recovered.groups.items() if r.hard_state} == hard
        assert not any(r.damage for r in recovered.groups.values())
        found = {
            g: [
                stored
                for index in range(1, r.last_index + 1)
                if (stored := recovered.log.stored(g, index))
            ]
            for g, r in recovered.groups.items()
        }
        places = {g: {e.index: e.position for e in rows} for g, rows in found.items() if rows}
        assert places == {g: entries for g, entries in groups.items() if entries}
        for rows in found.values():
            for stored in rows:
                record, payload = believed[stored.position]
                assert (stored.term, stored.kind) == (record.term, record.kind)
                assert recovered.log.load(stored) == payload
        self.appended = believed
        self.promised = recovered.tail

    def append(self) -> None:
        dice = self.dice
        group = dice.choice(GROUPS[:2] if self.lasting and dice.random() < 0.8 else GROUPS)
        self.serial += 1
        last = self.last_index(group)
        least = max(self.applied[group], self.needed[group] - 1) + 1
        index = last + 1 if last < least or dice.random() < 0.9 else dice.randint(least, last)
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
        self.appended[self.log.append(record)] = (record, payload)

    def last_index(self, group: int) -> int:
        last = self.needed[group] - 1
        for position in sorted(self.appended):
            record, _ = self.appended[position]
            if record.group == group and record.kind is not Kind.HARD_STATE:
                last = record.index
        return max(last, self.needed[group] - 1)

    def durable_index(self, group: int) -> int:
        index = self.last_index(group)
        while (stored := self.log.stored(group, index)) and stored.position >= self.log.durable:
            index -= 1
        return index

    def checkpoint(self) -> None:
        """Apply some more, save it, and let go of some of what the last checkpoint covered."""
        for group in GROUPS:
            if self.dice.random() < 0.7:
                last = self.durable_index(group)
                self.applied[group] = self.dice.randint(min(self.applied[group], last), last)
        data = self.log.checkpoint(self.applied, b"body")
        if self.dice.random() < 0.3:
            self.disk.cut_after(self.dice.randrange(12))
        save(self.disk, data)
        self.disk.kill()
        self.saved += 1
        before = len(list(self.log._segments))
        copies = len(self.log._upkeep.copies._naming)
        self.log.checkpoint_saved()
        self.copied += copies
        self.reused += before - len(list(self.log._segments))
        for group in GROUPS:
            if self.dice.random() < (0.05 if self.lasting and group == SLOW else 0.7):
                index = self.applied[group] + 1 - self.dice.choice((0, 0, 1, 3))
                if index > self.needed[group]:
                    self.needed[group] = index
                    self.log.drop_below(group, index)

    def tidy(self) -> None:
        while chore := self.log.next_chore():
            if self.dice.random() < 0.2:
                self.disk.cut_after(self.dice.randrange(6))
            chore.run(self.disk)
            self.disk.kill()

    def copy(self) -> None:
        """Copy some of what outlived its segments, or begin to."""
        self.log.set_class(SLOW, self.dice.randint(1, 5))
        for _ in range(self.dice.randrange(24)):
            piece = self.log.next_copy()
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
            self.log.copied(piece, found)
        if self.dice.random() < 0.7:
            self.checkpoint()
        self.look()
        if self.dice.random() < 0.4:
            self.tidy()

    def look(self) -> None:
        """All that is durable and needed is there to be read, wherever it lies now."""
        for group in GROUPS:
            for index in range(self.needed[group], self.durable_index(group) + 1):
                stored = self.log.stored(group, index)
                assert stored is not None
                record, payload = self.appended[stored.position]
                assert (record.group, record.index) == (group, index)
                assert self.log.load(stored) == payload

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
        self.promised = self.log.durable

    def step(self) -> None:
        try:
            roll = self.dice.random()
            if roll < 0.5:
                for _ in range(self.dice.randrange(12) if self.uniform else 1):
                    self.append()
            elif roll < 0.75:
                self.log.mark_idle()
                self.flush()
            elif roll < 0.8 and (spare := self.log.wants_spare()):
                if self.dice.random() < 0.2:
                    self.disk.cut_after(self.dice.randrange(4))
                spare.run(self.disk)
                self.disk.kill()
                self.log.spare_ready(spare)
            elif roll < 0.9:
                self.checkpoint()
            elif roll < 0.97:
                self.copy()
            elif roll < 0.98:
                self.tidy()
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


@pytest.fixture(scope="session")
def drive() -> Drive:
    return Drive()
