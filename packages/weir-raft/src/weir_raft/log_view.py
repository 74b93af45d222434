"""The log as one node sees it: entries in memory at its end, the rest through Storage.

Positions, each at or below the next, cut it up:

    first_index - 1   gone: a snapshot covers it
    applied           the host's state machine has it
    handed            a Ready asked to apply it
    committed         it can never be replaced
    last_index        proposed or received

    durable           this node's own disk has it; at or below staged
    staged            a Ready asked to append it; at or below last_index

Entries are handed out only through what is both committed and durable here, so that a snapshot of
the state machine never runs ahead of the log beside it. While entries that an installed snapshot
covers are *back-filled*, last_index lies below applied, and none of them is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir_raft.config import Config
from weir_raft.errors import Compacted, OutOfOrder, Overloaded, StorageError, Unavailable
from weir_raft.storage import Entry, EntryKind, Snapshot, Storage

#: About what an Entry costs besides its data, so that empty proposals are not free of charge.
ENTRY_OVERHEAD_BYTES = 128


class LogView:
    """Positions in one node's log, and the entries not yet both durable and applied."""

    __slots__ = (
        "_base_term",
        "_config",
        "_forgotten",
        "_pending_bytes",
        "_snapshot_end",
        "_storage",
        "_tail",
        "_tail_first",
        "applied",
        "committed",
        "durable",
        "first_index",
        "handed",
        "last_index",
        "staged",
    )

    def __init__(self, config: Config, storage: Storage) -> None:
        """Restore from what is durable; StorageError if its parts contradict each other."""
        snapshot = storage.snapshot() or Snapshot(0, 0, None)
        self._storage = storage
        self._config = config
        self._base_term = snapshot.base_term
        self._snapshot_end = (snapshot.term, snapshot.index)
        self.first_index = snapshot.base_index + 1
        self.last_index = self.staged = self.durable = storage.last_index()
        # What a snapshot or the state machine holds was committed, or it would not be there.
        self.applied = self.handed = self.committed = max(snapshot.index, config.applied)
        if self.last_index < config.applied > snapshot.index:
            raise StorageError(
                f"the log ends at {self.last_index}, below what is applied ({self.applied}): "
                "entries were lost; restore them before starting"
            )
        if self.last_index < snapshot.base_index:
            raise StorageError(
                f"the log ends at {self.last_index}, below the snapshot's base "
                f"({snapshot.base_index})"
            )
        self._tail: list[Entry] = []
        self._tail_first = self.last_index + 1
        self._pending_bytes = 0
        # Index and term of the last entry that was let go of: what comes next is sent behind it. It
        # is committed, so no other ever takes its place.
        self._forgotten = (0, 0)

    @property
    def back_filling(self) -> bool:
        """Whether entries are missing that the state machine already has."""
        return self.last_index < self.committed

    @property
    def end(self) -> tuple[int, int]:
        """Term and index of the last entry, or of the snapshot that is ahead of it. (§3.6.1)"""
        if self.last_index < self._snapshot_end[1]:
            return self._snapshot_end
        return (self.term(self.last_index), self.last_index)

    def term(self, index: int) -> int:
        """The term of entry `index`, or of the snapshot's last; Compacted or Unavailable."""
        if index > self.last_index:
            if index == self._snapshot_end[1]:
                return self._snapshot_end[0]
            raise Unavailable(f"there is no entry {index}; the log ends at {self.last_index}")
        if index >= self._tail_first:
            return self._tail[index - self._tail_first].term
        if index < self.first_index - 1:
            raise Compacted(f"entry {index} is in a snapshot; the log starts at {self.first_index}")
        if index == self.first_index - 1:
            return self._base_term
        if index == self._forgotten[0]:
            return self._forgotten[1]
        return self._storage.term(index)

    def admit(self, size: int) -> None:
        """Refuse with Overloaded an entry of `size` bytes that would pass max_pending_bytes.

        A single entry larger than the limit passes alone: waiting could never make room for it.
        """
        pending = self._pending_bytes
        if pending and pending + size + ENTRY_OVERHEAD_BYTES > self._config.max_pending_bytes:
            raise Overloaded(
                f"{pending} bytes are proposed and not yet durable and applied, of "
                f"{self._config.max_pending_bytes} allowed: propose again after the next applied()"
            )

    def append(self, term: int, kind: EntryKind, data: object, size: int) -> int:
        """Put an entry at the end, in memory only, and return its index."""
        index = self.last_index = self.last_index + 1
        # Without the step in Python that a NamedTuple is made by: each proposal comes by here.
        self._tail.append(tuple.__new__(Entry, (index, term, kind, data, size)))
        self._pending_bytes += size + ENTRY_OVERHEAD_BYTES
        return index

    def extend(self, entries: tuple[Entry, ...]) -> None:
        """Put a leader's entries in place of all from the first one's index on."""
        first = entries[0].index
        if first <= self.last_index:
            self._cut_from(first)
        self._tail.extend(entries)
        self.last_index = entries[-1].index
        for entry in entries:
            self._pending_bytes += entry.size + ENTRY_OVERHEAD_BYTES

    def _cut_from(self, index: int) -> None:
        if index <= self.committed:
            raise StorageError(f"entry {index} is committed, and a leader would replace it")
        kept = max(index - self._tail_first, 0)
        for entry in self._tail[kept:]:
            self._pending_bytes -= entry.size + ENTRY_OVERHEAD_BYTES
        del self._tail[kept:]
        # What Storage still has from here on is superseded; it is not asked for it again.
        self._tail_first = min(self._tail_first, index)
        self.last_index = index - 1
        self.staged = min(self.staged, index - 1)
        self.durable = min(self.durable, index - 1)

    def restore(self, snapshot: Snapshot) -> None:
        """Start again behind the snapshot's base, its state taken for applied once handed out."""
        base = snapshot.base_index
        self._base_term = snapshot.base_term
        self._snapshot_end = (snapshot.term, snapshot.index)
        self.first_index = base + 1
        self.last_index = self.staged = self.durable = base
        self.committed = self.handed = snapshot.index
        self._tail.clear()
        self._tail_first = base + 1
        self._pending_bytes = 0

    def restored(self) -> None:
        """The host has been given the snapshot to restore."""
        self.applied = self.handed

    def take_unstaged(self) -> tuple[Entry, ...]:
        """Entries that no Ready has asked to append yet; they count as staged from now on."""
        if self.staged == self.last_index:
            return ()
        entries = tuple(self._tail[self.staged + 1 - self._tail_first :])
        self.staged = self.last_index
        return entries

    def durable_to(self, index: int) -> None:
        """This node's disk holds the log through `index`."""
        if index > self.durable:
            self.durable = index
            if self.applied >= self._tail_first:
                self._forget()

    def commit_to(self, index: int) -> None:
        """Entries through `index` are committed; a lower index than known changes nothing."""
        if index > self.committed:
            self.committed = index

    @property
    def has_unhanded(self) -> bool:
        """Whether take_unhanded() would return something."""
        if self.handed >= self.committed or self.handed >= self.durable:
            return False
        # What is read back from Storage is new memory, so a restart takes one chunk at a time.
        # The tail is in memory anyway, within max_pending_bytes, and need not wait.
        return self.handed + 1 >= self._tail_first or self.handed == self.applied

    def take_unhanded(self) -> tuple[Entry, ...]:
        """The next committed entries to apply: at least one, up to max_apply_bytes, or none now."""
        lo = self.handed + 1
        end = min(self.committed, self.durable) + 1
        if lo >= end:
            return ()
        if lo < self._tail_first:
            if self.handed != self.applied:  # as in has_unhanded
                return ()
            hi = min(end, self._tail_first)
            entries = checked(self._storage.entries(lo, hi, self._config.max_apply_bytes), lo, hi)
        else:
            entries, _ = self._cut(lo, end, self._config.max_apply_bytes)
        self.handed += len(entries)
        return entries

    def applied_to(self, index: int) -> None:
        """The state machine holds everything through `index`; OutOfOrder if it cannot."""
        if not self.applied <= index <= self.handed:
            raise OutOfOrder(
                f"applied({index}) must lie between what is applied ({self.applied}) "
                f"and what was handed out to apply ({self.handed})"
            )
        self.applied = index
        if self.durable >= self._tail_first:
            self._forget()

    def compact(self, index: int) -> None:
        """Move first_index above `index`, which a durable snapshot must cover; never back."""
        if index < self.first_index:
            return
        snapshot = self._storage.snapshot()
        if snapshot is None or snapshot.index < index:
            raise OutOfOrder(f"make a snapshot at or above {index} durable before compacting there")
        if index > self.applied or (index > self.durable and not self.back_filling):
            raise OutOfOrder(f"entry {index} is not yet applied and durable: compact later")
        self.release(index)

    def release(self, index: int) -> None:
        """Move first_index above `index`, as far as that is applied and durable; never back."""
        # What is still to be filled in stays wanted: a leader's log may begin below it.
        index = min(index, self.applied, self.durable)
        if index >= self.first_index:
            self._base_term = self.term(index)
            self.first_index = index + 1

    def last_of_term(self, index: int, term: int) -> int:
        """The last entry at or below `index` whose term is at most `term`, or the log's base."""
        lo, hi = self.first_index - 1, index
        # Terms never fall along a log.
        while lo < hi:
            middle = (lo + hi + 1) // 2
            if self.term(middle) <= term:
                lo = middle
            else:
                hi = middle - 1
        return lo

    def outgoing(self, lo: int, max_bytes: int) -> tuple[tuple[Entry, ...], int] | None:
        """Entries from `lo` on to send, and their bytes; None if a disk must be read for them."""
        if lo > self.last_index:
            return (), 0
        if lo >= self._tail_first:
            return self._cut(lo, self.last_index + 1, max_bytes)
        found = self._storage.cached(lo, self._tail_first, max_bytes)
        if found is None:
            return None
        entries = checked(found, lo, self._tail_first)
        return entries, sum(entry.size for entry in entries)

    @property
    def stored_end(self) -> int:
        """Entries below here can be asked of Storage."""
        return self._tail_first

    def _cut(self, lo: int, hi: int, max_bytes: int) -> tuple[tuple[Entry, ...], int]:
        tail, start, stop = self._tail, lo - self._tail_first, hi - self._tail_first
        size = tail[start].size
        end = start + 1
        while end < stop and size + tail[end].size <= max_bytes:
            size += tail[end].size
            end += 1
        return tuple(tail[start:end]), size

    def _forget(self) -> None:
        """Let go of entries that are both durable and applied: Storage answers for them now."""
        gone = min(self.applied, self.durable) + 1 - self._tail_first
        if gone > 0:
            for entry in self._tail[:gone]:
                self._pending_bytes -= entry.size + ENTRY_OVERHEAD_BYTES
            last = self._tail[gone - 1]
            self._forgotten = (last.index, last.term)
            del self._tail[:gone]
            self._tail_first += gone


def checked(found: Sequence[Entry], lo: int, hi: int) -> tuple[Entry, ...]:
    """What Storage answered for [lo, hi), if it is some of that from its beginning on."""
    entries = tuple(found)
    indexes = [entry.index for entry in entries]
    if not indexes or indexes != list(range(lo, min(lo + len(indexes), hi))):
        raise StorageError(f"asked Storage for entries from {lo} below {hi}, got {indexes}")
    return entries
