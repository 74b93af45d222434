"""Whatever the power, the process and the disk do, the log keeps what it promised and no more.

A driver appends records of several groups, flushes, kills and cuts the power at any step, also in
the middle of a flush or of the recovery itself. Its twin is a plain list of what it appended.
Segments and records are tiny and mostly of equal size, so that the boundaries of dropped and new
frames do align.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.codec.fields import U64, Buffer
from weir.errors import DiskFailed
from weir.log import log as log_module
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
        assert {g: r.hard_state for g, r in recovered.groups.items() if r.hard_state} == hard
        found = {
            g: [
                stored
                for index in range(1, r.last_index + 1)
                if (stored := recovered.log.stored(g, index))
            ]
            for g, r in recovered.groups.items()
            if r.last_index
        }
        assert {g: {e.index: e.position for e in rows} for g, rows in found.items()} == groups
        for rows in found.values():
            for stored in rows:
                record, payload = believed[stored.position]
                assert (stored.term, stored.kind) == (record.term, record.kind)
                assert recovered.log.load(stored) == payload
        self.appended = believed
        self.promised = recovered.tail

    def append(self) -> None:
        dice = self.dice
        group = dice.choice(GROUPS)
        self.serial += 1
        last = self.last_index(group)
        index = last + 1 if last < 2 or dice.random() < 0.9 else dice.randint(1, last)
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
        last = 0
        for position in sorted(self.appended):
            record, _ = self.appended[position]
            if record.group == group and record.kind is not Kind.HARD_STATE:
                last = record.index
        return last

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
            if roll < 0.6:
                for _ in range(self.dice.randrange(12) if self.uniform else 1):
                    self.append()
            elif roll < 0.9:
                self.log.mark_idle()
                self.flush()
            elif roll < 0.95 and (spare := self.log.wants_spare()):
                if self.dice.random() < 0.2:
                    self.disk.cut_after(self.dice.randrange(4))
                spare.run(self.disk)
                self.disk.kill()
                self.log.spare_ready(spare)
            elif roll > 0.96:
                raise PowerCut
        except (PowerCut, DiskFailed):
            self.stop()
            self.log = self.open()


def drive(seed: int, open_log: Open = recover, disk: type[SimDisk] = SimDisk) -> None:
    driver = Driver(seed, open_log, disk)
    for _ in range(60):
        driver.step()
    driver.disk.crash()
    driver.open()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_log_keeps_what_it_promised_and_believes_nothing_else(seed: int) -> None:
    drive(seed)


class Careless(SimDisk):
    """The same disk, whose recovery or flush leaves something out."""

    recovering = False


class Unzeroed(Careless):
    """Recovery rewrites what it believed, and leaves what lies behind the tail."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        super().write(name, offset, buffers[:1] if self.recovering else buffers)


class Trusting(Careless):
    """Recovery believes the page cache: it neither rewrites nor syncs (counterexample 9)."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        if not self.recovering:
            super().write(name, offset, buffers)

    def sync(self, name: str) -> None:
        if not self.recovering:
            super().sync(name)


class Unsynced(Careless):
    """A flush counts as durable without a sync."""

    def sync(self, name: str) -> None:
        if self.recovering:
            super().sync(name)


def careless(disk: Careless, settings: Settings) -> Recovered:
    disk.recovering = True
    try:
        return recover(disk, settings)
    finally:
        disk.recovering = False


def seeds_until_caught(drive_one: Callable[[int], None], seeds: int) -> int | None:
    for seed in range(seeds):
        try:
            drive_one(seed)
        except (AssertionError, LogDamaged):
            return seed
    return None


@pytest.mark.parametrize("disk", [Unzeroed, Trusting, Unsynced])
def test_a_planted_bug_is_found(disk: type[Careless]) -> None:
    caught = seeds_until_caught(lambda seed: drive(seed, careless, disk=disk), 500)
    assert caught is not None


def test_a_mark_ahead_of_what_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = log_module.mark_frame

    def boastful(generation: int, position: int, durable: int) -> tuple[bytes, bytes]:
        return honest(generation, position, durable + 512)

    monkeypatch.setattr(log_module, "mark_frame", boastful)
    assert seeds_until_caught(drive, 100) is not None
