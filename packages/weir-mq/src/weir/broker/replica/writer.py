"""One log of this shard: what waits to be cut into entries, and the one flush in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import weir_raft as raft
from weir.broker.api.effects import MakeSpare, SaveCheckpoint, StartChore, StartFlush
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
from weir.broker.replica.group import Group
from weir.broker.replica.raft_storage import Token, installed
from weir.broker.replica.restore import (
    CHECKPOINT,
    Opened,
    States,
    covered,
    saved_states,
)
from weir.broker.replica.scrubber import Scrubber
from weir.broker.runtime.outbox import Outbox
from weir.errors import Overloaded
from weir.order.barrier import Bound
from weir.order.clock import Time
from weir.storage.compaction import CopyPiece
from weir.storage.log import Flush
from weir.storage.scrub import MendPiece, ScrubPiece
from weir.storage.segment_lifecycle import Chore

#: A start verifies what came since the last checkpoint: about 30 microseconds for each frame.
CHECKPOINT_FRAMES = 50_000
CHECKPOINT_MS = 300_000
IDLE_MS = 100
#: How long a disk without room is left alone before it is asked again.
SPARE_RETRY_MS = 1_000
#: One piece of what outlives its neighbours, up to 4 MiB: about 40 MB/s at most.
COPY_EVERY_MS = 100
#: A flush that takes longer is on a disk that hangs: nothing is confirmed before it is done.
HUNG_FLUSH_MS = 1_500
CHECKPOINT_RETRY_MS = 30_000
#: Checkpoints that are not due by time write at most this part of what the log does: one in 20.
CHECKPOINT_SHARE = 20
#: Where checkpoints are large, the next waits for more bytes and frames; so many times as many are
#: the most, because a start has to apply them.
CHECKPOINT_STRETCH = 3
#: How often the log is asked what a checkpoint would free. Replicated entries take two checkpoints:
#: one that Raft may drop them for, and one that no longer names their segments.
FREE_EVERY_MS = 1_000
FREE_TRIES = 3
TRIM_EVERY_MS = 10_000
#: A flush costs the processor the same for one device as for many. With so many in a flush a crowd
#: is coming, and then one flush does for what arrives within `CROWD_FLUSH_MS`.
CROWD = 4
CROWD_FLUSH_MS = 5


class Gathering(Protocol):
    """What gathers entries of a group, as a writer knows it."""

    group: Group

    @property
    def has_staged(self) -> bool:
        """Whether something is left that could not be proposed yet."""

    def cut(self) -> int:
        """Propose what has gathered; return from how many devices that came."""


class Writer:
    """Cuts entries when the previous flush is done, never by a timer (DESIGN §5 Flush).

    In a crowd of devices flushes begin `CROWD_FLUSH_MS` apart, if the disk is faster.
    """

    def __init__(
        self,
        number: int,
        opened: Opened,
        outbox: Outbox,
        time: Time,
        findings: Findings,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        """Write to log `number` as the host opened it; save after so many bytes of it. What the
        scrub and mended entries come to goes to `findings`.
        """
        self.number = number
        self._checkpoint_bytes = checkpoint_bytes
        self.log = opened.log
        #: How far voters here may promise.
        self.bound = Bound(opened.log.bound)
        self.recovered = dict(opened.groups)
        #: The newest state of each group that is durable, where a checkpoint or a peer gave it.
        self.snapshots = saved_states(opened) | installed(opened.groups)
        self.groups: dict[int, Group] = {}
        self._outbox = outbox
        self._time = time
        self._findings = findings
        self.dirty: dict[int, Gathering] = {}
        self._in_flight = self._rests = False
        self._flight_began = 0
        #: How many devices' publishes were cut since the last flush began.
        self._devices = 0
        self._saving = False
        self._at_chore = False
        #: Whether the log may need more than flushes since it was asked last.
        self.tends = True
        #: The number of the segment that the last flush ended in.
        self._segment = -1
        #: What fills in rotten entries; the first is under way.
        self._mends: deque[MendPiece] = deque()
        self.scrubber = Scrubber(opened.log, time, opened.holes)
        self._quiet_since = time.monotonic_ms()
        self._save_after = self._quiet_since + CHECKPOINT_MS
        #: Each group in the checkpoint that is being saved, and what that covers of it.
        self._covered: Sequence[tuple[Group, raft.Snapshot]] = ()
        self._saved_tail = self._tried_tail = self.log.tail
        self._tried_frames = self.log.frames
        #: How much was let go of, as of the last checkpoint; on a full disk one is saved for it.
        self._saved_gone = self._tried_gone = self.log.lifecycle.gone
        self._frees_after = self._quiet_since
        #: What the log held when it was last asked which segments a checkpoint would free, the
        #: base of the first of those, and how many checkpoints were saved for it in vain.
        self._freed_as_of: tuple[int, int] = (-1, -1)
        self._freeable = -1
        self._free_tries = 0
        self._free_after = self._trim_after = self._quiet_since
        #: Bytes that checkpoints wrote since the log was opened, and that the last one wrote.
        self._saved_bytes = self._last_saved_bytes = 0
        self._opened_tail = self.log.tail
        #: Whether the last file that was asked for could not be made, and until when none is.
        self._full = False
        self._asks_after = self._quiet_since
        self._copies_after = self._quiet_since

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing is in flight and nothing is being saved or tidied up."""
        busy = self._in_flight or self._saving or self._at_chore
        return not (busy or self.dirty or self.log.staged is not None)

    @property
    def hangs(self) -> bool:
        """Whether the flush in flight takes so long that others should lead."""
        return self._in_flight and self._time.monotonic_ms() - self._flight_began >= HUNG_FLUSH_MS

    @property
    def is_full(self) -> bool:
        """Whether its disk has no room to fill the reserve, so that publishes are refused soon."""
        reserve = self.log.settings.spares * self.log.settings.segment_bytes
        return self._full and self.log.room_bytes < reserve

    @property
    def led(self) -> list[Group]:
        """The groups of this log that are led here and that others could lead."""
        return [one for one in self.groups.values() if one.leads and one.has_others]

    @property
    def clean(self) -> bool:
        """Whether the last checkpoint covers the whole log, or would if there had been room.

        A stop does not insist on one: the log has everything, only the next start takes longer.
        """
        return self._tried_tail == self.log.tail

    def admit(self, pending: int) -> None:
        """Raise `Overloaded` if a publish would take the room that acks, votes and configuration
        need on a full disk; `pending` bytes are admitted already (DESIGN §4: the reserve).
        """
        if self._full and self.log.room_bytes - pending < self.log.settings.segment_bytes:
            raise Overloaded(
                "the disk is full: free space or add a disk; acks and reads continue",
                SPARE_RETRY_MS,
            )

    @property
    def needed_bytes(self) -> int:
        """The free space that its disk needs before publishes are taken again; 0 if they are."""
        settings = self.log.settings
        left = self.log.room_bytes - settings.segment_bytes
        if self._full and left < settings.entry_bytes_max:
            return settings.segment_bytes
        return 0

    def forget(self, group: int) -> None:
        """A group is gone from here: nothing of it is needed any more."""
        if (over := self.groups.pop(group, None)) is not None:
            over.is_over = True
        self.recovered.pop(group, None)
        self.snapshots.pop(group, None)
        self.log.drop_group(group)

    def holds(self, group: int) -> bool:
        """Whether recovery found anything of a group."""
        return group in self.recovered or group in self.snapshots

    def mark_dirty(self, partition: Gathering) -> None:
        """Cut this partition's next entry when the time comes."""
        self.dirty[partition.group.id] = partition

    def start_work(self) -> None:
        """Start the next flush, and what the log may need besides."""
        if self.dirty or self.log.staged is not None:
            self.start_flush()
        if self.tends:
            self.tends = False
            self._start_chore(self.log.next_chore)
            if self._mends:
                self._start_chore(self._next_mend)
            if not self._full:
                self._ask_for_spare()

    def start_flush(self) -> None:
        """Start the next flush, if none is in flight and there is something to write."""
        if self._in_flight or self._rests:
            return
        if self.dirty:
            dirty, self.dirty = self.dirty, {}
            for partition in dirty.values():
                self._devices += partition.cut()
                if partition.has_staged:  # it is being handed over
                    self.dirty[partition.group.id] = partition
        if self.log.staged is None:
            return
        flush = self.log.next_flush()
        if flush is None:
            self.tends = True  # it waits for a file to be zeroed
        else:
            self._in_flight = True
            self._flight_began = self._time.monotonic_ms()
            rest_ms = CROWD_FLUSH_MS if self._devices >= CROWD else 0
            self._devices = 0
            # No peer's welcome waits for this.
            self._outbox.effects.append(StartFlush(self.number, flush, rest_ms))

    def _ask_for_spare(self) -> None:
        spare = self.log.spares.wants()
        if spare is not None:
            self._asks_after = self._time.monotonic_ms() + SPARE_RETRY_MS
            self._outbox.put(MakeSpare(self.number, spare))

    def flushed(self, flush: Flush, rests: bool = False) -> None:
        """All of a flush is durable: commit and apply what waited for it. If the log `rests`, the
        next one gathers until `rested`.
        """
        self.log.flushed(flush)
        if flush.bound > self.bound.durable:
            self.bound.written(flush.bound)
        self._outbox.counts.flushes += 1
        self._outbox.counts.flushed_bytes += flush.end - flush.start
        self._in_flight, self._rests = False, rests
        segment = flush.end // self.log.settings.segment_bytes
        if segment != self._segment:  # else nothing was closed, and time tells of the rest
            self._segment, self.tends = segment, True
        self._quiet_since = self._time.monotonic_ms()
        for token in flush.tokens:
            assert isinstance(token, Token)  # what Group gave to append()
            group = self.groups.get(token.group)
            if group is not None and group.node is token.node:  # else it is gone
                group.persisted(token.ready)

    def handle(self, event: Rested | SpareMade | CheckpointSaved | ChoreDone) -> None:
        """Take what the disk has done besides flushes."""
        match event:
            case Rested():
                self.rested()
            case SpareMade():
                self.spare_made(event)
            case CheckpointSaved(_, saved, size):
                self.saved(saved, size)
            case ChoreDone():
                self.chore_done(event)

    def rested(self) -> None:
        """The next flush may start."""
        self._rests = False

    def spare_made(self, event: SpareMade) -> None:
        """Take a made segment file into the reserve, or learn that there is no room for one."""
        self._full, self.tends = not event.made, True
        if event.made:
            self.log.spares.made(event.spare)
        else:
            self.log.spares.failed(event.spare)
            self._asks_after = self._time.monotonic_ms() + SPARE_RETRY_MS

    def extend_bound(self) -> None:
        """Write how far promises may go, unless there is enough in hand."""
        if bound := self.bound.extension(self._time.wall_ms()):
            self.log.extend_bound(bound)

    def mend(self, piece: MendPiece) -> None:
        """Fill in an entry when the chores before it are done."""
        self._mends.append(piece)
        self.tends = True

    def _next_mend(self) -> Chore | None:
        return self._mends[0] if self._mends else None

    def _start_chore(self, ask: Callable[[], Chore | None]) -> None:
        if not self._at_chore and (chore := ask()) is not None:
            self._at_chore = True
            self._outbox.put(StartChore(self.number, chore))

    def chore_done(self, event: ChoreDone) -> None:
        """The chore under way is done, or left undone."""
        self._at_chore, self.tends = False, True
        if isinstance(event.chore, ScrubPiece):
            self.scrubber.done(event.found)
            for rotten in event.found.rotten if event.found is not None else ():
                self._findings.append(RottenEntry(*rotten))
        elif isinstance(event.chore, CopyPiece):
            self.log.copies.copied(event.chore, event.found)
        elif isinstance(event.chore, MendPiece):
            piece = self._mends.popleft()
            is_sound = event.found is not None and not event.found.bad
            if is_sound:
                self.scrubber.mended(piece.stored.place)
            self._findings.append(MendDone(piece, self.log.reader.mended(piece) and is_sound))

    def work_by_time(self) -> None:
        """Write an idle mark after a quiet moment, and a checkpoint after much or long, or where it
        frees segments.
        """
        self.tends = True
        now = self._time.monotonic_ms()
        idle = self.idle
        self._start_chore(lambda: self.scrubber.next_piece(idle))
        if now >= self._copies_after:
            self._copies_after = now + COPY_EVERY_MS
            self._start_chore(self.log.copies.next_piece)
        if idle and now - self._quiet_since >= IDLE_MS:
            self.log.mark_idle()
        if self._full and now >= self._asks_after:
            self._ask_for_spare()
        if now >= self._trim_after and not self._full:
            self._trim_after = now + TRIM_EVERY_MS
            self.log.lifecycle.trim()
        if self._saves(now):
            self.checkpoint()

    def _saves(self, now: int) -> bool:
        """Whether a checkpoint is due: by time, for what a start would have to apply, or for the
        segments that it frees.
        """
        grown = self.log.tail - self._saved_tail
        if now >= self._save_after and (grown or self.log.copies.wait):
            return True
        if self._full and self.log.lifecycle.gone != self._saved_gone and now >= self._frees_after:
            return True
        if self._saving or self._tried_tail != self._saved_tail:
            return False  # the last one failed: time decides when the next is tried
        logged = self.log.tail - self._opened_tail
        is_cheap = (self._saved_bytes + self._last_saved_bytes) * CHECKPOINT_SHARE <= logged
        stretch = 1 if is_cheap else CHECKPOINT_STRETCH
        many = self.log.frames - self._tried_frames > CHECKPOINT_FRAMES * stretch
        if many or grown > self._checkpoint_bytes * stretch:
            return True
        return is_cheap and now >= self._free_after and self._frees(now)

    def _frees(self, now: int) -> bool:
        """Whether a checkpoint would free a segment, and was not tried in vain for the same."""
        self._free_after = now + FREE_EVERY_MS
        segment = self.log.tail // self.log.settings.segment_bytes
        as_of = (self.log.drops, segment)
        if as_of == self._freed_as_of:
            return False  # nothing went, and no segment was filled
        self._freed_as_of = as_of
        needed = {
            id: min(group.machine.first_needed, group.kept_index + 1)
            for id, group in self.groups.items()
        }
        freeable = self.log.freeable(needed)
        first = freeable[0].base if freeable else -1
        if first != self._freeable:
            self._freeable, self._free_tries = first, 0
        if not freeable or self._free_tries >= FREE_TRIES:
            return False
        self._free_tries += 1
        return True

    def checkpoint(self) -> None:
        """Save every group's snapshot, unless that is under way, or one has stopped of which the
        last checkpoint alone has the state: the log has everything, a start takes longer, and no
        space is freed (docs/adr 0055).
        """
        if self._saving or any(group.lacks_state for group in self.groups.values()):
            return
        self._saving = True
        self._tried_tail = self.log.tail
        self._tried_frames = self.log.frames
        self._tried_gone = self.log.lifecycle.gone
        self._frees_after = self._time.monotonic_ms() + CHECKPOINT_RETRY_MS
        self._covered = covered(self.groups.values())
        body = States(self.groups.values())
        applied = {id: group.kept_index for id, group in self.groups.items()}
        data = self.log.checkpoint(applied, body)
        self._outbox.put(SaveCheckpoint(self.number, CHECKPOINT, data))

    def saved(self, saved: bool, size: int = 0) -> None:
        """The checkpoint is durable, `size` bytes; or, if not `saved`, is tried again after a
        pause.
        """
        self._saving, self.tends = False, True
        if size:
            self._saved_bytes += size
            self._last_saved_bytes = size
        if saved:
            self._saved_tail = self._tried_tail
            self._saved_gone = self._tried_gone
            self.log.checkpoint_saved()
            for group, snapshot in self._covered:
                if self.groups.get(group.id) is group:  # it may be gone, or have begun anew
                    group.saved(snapshot)
        pause = CHECKPOINT_MS if saved else CHECKPOINT_RETRY_MS
        self._save_after = self._time.monotonic_ms() + pause
