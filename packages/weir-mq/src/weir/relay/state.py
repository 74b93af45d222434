"""The state of a relay's partition: what its log says, entry by entry.

`RelayState` is a state machine: the same entries make the same state. It refuses an entry that does
not begin where the one before ended, so no log has a hole (docs/RELAYS.md). Arrays of numbers say
where offsets and chunks lie: no object is kept for an entry, a batch or a message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weir.codec import Buffer
from weir.errors import UnknownVersion, WeirError
from weir.model.ids import LIMIT_MAX
from weir.model.limits import (
    FILTERS_KEPT_MAX,
    GAPS_MAX,
    ROSTER_ENTRIES_MAX,
)
from weir.relay.entries import (
    AnyRecord,
    ChunkStored,
    FilterSet,
    Forked,
    GapTold,
    HoldsStored,
    Relayed,
    StartMoved,
)
from weir.relay.rows import HOLDS_BATCH, RosterEntry, Tags, covers, pack_tags, unpack_tags

_SNAPSHOT_VERSION = 1


class EntryRefused(WeirError):
    """An entry does not fit what the log holds: it would make a hole, or contradict it."""


class Filter(NamedTuple):
    """Which tags are kept from offset `first` on; the entry at `index` says so."""

    version: int
    tags: Tags
    first: int
    index: int  # type: ignore[assignment]  # hides tuple.index


class Ranges:
    """Where scanned ranges lie, in packed arrays: per entry its first offset, the version of its
    filter, its index, and the bytes of all entries before it.
    """

    __slots__ = ("bytes_before", "filters", "firsts", "indexes", "total")

    def __init__(self) -> None:
        """Hold none."""
        self.firsts = array("q")
        self.filters = array("q")
        self.indexes = array("q")
        self.bytes_before = array("q")
        self.total = 0

    def add(self, first: int, filter_: int, index: int, size: int) -> None:
        """Add the range of an entry behind all others."""
        self.firsts.append(first)
        self.filters.append(filter_)
        self.indexes.append(index)
        self.bytes_before.append(self.total)
        self.total += size

    def at(self, offset: int) -> int:
        """Return the place of the range that holds an offset; -1 if all lie above it."""
        return bisect_right(self.firsts, offset) - 1

    def cut(self, offset: int) -> None:
        """Forget the ranges that begin at or above an offset."""
        at = bisect_left(self.firsts, offset)
        if at < len(self.firsts):
            self.total = self.bytes_before[at]
            for one in self._arrays:
                del one[at:]

    def drop(self, offset: int) -> None:
        """Forget the ranges that lie wholly below an offset."""
        at = self.at(offset)
        if at > 0:
            for one in self._arrays:
                del one[:at]

    def affordable(self, bytes_max: int) -> int:
        """Return the lowest first offset from which on no more than so many bytes are held; -1 if
        not even the last range is that small.
        """
        at = bisect_left(self.bytes_before, self.total - bytes_max)
        return self.firsts[at] if at < len(self.firsts) else -1

    def pack(self) -> tuple[bytes, ...]:
        """Return the arrays as bytes."""
        return tuple(one.tobytes() for one in self._arrays)

    def unpack(self, packed: Sequence[bytes], total: int) -> None:
        """Take over the arrays that were packed."""
        for one, data in zip(self._arrays, packed, strict=True):
            one.frombytes(data)
        self.total = total

    @property
    def _arrays(self) -> tuple[array[int], ...]:
        return self.firsts, self.filters, self.indexes, self.bytes_before


class ChunkMap:
    """Where chunks of large values lie: the core's Raft index to the own one, in sorted arrays."""

    __slots__ = ("core", "offsets", "own")

    def __init__(self) -> None:
        """Hold none."""
        self.core = array("q")
        self.own = array("q")
        #: The offset of the value that each is a part of.
        self.offsets = array("q")

    def __len__(self) -> int:
        return len(self.core)

    def add(self, core_index: int, own_index: int, offset: int) -> None:
        """Take one more; a chunk that is there already stays where it is."""
        at = bisect_left(self.core, core_index)
        if at == len(self.core) or self.core[at] != core_index:
            self.core.insert(at, core_index)
            self.own.insert(at, own_index)
            self.offsets.insert(at, offset)

    def find(self, core_index: int) -> int:
        """Return the own index of a chunk; 0 if it is not here."""
        at = bisect_left(self.core, core_index)
        return self.own[at] if at < len(self.core) and self.core[at] == core_index else 0

    def has_run(self, first: int, count: int) -> bool:
        """Whether so many chunks are here whose core indexes follow each other from `first` on."""
        at = bisect_left(self.core, first)
        behind = at + count - 1
        return (
            behind < len(self.core)
            and self.core[at] == first
            and (self.core[behind] == first + count - 1)
        )

    def keep(self, first: int, next_: int) -> None:
        """Forget the chunks of values outside offsets [first, next)."""
        rows = zip(self.core, self.own, self.offsets, strict=True)
        kept = [row for row in rows if first <= row[2] < next_]
        if len(kept) < len(self.core):
            self.core, self.own, self.offsets = (
                array("q", (row[at] for row in kept)) for at in range(3)
            )

    def lowest_index(self, offset: int) -> int:
        """Return the lowest own index of a chunk of a value at or above an offset; 0 for none."""
        rows = zip(self.own, self.offsets, strict=True)
        return min((own for own, at in rows if at >= offset), default=0)


