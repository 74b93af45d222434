"""The scan: what the segments hold, how far, and up to where it had been durable. Reads no disk."""

from __future__ import annotations

from collections.abc import Iterator

from weir.codec.fields import U64
from weir.log.errors import BadRecord, LogDamaged, UnknownKind
from weir.log.frame import HEADER_SIZE, MAGIC, BadFrame, Frame, Kind, frame_size, place, verify
from weir.log.index import GroupIndex
from weir.log.record import HardState
from weir.log.segment import BLOCK, SMALL_FRAME, Segment


class Scan:
    """Takes segments in the order of their bases.

    `mark` is the highest position that a sound MARK names, `tail` the first position without a
    sound frame, `live` the segments below the tail.
    """

    def __init__(self, log: int) -> None:
        """Begin the log with this number at position 0."""
        self.mark = 0
        self.tail = 0
        self.index: dict[int, GroupIndex] = {}
        self.hard_states: dict[int, HardState] = {}
        self.live: list[Segment] = []
        self._log = log
        #: Segments that may reach above the mark, with their bytes up to the END.
        self._young: list[tuple[Segment, memoryview]] = []
        self._expected = 0
        self._marked_in = ""
        self._bad: tuple[str, str] | None = None

    def take(self, segment: Segment, data: bytes) -> None:
        """Read one segment, whole. Raises `LogDamaged` or `UnknownKind`."""
        if segment.base < self._expected:
            raise LogDamaged(
                self._log, segment.name, segment.base, "another file holds these positions too"
            )
        at = BLOCK
        if self._bad is None and segment.base > self._expected:
            self._bad = (segment.name, "the segment before this one is missing")
        elif self._bad is None:
            at = self._walk(segment, memoryview(data))
        if self._bad is not None:
            self._seek_marks(segment.name, data, at, segment)
        self._expected = segment.end

    def take_unnamed(self, name: str, data: bytes) -> None:
        """Read a file without a sound header: a spare, one that a flush had only begun to use, or
        one whose header rotted. Its marks tell which.
        """
        self._seek_marks(name, data, 0, None)

    def judge(self) -> None:
        """Raise `LogDamaged` if the log ends below the durable mark; call it after the last one."""
        if self.tail >= self.mark:
            return
        name, reason = self._bad or (self._marked_in, "the header of this segment is unreadable")
        raise LogDamaged(
            self._log,
            name,
            self.tail,
            f"{reason}, and all below position {self.mark:,} had been durable",
        )

    def unsure(self) -> Iterator[tuple[Segment, int, memoryview]]:
        """Yield what must be rewritten, from the mark to the tail: segment, file offset, bytes.

        The bytes are those that were verified, not read again. The last segment always comes.
        """
        for segment, data in self._young:
            start = self.mark - segment.base if self.mark > segment.first else 0
            if segment is self.live[-1]:
                yield segment, start, data[start : self.tail - segment.base]
            elif start < len(data):
                yield segment, start, data[start:]

    def _walk(self, segment: Segment, view: memoryview) -> int:
        """Take frames up to the END or the first bad place; return the file offset of that."""
        self.tail = segment.first
        at = BLOCK
        end = 0
        while not end:
            try:
                frame = verify(view, at, generation=segment.generation, position=self.tail)
            except BadFrame as bad:
                self._bad = (segment.name, str(bad))
                end = at
            else:
                if frame.kind is Kind.END:
                    # The tail stays before it: if no segment follows, the END is dropped, since
                    # a small frame may take its place before the next roll.
                    end = at + SMALL_FRAME
                else:
                    self._keep(segment, frame, view[at + HEADER_SIZE :][: frame.length])
                    at += frame_size(frame.length)
                    self.tail = segment.base + at
        self.live.append(segment)
        self._young = [(s, b) for s, b in self._young if s.base + len(b) > self.mark]
        self._young.append((segment, view[:end]))
        return at

    def _keep(self, segment: Segment, frame: Frame, payload: memoryview) -> None:
        if frame.kind is Kind.MARK:
            self.mark = max(self.mark, U64.unpack(payload)[0])
        elif frame.kind is Kind.HARD_STATE:
            self.hard_states[frame.group] = HardState.unpack(payload)
        else:
            index = self.index.get(frame.group)
            if index is None:
                index = self.index[frame.group] = GroupIndex(frame.index)
            try:
                index.add(
                    frame.index,
                    frame.term,
                    frame.kind,
                    frame.position,
                    frame.length,
                    frame.next_offset,
                )
            except BadRecord as bad:
                reason = f"group {frame.group}: {bad}"
                raise LogDamaged(self._log, segment.name, frame.position, reason) from bad

    def _seek_marks(self, name: str, data: bytes, at: int, segment: Segment | None) -> None:
        """Look for marks from file offset `at` on: one may tell that a bad place was durable."""
        view = memoryview(data)
        while (at := data.find(MAGIC, at)) >= 0:
            durable = _mark_at(view, at, segment)
            if durable > self.mark:
                self.mark, self._marked_in = durable, name
            at += len(MAGIC)


def _mark_at(view: memoryview, at: int, segment: Segment | None) -> int:
    """Return what the MARK at a file offset names; 0 if no sound one is there.

    Where the segment is unknown, the frame's own word for generation and position has to do.
    """
    try:
        claimed = place(view, at)
        generation, position = (segment.generation, segment.base + at) if segment else claimed
        frame = verify(view, at, generation=generation, position=position)
    except (BadFrame, UnknownKind):
        return 0
    named: int = U64.unpack_from(view, at + HEADER_SIZE)[0] if frame.kind is Kind.MARK else 0
    return named
