"""What becomes of closed segments: index files, checkpoints, and the next use of their files.

A segment is used again once a durable checkpoint says that none of its frames is needed: its
entries lie below their groups' starts, its hard states stand in the checkpoint, and it ends below
the checkpoint's `replay`. So a power cut finds the old checkpoint and the old segment, or the new
checkpoint, which does not name the file any more; the page cache is never asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from weir.storage.compaction import ClassSegment, Copies, CopyPiece
from weir.storage.disk import Disk
from weir.storage.format.checkpoint import Body, Checkpoint
from weir.storage.format.index_file import IndexFile, index_name
from weir.storage.format.record import Base
from weir.storage.format.segment import Segment
from weir.storage.group_index import GroupTable
from weir.storage.scrub import MendPiece, ScrubPiece
from weir.storage.segment_files import Segments, Settings, SpareFiles


class Removal(msgspec.Struct, frozen=True):
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
        groups: GroupTable,
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
        self.copies = Copies(settings, segments, spares, groups.index, kept, self._serial)
        #: How many times groups were told to drop entries.
        self.drops = 0
        #: How many times something was let go of: a checkpoint may free segments then.
        self.gone = 0
        self._unwritten: list[IndexFile] = []
        self._planned: list[Segment] = []
        #: Not needed, but still being read.
        self._retiring: list[Segment] = []
        self._surplus: list[str] = []
        self._short = frozenset(short)

    # -- what is needed ----------------------------------------------------------------------

    def drop_below(self, group: int, index: int) -> None:
        """Entries of a group below Raft index `index` are not needed; they must be applied."""
        self.drops += 1
        entries = self._groups.index.get(group)
        if entries is not None:  # what is filled in below an installed state may not be there yet
            self.gone += index > entries.first
            entries.drop(min(index, entries.last + 1))

    def drop_group(self, group: int, tail: int) -> None:
        """Nothing of a group is needed any more; what comes of it again begins it anew."""
        self.drops += 1
        self.gone += 1
        self._groups.drop(group, tail)
        self.copies.restart(group)
        self.copies.forget(group)

    def install(self, group: int, position: int, index: int, base: Base) -> None:
        """A snapshot as of `index` at a position begins a group's log anew, behind `base`."""
        self._groups.install(group, position, index, base)
        self.copies.restart(group)

    # -- checkpoints -------------------------------------------------------------------------

    def checkpoint(
        self, applied: Mapping[int, int], body: bytes | Body, durable: int, bound: int
    ) -> Checkpoint:
        """Return the next checkpoint, to be saved, then to be told to `saved`.

        `applied` says through which index of each group `body` holds its state.
        """
        groups = self._groups
        replay = groups.replay(applied, durable)
        free = groups.superseded < durable
        copies, sources = self.copies.name(replay, applied, self._serial + 1, free)
        planned = self._dead(replay) if free else []
        self._planned = planned = [*planned, *(one for one in sources if one not in planned)]
        # The header of one above `durable` may never come; recovery finds those by their bases.
        dead = {segment.base for segment in planned}
        needed = tuple(s for s in self._segments if s.base not in dead and s.base < durable)
        first = needed[0].base if needed else durable
        for group in groups.gone_before(first):
            if not self.copies.holds(group):
                groups.forget(group)
        self._serial += 1
        settings = self._settings
        return Checkpoint(
            settings.log,
            settings.system,
            self._serial,
            replay,
            durable,
            groups.kept(applied, durable),
            needed,
            body,
            copies,
            groups.lost_at,
            bound,
        )

    def freeable(self, needed: Mapping[int, int], durable: int) -> list[Segment]:
        """Return the segments that checkpoints may free, where entries of each group below the
        Raft index in `needed` go.
        """
        dead = [one for one in self._segments if one.end <= durable]
        for group, entries in self._groups.index.items():
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
        for entries in self._groups.index.values():
            if not dead:
                break
            if not entries.reaches(dead[0].base, dead[-1].end):
                continue
            dead = [one for one in dead if not entries.uses(one.base, one.end)]
        return dead

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
        return self.copies.next_index(self._groups.floors)

    def _retire(self) -> None:
        pins = self._segments.pins
        free = [one for one in self._retiring if not pins[one.name]]
        self._retiring = [one for one in self._retiring if pins[one.name]]
        size, short = self._settings.segment_bytes, self._short
        fit = [one.name for one in free if one.size == size and one.name not in short]
        self._surplus += [one.name for one in free if one.name not in fit]
        if fit:
            self._surplus += self._spares.recycle(fit)
