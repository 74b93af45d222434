"""Checkpoints of a log: what a start takes from the last one, and when the next is saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

import weir_raft as raft
from weir.broker.api.effects import SaveCheckpoint
from weir.broker.records.snapshots import crc_from, pack_onto, taken
from weir.broker.replica.group import Group
from weir.broker.replica.raft_storage import installed
from weir.broker.runtime.outbox import Outbox
from weir.codec import U32, crc32c
from weir.errors import Damaged
from weir.order.clock import Time
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import CHECKPOINT as CHECKPOINT
from weir.storage.log import Log
from weir.storage.recovery import RecoveredGroup

_VERSION = 1
#: A start verifies what came since the last checkpoint: about 30 microseconds for each frame.
CHECKPOINT_FRAMES = 50_000
CHECKPOINT_MS = 300_000
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


class Opened(msgspec.Struct, frozen=True):
    """A log as the host opened it: recovered groups, the broker's part of the checkpoint, and the
    places that were found damaged.
    """

    log: Log
    groups: Mapping[int, RecoveredGroup] = msgspec.field(default_factory=dict)
    checkpoint: bytes = b""
    holes: Sequence[LogDamaged] = ()


class Restored:
    """What a log held of its groups as it was opened, until each is opened or forgotten."""

    __slots__ = ("groups", "snapshots")

    def __init__(self, opened: Opened) -> None:
        """Take what recovery found. Raises `Damaged`."""
        self.groups = dict(opened.groups)
        #: The newest state of each group that is durable, where a checkpoint or a peer gave it.
        self.snapshots = saved_states(opened) | installed(opened.groups)

    @property
    def numbers(self) -> set[int]:
        """The groups of which anything was found."""
        return {*self.groups, *self.snapshots}

    def forget(self, group: int) -> None:
        """A group is gone from here."""
        self.groups.pop(group, None)
        self.snapshots.pop(group, None)


def covered(groups: Iterable[Group]) -> Sequence[tuple[Group, raft.Snapshot]]:
    """Return groups and the snapshots that `States` would write, without states."""
    whole = [group for group in groups if group.damage is None]
    found = [(group, group.covered()) for group in whole]
    return [(group, snapshot) for group, snapshot in found if snapshot is not None]


class States:
    """All groups' snapshots, taken now and packed late: u32 CRC-32C, then MessagePack.

    Each is (index, term, state, configuration) as of its applied index; all of it is durable in
    the log.
    """

    __slots__ = ("_rows",)

    def __init__(self, groups: Iterable[Group]) -> None:
        """Take the states of groups, of each through its `kept_index`."""
        self._rows = _rows_of(groups)

    def write(self, out: bytearray) -> None:
        """Append the checkpoint's body, for `Log.checkpoint`; takes long where states are large."""
        start = len(out)
        out += bytes(U32.size)
        pack_onto((_VERSION, self._rows), out)
        U32.pack_into(out, start, crc_from(out, start + U32.size))


def _rows_of(groups: Iterable[Group]) -> dict[int, tuple[int, int, object, bytes]]:
    rows = {}
    for group in groups:
        snapshot = group.snapshot()
        if snapshot is not None:
            known = snapshot.configuration
            packed = known.pack() if known is not None else b""
            rows[group.id] = (snapshot.index, snapshot.term, taken(snapshot.data), packed)
    return rows


def decode_checkpoint(data: bytes) -> dict[int, raft.Snapshot]:
    """Return the snapshots of a checkpoint's body. Raises `Damaged`."""
    if not data:
        return {}
    body = data[U32.size :]
    if len(data) < U32.size or U32.unpack_from(data)[0] != crc32c(body):
        raise Damaged(
            f"the snapshots in the file `{CHECKPOINT}` fail their CRC-32C, though the whole file "
            "does not: weir did not write it. Restore this folder from a backup"
        )
    version, rows = msgspec.msgpack.decode(body, strict=False)
    if version != _VERSION:
        raise Damaged(f"the checkpoint is of version {version}; this release reads {_VERSION}")
    return {
        group: raft.Snapshot(
            index, term, state, raft.Configuration.unpack(packed) if packed else None
        )
        for group, (index, term, state, packed) in rows.items()
    }


def saved_states(opened: Opened) -> dict[int, raft.Snapshot]:
    """Return the checkpoint's snapshots, but for groups that left and began anew behind it: what
    they had been is nothing of theirs. Raises `Damaged`.
    """
    known = opened.groups
    found = decode_checkpoint(opened.checkpoint)
    return {id: at for id, at in found.items() if id not in known or not known[id].anew}


class _Extent(NamedTuple):
    """How far a log was: where it ended, how many frames it had got, how much it had let go of."""

    tail: int
    frames: int
    gone: int

    @classmethod
    def of(cls, log: Log) -> _Extent:
        return cls(log.tail, log.frames, log.lifecycle.gone)


