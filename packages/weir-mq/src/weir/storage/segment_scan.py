"""The scan: what the segments hold, how far, and up to where it had been durable.

Reads no disk of its own. The first place without a sound frame is either the torn tail, or damage,
which only `judge` can say: the marks behind it tell (DESIGN §4 Damage; docs/adr 0001).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from weir.codec import U64
from weir.storage.errors import LogDamaged, UnknownKind
from weir.storage.format.checkpoint import Checkpoint
from weir.storage.format.durable_position import NAME
from weir.storage.format.frame import (
    HEADER_SIZE,
    MAGIC,
    BadFrame,
    BadPayload,
    Frame,
    Kind,
    frame_size,
    next_frame,
    place,
    verify,
)
from weir.storage.format.index_file import Rows
from weir.storage.format.segment import BLOCK, SMALL_FRAME, Segment
from weir.storage.group_scan import FoundCopies, GroupScan

Read = Callable[[Segment], bytes]
#: Frames begin at multiples of it.
_ALIGNED = 8


class _Bad(NamedTuple):
    """Where the walk met something that is no sound frame."""

    segment: Segment
    at: int
    reason: str
    frame: Frame | None
    #: From which position on segments are missing before this one, if they are.
    gap: int | None = None


class DurableMark:
    """How far the log is known to have been durable, and what tells so."""

    __slots__ = ("file", "is_missing", "position")

    def __init__(self, position: int) -> None:
        """Begin with what the checkpoint says."""
        self.position = position
        #: The file in which more had been than is there, and whether that itself is missing.
        self.file = ""
        self.is_missing = False

    def rise(self, position: int) -> None:
        """Know that all below a position had been durable, in files that are there."""
        self.position = max(self.position, position)

    def tell(self, position: int, file: str, is_missing: bool) -> None:
        """Know from a file that all below a position had been durable, if that is news."""
        if position > self.position:
            self.position, self.file, self.is_missing = position, file, is_missing


class Scan:
    """Takes segments in the order of their bases, then judges.

    `mark` is the highest position known to have been durable, `bound` how far promises may have
    gone, `tail` the first position without a sound frame, `live` the segments below the tail,
    `holes` all that was found damaged below the mark, `groups` what was learnt of the groups.
    """

    def __init__(
        self, log: int, found: Checkpoint | None = None, copies: FoundCopies | None = None
    ) -> None:
        """Begin the log with this number, at position 0 or from its checkpoint on, and take the
        copies that it names among the segments.
        """
        self._found = found
        self._mark = DurableMark(found.durable if found else 0)
        self.bound = found.bound if found else 0
        self.tail = 0
        self.live: list[Segment] = []
        self.holes: list[LogDamaged] = []
        self.log = log
        self._copies = copies or FoundCopies(log, found.groups if found else {})
        self.groups = GroupScan(log, found, self._copies, self.holes)
        #: Segments that may reach above the mark, with their bytes up to the END.
        self._young: list[tuple[Segment, memoryview]] = []
        #: The base of the next segment; those that the checkpoint names may leave holes.
        self._expected = self._listed
        #: Files without a sound header that were segments, with the bases that their frames tell;
        #: None for one of which nothing is left.
        self._unnamed: dict[str, int | None] = {}
        #: By base, how much is left of segments whose file was cut short, until that is told.
        self._cuts: dict[int, int] = {}
        self._bad: _Bad | None = None
        self._behind_bad: list[Segment] = []

    @property
    def mark(self) -> int:
        """The highest position known to have been durable."""
        return self._mark.position

    @property
    def _listed(self) -> int:
        """The end of the last segment that the checkpoint names."""
        return self._found.segments[-1].end if self._found and self._found.segments else 0

    # -- taking ------------------------------------------------------------------------------

    def known(self, segment: Segment, sections: Iterable[tuple[int, Rows]]) -> None:
        """Take a closed segment by what its index file says."""
        self.groups.joining.catch_up(segment.base)
        for group, rows in sections:
            self.groups.joining.join(segment, segment.end, group, rows)
        self.live.append(segment)
        self.tail = segment.end

    def missing(self, segment: Segment) -> None:
        """Note that a segment that is needed cannot be found. Raises `LogDamaged` if it is the one
        that was written to: nobody knows how far.
        """
        error = self._damaged(segment.name, segment.base, "this segment is missing or unreadable")
        if segment.end >= max(self._listed, self.groups.replay):
            raise error
        self.holes.append(error)
        self.groups.joining.doubts.darken(segment.base, segment.end)
        if segment.end > self.groups.replay:
            self.groups.lose_all(error, segment.end)

    def take(self, segment: Segment, data: bytes, there: int | None = None) -> None:
        """Read one segment, whole. Of a file that was cut short, `there` are the bytes that are
        left; zeros stand for the others. Raises `LogDamaged` or `UnknownKind`.
        """
        if there is not None and there < segment.size:
            self._cuts[segment.base] = there
        self.groups.joining.catch_up(segment.base)
        listed = segment.base < self._listed
        if segment.base < self._expected and not listed:
            reason = "another file holds these positions too"
            raise LogDamaged(self.log, segment.name, segment.base, reason)
        self._take(segment, data)
        self._expected = max(self._expected, segment.end)

    def take_unnamed(self, name: str, data: bytes) -> None:
        """Read a file without a sound header: a spare, one that a flush had only begun to use, or
        one whose header rotted. Its marks tell which.
        """
        self._seek_marks(name, data, 0, None)
        if (base := claimed_base(data)) is not None or not data:
            self._unnamed[name] = base

    def closed(self, segment: Segment) -> None:
        """Note that there is an index file of the segment that comes next: it was written when all
        of that, and what began the next one, had been durable.
        """
        self._mark.tell(segment.end, segment.name, True)

    def reach(self, durable: int) -> None:
        """Note, behind the last segment, that all below position `durable` had been synced, as the
        durable position file says. A log that reaches so far is judged by its own marks alone.
        """
        if durable <= self.tail:
            return
        if self.mark <= self.tail:
            self._mark.tell(durable, self.live[-1].name if self.live else NAME, True)
        else:  # a mark tells in which file more had been
            self._mark.rise(durable)

    @property
    def stopped(self) -> bool:
        """Whether a place without a sound frame was met that `judge` has to decide about."""
        return self._bad is not None

    def rows(self, segment: Segment) -> list[tuple[int, Rows]]:
        """Return what an index file of the segment taken last is to hold."""
        return [
            (group, index.rows(segment.base, segment.end))
            for group, index in self.groups.index.items()
            if index.uses(segment.base, segment.end)
        ]

    # -- judging -----------------------------------------------------------------------------

    def judge(self, read: Read) -> None:
        """Step over what is damaged below the mark, reading again what lies behind it.

        Raises `LogDamaged` where nobody can say whose frames are gone and they are needed for a
        start. Call it after the last segment.
        """
        self.groups.joining.catch_up(self.groups.replay)
        while self._bad is not None and self.tail < self.mark:
            bad, behind = self._bad, self._behind_bad
            self._behind_bad = []
            self._step_over(bad.segment, read(bad.segment))
            for segment in behind:
                self._take(segment, read(segment))
        if self.tail < self.mark:
            name, reason = self._mark.file, "the header of this segment is unreadable"
            if self._mark.is_missing:
                later = (n for n, base in self._unnamed.items() if (base or 0) >= self.tail)
                if (found := next(later, None)) is not None:
                    name = found
                else:
                    reason = "what was written behind this segment is missing"
            raise self._damaged(name, self.tail, reason)
        self._finish()

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

    def _take(self, segment: Segment, data: bytes) -> None:
        at = BLOCK
        end = max(self._listed, self.live[-1].end if self.live else 0)
        if self._bad is None and segment.base > end:
            reason = "the segment before this one is missing"
            self._bad = _Bad(segment, BLOCK, reason, None, end)
        elif self._bad is None:
            at = self._walk(segment, memoryview(data), BLOCK)
            at = self._step_over(segment, data) or at
        else:
            self._behind_bad.append(segment)
        if self._bad is not None:
            self._seek_marks(segment.name, data, at, segment)

    def _step_over(self, segment: Segment, data: bytes) -> int:
        """Go on behind each bad place in a segment that is known to have been durable; return the
        file offset where that ends, 0 if there is none.
        """
        at = 0
        while (bad := self._bad) is not None and self.tail < self.mark:
            self._bad = None
            at = self._walk(segment, memoryview(data), self._beyond(bad, data))
        return at

    def _beyond(self, bad: _Bad, data: bytes) -> int:
        """Return the file offset behind a damaged place, once it is known whose it was."""
        segment, at, reason, frame, gap = bad
        name, position, start = segment.name, segment.base + at, at + _ALIGNED
        if gap is not None:
            name, reason = self._culprit(bad, gap)
            position, start = gap, at
        error = self._damaged(name, position, reason)
        if frame is None:
            if gap is not None and self._found is None:  # not even what groups there are is known
                raise error
            self.holes.append(error)
            sound = next_frame(data, start, generation=segment.generation, base=segment.base)
            # Where nothing sound follows, what is lost ends with what had been durable.
            behind = sound if sound < len(data) else min(sound, self.mark - segment.base)
            # It may begin below `replay`, and reach into what every group needs.
            if segment.base + behind > self.groups.replay:
                self.groups.lose_all(error, segment.base + behind - 1)
            self.groups.joining.doubts.darken(position, segment.base + behind)
            return behind
        self.holes.append(error)
        if frame.kind is Kind.END:
            return len(data)
        if frame.kind is Kind.MARK:
            self.bound = max(self.bound, frame.index)
        else:
            self.groups.lose(segment, frame, error)
        return at + frame_size(frame.length)

    def _culprit(self, bad: _Bad, gap: int) -> tuple[str, str]:
        """Return why segments are missing: the file of one, if it is there without a header, and
        what is wrong.
        """
        behind = bad.segment.base
        there = [
            n for n, base in self._unnamed.items() if base is not None and gap <= base < behind
        ]
        there += [n for n, base in self._unnamed.items() if base is None]
        if not there:
            return bad.segment.name, bad.reason
        return there[0], "the header of this segment is unreadable"

    def _finish(self) -> None:
        self.holes += self._copies.holes
        self.groups.finish(self.tail)

    def _damaged(self, name: str, position: int, reason: str) -> LogDamaged:
        durable = f"{reason}, and all below position {self.mark:,} had been durable"
        return LogDamaged(self.log, name, position, durable)

    # -- frames ------------------------------------------------------------------------------

    def _walk(self, segment: Segment, view: memoryview, at: int) -> int:
        """Take frames up to the END or the first bad place; return the file offset of that."""
        self.tail = segment.base + at
        end = 0
        while not end:
            if at + HEADER_SIZE > len(view):  # all up to here was damaged
                end = at
                break
            try:
                frame = verify(view, at, generation=segment.generation, position=self.tail)
            except BadFrame as bad:
                claimed = bad.frame if isinstance(bad, BadPayload) else None
                self._bad = _Bad(segment, at, str(bad), claimed)
                self._see_cut(self._bad)
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
        if not self.live or self.live[-1] is not segment:
            self.live.append(segment)
        self._young = [
            (s, b) for s, b in self._young if s.base + len(b) > self.mark and s is not segment
        ]
        self._young.append((segment, view[:end]))
        return at

    def _keep(self, segment: Segment, frame: Frame, payload: memoryview) -> None:
        if frame.kind is Kind.MARK:
            self._mark.rise(U64.unpack(payload)[0])
            self.bound = max(self.bound, frame.index)
            return
        self.groups.take(segment, frame, payload)

    def _see_cut(self, bad: _Bad) -> None:
        """Know a bad place as damage where the file ends in it: a log's own files never do.

        Nobody knows how far what is gone had been written: it reaches at least into what every
        group needs, where its segment does. A checkpoint that was made of all that was durable
        then leaves no mark that tells of what came after it.
        """
        size = self._cuts.get(bad.segment.base)
        length = HEADER_SIZE if bad.frame is None else frame_size(bad.frame.length)
        if size is not None and bad.at + length > size:
            needed = self.groups.replay if self.groups.replay < bad.segment.end else 0
            self._mark.rise(max(self.tail, needed) + _ALIGNED)
            if bad.frame is None:
                del self._cuts[bad.segment.base]

    def _seek_marks(self, name: str, data: bytes, at: int, segment: Segment | None) -> None:
        """Look for marks from file offset `at` on: one may tell that a bad place was durable."""
        self._mark.tell(highest_mark(data, at, segment), name, False)


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
