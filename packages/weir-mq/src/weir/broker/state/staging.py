"""What sinks have staged and published in a partition (docs/adr/0075).

`StagingTable` is part of a partition's replicated state: it changes by committed entries alone, and
time is the stamp in an entry. Runs that are open are seen by nobody. A publication that is decided
gives each of their batches its offsets, and one stamp to all; from then on `Published` says which
entry holds which offset.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from weir.broker.records.staging import StagedRecord
from weir.model.columns import Publication, StagedRun, chained


class OpenRun(msgspec.Struct):
    """Batches that a writer has staged, in order; `indexes` and `counts` are, of each, the entry
    that holds it and its messages. `stamp` is when the last one came.
    """

    query: str
    batch_id: int
    stamp: int = 0
    messages: int = 0
    hash: int = 0
    #: The bytes of its batches.
    stored: int = 0
    indexes: array[int] = msgspec.field(default_factory=lambda: array("q"))
    counts: array[int] = msgspec.field(default_factory=lambda: array("q"))
    sizes: array[int] = msgspec.field(default_factory=lambda: array("q"))

    def add(self, index: int, record: StagedRecord) -> None:
        """Take one more batch, which the entry at `index` holds."""
        self.stamp = max(self.stamp, record.stamp)
        self.messages += record.messages
        self.hash = chained(self.hash, record.hash)
        self.stored += record.stored
        self.indexes.append(index)
        self.counts.append(record.messages)
        self.sizes.append(record.stored)

    def is_as(self, said: StagedRun) -> bool:
        """Whether it is what a publication says of it."""
        return (len(self.indexes), self.messages, self.hash) == said[1:]


class PublishedBatch(NamedTuple):
    """A batch that was staged and is published: the Raft index of the entry that holds it, and the
    offsets [first, behind) and the stamp that readers find in it; whether no other batch of its
    publication follows.
    """

    entry: int
    first: int
    behind: int
    stamp: int
    is_last: bool


class Published:
    """The batches that publications have made visible, in packed arrays: a row each, by offset."""

    __slots__ = ("_before", "_behind", "_ends", "_firsts", "_indexes", "_stamps")

    def __init__(self) -> None:
        """Begin with none."""
        self._firsts = array("q")
        self._behind = array("q")
        self._indexes = array("q")
        self._stamps = array("q")
        #: 1 where a row is the last one of its publication, else 0.
        self._ends = array("b")
        #: The bytes of all rows before a row.
        self._before = array("q", [0])

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._firsts, self._behind, self._indexes, self._stamps, self._ends

    def add(self, runs: list[OpenRun], offset: int, stamp: int) -> None:
        """Let the batches of these runs have the offsets from `offset` on, in order.

        What lies behind them may have been decided sooner.
        """
        at = bisect_left(self._firsts, offset)
        counts = [count for run in runs for count in run.counts]
        sizes = [size for run in runs for size in run.sizes]
        ends = [*accumulate(counts, initial=offset)]
        self._firsts[at:at] = array("q", ends[:-1])
        self._behind[at:at] = array("q", ends[1:])
        self._indexes[at:at] = array("q", [index for run in runs for index in run.indexes])
        self._stamps[at:at] = array("q", [stamp] * len(counts))
        self._ends[at:at] = array("b", [0] * (len(counts) - 1) + [1])
        before = [*accumulate(sizes, initial=self._before[at])]
        more = before[-1] - self._before[at]
        self._before[at:] = array("q", before + [size + more for size in self._before[at + 1 :]])

    def of(self, offset: int) -> Iterator[PublishedBatch]:
        """Yield the batch that holds `offset`, and those that follow it without a gap."""
        at = bisect_right(self._behind, offset)
        while at < len(self) and self._firsts[at] <= offset:
            offset = self._behind[at]
            yield PublishedBatch(
                self._indexes[at], self._firsts[at], offset, self._stamps[at], bool(self._ends[at])
            )
            at += 1

    def holds(self, offset: int) -> bool:
        """Return whether a batch here holds an offset."""
        at = bisect_right(self._behind, offset)
        return at < len(self) and self._firsts[at] <= offset

    def next_first(self, offset: int, behind: int) -> int:
        """Return the first offset in [offset, behind) that a batch here holds; `behind` if none."""
        at = bisect_right(self._behind, offset)
        return min(max(self._firsts[at], offset), behind) if at < len(self) else behind

    def stored(self, first: int, behind: int) -> int:
        """Return the bytes of the batches that hold offsets of [first, behind)."""
        start, stop = bisect_right(self._behind, first), bisect_left(self._firsts, behind)
        return self._before[stop] - self._before[start] if start < stop and first < behind else 0

    def stored_from(self, offset: int) -> int:
        """Return the bytes of the batches that hold offsets from `offset` on."""
        return self._before[-1] - self._before[bisect_right(self._behind, offset)]

    def first_needed_index(self, index: int, offset: int) -> int:
        """Return the lowest entry that holds offsets from `offset` on, `index` at most."""
        return min([index, *self._indexes[bisect_right(self._behind, offset) :]])

    def forget_below(self, offset: int) -> None:
        """The log starts at `offset`."""
        gone = bisect_right(self._behind, offset)
        for column in self._columns:
            del column[:gone]
        base = self._before[gone]
        self._before = array("q", (before - base for before in self._before[gone:]))

    def encode(self) -> tuple[bytes, ...]:
        """Return the rows for a snapshot."""
        return (*(column.tobytes() for column in self._columns), self._before.tobytes())

    @classmethod
    def decode(cls, *columns: bytes) -> Published:
        """Return the rows of a snapshot."""
        found = cls()
        for column, data in zip(found._columns, columns[:-1], strict=True):
            column.frombytes(data)
        found._before = array("q", columns[-1])
        return found


class SinkRow(NamedTuple):
    """The last batch that a query has published to a topic, and its stamp."""

    batch_id: int
    stamp: int


class StagingTable:
    """Open runs by number, the longest untouched first; what was published; and in partition 0 what
    each query has published last.
    """

    __slots__ = ("held", "opened", "published", "sinks")

    def __init__(self) -> None:
        """Know of none."""
        self.opened: dict[int, OpenRun] = {}
        #: Runs of publications that are undecided.
        self.held: set[int] = set()
        self.published = Published()
        self.sinks: dict[str, SinkRow] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to be written to a snapshot."""
        return bool(self.opened or self.held or self.sinks or len(self.published))

    @property
    def stored(self) -> int:
        """The bytes of all batches that are staged or published."""
        return sum(run.stored for run in self.opened.values()) + self.published.stored_from(0)

    def add(self, index: int, record: StagedRecord) -> bool:
        """Take the batch that the entry at `index` holds; False if it is not the next one of its
        run, or the run is about to be published.
        """
        number = record.run
        run = self.opened.get(number)
        if run is None and not record.number:
            run = self.opened[number] = OpenRun(record.query, record.batch_id)
        if run is None or len(run.indexes) != record.number or number in self.held:
            return False
        run.add(index, record)
        self.opened[number] = self.opened.pop(number)  # behind all others: it was touched last
        return True

    def batches(self, number: int) -> int:
        """Return how many batches a run has."""
        run = self.opened.get(number)
        return len(run.indexes) if run is not None else 0

    def missing(self, publication: Publication) -> int | None:
        """Return the number of the first run of a publication that is not here as it says."""
        for said in publication.runs:
            run = self.opened.get(said.number)
            named = publication.query, publication.batch
            if run is None or (run.query, run.batch_id) != named or not run.is_as(said):
                return said.number
        return None

    def is_held(self, publication: Publication) -> bool:
        """Whether another publication of some of these runs is undecided."""
        return not self.held.isdisjoint(said.number for said in publication.runs)

    def hold(self, publication: Publication) -> None:
        """Keep the runs of a publication until it is decided."""
        self.held.update(said.number for said in publication.runs)

    def decide(self, publication: Publication, offset: int, stamp: int, committed: bool) -> None:
        """Let a publication count from `offset` on, or let its runs be as they were.

        What else was staged for this batch of the query, or for one before it, goes: Spark has
        given up those attempts.
        """
        numbers = [said.number for said in publication.runs]
        self.held.difference_update(numbers)
        if not committed:
            return
        self.published.add([self.opened.pop(number) for number in numbers], offset, stamp)
        for number, run in [*self.opened.items()]:
            is_past = run.query == publication.query and run.batch_id <= publication.batch
            if is_past and number not in self.held:
                del self.opened[number]

    def untouched(self, since: int) -> list[int]:
        """Return the open runs to which nothing came from stamp `since` on."""
        return [
            number
            for number, run in self.opened.items()
            if run.stamp < since and number not in self.held
        ]

    def void(self, since: int) -> None:
        """Forget them."""
        for number in self.untouched(since):
            del self.opened[number]

    def first_needed_index(self, index: int, offset: int, since: int = 0) -> int:
        """Return below which Raft index, `index` at most, no entry is needed where the log starts
        at `offset`, and open runs go that are untouched since stamp `since`.
        """
        gone = set(self.untouched(since)) if since else set()
        opened = [run.indexes[0] for number, run in self.opened.items() if number not in gone]
        return min([self.published.first_needed_index(index, offset), *opened])

    def last_published(self, query: str) -> int:
        """Return the number of the last batch that a query has published; -1 if there is none."""
        row = self.sinks.get(query)
        return row.batch_id if row is not None else -1

    def note_published(self, sink: tuple[str, int], stamp: int) -> None:
        """A batch of a query is published, at `stamp`: it is the last one."""
        query, batch_id = sink
        self.sinks[query] = SinkRow(batch_id, stamp)

    def encode(self) -> object:
        """Return the table for a snapshot."""
        rows = [
            (
                number, run.query, run.batch_id, run.stamp, run.messages, run.hash, run.stored,
                run.indexes.tobytes(), run.counts.tobytes(), run.sizes.tobytes(),
            )
            for number, run in self.opened.items()
        ]  # fmt: skip
        sinks = [(query, *row) for query, row in self.sinks.items()]
        return rows, sorted(self.held), self.published.encode(), sinks

    @classmethod
    def decode(cls, rows: Any, held: Any, published: Any, sinks: Any) -> StagingTable:
        """Return the table of a snapshot."""
        table = cls()
        for number, query, batch_id, stamp, messages, hash_, stored, *columns in rows:
            packed = (array("q", column) for column in columns)
            table.opened[number] = OpenRun(query, batch_id, stamp, messages, hash_, stored, *packed)
        table.held = set(held)
        table.published = Published.decode(*published)
        table.sinks = {query: SinkRow(*row) for query, *row in sinks}
        return table
