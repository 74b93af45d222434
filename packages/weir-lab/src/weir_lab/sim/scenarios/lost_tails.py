"""One log alone whose synced tail may vanish while it is down, and the file that tells of it.

Bytes that had been synced are zeroed, cut off, or what they were some time before. Whatever the
durable position file named is still there then, or is told to be damaged; and where nothing
vanished nothing is ever told.
"""

from __future__ import annotations

import copy
import random
import time
import zlib

from weir.codec import U64
from weir.errors import DiskFailed, WeirError
from weir.storage.errors import LogDamaged
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.format.frame import Kind, frame_size
from weir.storage.format.record import Record
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import PowerCut, SimDisk
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.shape import Shape

_GROUP = 1 << 16
_SETTINGS = Settings(log=1, system=7, segment_bytes=16_384, entry_bytes_max=2_000, spares=1)
_LIVES, _ROUNDS = 12, 60
_BYTES = 200
#: What vanishes is so many of the last entries at most.
_GONE_MAX = 6
_SAVED, _TORN, _ENDS, _VANISHES = 0.4, 0.2, 0.08, 0.4


class Life:
    """One log, from its founding until its tail has vanished."""

    def __init__(self, dice: random.Random, generation: int) -> None:
        self.dice = dice
        self.disk, self.other = SimDisk(dice), SimDisk(dice)
        self.older = copy.deepcopy(self.disk)
        self._owner = Owner(_SETTINGS.log, _SETTINGS.system, generation)
        self.file = DurablePosition(self.other, self._owner)
        self.log = recover(self.disk, _SETTINGS).log
        #: By position behind its flush, the last entry that each flush made durable.
        self.ends: dict[int, int] = {}
        #: The highest position of which a save has returned.
        self.named = self.index = self.starts = 0
        self.found: list[tuple[str, str]] = []

    def play(self) -> None:
        """Write until the tail has vanished, or something is wrong."""
        for _ in range(_ROUNDS):
            if self.dice.random() < 0.1:
                self.older = copy.deepcopy(self.disk)
            if self._cut_short() or self.dice.random() < _ENDS:
                vanished = self.dice.random() < _VANISHES and self._vanish()
                self._open(vanished)
                if vanished or self.found:
                    return

    def _cut_short(self) -> bool:
        """Write an entry, and perhaps save how far that is; whether the power failed meanwhile."""
        self.index += 1
        data = U64.pack(self.index) + bytes(_BYTES)
        self.log.append(Record(_GROUP, 1, self.index, Kind.CONTROL, (data,), len(data)))
        try:
            while (spare := self.log.spares.wants()) is not None:
                spare.run(self.disk)
                self.log.spares.made(spare)
            flush = self.log.next_flush()
            assert flush is not None  # nothing else is under way
            self.before_flush(flush.end)
            if self.dice.random() < _TORN:
                self.disk.cut_after(self.dice.randrange(4))
            flush.run(self.disk)
            self.disk.kill()
            self.log.flushed(flush)
            self.ends[flush.end] = self.index
            if self.dice.random() < _SAVED:
                if self.dice.random() < _TORN:
                    self.other.cut_after(self.dice.randrange(6))
                self.save(flush.end)
        except (PowerCut, DiskFailed):
            return True
        return False

    def before_flush(self, end: int) -> None:
        """A flush up to a position is about to run."""

    def save(self, end: int) -> None:
        """Name what a flush has made durable."""
        self.file.save(end)
        self.other.kill()
        self.named = end

    def _vanish(self) -> bool:
        """Take the last entries away, as far as they were synced; whether there were any."""
        self._stop()
        ends = sorted(self.ends)
        if len(ends) < 2:
            return False
        place = ends[-min(self.dice.randint(1, _GONE_MAX), len(ends))] - frame_size(_BYTES)
        how = self.dice.randrange(3)
        for base, name in enumerate(sorted(n for n in self.disk.names() if n[:4] == "segm")):
            size, at = self.disk.size(name), place - base * _SETTINGS.segment_bytes
            if at >= size:
                continue
            at = max(at, 0)
            before = self.older.read(name, 0, size) if name in self.older.names() else b""
            if how == 1:
                self.disk.truncate(name, at)
            else:
                left = before.ljust(size, b"\0") if how else bytes(size)
                self.disk.write(name, at, [left[at:]])
                self.disk.sync(name)
        return True

    def _stop(self) -> None:
        if self.dice.random() < 0.5:
            self.disk.crash()
            self.other.crash()
        else:
            self.disk.kill()
            self.other.kill()

    def _open(self, vanished: bool) -> None:
        self.starts += 1
        if not vanished:
            self._stop()
        self.file = DurablePosition(self.other, self._owner)
        if self.file.position < self.named:
            self.found.append(("Durable", f"{self.file.position} was {self.named} before"))
        try:
            found = recover(self.disk, _SETTINGS, self.file.position)
        except LogDamaged as damaged:
            if not vanished:
                self.found.append(("Live", f"nothing vanished: {damaged}"))
            return
        group = found.groups.get(_GROUP)
        last = group.last_index if group else 0
        damage = group.damage if group else found.log.groups.lost_of(_GROUP)
        if damage is not None:
            if not vanished:
                self.found.append(("Live", f"nothing vanished: {damage}"))
        elif last < max((i for end, i in self.ends.items() if end <= self.named), default=0):
            self.found.append(("Durable", f"entries behind {last} are gone in silence"))
        elif not vanished and last < max(self.ends.values(), default=0):
            self.found.append(("Durable", f"entries behind {last} were lost in a crash"))
        self.log, self.index = found.log, last


def play_tails(seed: int, shape: Shape) -> Outcome:
    """Play lives of logs one after the other; their shape is always the same one."""
    began, dice = time.perf_counter(), random.Random(seed)
    violations: list[tuple[str, str]] = []
    starts = written = trace = 0
    for generation in range(1, _LIVES + 1):
        life = Life(dice, generation)
        try:
            life.play()
        except WeirError as error:
            life.found.append(("Live", f"the log cannot be opened any more: {error}"))
        violations += life.found
        starts, written = starts + life.starts, written + len(life.ends)
        trace = zlib.crc32(repr((life.starts, life.named, life.ends)).encode(), trace)
    return Outcome(
        seed, shape, str(_SETTINGS), starts, written, violations, f"{trace:016x}",
        time.perf_counter() - began, 0.0,
    )  # fmt: skip
