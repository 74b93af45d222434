"""What a log knows of its groups, and where the entries of each lie.

Raft index, offset and stamp lead to a place, in packed arrays: `ROW_BYTES` an entry and no object,
so that millions of entries stay outside the garbage collector's view. The index lives in memory; a
start joins it from index files and scans.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from weir.storage.errors import BadRecord, LogDamaged
from weir.storage.format.checkpoint import Kept
from weir.storage.format.frame import KINDS, Kind, frame_size
from weir.storage.format.index_file import GONE, Columns, Rows, empty
from weir.storage.format.record import Base, HardState
from weir.storage.tag_sets import LOOK_INSIDE, TagSets

_BATCHES = int(Kind.BATCHES)
#: The stamp of a lost entry until the next messages tell: what is not known to be old must not go
#: by age.
UNKNOWN = (1 << 63) - 1


class Stored(msgspec.Struct, frozen=True):
    """Where an entry lies: position and place of its frame, bytes of its payload.

    They differ for a copy, which has the position of what it is a copy of.
    """

    index: int
    term: int
    kind: Kind
    position: int
    length: int
    place: int


class Filled(msgspec.Struct, frozen=True):
    """What an entry that is there again holds: offsets and the last stamp, -1 without messages, and
    all tags of them.
    """

    first_offset: int = -1
    next_offset: int = -1
    stamp: int = -1
    tags: tuple[str, ...] = ()


class GroupIndex:
    """One group's entries, `first` to `last`, without a gap."""

    __slots__ = (
        "_behind",
        "_kinds",
        "_lengths",
        "_places",
        "_positions",
        "_stamps",
        "_terms",
        "_totals",
        "base",
        "before",
        "columns",
        "first",
        "floor",
        "sets",
        "total",
    )

    def __init__(self, first: int, floor: int = 0, before: int = 0) -> None:
        """Begin with nothing stored; `first` is the index of the first entry to come, `before` the
        term of the entry before it. The group's frames count from log position `floor` on.
        """
        self.first = first
        self.floor = floor
        #: The term of the entry before `first`; 0 where it is not known.
        self.before = before
        #: The offset behind everything before `first`; -1 until the first messages tell.
        self.base = -1
        #: The bytes of all entries with messages before `first`.
        self.total = 0
        #: What is said of each entry, a row for each.
        self.columns = empty()
        # An entry without messages repeats its predecessor's offset behind, stamp and sum of bytes,
        # so these columns never fall, and a place in them is one binary search away.
        self._positions, self._places, self._terms, self._behind, self._stamps, *rest = self.columns
        self._totals, self._lengths, _, self._kinds = rest
        #: The sets of tags that the numbers in the column of tags stand for.
        self.sets = TagSets()

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def last(self) -> int:
        """The highest index stored; `first - 1` if there is none."""
        return self.first + len(self._positions) - 1

    @property
    def next_offset(self) -> int:
        """The offset behind the last message stored."""
        return max(self._behind[-1] if self._behind else self.base, 0)

    @property
    def batch_bytes(self) -> int:
        """The bytes of all entries with messages; chunks, which have no offset, do not count."""
        return self._totals[-1] - self.total if self._totals else 0

    # -- entries that come, and that go ---------------------------------------------------------

    def add(
        self,
        index: int,
        term: int,
        kind: Kind,
        position: int,
        length: int,
        first_offset: int = -1,
        next_offset: int = -1,
        stamp: int = -1,
        place: int | None = None,
        tags: Collection[str] = (),
    ) -> None:
        """Append an entry; those at its index and above are superseded (Raft's conflict rule).

        The offsets are those of its messages and `stamp` the last one's, -1 where it has none;
        `tags` all tags of them, none where nobody knows.
        Raises `BadRecord` if an index would be left out.
        """
        if index - self.first != len(self._positions):
            self._truncate(index)
        if self._behind:
            behind, last, total = self._behind[-1], self._stamps[-1], self._totals[-1]
        else:
            behind, last, total = self.base, -1, self.total
        if next_offset >= 0:
            if self.base < 0:
                self.base = first_offset
            if last == UNKNOWN:
                self._stamp_lost(stamp)
                last = stamp
            if next_offset > behind:
                behind = next_offset
            if stamp > last:
                last = stamp
        self._positions.append(position)
        self._places.append(position if place is None else place)
        self._terms.append(term)
        self._behind.append(behind)
        self._stamps.append(last)
        self._totals.append(total + length if next_offset > first_offset else total)
        self._lengths.append(length)
        self.columns.tags.append(self.sets.number(tags) if tags else LOOK_INSIDE)
        self._kinds.append(kind)

    def _stamp_lost(self, stamp: int) -> None:
        """Let the lost entries at the end have been stamped up to `stamp`."""
        at = bisect_left(self._stamps, UNKNOWN)
        self._stamps[at:] = array("q", [stamp]) * (len(self._stamps) - at)

    def check(self, index: int) -> bool:
        """Return whether an entry at `index` supersedes others. Raises `BadRecord` for a gap."""
        behind = self.first + len(self._positions)
        if index > behind and self._positions:
            raise BadRecord(f"entry {index} cannot follow entry {behind - 1}: one is missing")
        return index < behind

    def _truncate(self, index: int) -> None:
        self.check(index)
        count = index - self.first
        if count < 0:
            self.base, self.total = -1, 0
        if count < 0 or not self._positions:
            self.before = self.before if index == self.first else 0
            self.first, count = index, 0
        for column in self.columns:
            del column[count:]

    def cut(self, index: int) -> None:
        """Forget the entry at `index` and all above: one that is not kept superseded them."""
        for column in self.columns:
            del column[max(index - self.first, 0) :]

    def drop(self, index: int) -> None:
        """Forget all entries below `index`; the next one to come may not lie below it."""
        count = index - self.first
        if count <= 0:
            return
        self.before = self._terms[count - 1] if count <= len(self._positions) else 0
        if gone := min(count, len(self._positions)):
            self.base = max(self.base, self._behind[gone - 1])
            self.total = self._totals[gone - 1]
            for column in self.columns:
                del column[:gone]
        self.first = index

    # -- by log position ---------------------------------------------------------------------

    def span(self, start: int, end: int, room: int) -> tuple[int, int, int]:
        """Return the first and the last index between two log positions, and about the bytes that
        their frames take, or less if that is more than `room`; the last lies below the first if
        there are none.
        """
        a, b = bisect_left(self._positions, start), bisect_left(self._positions, end)
        size = (b - a) * frame_size(1)
        if size <= room:
            size += sum(self._lengths[a:b])
        return self.first + a, self.first + b - 1, size

    def reaches(self, start: int, end: int) -> bool:
        """Whether entries lie around two log positions: without a look at those in between."""
        positions = self._positions
        return bool(positions) and positions[0] < end and positions[-1] >= start

    def uses(self, start: int, end: int) -> bool:
        """Whether an entry lies between two log positions."""
        at = bisect_left(self._positions, start)
        return at < len(self._positions) and self._positions[at] < end

    def last_below(self, position: int) -> int:
        """Return the index of the last entry below a log position; `first - 1` if there is none."""
        return self.first + bisect_left(self._positions, position) - 1

    def behind(self, index: int) -> int:
        """Return the offset behind entry `index`; -1 where no messages came yet."""
        at = min(index - self.first, len(self._behind) - 1)
        return max(self._behind[at], self.base) if at >= 0 else self.base

    def position_of(self, index: int) -> int | None:
        """Return the position of the entry at `index`, or of the first one if that lies above."""
        at = max(index - self.first, 0)
        return self._positions[at] if at < len(self._positions) else None

    # -- by index, offset, stamp and size ------------------------------------------------------

    def get(self, index: int) -> Stored | None:
        """Return where the entry at `index` lies; None if it is not stored."""
        at = index - self.first
        return self._stored(at) if 0 <= at < len(self._positions) else None

    def term_of(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None if it is not stored."""
        at = index - self.first
        return self._terms[at] if 0 <= at < len(self._terms) else None

    def of_kind(self, kind: Kind, first: int) -> list[int]:
        """Return the indices, from `first` on, of the entries of a rare kind."""
        kinds, found = self._kinds.tobytes(), []
        at = kinds.find(kind, max(first - self.first, 0))
        while at >= 0:
            found.append(self.first + at)
            at = kinds.find(kind, at + 1)
        return found

    def holding(
        self, offset: int, last_index: int, durable: int, wanted: frozenset[str] | None = None
    ) -> Iterator[tuple[Stored | None, int]]:
        """Yield the entries with messages from the one that holds `offset` on, with the offset
        behind each; none above Raft index `last_index` or at log position `durable` or above, and
        none at all if `offset` lies before the first message stored. None comes in place of one
        that has no message with a `wanted` tag, if any are.
        """
        if offset < self.base:
            return
        without = () if wanted is None else self.sets.without(wanted)
        stop, tags = min(last_index - self.first + 1, len(self._positions)), self.columns.tags
        at = bisect_right(self._behind, offset)
        while at < stop and self._positions[at] < durable:
            offset = self._behind[at]
            yield None if tags[at] in without else self._stored(at), offset
            at = bisect_right(self._behind, offset, at + 1)

    def at_stamp(self, stamp: int, durable: int) -> tuple[int, int] | None:
        """Return Raft index and first offset of the first entry whose last message has `stamp` or
        a higher one; None if none below log position `durable` has.
        """
        return self._messages(bisect_left(self._stamps, stamp), durable)

    def at_offset(self, offset: int, durable: int) -> tuple[int, int] | None:
        """Return Raft index and first offset of the entry that holds `offset`; None if none below
        log position `durable` does.
        """
        return self._messages(bisect_right(self._behind, offset), durable)

    def stamp_of(self, offset: int) -> int | None:
        """Return the stamp of the entry that holds `offset`; None if none is stored, or known."""
        at = bisect_right(self._behind, offset)
        if offset < self.base or at == len(self._stamps) or self._stamps[at] == UNKNOWN:
            return None
        return self._stamps[at]

    def at_size(
        self, size: int, durable: int, beside: Callable[[int], int] = lambda _: 0
    ) -> tuple[int, int] | None:
        """Return Raft index and first offset of the last entry from which on all messages together
        take at least `size` bytes, of the first one if they never do; None if no messages lie below
        log position `durable`. `beside` says what messages from an offset on take elsewhere.
        """
        stop = bisect_left(self._positions, durable)
        if not stop:
            return None
        whole = self._totals[stop - 1]

        def without(row: int) -> int:
            """Return minus the bytes that are left from a row on, so that they rise."""
            before = self._totals[row - 1] if row else self.total
            first = max(self._behind[row - 1], self.base) if row else self.base
            return before - whole - beside(first)

        start = bisect_right(range(stop), -size, key=without) - 1
        last = bisect_left(self._behind, self._behind[stop - 1], 0, stop)
        return self._messages(min(max(start, 0), last), durable)

    def _messages(self, at: int, durable: int) -> tuple[int, int] | None:
        """Return index and first offset of the first entry with messages from row `at` on."""
        first = max(self._behind[at - 1], self.base) if at else self.base
        at = bisect_right(self._behind, first, at)
        if at == len(self._positions) or self._positions[at] >= durable:
            return None
        return self.first + at, first

    def _stored(self, at: int) -> Stored:
        return Stored(
            self.first + at,
            self._terms[at],
            KINDS[self._kinds[at]],
            self._positions[at],
            self._lengths[at],
            self._places[at],
        )

    # -- rows in bulk ------------------------------------------------------------------------

    def rows(self, start: int, end: int) -> Rows:
        """Return a copy of the entries between two log positions."""
        return self._rows(bisect_left(self._positions, start), bisect_left(self._positions, end))

    def rows_of(self, first: int, last: int) -> Rows:
        """Return a copy of the entries that are left of those from index `first` to `last`."""
        a = min(max(first - self.first, 0), len(self._positions))
        return self._rows(a, max(last + 1 - self.first, a))

    def _rows(self, a: int, b: int) -> Rows:
        before = a - 1
        return Rows(
            self.floor,
            self.first,
            self.before,
            self.first + a,
            max(self._behind[before], self.base) if a else self.base,
            self._totals[before] if a else self.total,
            Columns(*(column[a:b] for column in self.columns)),
            tuple(self.sets.sets),
        )

    def join(self, rows: Rows) -> None:
        """Append rows as `add` would one by one. Raises `BadRecord` if an index is left out."""
        if rows.first != self.last + 1 or not self._positions:
            self._truncate(rows.first)
        if not self._positions:
            self.total = rows.total
        if self.base < 0:
            self.base = rows.base
        if self._stamps and self._stamps[-1] == UNKNOWN and rows.columns.stamps:
            self._stamp_lost(rows.columns.stamps[0])
        total = self._totals[-1] if self._totals else self.total
        joined = len(self._positions)
        for mine, more in zip(self.columns, rows.columns, strict=True):
            mine.extend(more)
        if rows.sets:
            numbers = self.sets.numbers(rows.sets)
            self.columns.tags[joined:] = array("I", map(numbers.__getitem__, rows.columns.tags))
        if rows.total != total:
            for at in range(len(self._totals) - len(rows.columns.totals), len(self._totals)):
                self._totals[at] += total - rows.total

    def move(self, first: int, positions: array[int], places: array[int]) -> None:
        """Let the entries from index `first` on lie at other places, as far as they are still here.

        Raises `ValueError` where they are not those at `positions`.
        """
        dropped = max(self.first - first, 0)
        a, b = max(first - self.first, 0), first - self.first + len(places)
        if dropped < len(places):
            if self._positions[a:b] != positions[dropped:]:
                raise ValueError(f"entries {first} and up are not what was copied")
            self._places[a:b] = places[dropped:]


def size_between(index: GroupIndex, first: int, behind: int) -> int:
    """Return about how many bytes messages [first, behind) take: of an entry that holds others as
    well, in proportion to how many.
    """
    ends, totals = index.columns.behind, index.columns.totals

    def below(offset: int) -> int:
        at = bisect_right(ends, offset)
        size = totals[at - 1] if at else index.total
        if at == len(ends):
            return size
        start = max(ends[at - 1], index.base) if at else index.base
        count = max(ends[at] - start, 1)
        return size + (totals[at] - size) * max(offset - start, 0) // count

    return below(behind) - below(first)


class LostEntries:
    """Entries of one group that lay in a damaged place: what stands in for them, and what they held
    once that is known. Their term is 0: nobody knows it, and reading them fails.
    """

    __slots__ = ("_index",)

    def __init__(self, index: GroupIndex) -> None:
        """Look after those of a group."""
        self._index = index

    def add(self, last: int, position: int, place: int) -> None:
        """Stand in for entries up to `last` that lay in a damaged place."""
        index = self._index
        for at in range(index.last + 1, last + 1):
            index.add(at, 0, Kind.BATCHES, position, 1, place=place)

    def add_outdated(self) -> None:
        """Know the first entries as lost if they are of an earlier term than the one before them:
        terms never fall, so others superseded them, and those lay in a damaged place.
        """
        index, columns = self._index, self._index.columns
        for at, term in enumerate(columns.terms):
            if term >= index.before:
                return
            self._lose(at)

    def add_doubtful(self, indexes: Iterable[int]) -> None:
        """Know entries as lost though something lies there: others may have superseded them."""
        index, columns = self._index, self._index.columns
        for one in indexes:
            if 0 <= (at := one - index.first) < len(columns.terms):
                self._lose(at)

    def _lose(self, at: int) -> None:
        columns = self._index.columns
        columns.terms[at], columns.kinds[at], columns.lengths[at] = 0, _BATCHES, 1
        columns.tags[at] = LOOK_INSIDE

    def count(self) -> int:
        """Return for how many entries others stand in that are lost."""
        return self._index.columns.terms.count(0)

    def hold(self, lost: int, first_offset: int) -> None:
        """Let entry `lost`, and none of those behind it, be the one that held the offsets below
        `first_offset`, which is that of the next messages.
        """
        index, columns = self._index, self._index.columns
        if lost < index.first:  # and dropped meanwhile: what it held lies before all that is left
            index.base = max(index.base, first_offset)
        elif index.base < 0:  # it held the first messages that are known of
            index.base = 0
        for at in range(max(lost - index.first, 0), len(columns.behind)):
            columns.behind[at] = max(columns.behind[at], first_offset)
            columns.stamps[at] = UNKNOWN

    def fill(self, filled: Mapping[int, Filled]) -> None:
        """Let entries that were lost, and those behind them, tell what they would have told had
        none of these been lost.
        """
        index, columns = self._index, self._index.columns
        had = columns.behind[:]
        carries = False
        for at in range(max(min(filled) - index.first, 0), len(index)):
            found = filled.get(index.first + at)
            before = columns.behind[at - 1] if at else index.base
            stamp = columns.stamps[at - 1] if at else -1
            if found is not None:
                self._fill(at, found, before, stamp)
                carries = True
            elif carries and columns.terms[at] and had[at] == (had[at - 1] if at else index.base):
                columns.behind[at], columns.stamps[at] = before, stamp  # it has no messages
            else:
                carries = False

    def _fill(self, at: int, found: Filled, before: int, stamp: int) -> None:
        index, columns = self._index, self._index.columns
        if found.next_offset <= found.first_offset:
            columns.behind[at], columns.stamps[at] = before, stamp
            return
        if before <= index.base < found.first_offset:
            index.base = found.first_offset
        columns.behind[at] = max(before, found.next_offset)
        columns.stamps[at] = max(stamp, found.stamp)
        columns.tags[at] = index.sets.number(found.tags)
        if columns.totals[at] == (columns.totals[at - 1] if at else index.total):
            for later in range(at, len(index)):
                columns.totals[later] += columns.lengths[at]


class GroupTable:
    """All that a log knows of its groups: where their entries lie, their hard states, since when
    their frames count, and which of them are gone or may have been lost.
    """

    __slots__ = (
        "_installed",
        "_lost",
        "_returning",
        "floors",
        "hard_states",
        "index",
        "lost_at",
        "superseded",
    )

    def __init__(
        self,
        index: dict[int, GroupIndex],
        hard_states: Mapping[int, HardState],
        floors: Mapping[int, int],
        installed: Mapping[int, tuple[int, int]],
        lost: LogDamaged | None,
        lost_at: int,
    ) -> None:
        """Go on with what a start learnt. `floors` says from which log position on the frames of
        groups count that are gone or of which a snapshot was installed, `installed` the position
        and the index of each snapshot that no checkpoint holds yet. Frames of any group may have
        been `lost`, up to position `lost_at`, 0 if none were.
        """
        self.index = index
        self.hard_states = dict(hard_states)
        self.floors = dict(floors)
        self._installed = dict(installed)
        self._lost = lost
        self.lost_at = lost_at
        #: Position of the last entry that superseded others: they are needed until it is durable.
        self.superseded = -1
        #: The lowest position of those others: a power cut may bring them back until then.
        self._returning: int | None = None

    def is_gone(self, group: int) -> bool:
        """Whether a group was dropped, or may have been lost, and nothing of it came since."""
        return not self._knows(group) and (group in self.floors or self.lost_at > 0)

    def lost_of(self, group: int) -> LogDamaged | None:
        """Return why a group that the log does not know may have been lost; None if it was not."""
        return None if self._knows(group) or group in self.floors else self._lost

    def know_all(self) -> None:
        """Groups that come now are new ones."""
        self._lost = None

    def _knows(self, group: int) -> bool:
        return group in self.index or group in self.hard_states

    def begin(self, group: int, first: int) -> GroupIndex:
        """Return the index of a group of which entry `first` is the first to come."""
        entries = self.index[group] = GroupIndex(first, self.floors.get(group, 0))
        return entries

    def drop(self, group: int, tail: int) -> None:
        """Nothing of a group below log position `tail` is needed any more."""
        self.index.pop(group, None)
        self.hard_states.pop(group, None)
        self._installed.pop(group, None)
        self.floors[group] = tail

    def install(self, group: int, position: int, index: int, base: Base) -> None:
        """A snapshot as of `index` at a position begins a group's log anew, behind `base`."""
        if (old := self.index.get(group)) is not None:
            self.supersede(position, old.position_of(old.first))
        self.index[group] = GroupIndex(base.index + 1, position, base.term)
        self.floors[group] = position
        self._installed[group] = (position, index)

    def supersede(self, position: int, old: int | None) -> None:
        """Note that an entry at a position superseded others, from position `old` on."""
        self.superseded = position
        if old is not None:
            self._returning = old if self._returning is None else min(self._returning, old)

    # -- for a checkpoint --------------------------------------------------------------------

    def replay(self, applied: Mapping[int, int], durable: int) -> int:
        """Return the position from which a start has to scan, behind a checkpoint that holds the
        state of each group through the index in `applied`, of a log that is durable below a
        position.
        """
        replay = durable
        for group, index in applied.items():
            entries = self.index.get(group)
            position = entries.position_of(index + 1) if entries is not None else None
            replay = min(replay, durable if position is None else position)
        for group, (position, index) in list(self._installed.items()):
            if applied.get(group, 0) >= index:
                del self._installed[group]
            else:
                replay = min(replay, position)
        if self.superseded < durable:
            self._returning = None
        elif self._returning is not None:
            # So that whatever lies below it, above what is applied, is known to be superseded.
            replay = min(replay, self._returning)
        return replay

    def gone_before(self, first: int) -> list[int]:
        """Return the groups that are gone, of which no frame lies at log position `first` or
        behind it.
        """
        return [g for g, floor in self.floors.items() if floor <= first and not self._knows(g)]

    def forget(self, group: int) -> None:
        """No frame is left of a group that is gone."""
        del self.floors[group]

    def kept(self, applied: Mapping[int, int], durable: int) -> dict[int, Kept]:
        """Return what a checkpoint says of each group."""
        known = self.index.keys() | self.hard_states.keys()
        kept = {group: self._kept(group, applied, durable) for group in sorted(known)}
        for group, floor in self.floors.items():
            if group not in known:
                kept[group] = Kept(0, 0, 0, GONE, 0, -1, -1, floor)
        return kept

    def _kept(self, group: int, applied: Mapping[int, int], durable: int) -> Kept:
        state = self.hard_states.get(group, HardState(0, 0, 0))
        through = applied.get(group, 0)
        entries = self.index.get(group)
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
