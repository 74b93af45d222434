"""What a node keeps on disk, and the port through which the library reads it back.

The library never writes: a Ready asks the host to, and `Node.persisted` says that it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, Protocol

from weir_raft.errors import Compacted, StorageError, Unavailable
from weir_raft.membership import Configuration

#: The id that no node has: a vote not given, a leader not known.
NOBODY = 0


class EntryKind(IntEnum):
    """What an entry is for. An unknown kind must stop its group and is never skipped."""

    NORMAL = 0
    NOOP = 1
    CONFIGURATION = 2


_CHANGE = EntryKind.CONFIGURATION


class Entry(NamedTuple):
    """One place of the replicated log. `data` is opaque here; `size` is its bytes.

    That of a CONFIGURATION is what Configuration.pack() gave, as bytes.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
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
    """The host's state machine after `index`, whose entry was of `term`. (§5.1)

    The log beside it begins behind (base_index, base_term), which is `index` itself unless given.
    """

    index: int
    term: int
    #: Opaque, and as the host likes it, but bytes in a snapshot that travels: a bytearray in one
    #: that came, which nobody else holds.
    data: object
    #: As of `index`; a snapshot that travels has one, for others Storage.configuration() answers.
    configuration: Configuration | None = None
    #: Through here the log is gone. One that lies below `index` lets the log be kept longer than
    #: the state machine needs it: whoever installs the snapshot is sent those entries too.
    base_index: int = -1
    base_term: int = -1

    def __post_init__(self) -> None:
        if self.base_index < 0:
            object.__setattr__(self, "base_index", self.index)
            object.__setattr__(self, "base_term", self.term)


class Storage(Protocol):
    """The durable past, as one node reads it. Nothing here may answer what is not durable."""

    def hard_state(self) -> HardState:
        """The last hard state made durable, or HardState() on a new node."""

    def snapshot(self) -> Snapshot | None:
        """The newest durable snapshot."""

    def configuration(self) -> Configuration | None:
        """The configuration as of the snapshot, or None for that of Config."""

    def configurations(self) -> Sequence[tuple[int, bytes]]:
        """Index and data of all CONFIGURATION entries above the snapshot, rising; for the start."""

    def last_index(self) -> int:
        """The index of the last entry; the snapshot's base, or else 0, when there is none.

        Below the snapshot's index while entries that it already covers are being filled in.
        """

    def term(self, index: int) -> int:
        """The term of a stored entry; Compacted or Unavailable outside the log."""

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries from `lo` on, below `hi`: at least one, then as many as fit in `max_bytes`."""

    def cached(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry] | None:
        """As entries(), if that takes no waiting for a disk; else None, and a Load asks for it."""


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
        """Make durable what one Ready asked for; StorageError if the log would get a hole.

        Entries that begin within the log replace all from there on.
        """
        if entries and not self._discarded < entries[0].index <= self.last_index() + 1:
            raise StorageError(f"entry {entries[0].index} cannot follow {self.last_index()}")
        for before, entry in pairwise(entries):
            if entry.index != before.index + 1:
                raise StorageError(f"entry {entry.index} cannot follow entry {before.index}")
        if hard_state is not None:
            self._hard_state = hard_state
        if entries:
            del self._entries[entries[0].index - self._discarded - 1 :]
            self._entries.extend(entries)

    def install(self, snapshot: Snapshot) -> None:
        """Make a leader's snapshot durable: the log starts again, empty, behind its base."""
        self._snapshot = snapshot
        self._entries.clear()
        self._discarded = snapshot.base_index

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

    def configuration(self) -> Configuration | None:
        """That of the last snapshot saved."""
        return self._snapshot.configuration if self._snapshot else None

    def configurations(self) -> Sequence[tuple[int, bytes]]:
        """Index and data of all CONFIGURATION entries above the snapshot."""
        covered = self._snapshot.index if self._snapshot else 0
        return [
            (entry.index, entry.data)
            for entry in self._entries
            if entry.index > covered and isinstance(entry.data, bytes) and entry.kind is _CHANGE
        ]

    def cached(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry] | None:
        """As entries(): all of it is in memory."""
        return self.entries(lo, hi, max_bytes)

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
