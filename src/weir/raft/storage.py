"""What a node keeps on disk, and the port through which the library reads it back.

The library never writes: a Ready asks the host to, and `Node.persisted` says that it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from weir.raft.errors import Compacted, StorageError, Unavailable

#: The id that no node has: a vote not given, a leader not known.
NOBODY = 0


class EntryKind(IntEnum):
    """What an entry is for. An unknown kind must stop its group and is never skipped."""

    NORMAL = 0
    NOOP = 1
    CONFIGURATION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of the replicated log. `data` is opaque here; `size` is its bytes."""

    index: int
    term: int
    kind: EntryKind
    data: object
    size: int


@dataclass(frozen=True, slots=True)
class HardState:
    """What a voter must never forget: its term and whom it voted for in it. (§3.8)"""

    term: int = 0
    vote: int = NOBODY


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The host's state machine after `index`, whose entry was of `term`. (§5.1)"""

    index: int
    term: int
    data: object


class Storage(Protocol):
    """The durable past, as one node reads it. Nothing here may answer what is not durable."""

    def hard_state(self) -> HardState:
        """The last hard state made durable, or HardState() on a new node."""

    def snapshot(self) -> Snapshot | None:
        """The newest durable snapshot."""

    def last_index(self) -> int:
        """The index of the last entry; the snapshot's index, or else 0, when there is none."""

    def term(self, index: int) -> int:
        """The term of a stored entry; Compacted or Unavailable outside the log."""

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries from `lo` on, below `hi`: at least one, then as many as fit in `max_bytes`."""


class MemoryStorage:
    """A Storage without a disk, for tests and simulations: it survives the node, not the process.

    It holds exactly what was saved, so a test decides what a crash leaves behind.
    """

    def __init__(self) -> None:
        self._hard_state = HardState()
        self._snapshot: Snapshot | None = None
        self._entries: list[Entry] = []
        self._discarded = 0  # index before the first entry kept

    def save(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Make durable what one Ready asked for; StorageError if the log would get a hole."""
        expected = self.last_index() + 1
        for entry in entries:
            if entry.index != expected:
                raise StorageError(f"entry {entry.index} cannot follow entry {expected - 1}")
            expected += 1
        if hard_state is not None:
            self._hard_state = hard_state
        self._entries.extend(entries)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep `snapshot`, which must lie within the log, in place of an older one."""
        if snapshot.term != self.term(snapshot.index):
            raise StorageError(f"no entry {snapshot.index} of term {snapshot.term} to cover")
        self._snapshot = snapshot

    def discard(self, index: int) -> None:
        """Drop entries through `index`, which the snapshot must cover."""
        if self._snapshot is None or self._snapshot.index < index:
            raise StorageError(f"save a snapshot at or above {index} before discarding through it")
        if index > self._discarded:
            del self._entries[: index - self._discarded]
            self._discarded = index

    def hard_state(self) -> HardState:
        """The last hard state saved."""
        return self._hard_state

    def snapshot(self) -> Snapshot | None:
        """The last snapshot saved."""
        return self._snapshot

    def last_index(self) -> int:
        """The index of the last entry, kept or discarded; 0 on a new node."""
        return self._discarded + len(self._entries)

    def term(self, index: int) -> int:
        """The term of entry `index`; Compacted or Unavailable outside the log."""
        return self._entries[self._place(index)].term

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries of [lo, hi): at least one, then as many as fit in `max_bytes`."""
        start, stop = self._place(lo), self._place(hi - 1) + 1
        room = max_bytes - self._entries[start].size
        end = start + 1
        while end < stop and self._entries[end].size <= room:
            room -= self._entries[end].size
            end += 1
        return self._entries[start:end]

    def _place(self, index: int) -> int:
        if index <= self._discarded:
            raise Compacted(f"entry {index} was discarded; the log starts at {self._discarded + 1}")
        if index > self.last_index():
            raise Unavailable(f"there is no entry {index}; the log ends at {self.last_index()}")
        return index - self._discarded - 1
