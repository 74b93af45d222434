"""What a start learns of the groups: entries, hard states, installed snapshots, and what is lost.

Each group's entries are joined from index files, frames and copies, in the order of their log
positions, wherever they lie: an entry supersedes those of its group at its index and above that
were appended before it (Raft's conflict rule). Copies keep the positions that they had; taken
behind the segments of new frames they would supersede what came after them (counterexample 12).

A group that cannot be known to have all that it needs to go on is *damaged*: it may neither vote
nor lead. Where a hole hides whose frames it held, that is every group that began before it, and
every group that the log does not know, for good: the checkpoint remembers where the hole was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count, takewhile

from weir.storage.compaction import ClassSegment
from weir.storage.disk import Readable
from weir.storage.errors import BadIndexFile, LogDamaged
from weir.storage.format.checkpoint import CHECKPOINT, UNKNOWN, Checkpoint, Kept
from weir.storage.format.frame import (
    BadFrame,
    BadPayload,
    Frame,
    Kind,
    frame_size,
    next_frame,
    verify,
)
from weir.storage.format.index_file import GONE, IndexFile, Rows, read_index
from weir.storage.format.record import Gathering, HardState, Whole
from weir.storage.format.segment import BLOCK, Segment
from weir.storage.group_index import GroupIndex, LostEntries

#: The least that one lost entry took.
_FRAME_BYTES = frame_size(1)


class FoundCopies:
    """The copies that a checkpoint names, to be taken in the order of their positions."""

    def __init__(self, log: int, kept: Mapping[int, Kept]) -> None:
        """Begin with none; `log` is the log's number, and `kept` what the checkpoint says."""
        self._kept = kept
        self.segments: list[ClassSegment] = []
        #: What of them is damaged, and the place of the first such frame.
        self.holes: list[LogDamaged] = []
        self.lost_place: int | None = None
        self.bad_places: set[int] = set()
        #: By group, the start that index files know of, perhaps a later one than the checkpoint,
        #: and the term of the entry before it.
        self.starts: dict[int, tuple[int, int]] = {}
        self._log = log
        self._heap: list[tuple[int, int, Rows | Frame, int]] = []
        self._numbers = count()

    def read(self, disk: Readable, named: Iterable[tuple[Segment, int]], sound: set[str]) -> None:
        """Read class segments, each up to its byte; blocks. `sound` names files that are there."""
        for segment, end in named:
            found = ClassSegment(segment, end, end, end, lost=segment.name not in sound)
            self.segments.append(found)
            if found.lost:
                self._damaged(found, BLOCK, "this segment is missing or unreadable")
            elif disk.size(segment.name) < segment.size:
                found.damaged = True  # no write may reach past the end of a file
            try:
                index = read_index(disk, segment)
            except BadIndexFile:
                pass
            else:
                if index.end <= end:
                    self._known(found, index)
            if found.indexed < end:
                found.unknown = found.lost
                if not found.lost:
                    self._walk(found, disk.read(segment.name, 0, end))

    def below(self, position: int) -> Iterator[tuple[int, Rows | Frame, int]]:
        """Take what is left below a log position: group, entries, the place of a single frame."""
        while self._heap and self._heap[0][0] < position:
            _, _, item, at = heappop(self._heap)
            if isinstance(item, Frame):
                yield item.group, item, at
                continue
            now, later = item.split(position)
            if later is not None:
                heappush(self._heap, (later.columns.positions[0], next(self._numbers), later, at))
            yield at, now, 0

    def restart(self, group: int) -> None:
        """Copies of what a group held count no more."""
        self.starts.pop(group, None)
        for one in self.segments:
            one.forget(group)

    def _known(self, found: ClassSegment, index: IndexFile) -> None:
        found.indexed = index.end
        for group, rows in index.sections:
            found.runs.setdefault(group, [])
            if not rows.counts(self._kept.get(group, UNKNOWN).floor):
                continue
            self.starts[group] = max((rows.start, rows.before), self.starts.get(group, (0, 0)))
            if rows.columns.positions:
                found.note(group, rows.first, rows.last)
            first = rows.columns.positions[0] if rows.columns.positions else 0
            heappush(self._heap, (first, next(self._numbers), rows, group))

    def _walk(self, found: ClassSegment, data: bytes) -> None:
        """Take all frames that no index file tells of; where one is bad, go on behind it."""
        segment, view, at = found.segment, memoryview(data), found.indexed
        if len(data) < found.saved:
            self._damaged(found, len(data), "the file is cut short")
            found.unknown = True
        while at < len(data):
            try:
                frame = verify(view, at, generation=segment.generation, position=None)
            except BadFrame as bad:
                known = bad.frame.position if isinstance(bad, BadPayload) else None
                self._damaged(found, at, str(bad), known)
                if not isinstance(bad, BadPayload):
                    found.unknown = True
                    at = next_frame(data, at + 8, generation=segment.generation, base=None)
                    continue
                frame = bad.frame
                self.bad_places.add(segment.base + at)
            if frame.position >= self._kept.get(frame.group, UNKNOWN).floor:
                found.note(frame.group, frame.index, frame.index)
            found.runs.setdefault(frame.group, [])
            place = segment.base + at
            heappush(self._heap, (frame.position, next(self._numbers), frame, place))
            at += frame_size(frame.length)

    def _damaged(
        self, found: ClassSegment, at: int, reason: str, position: int | None = None
    ) -> None:
        found.damaged = True
        place = found.segment.base + at
        if self.lost_place is None:
            self.lost_place = place
        position = place if position is None else position
        self.holes.append(LogDamaged(self._log, found.segment.name, position, reason))


