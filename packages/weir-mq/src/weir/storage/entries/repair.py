"""Filling in payloads that rotted under sound headers, where they lie (docs/adr 0017).

piece = log.reader.mend(group, index, payload)   # what another replica has under the same name
found = piece.run(disk)                          # off the loop
log.reader.mended(piece)                         # once nothing is `bad`
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.codec.fields import Buffer
from weir.model.header import headers
from weir.storage.disk import Disk
from weir.storage.entries.group_index import Filled, Stored
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import HEADER_SIZE, BadFrame, BadPayload, Frame, Kind, verify
from weir.storage.format.segment import Segment
from weir.storage.segments.scrub import Scrubbed


@dataclass(frozen=True, slots=True)
class MendPiece:
    """The payload of one entry of a group, to be written over what rotted in `segment`."""

    log: int
    segment: Segment
    group: int
    stored: Stored
    payload: Buffer

    def run(self, disk: Disk) -> Scrubbed:
        """Write, sync, and verify by the header that lies there; blocks.

        Where something is `bad`, that header tells of another entry, or of other bytes.
        """
        at, size = self.stored.place - self.segment.base, self.stored.length
        try:
            self._verify(disk, at)
        except BadPayload as rotten:
            if self._is_meant(rotten.frame) and len(self.payload) == size:
                disk.write(self.segment.name, at + HEADER_SIZE, (self.payload,))
                disk.sync(self.segment.name)
        except BadFrame:
            pass
        try:
            frame = self._verify(disk, at)
            if not self._is_meant(frame):
                raise BadFrame(f"another frame lies there: {frame}")
        except BadFrame as bad:
            error = LogDamaged(self.log, self.segment.name, self.stored.position, str(bad))
            return Scrubbed(0, (error,), None)
        return Scrubbed(size, (), None)

    def _verify(self, disk: Disk, at: int) -> Frame:
        data = disk.read(self.segment.name, at, HEADER_SIZE + self.stored.length)
        position = self.stored.position
        return verify(memoryview(data), 0, generation=self.segment.generation, position=position)

    def _is_meant(self, frame: Frame) -> bool:
        at = self.stored
        named = (frame.group, frame.index, frame.term, frame.kind, frame.length)
        return named == (self.group, at.index, at.term, at.kind, at.length)


def filled_by(piece: MendPiece) -> Filled:
    """Return what an entry holds whose payload a piece gave back."""
    if piece.stored.kind is not Kind.BATCHES:
        return Filled()
    batches = headers(piece.payload)
    first, last = batches[0], batches[-1]
    if first.first_offset < 0:
        return Filled()
    return Filled(first.first_offset, last.next_offset, last.stamp)
