"""Copying the entries that outlive their segment, so that its file can be used again.

One message that is kept for a month keeps the whole segment in which it lies, and copying what is
alive along with new messages copies it again and again (counterexample 12). So a closed segment
that is mostly dead gives its survivors to segments of their own *retention class*: what outlives
its neighbours is copied once, to what goes when it goes. A class segment is never copied from: no
byte is copied twice.

A copy counts in three steps: its pieces are written and synced; a checkpoint names the copies and
no longer the segment that they came from; that checkpoint is durable. Only then do entries lie at
their new places, and only then is the old file used again. So a power cut finds all of the old or
all of the new, and never both. Only what a durable checkpoint holds the state of is copied:
committed entries, which nothing supersedes any more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

import msgspec

from weir.codec import Buffer, padding
from weir.model.limits import MIB
from weir.model.topic import FOREVER
from weir.storage.disk import Disk
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import frame_size, pack
from weir.storage.format.index_file import IndexFile, gone
from weir.storage.format.segment import BLOCK, CLASS_SPACE, COPY_GENERATION, Segment, pack_header
from weir.storage.group_index import GroupIndex, Stored
from weir.storage.log_reader import spans_of
from weir.storage.scrub import Scrubbed
from weir.storage.segment_files import Segments, Settings, Spare, SpareFiles

_HOUR_MS = 3_600_000
#: The longest retention of each class but the last, in milliseconds.
_BOUNDS_MS = (_HOUR_MS, 24 * _HOUR_MS, 7 * 24 * _HOUR_MS, 30 * 24 * _HOUR_MS)
#: The class of all that is kept longer, for ever, or up to a size.
LONGEST = len(_BOUNDS_MS) + 1
_NO_RUN = (1, 0)
#: A segment of which more than one in so many bytes is alive stays as it is.
LIVE_PART = 4
#: Segments at the end of the row that are left alone.
_YOUNG = 2
#: What one piece copies at most, and more only where one entry is larger.
_PIECE_BYTES = 4 * MIB
_PIECE_ENTRIES = 1024


def class_of(retention_ms: int) -> int:
    """Return the retention class of a topic that keeps messages for so long."""
    if retention_ms == FOREVER:
        return LONGEST
    return bisect_left(_BOUNDS_MS, retention_ms) + 1


class ClassSegment(msgspec.Struct, eq=False):
    """One segment of copies. Frames up to byte `saved` of its file stand in a durable checkpoint,
    up to `done` are durable, up to `tail` are being written.

    It is `missing` its file until that is made, and `lost` if a start did not find it as it was.
    """

    segment: Segment
    saved: int = BLOCK
    done: int = BLOCK
    tail: int = BLOCK
    #: First and last index of rows of saved entries, by group. A group of which none are needed
    #: stays, without a row, since its frames lie here.
    runs: dict[int, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    missing: Spare | None = None
    lost: bool = False
    #: Whether damaged entries lie here of which nobody can say which they were: it stays.
    unknown: bool = False
    #: Whether something is damaged: nothing is added, and an index file would not tell of it.
    damaged: bool = False
    #: Up to which byte an index file tells, or one that was given out.
    indexed: int = BLOCK

    def note(self, group: int, first: int, last: int) -> None:
        """Take entries into the runs, joined with those before where they follow on them."""
        runs = self.runs.setdefault(group, [])
        if runs and runs[-1][1] + 1 == first:
            first, _ = runs.pop()
        runs.append((first, last))

    def forget(self, group: int) -> None:
        """Nothing that lies here of a group is needed any more."""
        if group in self.runs:
            self.runs[group] = []

    def needed(self, groups: Mapping[int, GroupIndex]) -> bool:
        """Whether an entry that lies here is still needed, as far as is known."""
        return self.unknown or any(
            group in groups and groups[group].first <= max((last for _, last in runs), default=-1)
            for group, runs in self.runs.items()
        )

    def index_file(self, groups: Mapping[int, GroupIndex], floors: Mapping[int, int]) -> IndexFile:
        """Return where the entries lie that are left of those that stand in a checkpoint; `floors`
        says of groups that are gone since which log position.
        """
        self.indexed = self.saved
        sections = [
            (
                group,
                groups[group].rows_of(first, last)
                if group in groups
                else gone(floors.get(group, 0)),
            )
            for group, runs in self.runs.items()
            for first, last in runs or [_NO_RUN]
        ]
        return IndexFile(self.segment, sections, self.saved)


class CopyPiece(msgspec.Struct, frozen=True):
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


class _Move(NamedTuple):
    """Entries of a group, from index `first` on, and where they lie once a copy counts."""

    group: int
    first: int
    positions: array[int]
    places: array[int]
    into: ClassSegment


class _Copy(msgspec.Struct, eq=False):
    """The survivors of one segment on their way: those left to be written, by class and group."""

    source: Segment
    left: deque[tuple[int, int, int, int]]
    moves: list[_Move] = msgspec.field(default_factory=list)
    piece: CopyPiece | None = None
    into: ClassSegment | None = None


class ClassSegments:
    """The class segments of one log, and of each class the one to which copies are added."""

    __slots__ = ("_base", "_open", "_segments", "_size", "_spares", "held")

    def __init__(
        self, size: int, segments: Segments, spares: SpareFiles, found: Iterable[ClassSegment]
    ) -> None:
        """Go on with those that a start found, ordered by base; new ones have a size in bytes."""
        self._size = size
        self._segments = segments
        self._spares = spares
        self.held = list(found)
        for one in self.held:
            segments.copies.append(one.segment)
            if not one.lost:
                segments.ends[one.segment.name] = one.saved
        self._open = {one.segment.class_: one for one in self.held if not one.damaged}
        self._base = max((one.segment.end for one in self.held), default=CLASS_SPACE)

    def with_room(self, class_: int, room: int, serial: int) -> ClassSegment:
        """Return the class segment that is open, or a new one if that has too little room; it is of
        the generation of checkpoint `serial`.
        """
        held = self._open.get(class_)
        if held is not None and held.tail + room <= held.segment.size:
            return held
        name, missing = self._spares.lend()
        generation = COPY_GENERATION | serial % COPY_GENERATION
        segment = Segment(name, generation, self._base, self._size, class_)
        self._base = segment.end
        held = self._open[class_] = ClassSegment(segment, missing=missing)
        self.held.append(held)
        self._segments.copies.append(segment)
        return held

    def dead(self, groups: Mapping[int, GroupIndex]) -> list[ClassSegment]:
        """Return those that are written, named, and hold nothing that is needed."""
        return [one for one in self.held if self._is_dead(one, groups)]

    def _is_dead(self, one: ClassSegment, groups: Mapping[int, GroupIndex]) -> bool:
        if not one.tail == one.done == one.saved:
            return False
        begun = one.done == BLOCK and self._open.get(one.segment.class_) is one
        return not begun and not one.needed(groups)

    def save(self, one: ClassSegment, end: int) -> None:
        """A durable checkpoint names one up to byte `end` of its file."""
        one.saved = end
        if end > BLOCK and not one.lost:
            self._segments.ends[one.segment.name] = end

    def drop(self, one: ClassSegment) -> None:
        """Drop a class segment that is no longer needed."""
        self.held.remove(one)
        self._segments.copies.remove(one.segment)
        self._segments.ends.pop(one.segment.name, None)
        if self._open.get(one.segment.class_) is one:
            del self._open[one.segment.class_]

    def written(self) -> None:
        """All that was under way is written and synced."""
        for one in self.held:
            one.done = one.tail

    def give_up(self) -> None:
        """Nothing that was under way counts."""
        for one in self.held:
            one.tail = one.done


class _Sources:
    """Which closed segments may give their survivors away: each is looked at once for each
    checkpoint.
    """

    __slots__ = ("_has_news", "_queue", "_replay", "_segments", "_unfit", "applied")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        #: What is still to be looked at, of the segments below `_replay`.
        self._queue: deque[Segment] = deque()
        self._replay = 0
        #: By group, through which index a durable checkpoint holds its state.
        self.applied: Mapping[int, int] = {}
        self._has_news = False
        #: Bases of segments of which something cannot be read: they stay as they are.
        self._unfit: set[int] = set()

    def renew(self, replay: int, applied: Mapping[int, int]) -> None:
        """Look at all segments again, as of a checkpoint that is durable now."""
        self._replay, self.applied = replay, applied
        self._has_news = True

    def refuse(self, segment: Segment) -> None:
        """Something in a segment cannot be read."""
        self._unfit.add(segment.base)

    def next(self, waiting: Iterable[Segment]) -> Segment | None:
        """Return the next segment to look at, none of those `waiting`; None if none is left."""
        if not self._queue and self._has_news:
            self._has_news = False
            bases = {one.base for one in waiting}
            self._queue.extend(
                one
                for one in list(self._segments)[:-_YOUNG]
                if one.end <= self._replay and one.base not in bases
            )
        if not self._queue:
            return None
        source = self._queue.popleft()
        return None if source not in self._segments or source.base in self._unfit else source


class _Saving(msgspec.Struct, frozen=True):
    """What a checkpoint says that is being saved: which copies count, how far class segments reach,
    and which are dropped; and the groups that had begun anew by then.
    """

    serial: int
    replay: int = 0
    applied: Mapping[int, int] = msgspec.field(default_factory=dict)
    copies: tuple[_Copy, ...] = ()
    named: tuple[tuple[ClassSegment, int], ...] = ()
    dropped: tuple[ClassSegment, ...] = ()
    restarted: frozenset[int] = frozenset()


class Copies:
    """What is copied into class segments, and when it counts. Only chores touch a disk."""

    def __init__(
        self,
        settings: Settings,
        segments: Segments,
        spares: SpareFiles,
        groups: dict[int, GroupIndex],
        found: Iterable[ClassSegment] = (),
        serial: int = 0,
    ) -> None:
        """Go on with the class segments that a start found, ordered by base, and with the serial
        number of the checkpoint that named them.
        """
        self._settings = settings
        self._segments = segments
        self._groups = groups
        self.class_segments = ClassSegments(settings.segment_bytes, segments, spares, found)
        self._sources = _Sources(segments)
        self._classes: dict[int, int] = {}
        self._copy: _Copy | None = None
        #: Written and synced, waiting for the next checkpoint.
        self._done: list[_Copy] = []
        self._saving = _Saving(serial)
        #: Groups that began anew since the last checkpoint. A power cut may bring back what they
        #: held, and until one is durable that knows of it an index file must tell of it.
        self._restarted: set[int] = set()
        #: How many bytes of frames were copied since the start.
        self.copied_bytes = 0

    @property
    def wait(self) -> bool:
        """Whether copies were made that no durable checkpoint names."""
        return bool(self._done)

    def set_class(self, group: int, class_: int) -> None:
        """Say which class a group's survivors belong to from now on; without, to the longest."""
        self._classes[group] = class_

    def forget(self, group: int) -> None:
        """A group is gone."""
        self._classes.pop(group, None)

    def restart(self, group: int) -> None:
        """No entry of a group counts any more, copied or on its way; others may come instead."""
        for copy in (*self._done, *((self._copy,) if self._copy else ())):
            for move in copy.moves:
                if move.group == group:
                    move.into.runs.setdefault(group, [])
            copy.moves = [move for move in copy.moves if move.group != group]
            copy.left = deque(run for run in copy.left if run[1] != group)
        self._restarted.add(group)

    def holds(self, group: int) -> bool:
        """Whether frames of a group lie in class segments, needed or not."""
        if any(move.group == group for copy in self._done for move in copy.moves):
            return True
        return any(group in one.runs for one in self.class_segments.held)

    # -- checkpoints -------------------------------------------------------------------------

    def name(
        self, replay: int, applied: Mapping[int, int], serial: int, free: bool
    ) -> tuple[tuple[tuple[Segment, int], ...], list[Segment]]:
        """Return what the next checkpoint is to say of class segments, and the segments whose
        survivors all lie there, and which it is not to name any more.

        Unless `free`, nothing may be given up, and so nothing changes.
        """
        held = self.class_segments
        ready = free and all(copy.source.end <= replay for copy in self._done)
        dropped = held.dead(self._groups) if free else []
        self._saving = saving = _Saving(
            serial,
            replay,
            dict(applied),
            tuple(self._done) if ready else (),
            tuple(
                (one, one.done if ready else one.saved) for one in held.held if one not in dropped
            ),
            tuple(dropped),
            frozenset(self._restarted),
        )
        named = tuple((one.segment, end) for one, end in saving.named if end > BLOCK)
        return named, [copy.source for copy in saving.copies]

    def saved(self) -> list[Segment]:
        """The checkpoint is durable: entries lie where it says. Return class segments that nobody
        needs any more.
        """
        saving, held = self._saving, self.class_segments
        self._saving = _Saving(saving.serial)
        for copy in saving.copies:
            for move in copy.moves:
                move.into.note(move.group, move.first, move.first + len(move.places) - 1)
                if (entries := self._groups.get(move.group)) is not None:
                    entries.move(move.first, move.positions, move.places)
            self._done.remove(copy)
        for one, end in saving.named:
            held.save(one, end)
        for one in saving.dropped:
            held.drop(one)
        for one in held.held:
            for group in saving.restarted:
                one.forget(group)
        self._restarted -= saving.restarted
        self._sources.renew(saving.replay, saving.applied)
        return [one.segment for one in saving.dropped if not one.lost and one.missing is None]

    # -- copying -----------------------------------------------------------------------------

    def next_piece(self) -> CopyPiece | None:
        """Return the next piece, to be run off the loop and told to `copied`; None if there is
        none now. Each call looks at one segment at most.
        """
        copy = self._copy = self._copy or self._begin()
        if copy is None or copy.piece is not None:
            return None
        copy.piece = self._cut(copy)
        if copy.piece is None:
            self._end(copy)
        return copy.piece

    def copied(self, piece: CopyPiece, found: Scrubbed | None) -> None:
        """A piece is durable; or it is not, and its segment stays: for good if something is bad."""
        copy = self._copy
        if copy is None or copy.piece is not piece:
            raise ValueError("this piece is not the one under way: report each once")
        copy.piece = None
        if found is None or found.bad:
            if found is not None:
                self._sources.refuse(copy.source)
            self._give_up(copy)
            return
        assert copy.into is not None  # a piece has a target
        copy.into.missing = None
        self.copied_bytes += found.size
        if not copy.left:
            self._end(copy)

    def next_index(self, floors: Mapping[int, int]) -> IndexFile | None:
        """Return the index file of a class segment of which a checkpoint says more than the last
        one told; `floors` says of groups that are gone since which log position.
        """
        for one in self.class_segments.held:
            told = self._restarted.isdisjoint(one.runs)
            if told and one.indexed < one.saved and not one.damaged:
                return one.index_file(self._groups, floors)
        return None

    def _begin(self) -> _Copy | None:
        source = self._sources.next(copy.source for copy in self._done)
        if source is None:
            return None
        left = self._survivors(source)
        if not left:
            return None
        self._segments.pins[source.name] += 1
        return _Copy(source, deque(sorted(left)))

    def _survivors(self, source: Segment) -> list[tuple[int, int, int, int]]:
        """Return class, group, first and last index of all that is needed there; nothing if it is
        too much, or not all of it is settled.
        """
        if source.size > self._settings.segment_bytes:  # its entries may be too large
            return []
        left, size = [], 0
        for group, entries in self._groups.items():
            if not entries.reaches(source.base, source.end):
                continue
            room = source.size // LIVE_PART - size
            first, last, more = entries.span(source.base, source.end, room)
            if last < first:
                continue
            size += more
            if more > room or last > self._sources.applied.get(group, 0):
                return []
            left.append((self._classes.get(group, LONGEST), group, first, last))
        return left

    def _cut(self, copy: _Copy) -> CopyPiece | None:
        """Return the next piece of a copy; None if nothing of it is left."""
        picked: list[tuple[int, Stored]] = []
        size = start = 0
        target: ClassSegment | None = None
        while copy.left and size < _PIECE_BYTES and len(picked) < _PIECE_ENTRIES:
            class_, group, first, last = copy.left[0]
            entries = self._groups.get(group)
            stored = entries.get(first) if entries else None
            if stored is not None:  # else it was let go of meanwhile
                into = self.class_segments.with_room(
                    class_, frame_size(stored.length), self._saving.serial + 1
                )
                if target is None:
                    target, start = into, into.tail
                elif into is not target:
                    break
                picked.append((group, stored))
                size += stored.length
                self._plan(copy, group, stored, into)
            copy.left.popleft()
            if first < last:
                copy.left.appendleft((class_, group, first + 1, last))
        copy.into = target
        if target is None:
            return None
        settings = self._settings
        return CopyPiece(
            settings.log,
            settings.system,
            copy.source,
            target.segment,
            start,
            tuple(picked),
            target.missing,
        )

    def _plan(self, copy: _Copy, group: int, stored: Stored, into: ClassSegment) -> None:
        """Let an entry lie at the end of a class segment, once the copy counts."""
        move = copy.moves[-1] if copy.moves else None
        if (
            move is None
            or (move.group, move.into) != (group, into)
            or move.first + len(move.places) != stored.index
        ):
            move = _Move(group, stored.index, array("Q"), array("Q"), into)
            copy.moves.append(move)
        move.positions.append(stored.position)
        move.places.append(into.segment.base + into.tail)
        into.tail += frame_size(stored.length)

    def _end(self, copy: _Copy) -> None:
        """All is written: the next checkpoint may name it."""
        self.class_segments.written()
        if copy.moves:
            self._done.append(copy)
        self._let_go(copy)

    def _give_up(self, copy: _Copy) -> None:
        self.class_segments.give_up()
        self._let_go(copy)

    def _let_go(self, copy: _Copy) -> None:
        self._segments.pins[copy.source.name] -= 1
        self._copy = None