class Doubts:
    """Entries before a hole that others, which lay in it and were true, may have superseded.

    Where an entry was lost that superseded others, these still lie there and look sound, and
    nothing is missing: others may follow them as if they had been the ones before. Their terms tell
    that it can be so. A group with one voter never superseded anything, which a log cannot know:
    its host says whether it matters. Entries are weighed in the order of log positions.
    """

    __slots__ = ("_dark", "_found")

    def __init__(self) -> None:
        #: From where to where nobody knows whose frames lay there.
        self._dark: list[tuple[int, int]] = []
        #: By group, index and position of entries in doubt, superseded since or not.
        self._found: dict[int, list[tuple[int, int]]] = {}

    def darken(self, start: int, end: int) -> None:
        """Note that the groups of the frames between two log positions are unknown."""
        self._dark.append((start, end))

    def weigh(self, group: int, index: GroupIndex, position: int, upto: int, term: int) -> None:
        """Doubt what entry `upto`, of a term and at a position, follows, if others that followed
        on each other up to it fit into what was lost in between.

        Those of its own term are its leader's, and so is all before them.
        """
        last = min(upto - 1, index.last)
        newest = index.get(last) if self._dark else None
        if newest is None or newest.term >= term:
            return
        lost = ((a, b) for a, b in self._dark if newest.position < a < position)
        room = sum((end - start) // _FRAME_BYTES for start, end in lost) - (upto - 1 - last)
        older = (index.get(at) for at in range(last, max(index.first - 1, last - room), -1))
        for one in takewhile(lambda one: one is not None and one.term < term, older):
            assert one is not None
            self._found.setdefault(group, []).append((one.index, one.position))

    def restart(self, group: int) -> None:
        """Nothing counts of a group that was taken so far."""
        self._found.pop(group, None)

    def of(self, group: int, index: GroupIndex | None) -> tuple[int, ...]:
        """Return the entries of a group that are in doubt, in order."""
        if index is None:
            return ()
        there = {
            at
            for at, position in self._found.get(group, ())
            if (one := index.get(at)) is not None and one.position == position and one.term
        }
        return tuple(sorted(there))


class Joining:
    """Builds the `index` of all groups."""

    def __init__(
        self,
        log: int,
        kept: Mapping[int, Kept],
        copies: FoundCopies,
        holes: list[LogDamaged],
        replay: int,
    ) -> None:
        """Begin with what a checkpoint says, whose `replay` this is. `kept` and `holes`, a list of
        damaged places, are the scan's, which changes them meanwhile.
        """
        self.index: dict[int, GroupIndex] = {}
        #: What may have been superseded by what was lost.
        self.doubts = Doubts()
        #: By group: the first entry lost behind all messages so far, which may have held some.
        self._lost: dict[int, int] = {}
        #: By group, index and position of all that were lost, superseded since or not.
        self._unreadable: dict[int, list[tuple[int, int]]] = {}
        self._log = log
        self._kept = kept
        self._copies = copies
        self._holes = holes
        self._replay = replay
        #: By group: the first entry that is missing without a hole, and what to say if it stays so.
        self._gaps: dict[int, tuple[int, LogDamaged]] = {}
        #: Groups of which nothing is missing so far: what follows on it from `replay` on counts.
        self._plain: dict[int, GroupIndex] = {}
        #: By group, the latest start that index files told, and the term of the entry before it.
        self._told = dict(copies.starts)
        for group, one in kept.items():
            if one.start not in (0, GONE):
                index = self.index[group] = GroupIndex(one.start, one.floor, one.before)
                index.base = one.base
                index.drop(self._start(group, 0))

    def join(self, segment: Segment | None, position: int, group: int, rows: Rows) -> None:
        """Take entries of a group below a log position, as an index file says where they lie."""
        kept = self._kept.get(group, UNKNOWN)
        if not rows.counts(kept.floor):
            return
        start = self._start(group, rows.start)
        self._plain.pop(group, None)
        self._told[group] = max((rows.start, rows.before), self._told.get(group, (0, 0)))
        if group in self.index:
            self.index[group].drop(start)
        if rows.columns.positions and rows.first < start:
            self._supersede(group, rows.first)
        if kept.applied and position <= self._replay:
            rows = rows.through(kept.applied)
        above = rows.above(start)
        if above is not None:
            index = self._index(group, above.first)
            self._forget(group, above.first)
            self.doubts.weigh(
                group, index, above.columns.positions[0], above.first, above.columns.terms[0]
            )
            self._fill(segment, position, group, index, above.first)
            self._mend(group, index, above.base)
            index.join(above)

    def catch_up(self, position: int) -> None:
        """Take the copies of what lay below a log position."""
        for group, found, place in self._copies.below(position):
            if isinstance(found, Frame):
                self.add(None, found, place)
                if place in self._copies.bad_places:
                    self.lose(found)
            else:
                self.join(None, position, group, found)

    def add(self, segment: Segment | None, frame: Frame, place: int) -> None:
        """Take an entry that lies at `place`."""
        index = self._plain.get(frame.group)
        if index is None or index.last + 1 != frame.index or frame.position < self._replay:
            index = self._place(segment, frame)
            if index is None:
                return
        index.add(
            frame.index,
            frame.term,
            frame.kind,
            frame.position,
            frame.length,
            frame.first_offset,
            frame.next_offset,
            frame.stamp,
            place,
            frame.tags,
        )

    def _place(self, segment: Segment | None, frame: Frame) -> GroupIndex | None:
        """Return the index to which a frame's entry is to be added; None if it does not count."""
        self._plain.pop(frame.group, None)
        start = self._start(frame.group, 0)
        if self.stale(frame) or frame.position < self._kept.get(frame.group, UNKNOWN).floor:
            return None
        if frame.index < start:
            if start != GONE:
                self._supersede(frame.group, frame.index)
            return None
        index = self._index(frame.group, frame.index)
        self._forget(frame.group, frame.index)
        self.doubts.weigh(frame.group, index, frame.position, frame.index, frame.term)
        self._fill(segment, frame.position, frame.group, index, frame.index)
        self._mend(frame.group, index, frame.first_offset)
        if frame.group not in self._gaps and frame.group not in self._lost:
            self._plain[frame.group] = index
        return index

    def lose(self, frame: Frame) -> None:
        """Know an entry that was taken as lost; its header tells no more than that it was there."""
        if self._start(frame.group, 0) <= frame.index and not self.stale(frame):
            self._lost.setdefault(frame.group, frame.index)
            self._plain.pop(frame.group, None)
            self._unreadable.setdefault(frame.group, []).append((frame.index, frame.position))

    def unreadable(self, group: int) -> int:
        """Return how many entries of a group are known to be lost, and needed."""
        index = self.index.get(group)
        return len(self.rotten(group)) + (LostEntries(index).count() if index is not None else 0)

    def rotten(self, group: int) -> tuple[int, ...]:
        """Return those of a group's entries, in order, of which only the payload is lost."""
        index, found = self.index.get(group), self._unreadable.get(group, ())
        if index is None:
            return ()
        there = {i for i, p in found if (at := index.get(i)) is not None and at.position == p}
        return tuple(sorted(there))

    def stale(self, frame: Frame) -> bool:
        """Whether an entry was superseded by others, which need not be there any more.

        What is above a group's applied entries lies at or above `replay`, or was superseded.
        """
        applied = self._kept.get(frame.group, UNKNOWN).applied
        return 0 < applied < frame.index and frame.position < self._replay

    def restart(self, group: int, first: int, floor: int, before: int) -> None:
        """Nothing counts of a group that was taken so far: it begins anew, with entry `first`."""
        self.index[group] = GroupIndex(first, floor, before)
        self._plain.pop(group, None)
        self._lost.pop(group, None)
        self._gaps.pop(group, None)
        self._told.pop(group, None)
        self._copies.restart(group)
        self.doubts.restart(group)

    def finish(self) -> None:
        """Stand in for entries at the ends of groups that the checkpoint knows to have been.

        Raises `LogDamaged` where an entry is missing and nothing says why.
        """
        for group, kept in self._kept.items():
            if kept.start not in (0, GONE):
                index = self.index[group]
                held = min(kept.applied, kept.last)
                # The term that it had reached, for want of that of what lay here once.
                self.doubts.weigh(group, index, self._replay, held + 1, kept.term)
                self._fill(None, self._replay, group, index, held + 1)
                self._mend(group, index, kept.behind)
        for group, (start, before) in self._told.items():
            if (known := self.index.get(group)) is not None and known.first == start:
                known.before = known.before or before
        for index in self.index.values():
            LostEntries(index).add_outdated()
        for _, error in self._gaps.values():
            raise error

    def _start(self, group: int, told: int) -> int:
        """Return from which entry on a group is needed. Index files may know of a start that no
        checkpoint knows of; of entries that one has applied.
        """
        kept = self._kept.get(group, UNKNOWN)
        told = max(told, self._copies.starts.get(group, (0, 0))[0])
        return max(kept.start, min(told, kept.applied + 1))

    def _supersede(self, group: int, index: int) -> None:
        """Let an entry that is not kept supersede those that are."""
        self._gaps.pop(group, None)
        self._forget(group, index)
        if group in self.index:
            self.index[group].cut(index)

    def _forget(self, group: int, index: int) -> None:
        """Let lost entries from `index` on be superseded."""
        if index <= self._lost.get(group, -1):
            del self._lost[group]

    def _index(self, group: int, first: int) -> GroupIndex:
        index = self.index.get(group)
        if index is None:
            floor = self._kept.get(group, UNKNOWN).floor
            index = self.index[group] = GroupIndex(first, floor)
        return index

    def _fill(
        self, segment: Segment | None, position: int, group: int, index: GroupIndex, upto: int
    ) -> None:
        """Let entries that lay in a hole be known as lost, so that `upto` can follow.

        Where no hole could have held them, `upto` must be superseded later: so were they, and
        their segment was used again.
        """
        if group in self._gaps and upto <= self._gaps[group][0]:
            del self._gaps[group]
        if index.last + 1 >= upto:
            return
        newest = index.get(index.last)
        least = newest.position if newest else 0
        holes = [one.position for one in self._holes if least <= one.position < position]
        place = holes[-1] if holes else self._copies.lost_place
        if place is None:
            name = segment.name if segment else "the checkpoint"
            reason = f"group {group}: entry {upto} cannot follow entry {index.last}: one is missing"
            gap = (index.last + 1, LogDamaged(self._log, name, position, reason))
            self._gaps.setdefault(group, gap)
            place = least
        self._lost.setdefault(group, index.last + 1)
        LostEntries(index).add(upto - 1, holes[-1] if holes else least, place)

    def _mend(self, group: int, index: GroupIndex, first_offset: int) -> None:
        """Where an entry was lost, let it be what held the offsets up to `first_offset`."""
        if first_offset >= 0 and (lost := self._lost.pop(group, None)) is not None:
            LostEntries(index).hold(lost, first_offset)


class GroupScan:
    """The groups of one log, as the frames that a scan hands over tell of them."""

    def __init__(
        self, log: int, found: Checkpoint | None, copies: FoundCopies, holes: list[LogDamaged]
    ) -> None:
        """Begin with what the checkpoint says. `holes` is the scan's list of damaged places."""
        self.hard_states: dict[int, HardState] = {}
        #: What groups lost that they need to go on, and those of them that may have lost a vote.
        self.damage: dict[int, LogDamaged] = {}
        self.states_lost: set[int] = set()
        #: Those that lost a whole state, of which no header tells what it was.
        self._bereft: set[int] = set()
        #: By group, a snapshot that was installed and that the checkpoint does not hold.
        self.snapshots: dict[int, Whole] = {}
        #: The last place that may have held frames of any group; 0 if there was none.
        self.lost_at = found.lost_at if found else 0
        self.lost: LogDamaged | None = None
        self.replay = found.replay if found else 0
        if self.lost_at:
            reason = "an earlier start found a hole there, and could not tell whose frames it held"
            self.lost = LogDamaged(log, CHECKPOINT, self.lost_at, reason)
        self._gathering = Gathering()
        #: What the checkpoint says, and of groups that began anew behind it, how they do.
        self._kept: dict[int, Kept] = dict(found.groups) if found else {}
        self.joining = Joining(log, self._kept, copies, holes, self.replay)
        self.index = self.joining.index
        for group, kept in self._kept.items():
            if kept.start != GONE and any(kept.hard_state):
                self.hard_states[group] = kept.hard_state

    # -- frames ------------------------------------------------------------------------------

    def take(self, segment: Segment, frame: Frame, payload: memoryview) -> None:
        """Take a sound frame of a group."""
        if not self._counts(frame):
            return
        if frame.kind is Kind.HARD_STATE:
            state = HardState.unpack(payload)
            self.hard_states[frame.group] = _joined(self.hard_states.get(frame.group), state)
        elif frame.kind is Kind.SNAPSHOT:
            self._install(frame, payload)
        else:
            self.joining.add(segment, frame, frame.position)

    def lose(self, segment: Segment, frame: Frame, error: LogDamaged) -> None:
        """Take note of what a frame with a damaged payload held, as its header says."""
        if not self._counts(frame):
            return
        group, kept = frame.group, self._kept.get(frame.group, UNKNOWN)
        if frame.kind is Kind.HARD_STATE:
            if frame.position >= self.replay:
                self.damage.setdefault(group, error)
                self.states_lost.add(group)
        elif frame.kind is Kind.SNAPSHOT:
            if frame.index > kept.applied:
                self._restart(group, Kept(0, 0, 0, 0, 0, -1, -1, frame.position))
                self.damage.setdefault(group, error)
                self._bereft.add(group)
        elif kept.start <= frame.index and not self.joining.stale(frame):
            self.joining.add(segment, frame, frame.position)
            self.joining.lose(frame)
            if frame.index > kept.applied:
                self.damage.setdefault(group, error)

    def lose_all(self, error: LogDamaged, position: int) -> None:
        """Note that the groups are unknown of a damaged place that reaches up to a position at or
        above `replay`, however far below it began.
        """
        self.lost_at = max(self.lost_at, position)
        self.lost = error

    def _counts(self, frame: Frame) -> bool:
        """Whether a frame is of its group as that began last; one of a group that is gone begins
        it anew.
        """
        kept = self._kept.get(frame.group, UNKNOWN)
        if frame.position < kept.floor:
            return False
        if kept.start == GONE:
            self._kept[frame.group] = UNKNOWN._replace(floor=kept.floor)
        return True

    def _install(self, frame: Frame, payload: memoryview) -> None:
        """Begin a group anew with a snapshot, when all of it is there."""
        whole = self._gathering.take(frame, payload)
        group, kept = frame.group, self._kept.get(frame.group, UNKNOWN)
        if whole is None or (whole.floor == kept.floor and frame.index <= kept.applied):
            return
        base = whole.base
        first = base.index + 1
        self._restart(group, Kept(0, 0, 0, first, 0, -1, -1, whole.floor, 0, base.term))
        self.hard_states.pop(group, None)
        if any(whole.hard_state):
            self.hard_states[group] = whole.hard_state
        self.snapshots[group] = whole
        self.damage.pop(group, None)
        self.states_lost.discard(group)
        self._bereft.discard(group)

    def _restart(self, group: int, kept: Kept) -> None:
        """Let nothing count of a group that was taken so far."""
        self._kept[group] = kept
        self.snapshots.pop(group, None)
        self.joining.restart(group, kept.start, kept.floor, kept.before)

    # -- in the end --------------------------------------------------------------------------

    def finish(self, tail: int) -> None:
        """All is taken, and the log ends at `tail`. Raises `LogDamaged` where an entry is missing
        and nothing says why.
        """
        self.joining.finish()
        for group in self.index.keys() | self.hard_states.keys():
            if self.lost is not None and self._floor(group) <= self.lost_at:
                self.damage.setdefault(group, self.lost)
                self.states_lost.add(group)
        for group in list(self.damage):
            applied = self._kept.get(group, UNKNOWN).applied
            if self._is_mendable(group) and max(self.rotten(group), default=0) <= applied:
                del self.damage[group]  # what it lost was superseded
        # A power cut may have taken what began a group, though a checkpoint knows of it.
        for index in self.index.values():
            index.floor = min(index.floor, tail)

    def rotten(self, group: int) -> tuple[int, ...]:
        """Return the entries of a group that it lacks, if their payloads are all that is damaged:
        their headers say what they were.
        """
        return self.joining.rotten(group) if self._is_mendable(group) else ()

    def _is_mendable(self, group: int) -> bool:
        return group not in self.states_lost and group not in self._bereft

    def floors(self, tail: int) -> dict[int, int]:
        """Return, by group, the position from which on its frames count; of the others all do."""
        return {g: min(kept.floor, tail) for g, kept in self._kept.items() if kept.floor}

    def installed(self) -> dict[int, tuple[int, int]]:
        """Return, by group, position and index of a snapshot that no checkpoint holds."""
        return {g: (whole.floor, whole.state.index) for g, whole in self.snapshots.items()}

    def _floor(self, group: int) -> int:
        return self._kept.get(group, UNKNOWN).floor


def _joined(one: HardState | None, other: HardState) -> HardState:
    """Return what both say: the higher term with its vote, the higher fence.

    A checkpoint may hold a later hard state than the frames that a power cut has left.
    """
    if one is None:
        return other
    term, vote = max(one[:2], other[:2])
    return HardState(term, vote, max(one.fence, other.fence))
