"""Marks in bytes that are no sound row of frames: each tells how far the log had been durable.

And what else frames tell of a file whose header is unreadable.
"""

from __future__ import annotations

from weir.codec.fields import U64
from weir.storage.errors import UnknownKind
from weir.storage.format.frame import HEADER_SIZE, MAGIC, BadFrame, Kind, place, verify
from weir.storage.format.segment import Segment


def highest_mark(data: bytes, at: int, segment: Segment | None) -> int:
    """Return the highest position that a sound MARK from byte `at` of a file on names; 0 if none.

    Where the segment is unknown, a frame's own word for generation and position has to do.
    """
    view = memoryview(data)
    highest = 0
    while (at := data.find(MAGIC, at)) >= 0:
        highest = max(highest, _mark_at(view, at, segment))
        at += len(MAGIC)
    return highest


def claimed_base(data: bytes) -> int | None:
    """Return the base of the segment that a file was, by the word of its first sound frame; None
    if it holds none.
    """
    view, at = memoryview(data), 0
    while (at := data.find(MAGIC, at)) >= 0:
        try:
            generation, position, _ = place(view, at)
            verify(view, at, generation=generation, position=position)
        except (BadFrame, UnknownKind):
            at += len(MAGIC)
        else:
            return position - at
    return None


def _mark_at(view: memoryview, at: int, segment: Segment | None) -> int:
    """Return what the MARK at a file offset names; 0 if no sound one is there."""
    try:
        generation, position, kind = place(view, at)
        if kind != Kind.MARK:
            return 0
        if segment is not None:
            generation, position = segment.generation, segment.base + at
        frame = verify(view, at, generation=generation, position=position)
    except (BadFrame, UnknownKind):
        return 0
    named: int = U64.unpack_from(view, at + HEADER_SIZE)[0] if frame.kind is Kind.MARK else 0
    return named