class FreeableSegments:
    """The segments of a log that a checkpoint would free, as far as it is asked for them."""

    __slots__ = ("_after_ms", "_as_of", "_first", "_groups", "_log", "_tries")

    def __init__(self, log: Log, groups: Mapping[int, Group], now_ms: int) -> None:
        """Look for none before `now_ms`; `groups` are those in `log` that are open."""
        self._log = log
        self._groups = groups
        #: What the log held when it was last asked.
        self._as_of: tuple[int, int] = (-1, -1)
        #: The base of the first of them, and how many checkpoints were saved for it in vain.
        self._first = -1
        self._tries = 0
        self._after_ms = now_ms

    def are_worth_one(self, now_ms: int) -> bool:
        """Whether there are any, and none was saved in vain for the same, now or of late."""
        if now_ms < self._after_ms:
            return False
        self._after_ms = now_ms + FREE_EVERY_MS
        segment = self._log.tail // self._log.settings.segment_bytes
        as_of = (self._log.lifecycle.drops, segment)
        if as_of == self._as_of:
            return False  # nothing went, and no segment was filled
        self._as_of = as_of
        needed = {
            id: min(group.machine.first_needed, group.kept_index + 1)
            for id, group in self._groups.items()
        }
        freeable = self._log.freeable(needed)
        first = freeable[0].base if freeable else -1
        if first != self._first:
            self._first, self._tries = first, 0
        if not freeable or self._tries >= FREE_TRIES:
            return False
        self._tries += 1
        return True


class Checkpoints:
    """Saves checkpoints of one log: after much or long, and where that frees segments."""

    __slots__ = ("_bytes_max", "_covered", "_due_ms", "_freeable", "_frees_after_ms", "_groups",
                 "_last_size", "_log", "_opened_tail", "_outbox", "_saved", "_time", "_tried",
                 "_written", "is_saving")  # fmt: skip

    def __init__(
        self, log: Log, groups: Mapping[int, Group], outbox: Outbox, time: Time, bytes_max: int
    ) -> None:
        """Save the states of `groups`, which lie in `log`, after `bytes_max` bytes of it."""
        self._log = log
        self._groups = groups
        self._outbox = outbox
        self._time = time
        self._bytes_max = bytes_max
        now = time.monotonic_ms()
        #: Whether one is on its way to the disk.
        self.is_saving = False
        #: Each group in the checkpoint that is being saved, and what that covers of it.
        self._covered: Sequence[tuple[Group, raft.Snapshot]] = ()
        #: How far the log was when the last one began that is durable, and the last one at all.
        self._saved = self._tried = _Extent.of(log)
        self._due_ms = now + CHECKPOINT_MS
        #: On a full disk one is saved for what was let go of, no earlier than this.
        self._frees_after_ms = now
        self._freeable = FreeableSegments(log, groups, now)
        #: Bytes that checkpoints wrote since the log was opened, and that the last one wrote.
        self._written = self._last_size = 0
        self._opened_tail = log.tail

    @property
    def is_current(self) -> bool:
        """Whether the last one covers the whole log, or would if there had been room.

        A stop does not insist on one: the log has everything, only the next start takes longer.
        """
        return self._tried.tail == self._log.tail

    def is_due(self, is_full: bool) -> bool:
        """Whether one is to be saved: by time, for what a start would have to apply, or for the
        segments that it frees. `is_full` says that the disk has no room for more of them.
        """
        now, log = self._time.monotonic_ms(), self._log
        grown = log.tail - self._saved.tail
        if now >= self._due_ms and (grown or log.lifecycle.copies.wait):
            return True
        if is_full and log.lifecycle.gone != self._saved.gone and now >= self._frees_after_ms:
            return True
        if self.is_saving or self._tried.tail != self._saved.tail:
            return False  # the last one failed: time decides when the next is tried
        logged = log.tail - self._opened_tail
        is_cheap = (self._written + self._last_size) * CHECKPOINT_SHARE <= logged
        stretch = 1 if is_cheap else CHECKPOINT_STRETCH
        many = log.frames - self._tried.frames > CHECKPOINT_FRAMES * stretch
        if many or grown > self._bytes_max * stretch:
            return True
        return is_cheap and self._freeable.are_worth_one(now)

    def save(self) -> None:
        """Save every group's snapshot, unless that is under way, or one has stopped of which the
        last checkpoint alone has the state: the log has everything, a start takes longer, and no
        space is freed (docs/adr 0055).
        """
        if self.is_saving or any(group.lacks_state for group in self._groups.values()):
            return
        self.is_saving = True
        self._tried = _Extent.of(self._log)
        self._frees_after_ms = self._time.monotonic_ms() + CHECKPOINT_RETRY_MS
        self._covered = covered(self._groups.values())
        body = States(self._groups.values())
        applied = {id: group.kept_index for id, group in self._groups.items()}
        data = self._log.checkpoint(applied, body)
        self._outbox.put(SaveCheckpoint(self._log.settings.log, CHECKPOINT, data))

    def saved(self, saved: bool, size: int = 0) -> None:
        """The checkpoint is durable, `size` bytes; or, if not `saved`, is tried again after a
        pause.
        """
        self.is_saving = False
        if size:
            self._written += size
            self._last_size = size
        if saved:
            self._saved = self._tried
            self._log.checkpoint_saved()
            for group, snapshot in self._covered:
                if self._groups.get(group.id) is group:  # it may be gone, or have begun anew
                    group.saved(snapshot)
        pause = CHECKPOINT_MS if saved else CHECKPOINT_RETRY_MS
        self._due_ms = self._time.monotonic_ms() + pause
