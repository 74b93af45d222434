"""What the log's tests share: a small log on a simulated disk, and records for it."""

from __future__ import annotations

import random
from collections.abc import Callable

from weir.storage.compaction import CopyPiece
from weir.storage.format.checkpoint import save
from weir.storage.format.record import Record
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

FAST = 1 << 16


class Node:
    """A log with a group that comes and goes and others that stay, and a host that does all."""

    def __init__(
        self, settings: Settings, batches: Callable[..., Record], fast: int = 3, size: int = 900
    ) -> None:
        self.disk, self.settings = SimDisk(random.Random(3)), settings
        self.batches, self.fast, self.size = batches, fast, size
        self.log = recover(self.disk, settings).log
        self.last: dict[int, int] = {}
        self.pieces: list[CopyPiece] = []

    def append(self, group: int, size: int) -> None:
        index = self.last[group] = self.last.get(group, 0) + 1
        self.log.append(self.batches(index, index - 1, group=group, size=size))

    def write(self, segments: int, *slow: int) -> None:
        """Append what takes about so many segments, with one entry of each slow group in each."""
        for _ in range(segments):
            for group in slow:
                self.append(group, 60)
            for _ in range(self.fast):
                self.append(FAST, self.size)
            self.upkeep()
            flush = self.log.next_flush()
            assert flush is not None
            flush.run(self.disk)
            self.log.flushed(flush)
            self.upkeep()

    def upkeep(self) -> None:
        while spare := self.log.spares.wants():
            spare.run(self.disk)
            self.log.spares.made(spare)
        while chore := self.log.next_chore():
            chore.run(self.disk)

    def checkpoint(self) -> None:
        save(self.disk, self.log.checkpoint(self.last, b""))
        self.log.checkpoint_saved()
        self.upkeep()

    def let_go(self, group: int = FAST, keep: int = 1) -> None:
        self.log.drop_below(group, self.last[group] + 1 - keep)

    def copy(self) -> int:
        """Copy all that is worth it; return how many pieces there were."""
        before = len(self.pieces)
        for _ in range(len(self.log.segments) + 20):
            if (piece := self.log.lifecycle.copies.next_piece()) is not None:
                self.pieces.append(piece)
                self.log.lifecycle.copies.copied(piece, piece.run(self.disk))
        return len(self.pieces) - before

    def round(self, segments: int, *slow: int) -> None:
        """Write, let go of all that is fast, and tidy up."""
        self.write(segments, *slow)
        self.let_go()
        self.checkpoint()
        self.copy()
        self.checkpoint()

    def restart(self) -> None:
        self.disk.crash()
        self.log = recover(self.disk, self.settings).log

    def payload(self, group: int, index: int) -> bytes:
        stored = self.log.reader.stored(group, index)
        assert stored is not None
        return self.log.reader.load(stored)

    def whole(self, group: int, first: int = 1) -> None:
        """Check that all of a group is there, as it was appended."""
        for index in range(first, self.last[group] + 1):
            record = self.batches(index, index - 1, group=group, size=60)
            assert self.payload(group, index) == b"".join(record.payload)

    def classes(self) -> list[int]:
        return [segment.class_ for segment in self.log.segments.copies]