class RelayState:
    """What the log of a relay's partition holds, up to its last entry.

    Offsets [start, end) were scanned. `lineage` is that of the core's log that they belong to.
    """

    __slots__ = (
        "begun", "chunks", "end", "filters", "forks", "gaps", "holds", "index", "last_chunk",
        "last_stamp", "lineage", "partitions", "ranges", "roster", "start",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin empty: offsets begin where the first `StartMoved` says."""
        self.index = 0
        self.begun = False
        self.start = self.end = 0
        self.lineage = 0
        self.last_stamp = 0
        #: The core's index of the last chunk for the value at `end`; 0 without one.
        self.last_chunk = 0
        self.filters: list[Filter] = []
        self.forks: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []
        self.roster: list[RosterEntry] = []
        #: How many partitions belong to the order, as entries of the roster say; 0 without one.
        self.partitions = 0
        self.holds = HoldsStored(())
        self.ranges = Ranges()
        self.chunks = ChunkMap()

    # -- entries -----------------------------------------------------------------------------

    def apply(self, record: AnyRecord, size: int) -> int:
        """Take the next entry, of `size` bytes; return its index. Raises `EntryRefused`, and is as
        it was, if the entry does not fit.
        """
        match record:
            case Relayed():
                self._relay(record, size)
            case ChunkStored():
                self._store_chunk(record)
            case FilterSet():
                self._set_filter(record)
            case GapTold():
                self._tell_gap(record)
            case HoldsStored():
                self.holds = record
            case StartMoved():
                self._move_start(record.offset)
            case Forked():
                self._fork(record)
        self.index += 1
        return self.index

    def _relay(self, record: Relayed, size: int) -> None:
        first, next_ = record.first, record.next
        _refuse_if(not self.begun or first != self.end,
                   f"[{first}, {next_}) does not go on at {self.end}")  # fmt: skip
        _refuse_if(record.lineage != self.lineage,
                   f"lineage {record.lineage} in a log of {self.lineage}")  # fmt: skip
        now = self.filter_at(first)
        _refuse_if(now is None or now.version != record.filter,
                   f"filter {record.filter} is not the one at {first}")  # fmt: skip
        ends = self.filter_ends()
        _refuse_if(next_ > ends, f"[{first}, {next_}) goes past the filter's end {ends}")
        _refuse_if(next_ == first and not record.roster, "an entry without anything")
        stamp = self.last_stamp
        for row in record.rows:
            if row.kind in HOLDS_BATCH:
                _refuse_if(row.stamp < stamp, f"stamp {row.stamp} comes behind {stamp}")
                stamp = row.stamp
        held = len(self.roster)
        if record.roster:
            _refuse_if(record.roster[0].number != held, f"roster entry {held} is missing")
            _refuse_if(held + len(record.roster) > ROSTER_ENTRIES_MAX, "too many roster entries")
        if record.roster:
            self._set_roster([*self.roster, *record.roster])
        self.last_stamp = stamp
        if next_ > first:
            self.ranges.add(first, record.filter, self.index + 1, size)
            self._reach(next_)

    def _store_chunk(self, record: ChunkStored) -> None:
        _refuse_if(record.offset != self.end or not self.begun,
                   f"a chunk for a value at {record.offset}, and not at {self.end}")  # fmt: skip
        _refuse_if(record.core_index <= self.last_chunk,
                   f"chunk {record.core_index} comes behind {self.last_chunk}")  # fmt: skip
        self.chunks.add(record.core_index, self.index + 1, record.offset)
        self.last_chunk = record.core_index

    def _set_filter(self, record: FilterSet) -> None:
        last = self.filters[-1] if self.filters else None
        version = last.version + 1 if last else 1
        _refuse_if(record.version != version, f"filter {record.version} and not {version}")
        lowest = max(self.end, last.first if last else 0)
        _refuse_if(record.first < lowest, f"a filter from {record.first}, below {lowest}")
        _refuse_if(len(self.filters) >= FILTERS_KEPT_MAX, "too many filters at once")
        self.filters.append(Filter(version, unpack_tags(record.tags), record.first, self.index + 1))

    def _tell_gap(self, record: GapTold) -> None:
        _refuse_if(record.first != self.end or not self.begun,
                   f"a gap from {record.first} does not go on at {self.end}")  # fmt: skip
        if self.gaps and self.gaps[-1][1] == record.first:  # damage may be told in pieces
            self.gaps[-1] = (self.gaps[-1][0], record.next)
        else:
            _refuse_if(len(self.gaps) >= GAPS_MAX, "too many gaps")
            self.gaps.append((record.first, record.next))
        self._reach(record.next)

    def _move_start(self, offset: int) -> None:
        if not self.begun:
            self.begun = True
            self.start = self.end = offset
            return
        _refuse_if(not self.start <= offset <= self.end,
                   f"the log starts at {offset}, outside [{self.start}, {self.end}]")  # fmt: skip
        self.start = offset
        self.ranges.drop(offset)
        self.chunks.keep(offset, self.end + 1)
        self.gaps = [gap for gap in self.gaps if gap[1] > offset]
        while len(self.filters) > 1 and self.filters[1].first <= offset:
            del self.filters[0]

    def _fork(self, record: Forked) -> None:
        _refuse_if(record.lineage <= self.lineage,
                   f"lineage {record.lineage} comes behind {self.lineage}")  # fmt: skip
        self.forks = list(record.forks)
        self.lineage = record.lineage
        if self.begun and record.offset <= self.end:
            self._cut(self._cut_before(record.offset))

    def _cut_before(self, offset: int) -> int:
        """Return where the entry begins that holds what lies before an offset, if it goes past
        that; else the offset.
        """
        firsts = self.ranges.firsts
        at = bisect_left(firsts, offset)
        if not at:
            return offset
        first = firsts[at - 1]
        behind = firsts[at] if at < len(firsts) else self.end
        ends = [behind, *(a for a, _ in self.gaps if a >= first)]
        return first if min(ends) > offset else offset

    def _cut(self, offset: int) -> None:
        self.ranges.cut(offset)
        self.end = offset
        self.start = min(self.start, offset)
        self.chunks.keep(self.start, offset)
        self.last_chunk = 0
        self.last_stamp = 0  # what goes on is stamped by another leader, perhaps lower
        self.gaps = [(a, min(b, offset)) for a, b in self.gaps if a < offset]
        if self.filters and self.filters[0].first > offset:
            self.filters[0] = self.filters[0]._replace(first=offset)
        self._set_roster([entry for entry in self.roster if entry.offset < offset])
        held = self.holds  # what children had above it they will need anew
        rows = tuple(row._replace(offset=min(row.offset, offset)) for row in held.rows)
        self.holds = HoldsStored(rows, held.begun_ms, min(held.begun_at, offset))

    def _set_roster(self, roster: list[RosterEntry]) -> None:
        self.roster = roster
        self.partitions = max((entry.partitions for entry in roster), default=0)

    def _reach(self, offset: int) -> None:
        self.end = offset
        self.last_chunk = 0

    # -- questions ---------------------------------------------------------------------------

    def filter_at(self, offset: int) -> Filter | None:
        """Return the filter under which what begins at an offset is kept."""
        found = None
        for one in self.filters:
            if one.first > offset:
                break
            found = one
        return found

    def filter_ends(self) -> int:
        """Return where the filter ends that is in force at the end of the log; a number above all
        if none follows.
        """
        return next((one.first for one in self.filters if one.first > self.end), LIMIT_MAX)

    def reach(self, offset: int, tags: Tags) -> int:
        """Return up to where all entries from `offset` on were kept under filters that let `tags`
        through, without a gap; `offset` itself if the first one was not.
        """
        limit = next((max(a, offset) for a, b in self.gaps if b > offset), self.end)
        for at, one in enumerate(self.filters):
            behind = self.filters[at + 1].first if at + 1 < len(self.filters) else limit
            if max(one.first, offset) < min(behind, limit) and not covers(one.tags, tags):
                return max(one.first, offset)
        return max(limit, offset)

    def covered_from(self, tags: Tags, durable: int) -> int:
        """Return from which offset on all is kept under filters that let `tags` through, by entries
        up to the `durable` index; -1 if the newest one does not.
        """
        found = -1
        for one in reversed(self.filters):
            if not covers(one.tags, tags) or one.index > durable:
                break
            found = one.first
        return found

    def fork_of(self, lineage: int) -> int:
        """Return the lowest offset that later lineages than this one took; -1 if there is none."""
        return min((at for later, at in self.forks if later > lineage), default=-1)

    def entries_from(self, offset: int, until: int, bytes_max: int) -> tuple[int, ...]:
        """Return the indexes of the entries that hold offsets [offset, until), as far as they have
        `bytes_max` bytes; one at least.
        """
        ranges = self.ranges
        at = max(ranges.at(offset), 0)
        found: list[int] = []
        before = ranges.bytes_before[at] if at < len(ranges.firsts) else 0
        while at < len(ranges.firsts) and ranges.firsts[at] < until:
            if found and ranges.bytes_before[at] - before >= bytes_max:
                break
            found.append(ranges.indexes[at])
            at += 1
        return tuple(found)

    def kept_index(self) -> int:
        """Return the lowest index of an entry that holds what lies at or above `start`, chunks of
        values included; entries below it may go once a snapshot holds the rest.
        """
        ranges = self.ranges
        lowest = [self.index + 1]
        if ranges.indexes:
            lowest.append(ranges.indexes[0])
        if chunk := self.chunks.lowest_index(self.start):
            lowest.append(chunk)
        return min(lowest)

    # -- snapshots ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return a snapshot, from which and the entries behind it the state can be made again."""
        chunks = self.chunks
        return msgspec.msgpack.encode(
            (
                _SNAPSHOT_VERSION, self.index, self.begun, self.start, self.end, self.lineage,
                self.last_stamp, self.last_chunk,
                [(f.version, pack_tags(f.tags), f.first, f.index) for f in self.filters],
                self.forks, self.gaps, self.roster, self.holds, self.ranges.total,
                self.ranges.pack(),
                (chunks.core.tobytes(), chunks.own.tobytes(), chunks.offsets.tobytes()),
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> RelayState:
        """Make the state of a snapshot. Raises `UnknownVersion`."""
        try:
            packed = _SNAPSHOT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnknownVersion(f"a snapshot of a relay of another release: {error}") from None
        if packed.version != _SNAPSHOT_VERSION:
            raise UnknownVersion(f"a snapshot of version {packed.version}", packed.version, 1)
        state = cls()
        state.index, state.begun = packed.index, packed.begun
        state.start, state.end, state.lineage = packed.start, packed.end, packed.lineage
        state.last_stamp, state.last_chunk = packed.last_stamp, packed.last_chunk
        state.filters = [Filter(v, unpack_tags(t), f, i) for v, t, f, i in packed.filters]
        state.forks, state.gaps = packed.forks, packed.gaps
        state._set_roster(packed.roster)
        state.holds = packed.holds
        state.ranges.unpack(packed.ranges, packed.total)
        chunks = state.chunks
        arrays = (chunks.core, chunks.own, chunks.offsets)
        for one, held in zip(arrays, packed.chunks, strict=True):
            one.frombytes(held)
        return state


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    """The fields of a snapshot, in order."""

    version: int
    index: int
    begun: bool
    start: int
    end: int
    lineage: int
    last_stamp: int
    last_chunk: int
    filters: list[tuple[int, tuple[str, ...] | None, int, int]]
    forks: list[tuple[int, int]]
    gaps: list[tuple[int, int]]
    roster: list[RosterEntry]
    holds: HoldsStored
    total: int
    ranges: tuple[bytes, bytes, bytes, bytes]
    chunks: tuple[bytes, bytes, bytes]


_SNAPSHOT = msgspec.msgpack.Decoder(_Packed)


def _refuse_if(wrong: bool, text: str) -> None:
    if wrong:
        raise EntryRefused(text)
