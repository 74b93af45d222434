"""What becomes of closed segments: index files, checkpoints, and the next use of their files.

A segment is used again once a durable checkpoint says that none of its frames is needed: its
entries lie below their groups' starts, its hard states stand in the checkpoint, and it ends below
the checkpoint's `replay`. So a power cut finds the old checkpoint and the old segment, or the new
checkpoint, which does not name the file any more; the page cache is never asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.storage.compaction import ClassSegment, Copies, CopyPiece
from weir.storage.disk import Disk
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import Body, Checkpoint, Kept
from weir.storage.format.index_file import GONE, IndexFile, index_name
from weir.storage.format.record import Base, HardState
from weir.storage.format.segment import Segment
from weir.storage.group_index import GroupIndex
from weir.storage.group_scan import GroupScan
from weir.storage.scrub import MendPiece, ScrubPiece
from weir.storage.segment_files import Segments, Settings, SpareFiles


@dataclass(frozen=True, slots=True)
class Removal:
    """Segment files that are too many, to be removed with their index files."""

    names: tuple[str, ...]

    def run(self, disk: Disk) -> None:
        """Remove what of them is there; blocks."""
        there = set(disk.names())
        for segment in self.names:
            for name in (segment, index_name(segment)):
                if name in there:
                    disk.remove(name)


#: Work on the disk that nobody waits for; one at a time, off the loop.
Chore = IndexFile | Removal | ScrubPiece | CopyPiece | MendPiece


class SegmentLifecycle:
    """The afterlife of one log's segments. Only the chores that it gives touch the disk."""

    def __init__(
        self,
        settings: Settings,
        segments: Segments,
        spares: SpareFiles,
        groups: dict[int, GroupIndex],
        found: Checkpoint | None = None,
        kept: Iterable[ClassSegment] = (),
        short: Iterable[str] = (),
    ) -> None:
        """Go on from the checkpoint that was found, if there was one, and its class segments.

        Files that were cut `short` are not used again: no write may reach past the end of one.
        """
        self._settings = settings
        self._segments = segments
        self._spares = spares
        self._groups = groups
        self._serial = found.serial if found else 0
        self.copies = Copies(settings, segments, spares, groups, kept, self._serial)
        #: By group: frames below this log position do not count. Those of groups that are gone, or
        #: of which a snapshot was installed there.
        self.floors: dict[int, int] = {}
        #: By group, the position and the index of a snapshot that no checkpoint holds yet.
        self._installed: dict[int, tuple[int, int]] = {}
        self._lost_at = 0
        self._lost: LogDamaged | None = None
        self.hard_states: dict[int, HardState] = {}
        #: Position of the last entry that superseded others: they are needed until it is durable.
        self.superseded = -1
        #: The lowest position of those others: a power cut may bring them back until then.
        self._returning: int | None = None
        #: How many times something was let go of: a checkpoint may free segments then.
        self.gone = 0
        self._unwritten: list[IndexFile] = []
        self._planned: list[Segment] = []
        #: Not needed, but still being read.
        self._retiring: list[Segment] = []
        self._surplus: list[str] = []
        self._short = frozenset(short)

    def begin_with(self, found: GroupScan, tail: int) -> None:
        """Go on with what a scan learnt of the groups, in a log that ends at `tail`."""
        self.hard_states.update(found.hard_states)
        self.floors = found.floors(tail)
        self._installed = found.installed()
        self._lost, self._lost_at = found.lost, found.lost_at

    # -- what is needed ----------------------------------------------------------------------

    def drop_below(self, group: int, index: int) -> None:
        """Entries of a group below Raft index `index` are not needed; they must be applied."""
        entries = self._groups.get(group)
        if entries is not None:  # what is filled in below an installed state may not be there yet
            self.gone += index > entries.first
            entries.drop(min(index, entries.last + 1))

    def drop_group(self, group: int, tail: int) -> None:
        """Nothing of a group is needed any more; what comes of it again begins it anew."""
        self.gone += 1
        self._groups.pop(group, None)
        self.hard_states.pop(group, None)
        self._installed.pop(group, None)
        self.floors[group] = tail
        self.copies.restart(group)
        self.copies.forget(group)

    def is_gone(self, group: int) -> bool:
        """Whether a group was dropped, or may have been lost, and nothing of it came since."""
        return not self._knows(group) and (group in self.floors or self._lost_at > 0)

    def lost_of(self, group: int) -> LogDamaged | None:
        """Return why a group that the log does not know may have been lost; None if it was not."""
        return None if self._knows(group) or group in self.floors else self._lost

    def know_all(self) -> None:
        """Groups that come now are new ones."""
        self._lost = None

    def _knows(self, group: int) -> bool:
        return group in self._groups or group in self.hard_states

    def begin(self, group: int, first: int) -> GroupIndex:
        """Return the index of a group of which entry `first` is the first to come."""
        entries = self._groups[group] = GroupIndex(first, self.floors.get(group, 0))
        return entries

    def install(self, group: int, position: int, index: int, base: Base) -> None:
        """A snapshot as of `index` at a position begins a group's log anew, behind `base`."""
        if (old := self._groups.get(group)) is not None:
            self.supersede(position, old.position_of(old.first))
        self._groups[group] = GroupIndex(base.index + 1, position, base.term)
        self.floors[group] = position
        self._installed[group] = (position, index)
        self.copies.restart(group)

    def supersede(self, position: int, old: int | None) -> None:
        """Note that an entry at a position superseded others, from position `old` on."""
        self.superseded = position
        if old is not None:
            self._returning = old if self._returning is None else min(self._returning, old)

    # -- checkpoints -------------------------------------------------------------------------

    def checkpoint(
        self, applied: Mapping[int, int], body: bytes | Body, durable: int, bound: int
    ) -> Checkpoint:
        """Return the next checkpoint, to be saved, then to be told to `saved`.

        `applied` says through which index of each group `body` holds its state.
        """
        replay = durable
        for group, index in applied.items():
            entries = self._groups.get(group)
            position = entries.position_of(index + 1) if entries is not None else None
            replay = min(replay, durable if position is None else position)
        for group, (position, index) in list(self._installed.items()):
            if applied.get(group, 0) >= index:
                del self._installed[group]
            else:
                replay = min(replay, position)
        free = self.superseded < durable
        if free:
            self._returning = None
        elif self._returning is not None:
            # So that whatever lies below it, above what is applied, is known to be superseded.
            replay = min(replay, self._returning)
        copies, sources = self.copies.name(replay, applied, self._serial + 1, free)
        planned = self._dead(replay) if free else []
        self._planned = planned = [*planned, *(one for one in sources if one not in planned)]
        # The header of one above `durable` may never come; recovery finds those by their bases.
        dead = {segment.base for segment in planned}
        needed = tuple(s for s in self._segments if s.base not in dead and s.base < durable)
        first = needed[0].base if needed else durable
        known = self._groups.keys() | self.hard_states.keys()
        self.floors = {
            group: floor
            for group, floor in self.floors.items()
            if group in known or first < floor or self.copies.holds(group)
        }
        kept = {group: self._kept(group, applied, durable) for group in sorted(known)}
        for group, floor in self.floors.items():
            if group not in known:
                kept[group] = Kept(0, 0, 0, GONE, 0, -1, -1, floor)
        self._serial += 1
        settings = self._settings
        return Checkpoint(
            settings.log,
            settings.system,
            self._serial,
            replay,
            durable,
            kept,
            needed,
            body,
            copies,
            self._lost_at,
            bound,
        )

    def freeable(self, needed: Mapping[int, int], durable: int) -> list[Segment]:
        """Return the segments that checkpoints may free, where entries of each group below the
        Raft index in `needed` go.
        """
        dead = [one for one in self._segments if one.end <= durable]
        for group, entries in self._groups.items():
            if not dead:
                break
            position = entries.position_of(needed.get(group, entries.first))
            if position is not None and position < dead[-1].end:
                dead = [
                    one
                    for one in dead
                    if one.end <= position or not entries.uses(max(one.base, position), one.end)
                ]
        return dead

    def trim(self) -> None:
        """Remove files in reserve that a log with so little to write does not need."""
        self._surplus += self._spares.trim()

    def saved(self) -> None:
        """The last checkpoint is durable: what it does not need may be used again."""
        planned, self._planned = self._planned, []
        unused = self.copies.saved()
        planned = [one for one in planned if one in self._segments]
        for segment in planned:
            self._segments.drop(segment)
        dead = {segment.base for segment in planned}
        self._unwritten = [one for one in self._unwritten if one.segment.base not in dead]
        self._retiring += planned + unused
        self._retire()

    def _dead(self, replay: int) -> list[Segment]:
        """Return the closed segments below `replay` in which no needed entry lies."""
        dead = [one for one in self._segments if one.end <= replay]
        for entries in self._groups.values():
            if not dead:
                break
            if not entries.reaches(dead[0].base, dead[-1].end):
                continue
            dead = [one for one in dead if not entries.uses(one.base, one.end)]
        return dead

    def _kept(self, group: int, applied: Mapping[int, int], durable: int) -> Kept:
        state = self.hard_states.get(group, HardState(0, 0, 0))
        through = applied.get(group, 0)
        entries = self._groups.get(group)
        if entries is None:
            return Kept(*state, 0, through, -1, -1, self.floors.get(group, 0))
        return Kept(
            *state,
            entries.first,
            through,
            entries.base,
            entries.behind(through),
            entries.floor,
            entries.last_below(durable),
            entries.before,
        )

    # -- files -------------------------------------------------------------------------------

    def closed(self, file: IndexFile) -> None:
        """A segment is full: its index file is to be written once it is durable."""
        self._unwritten.append(file)

    def next_chore(self, durable: int) -> Chore | None:
        """Return what is to be done on the disk next; each is handed out once. One that fails is
        left to the next start.
        """
        if self._retiring:
            self._retire()
        if self._surplus:
            names, self._surplus = tuple(self._surplus), []
            return Removal(names)
        for at, file in enumerate(self._unwritten):
            if file.segment.end <= durable:
                return self._unwritten.pop(at)
        return self.copies.next_index(self.floors)

    def _retire(self) -> None:
        pins = self._segments.pins
        free = [one for one in self._retiring if not pins[one.name]]
        self._retiring = [one for one in self._retiring if pins[one.name]]
        size, short = self._settings.segment_bytes, self._short
        fit = [one.name for one in free if one.size == size and one.name not in short]
        self._surplus += [one.name for one in free if one.name not in fit]
        if fit:
            self._surplus += self._spares.recycle(fit)
