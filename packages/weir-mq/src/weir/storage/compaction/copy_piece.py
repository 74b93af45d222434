"""Copying entries from one segment into another, as work that nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from weir.codec.fields import Buffer, padding
from weir.storage.disk import Disk
from weir.storage.entries.group_index import Stored
from weir.storage.entries.reads import spans_of
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import pack
from weir.storage.format.segment import BLOCK, Segment, pack_header
from weir.storage.segments.scrub import Scrubbed
from weir.storage.segments.spare_files import Spare


@dataclass(frozen=True, slots=True)
class CopyPiece:
    """Entries of `source`, each with its group, to be written to `target` from byte `start` on.

    Each keeps its log position. Nothing of them counts before a checkpoint names the copies.
    """

    log: int
    system: int
    source: Segment
    target: Segment
    start: int
    entries: tuple[tuple[int, Stored], ...]
    missing: Spare | None = None

    def run(self, disk: Disk) -> Scrubbed:
        """Read, verify, write and sync; blocks. Where something is `bad`, nothing was written."""
        frames: list[Buffer] = []
        if self.start == BLOCK:
            frames.append(pack_header(self.target, self.log, self.system))
        size = 0
        try:
            for group, run in groupby(self.entries, lambda entry: entry[0]):
                for span in spans_of([(self.source, stored) for _, stored in run]):
                    payloads = span.payloads(disk, self.log, group)
                    for stored, payload in zip(span.entries, payloads, strict=True):
                        frames += self._frame(group, stored, payload)
                        size += stored.length
        except LogDamaged as damaged:
            return Scrubbed(size, (damaged,), None)
        if self.missing and self.missing.name not in disk.names():
            self.missing.run(disk)
        disk.write(self.target.name, 0 if self.start == BLOCK else self.start, frames)
        disk.sync(self.target.name)
        return Scrubbed(size, (), None)

    def _frame(self, group: int, stored: Stored, payload: bytes) -> tuple[Buffer, ...]:
        header = pack(
            self.target.generation,
            stored.position,
            stored.kind,
            (payload,),
            stored.length,
            group=group,
            term=stored.term,
            index=stored.index,
        )
        return header, payload, padding(stored.length)
