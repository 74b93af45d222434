"""One log of this shard: what waits to be cut into entries, the one flush in flight, and chores.

It is scrubbed now and then, a piece at a time, so that rot is found early; what outlives its
neighbours is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from weir.broker.api.effects import StartChore, StartFlush
from weir.broker.api.events import (
    CheckpointSaved,
    ChoreDone,
    Findings,
    MendDone,
    Rested,
    RottenEntry,
    SpareMade,
)
from weir.broker.api.settings import CHECKPOINT_BYTES
from weir.broker.replica.checkpoints import Checkpoints, Opened, Restored
from weir.broker.replica.disk_room import DiskRoom
from weir.broker.replica.group import Group
from weir.broker.replica.raft_storage import Token
from weir.broker.runtime.outbox import Outbox
from weir.order.barrier import Bound
from weir.order.clock import Time
from weir.storage.compaction import CopyPiece
from weir.storage.errors import LogDamaged
from weir.storage.format.segment import Segment
from weir.storage.log import Flush, Log
from weir.storage.scrub import MendPiece, Scrubbed, ScrubPiece
from weir.storage.segment_lifecycle import Chore

IDLE_MS = 100
#: One piece of what outlives its neighbours, up to 4 MiB: about 40 MB/s at most.
COPY_EVERY_MS = 100
#: A flush that takes longer is on a disk that hangs: nothing is confirmed before it is done.
HUNG_FLUSH_MS = 1_500
TRIM_EVERY_MS = 10_000
#: A flush costs the processor the same for one device as for many. With so many in a flush a crowd
#: is coming, and then one flush does for what arrives within `CROWD_FLUSH_MS`.
CROWD = 4
CROWD_FLUSH_MS = 5
#: A start has better things to do.
FIRST_MS = 60_000
#: One piece of 4 MiB every so often, or less often while the log is busy: about 16 MB/s at most.
PIECE_EVERY_MS = 250
BUSY_PIECE_EVERY_MS = 5_000
#: From the end of one round to the next.
ROUND_EVERY_MS = 24 * 3600 * 1000
#: So many bad places are remembered; all of them are logged.
_PLACES_MAX = 1_000


class Scrubber:
    """Goes round over the closed segments. What is bad stays where it is: readers verify too."""

    __slots__ = ("_due_ms", "_log", "_piece", "_segment", "_time", "damage", "rounds", "size")

    def __init__(self, log: Log, time: Time, known: Iterable[LogDamaged] = ()) -> None:
        """Begin a first round some time after the start, which found what is `known` to be bad."""
        self._log = log
        self._time = time
        self._due_ms = time.monotonic_ms() + FIRST_MS
        self._segment: Segment | None = None
        self._piece: ScrubPiece | None = None
        #: What was found bad, by log position; how many bytes were verified; rounds that are done.
        self.damage = {bad.position: bad for bad in islice(known, _PLACES_MAX)}
        self.size = 0
        self.rounds = 0

    def next_piece(self, idle: bool) -> ScrubPiece | None:
        """Return the next piece if it is time; tell `done` before the next one is asked for."""
        now = self._time.monotonic_ms()
        if now < self._due_ms + (0 if idle else BUSY_PIECE_EVERY_MS):
            return None
        if self._piece is None:
            self._piece = self._first_of_next()
        self._due_ms = now + (PIECE_EVERY_MS if self._piece else ROUND_EVERY_MS)
        return self._piece

    def done(self, found: Scrubbed | None) -> None:
        """Take what a piece found; None where it could not be read: the next round tries again."""
        self._piece = found.next_piece if found is not None else None
        if found is not None:
            self.size += found.size
            for bad in found.bad[: max(_PLACES_MAX - len(self.damage), 0)]:
                self.damage[bad.position] = bad
        if self._piece is None and self._segment is not None:
            self._log.reader.let_go(self._segment)

    def mended(self, place: int) -> None:
        """What lies at a place is sound again."""
        self.damage.pop(place, None)

    def _first_of_next(self) -> ScrubPiece | None:
        self._segment = self._log.reader.hold_closed(self._segment.end if self._segment else 0)
        if self._segment is None:
            self.rounds += 1
            return None
        return self._log.reader.scrub(self._segment)


class Chores:
    """What a log needs besides flushes and checkpoints, one piece at a time: it is scrubbed, what
    rotted is filled in, and what outlives its neighbours is copied.
    """

    __slots__ = ("_copies_after_ms", "_findings", "_log", "_mends", "_outbox", "_time",
                 "_trim_after_ms", "is_busy", "quiet_since_ms", "scrubber")  # fmt: skip

    def __init__(self, opened: Opened, outbox: Outbox, time: Time, findings: Findings) -> None:
        """Have nothing to do yet; what the scrub and mended entries come to goes to `findings`."""
        self._log = opened.log
        self._outbox = outbox
        self._time = time
        self._findings = findings
        self.scrubber = Scrubber(opened.log, time, opened.holes)
        #: What fills in rotten entries; the first is under way.
        self._mends: deque[MendPiece] = deque()
        #: Whether a chore is under way.
        self.is_busy = False
        #: When the last flush was done.
        self.quiet_since_ms = time.monotonic_ms()
        self._copies_after_ms = self._trim_after_ms = self.quiet_since_ms

    def start(self) -> None:
        """Begin with what the log needs now."""
        self._start(self._log.next_chore)
        if self._mends:
            self._start(self._next_mend)

    def mend(self, piece: MendPiece) -> None:
        """Fill in an entry when the chores before it are done."""
        self._mends.append(piece)

    def done(self, event: ChoreDone) -> None:
        """The chore under way is done, or left undone."""
        self.is_busy = False
        if isinstance(event.chore, ScrubPiece):
            self.scrubber.done(event.found)
            for rotten in event.found.rotten if event.found is not None else ():
                self._findings.append(RottenEntry(*rotten))
        elif isinstance(event.chore, CopyPiece):
            self._log.lifecycle.copies.copied(event.chore, event.found)
        elif isinstance(event.chore, MendPiece):
            piece = self._mends.popleft()
            is_sound = event.found is not None and not event.found.bad
            if is_sound:
                self.scrubber.mended(piece.stored.place)
            self._findings.append(MendDone(piece, self._log.reader.mended(piece) and is_sound))

    def work_by_time(self, is_idle: bool, has_room: bool) -> None:
        """Scrub and copy; write an idle mark after a quiet moment. Spare files are trimmed where
        the disk `has_room`.
        """
        now = self._time.monotonic_ms()
        self._start(lambda: self.scrubber.next_piece(is_idle))
        if now >= self._copies_after_ms:
            self._copies_after_ms = now + COPY_EVERY_MS
            self._start(self._log.lifecycle.copies.next_piece)
        if is_idle and now - self.quiet_since_ms >= IDLE_MS:
            self._log.mark_idle()
        if has_room and now >= self._trim_after_ms:
            self._trim_after_ms = now + TRIM_EVERY_MS
            self._log.lifecycle.trim()

    def _next_mend(self) -> Chore | None:
        return self._mends[0] if self._mends else None

    def _start(self, ask: Callable[[], Chore | None]) -> None:
        if not self.is_busy and (chore := ask()) is not None:
            self.is_busy = True
            self._outbox.put(StartChore(self._log.settings.log, chore))


class Gathering(Protocol):
    """What gathers entries of a group, as a writer knows it."""

    group: Group

    def cut(self) -> int:
        """Propose what has gathered; return from how many devices that came. It is dirty again, if
        something is left that could not be proposed yet.
        """


class Writer:
    """Cuts entries when the previous flush is done, never by a timer (DESIGN §5 Flush).

    In a crowd of devices flushes begin `CROWD_FLUSH_MS` apart, if the disk is faster.
    """

    __slots__ = ("_began_ms", "_devices", "_outbox", "_rests", "_tends_at", "_time", "bound",
                 "checkpoints", "chores", "dirty", "groups", "log", "restored", "room",
                 "tends")  # fmt: skip

    def __init__(
        self,
        opened: Opened,
        outbox: Outbox,
        time: Time,
        findings: Findings,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        """Write to a log as the host opened it; save after so many bytes of it. What its chores
        come to goes to `findings`.
        """
        self.log = opened.log
        #: How far voters here may promise.
        self.bound = Bound(opened.log.bound)
        self.restored = Restored(opened)
        self.groups: dict[int, Group] = {}
        self._outbox = outbox
        self._time = time
        #: The groups of which something has gathered.
        self.dirty: dict[int, Gathering] = {}
        #: When the flush in flight began; None if there is none.
        self._began_ms: int | None = None
        self._rests = False
        #: How many devices' publishes were cut since the last flush began.
        self._devices = 0
        #: Whether the log may need more than flushes since it was asked last.
        self.tends = True
        #: A flush that ends there, or behind it, has filled a segment, or begun a new log.
        self._tends_at = 0
        self.room = DiskRoom(self.log, outbox, time)
        self.chores = Chores(opened, outbox, time, findings)
        self.checkpoints = Checkpoints(self.log, self.groups, outbox, time, checkpoint_bytes)

    @property
    def number(self) -> int:
        """The number of the log."""
        return self.log.settings.log

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing is in flight and nothing is being saved or tidied up."""
        busy = self._began_ms is not None or self.checkpoints.is_saving or self.chores.is_busy
        return not (busy or self.dirty or self.log.staged is not None)

    @property
    def hangs(self) -> bool:
        """Whether the flush in flight takes so long that others should lead."""
        began = self._began_ms
        return began is not None and self._time.monotonic_ms() - began >= HUNG_FLUSH_MS

    @property
    def led(self) -> list[Group]:
        """The groups of this log that are led here and that others could lead."""
        return [one for one in self.groups.values() if one.leads and one.has_others]

    def forget(self, group: int) -> None:
        """A group is gone from here: nothing of it is needed any more."""
        if (over := self.groups.pop(group, None)) is not None:
            over.is_over = True
        self.restored.forget(group)
        self.log.drop_group(group)

    def mark_dirty(self, partition: Gathering) -> None:
        """Cut this partition's next entry when the time comes."""
        self.dirty[partition.group.id] = partition

    def start_work(self) -> None:
        """Start the next flush, and what the log may need besides."""
        if self.dirty or self.log.staged is not None:
            self.start_flush()
        if self.tends:
            self.tends = False
            self.chores.start()
            self.room.fill_reserve()

    def start_flush(self) -> None:
        """Start the next flush, if none is in flight and there is something to write."""
        if self._began_ms is not None or self._rests:
            return
        if self.dirty:
            dirty, self.dirty = self.dirty, {}
            for partition in dirty.values():
                self._devices += partition.cut()
        if self.log.staged is None:
            return
        flush = self.log.next_flush()
        if flush is None:
            self.tends = True  # it waits for a file to be zeroed
        else:
            self._began_ms = self._time.monotonic_ms()
            rest_ms = CROWD_FLUSH_MS if self._devices >= CROWD else 0
            self._devices = 0
            # No peer's welcome waits for this.
            self._outbox.effects.append(StartFlush(self.log.settings.log, flush, rest_ms))

    def flushed(self, flush: Flush, rests: bool = False) -> None:
        """All of a flush is durable: commit and apply what waited for it. If the log `rests`, the
        next one gathers until `Rested`.
        """
        self.log.flushed(flush)
        if flush.bound > self.bound.durable:
            self.bound.written(flush.bound)
        self._outbox.counts.flushes += 1
        self._outbox.counts.flushed_bytes += flush.end - flush.start
        self._began_ms, self._rests = None, rests
        if flush.end >= self._tends_at:  # else nothing was closed, and time tells of the rest
            self._tends_at, self.tends = self.log.tends_at, True
        self.chores.quiet_since_ms = self._time.monotonic_ms()
        for token in flush.tokens:
            assert isinstance(token, Token)  # what Group gave to append()
            group = self.groups.get(token.group)
            if group is not None and group.node is token.node:  # else it is gone
                group.persisted(token.ready)

    def handle(self, event: Rested | SpareMade | CheckpointSaved | ChoreDone) -> None:
        """Take what the disk has done besides flushes."""
        match event:
            case Rested():
                self._rests = False
                return
            case SpareMade():
                self.room.spare_made(event)
            case CheckpointSaved(_, saved, size):
                self.checkpoints.saved(saved, size)
            case ChoreDone():
                self.chores.done(event)
        self.tends = True

    def extend_bound(self) -> None:
        """Write how far promises may go, unless there is enough in hand."""
        if bound := self.bound.extension(self._time.wall_ms()):
            self.log.extend_bound(bound)

    def mend(self, piece: MendPiece) -> None:
        """Fill in an entry when the chores before it are done."""
        self.chores.mend(piece)
        self.tends = True

    def work_by_time(self) -> None:
        """Do the chores that are due, and save a checkpoint after much or long, or where it frees
        segments.
        """
        self.tends = True
        is_full = self.room.cannot_grow
        self.chores.work_by_time(self.idle, not is_full)
        self.room.ask_again()
        if self.checkpoints.is_due(is_full):
            self.checkpoints.save()
