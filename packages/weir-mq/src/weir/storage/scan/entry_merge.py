"""What a start finds, joined: each group's entries from index files, frames and copies.

Taken in the order of their log positions, wherever they lie: an entry supersedes those of its group
at its index and above that were appended before it (Raft's conflict rule).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import UNKNOWN, Kept
from weir.storage.format.frame import Frame, frame_size
from weir.storage.format.rows import GONE, Rows
from weir.storage.format.segment import Segment
from weir.storage.group_index import GroupIndex
from weir.storage.scan.class_scan import FoundCopies

#: The least that one lost entry took.
_FRAME_BYTES = frame_size(1)


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
        """Nobody knows whose frames lay between two log positions."""
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
        if rows.positions and rows.first < start:
            self._supersede(group, rows.first)
        if kept.applied and position <= self._replay:
            rows = rows.through(kept.applied)
        above = rows.above(start)
        if above is not None:
            index = self._index(group, above.first)
            self._forget(group, above.first)
            self.doubts.weigh(group, index, above.positions[0], above.first, above.terms[0])
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
        return len(self.rotten(group)) + (index.count_lost() if index is not None else 0)

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
            index.lose_outdated()
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
        index.lose(upto - 1, holes[-1] if holes else least, place)

    def _mend(self, group: int, index: GroupIndex, first_offset: int) -> None:
        """Where an entry was lost, let it be what held the offsets up to `first_offset`."""
        if first_offset >= 0 and (lost := self._lost.pop(group, None)) is not None:
            index.mend(lost, first_offset)
