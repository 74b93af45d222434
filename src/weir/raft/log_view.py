"""The log as one node sees it: entries in memory at its end, the rest through Storage.

Seven positions, each at or below the next, cut it up:

    first_index - 1   replaced by a snapshot
    applied           the host's state machine has it
    handed            a Ready asked to apply it
    committed         it can never be replaced
    durable           this node's own disk has it
    staged            a Ready asked to append it
    last_index        proposed
"""

from __future__ import annotations

from weir.raft.config import Config
from weir.raft.errors import (
    Compacted,
    OutOfOrder,
    Overloaded,
    StorageError,
    Unavailable,
    UnsupportedConfiguration,
)
from weir.raft.storage import Entry, EntryKind, Storage

#: About what an Entry costs besides its data, so that empty proposals are not free of charge.
ENTRY_OVERHEAD_BYTES = 128


class LogView:
    """Positions in one node's log, and the entries not yet both durable and applied."""

    __slots__ = (
        "_base_term",
        "_max_apply_bytes",
        "_max_pending_bytes",
        "_pending_bytes",
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
        snapshot = storage.snapshot()
        base = snapshot.index if snapshot else 0
        self._storage = storage
        self._base_term = snapshot.term if snapshot else 0
        self._max_apply_bytes = config.max_apply_bytes
        self._max_pending_bytes = config.max_pending_bytes
        self.first_index = base + 1
        self.last_index = self.staged = self.durable = storage.last_index()
        # What a snapshot or the state machine holds was committed, or it would not be there.
        self.applied = self.handed = self.committed = max(base, config.applied)
        if self.last_index < self.applied:
            raise StorageError(
                f"the log ends at {self.last_index}, below what is applied ({self.applied}): "
                "entries were lost; restore them before starting"
            )
        self._tail: list[Entry] = []
        self._tail_first = self.last_index + 1
        self._pending_bytes = 0

    def term(self, index: int) -> int:
        """The term of entry `index`, or of the snapshot's last; Compacted or Unavailable."""
        if index > self.last_index:
            raise Unavailable(f"there is no entry {index}; the log ends at {self.last_index}")
        if index >= self._tail_first:
            return self._tail[index - self._tail_first].term
        if index < self.first_index - 1:
            raise Compacted(f"entry {index} is in a snapshot; the log starts at {self.first_index}")
        if index == self.first_index - 1:
            return self._base_term
        return self._storage.term(index)

    def admit(self, size: int) -> None:
        """Refuse with Overloaded an entry of `size` bytes that would pass max_pending_bytes.

        A single entry larger than the limit passes alone: waiting could never make room for it.
        """
        pending = self._pending_bytes
        if pending and pending + size + ENTRY_OVERHEAD_BYTES > self._max_pending_bytes:
            raise Overloaded(
                f"{pending} bytes are proposed and not yet durable and applied, of "
                f"{self._max_pending_bytes} allowed: propose again after the next applied()"
            )

    def append(self, term: int, kind: EntryKind, data: object, size: int) -> int:
        """Put an entry at the end, in memory only, and return its index."""
        index = self.last_index = self.last_index + 1
        self._tail.append(Entry(index, term, kind, data, size))
        self._pending_bytes += size + ENTRY_OVERHEAD_BYTES
        return index

    def take_unstaged(self) -> tuple[Entry, ...]:
        """Entries that no Ready has asked to append yet; they count as staged from now on."""
        if self.staged == self.last_index:
            return ()
        entries = tuple(self._tail[self.staged + 1 - self._tail_first :])
        self.staged = self.last_index
        return entries

    def durable_to(self, index: int) -> None:
        """This node's disk holds the log through `index`."""
        self.durable = index
        self._forget()

    def commit_to(self, index: int) -> None:
        """Entries through `index` are committed; a lower index than known changes nothing."""
        self.committed = max(self.committed, index)

    @property
    def has_unhanded(self) -> bool:
        """Whether take_unhanded() would return something."""
        if self.handed >= self.committed:
            return False
        # What is read back from Storage is new memory, so a restart takes one chunk at a time.
        # The tail is in memory anyway, within max_pending_bytes, and need not wait.
        return self.handed + 1 >= self._tail_first or self.handed == self.applied

    def take_unhanded(self) -> tuple[Entry, ...]:
        """The next committed entries to apply: at least one, up to max_apply_bytes, or none now."""
        if not self.has_unhanded:
            return ()
        lo = self.handed + 1
        if lo < self._tail_first:
            entries = self._read(lo, min(self.committed + 1, self._tail_first))
        else:
            entries = self._cut(lo - self._tail_first, self.committed + 1 - self._tail_first)
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
        self._forget()

    def compact(self, index: int) -> None:
        """Move first_index above `index`, which a durable snapshot must cover; never back."""
        if index < self.first_index:
            return
        snapshot = self._storage.snapshot()
        if snapshot is None or snapshot.index < index:
            raise OutOfOrder(f"make a snapshot at or above {index} durable before compacting there")
        if index > min(self.applied, self.durable):
            raise OutOfOrder(f"entry {index} is not yet applied and durable: compact later")
        self._base_term = self.term(index)
        self.first_index = index + 1

    def _cut(self, start: int, stop: int) -> tuple[Entry, ...]:
        tail, room = self._tail, self._max_apply_bytes - self._tail[start].size
        end = start + 1
        while end < stop and tail[end].size <= room:
            room -= tail[end].size
            end += 1
        return tuple(tail[start:end])

    def _read(self, lo: int, hi: int) -> tuple[Entry, ...]:
        entries = tuple(self._storage.entries(lo, hi, self._max_apply_bytes))
        found = [entry.index for entry in entries]
        if not found or found != list(range(lo, min(lo + len(found), hi))):
            raise StorageError(f"asked Storage for entries from {lo} below {hi}, got {found}")
        for entry in entries:
            # It would change who counts, from its own index on: to pass over it is not safe.
            if entry.kind is EntryKind.CONFIGURATION:
                raise UnsupportedConfiguration(
                    f"entry {entry.index} changes the configuration, which is not in this release: "
                    "start the release that wrote it"
                )
        return entries

    def _forget(self) -> None:
        """Let go of entries that are both durable and applied: Storage answers for them now."""
        gone = min(self.applied, self.durable) + 1 - self._tail_first
        if gone > 0:
            for entry in self._tail[:gone]:
                self._pending_bytes -= entry.size + ENTRY_OVERHEAD_BYTES
            del self._tail[:gone]
            self._tail_first += gone
