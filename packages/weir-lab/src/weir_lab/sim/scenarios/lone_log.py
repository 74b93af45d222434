"""One log alone, with no broker around it: written, let go of, used again, and opened anew.

Its entries are of one size, so that new frames begin where those of a file's earlier life did; in
a whole world that hardly ever comes about.
"""

from __future__ import annotations

import random
import time
import zlib

from weir.codec import U64
from weir.errors import WeirError
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import save
from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.shape import Shape

_GROUP = 1 << 16
_SETTINGS = Settings(log=1, system=7, segment_bytes=8_192, entry_bytes_max=2_000, spares=1)
_ROUNDS = 200
#: So many entries are kept when a checkpoint lets go of the others.
_KEPT = 4
_CHECKPOINT, _END = 0.2, 0.04


class _Life:
    """One log from its founding on, and what was written to it by index."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = SimDisk(random.Random(seed))
        self.log = recover(self.disk, _SETTINGS).log
        self.written: dict[int, bytes] = {}
        self.durable = 0
        self.first = 1
        self.starts = self.serial = 0
        self.found: list[tuple[str, str]] = []
        self._fill = bytes(self.dice.choice((100, 400, 1_000)))

    def play(self) -> None:
        """Write entry by entry, each in a flush of its own, until something is wrong."""
        for _ in range(_ROUNDS):
            self._append()
            if self.dice.random() < _CHECKPOINT:
                self._checkpoint()
            if self.dice.random() < _END:
                self._open_again()
            if self.found:
                return

    def _append(self) -> None:
        self.serial += 1
        index, data = self.durable + 1, U64.pack(self.serial) + self._fill
        self.written[index] = data
        self.log.append(Record(_GROUP, 1, index, Kind.CONTROL, (data,), len(data)))
        while (spare := self.log.spares.wants()) is not None:
            spare.run(self.disk)
            self.log.spares.made(spare)
        flush = self.log.next_flush()
        assert flush is not None  # nothing else is under way
        flush.run(self.disk)
        self.log.flushed(flush)
        self.durable = index

    def _checkpoint(self) -> None:
        save(self.disk, self.log.checkpoint({_GROUP: self.durable}, b"state"))
        self.log.checkpoint_saved()
        self.first = max(self.durable + 1 - _KEPT, self.first)
        self.log.drop_below(_GROUP, self.first)
        while (chore := self.log.next_chore()) is not None:
            chore.run(self.disk)

    def _open_again(self) -> None:
        self.starts += 1
        if self.dice.random() < 0.5:
            self.disk.crash()
        else:
            self.disk.kill()
        self.log = recover(self.disk, _SETTINGS).log
        last = self.log.reader.stored(_GROUP, self.durable)
        if last is None or self.log.reader.stored(_GROUP, self.durable + 1) is not None:
            self.found.append(("Durable", f"entry {self.durable} is not the last one any more"))
            return
        for index in range(self.first, self.durable + 1):
            self._compare(self.log, index)

    def _compare(self, log: Log, index: int) -> None:
        stored = log.reader.stored(_GROUP, index)
        try:
            data = log.reader.load(stored) if stored is not None else None
        except LogDamaged as damaged:
            self.found.append(("Durable", f"entry {index} cannot be read: {damaged}"))
            return
        if data is None:
            self.found.append(("Durable", f"entry {index} was durable and is gone"))
        elif data != self.written[index]:
            self.found.append(("Honest", f"entry {index} is another than was written"))


def play_log(seed: int, shape: Shape) -> Outcome:
    """Play the life of one log; its shape is always the same one."""
    began, life = time.perf_counter(), _Life(seed)
    try:
        life.play()
    except WeirError as error:
        life.found.append(("Durable", f"the log cannot be opened any more: {error}"))
    history = b"".join((b"%d %d " % (life.starts, life.log.tail), *life.written.values()))
    return Outcome(
        seed, shape, str(_SETTINGS), life.starts, life.serial, life.found,
        f"{zlib.crc32(history):016x}", time.perf_counter() - began, 0.0,
    )  # fmt: skip
