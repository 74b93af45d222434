"""The scrub: closed segments are read again in pieces and verified, so that rot is found early.

piece = ScrubPiece(log, segment)
while piece is not None:
    found = piece.run(disk)             # off the loop
    piece = found.next_piece

Payloads that rotted under sound headers are filled in where they lie (docs/adr/0017):

piece = log.reader.mend(group, index, payload)   # what another replica has under the same name
found = piece.run(disk)                          # off the loop
log.reader.mended(piece)                         # once nothing is `bad`
"""

from __future__ import annotations

import msgspec

from weir.codec import Buffer
from weir.model.batch import headers
from weir.model.limits import MIB
from weir.model.slices import tags_within
from weir.storage.disk import Disk, Readable
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import (
    HEADER_SIZE,
    BadFrame,
    BadPayload,
    CutFrame,
    Frame,
    Kind,
    frame_size,
    next_frame,
    verify,
)
from weir.storage.format.segment import BLOCK, Segment
from weir.storage.group_index import Filled, Stored

#: What one piece reads, and more only where one frame is larger.
PIECE_BYTES = 4 * MIB


class Scrubbed(msgspec.Struct, frozen=True):
    """What one piece found: `size` bytes were verified, and what is `bad` in them.

    `next_piece` goes on behind them; None at the end of the segment. `rotten` names entries of
    which only the payload is bad: group, index, and the place where each lies.
    """

    size: int
    bad: tuple[LogDamaged, ...]
    next_piece: ScrubPiece | None
    rotten: tuple[tuple[int, int, int], ...] = ()


class ScrubPiece(msgspec.Struct, frozen=True):
    """The frames of a segment from file offset `start` on, in about `piece_bytes` bytes.

    A class segment has no END: its frames reach to file offset `end`.

    With `seeking`, it begins in a damaged place that was told of already.
    """

    log: int
    segment: Segment
    start: int = BLOCK
    piece_bytes: int = PIECE_BYTES
    seeking: bool = False
    end: int = 0

    def run(self, disk: Readable) -> Scrubbed:
        """Verify headers, CRCs and hashes; blocks. Raises `OSError` where nothing can be read."""
        segment, generation = self.segment, self.segment.generation
        end = self.end or segment.size
        data = disk.read(segment.name, self.start, min(self.piece_bytes, end - self.start))
        last = self.start + self.piece_bytes >= end
        place = segment.base + self.start
        base = None if segment.class_ else place
        bad: list[LogDamaged] = []
        rotten: list[tuple[int, int, int]] = []
        view, at, seeking = memoryview(data), 0, self.seeking
        while at < len(data):
            if seeking:
                at = next_frame(data, at, generation=generation, base=base)
                seeking = at == len(data)
                continue
            position = None if base is None else base + at
            try:
                frame = verify(view, at, generation=generation, position=position)
            except BadFrame as error:
                if not last and (isinstance(error, CutFrame) or len(data) - at < HEADER_SIZE):
                    break
                bad.append(LogDamaged(self.log, segment.name, place + at, str(error)))
                if not isinstance(error, BadPayload):
                    at, seeking = at + 8, True
                    continue
                frame = error.frame
                rotten.append((frame.group, frame.index, place + at))
            at += frame_size(frame.length)
            if frame.kind is Kind.END:
                return Scrubbed(at, tuple(bad), None, tuple(rotten))
        if last:
            if not self.end and not bad and not self.seeking:
                reason = "the segment does not end in an END"
                bad.append(LogDamaged(self.log, segment.name, place + at, reason))
            return Scrubbed(at, tuple(bad), None, tuple(rotten))
        if seeking:  # a header may lie across the end
            at = max(len(data) - HEADER_SIZE, 8) & -8
        # A frame that does not fit is tried again in a larger piece.
        size = self.piece_bytes if at else 2 * self.piece_bytes
        more = ScrubPiece(self.log, segment, self.start + at, size, seeking, self.end)
        return Scrubbed(at, tuple(bad), more, tuple(rotten))


class MendPiece(msgspec.Struct, frozen=True):
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
    tags = tags_within(piece.payload, batches)
    return Filled(first.first_offset, last.next_offset, last.stamp, tags)
