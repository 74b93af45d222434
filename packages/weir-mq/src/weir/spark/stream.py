"""What a stream of `format("weir")` decides: where micro-batches end, and which tasks read them.

Without PySpark: `weir.spark.source` hands on what Spark asks for.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from weir.client.connection.system import SYSTEM
from weir.errors import CheckpointMismatch
from weir.spark import planning
from weir.spark.admission import Admission, Gathering
from weir.spark.fetcher import Portion
from weir.spark.options import UNLIMITED, Latest, Offsets, Options, Stamped
from weir.spark.planning import Cut
from weir.spark.topics import topics_of

#: So often a query that waits for news looks at what is there, in seconds.
LOOK_EVERY = 10.0
#: As Spark stores it in a checkpoint.
Offset = dict[str, Any]
#: Beside the fields of a cut: the digest of what the query selects; not there if it is everything.
_SELECTION = "f"


class Stream:
    """Plans micro-batches between two cuts, and says which ranges lie between them."""

    def __init__(self, options: Options) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options
        self._topics = topics_of(options)
        self._gathering = Gathering()
        self._initial: Cut | None = None
        self._target: Cut | None = None
        #: When the query looks again at what is there, instead of waiting for news.
        self._looks_at = -inf

    def initial(self) -> Offset:
        """Return where a query without a checkpoint begins; the same however often it is asked."""
        if self._initial is None:
            self._initial = self._topics.in_lineages(self._first_cut())
        return self._stored(self._initial.bare)

    def pin_end(self) -> None:
        """Pin today's end: what is published later belongs to the next run."""
        self._target = self._end()
        if self._options.ending is not None:
            self._topics.committed(None)  # it tells lineages, too

    def latest(self, start: Offset, admission: Admission = UNLIMITED) -> Offset:
        """Return the cut that the next micro-batch ends at, or `start` itself if nothing is new, or
        not enough.

        One round trip to the broker, which answers once something is new, or after the time that
        the options say; but at once when it is asked first, some seconds later again, and where the
        end is pinned. Raises `RangeLost` and `CheckpointMismatch`, and `OffsetOutOfRange` if
        another core set was promoted that does not have all that was read.
        """
        begin = self._read(start)
        self._topics.expect(begin)
        wait_ms = self._wait_ms()
        moved = self._target is not None or self._topics.moved(
            begin, wait_ms, admission.rows_max, admission.bytes_max
        )
        if not moved:
            self._topics.check_lineages(begin)
            return start
        end = self._target or self._end()
        self._topics.check_lineages(begin)
        if self._target is None:
            self._topics.check_growth(begin, end)
        else:
            # The checkpoint may be past what was pinned.
            self._topics.check_topics(begin, end)
        first = self._initial is not None and start == self._stored(self._initial.bare)
        there = begin
        if self._options.over_gaps and not first:
            there = planning.over_gaps(begin, end)
        if not there.lost and not planning.moved(there, end):
            if self._options.ending is not None and self._target is None:
                SYSTEM.get().sleep(wait_ms / 1_000)  # it has read all that it is to read
            # The same text: Spark takes any other for new data and runs an empty batch.
            return start
        rows = planning.rows_between(there, end)
        # A pinned end is reached at once: nothing more is counted on.
        if self._target is None and not there.lost:
            now = SYSTEM.get().monotonic()
            # A cut that was resolved within the limits may hold less than there is.
            known = self._topics.known_ends(keep=True)
            available = rows if known is None else planning.rows_between(there, known)
            if not self._gathering.admits(admission, max(rows, available), now):
                SYSTEM.get().sleep(wait_ms / 1_000)  # there is news: it would be told at once
                return start
        most = None
        if not self._topics.is_within_limits:
            size = 0.0 if admission.bytes_max is None else self._topics.bytes_between(there, end)
            most = admission.limit(rows, size)
        if end.stamp:
            cut = self._topics.within(there, end, most)
        else:
            cut = planning.next_cut(there, end, most)
        if first:
            # Of what joined meanwhile, too: a replay may find it among those that it begins at.
            joined = dict.fromkeys(cut.positions, 0)
            cut = replace(cut, begins={**joined, **cut.begins, **begin.positions})
        if there.lost:
            passed = {p: there.positions[p] for p in there.lost}
            cut = replace(cut, begins={**cut.begins, **passed}, lost=there.lost)
        return self._stored(self._topics.in_lineages(cut))

    def committed(self) -> Offset:
        """Return the committed end, which the query's progress shows beside its own position."""
        ending = self._options.ending
        known = self._topics.known_ends() if ending is None else None
        return self._stored((known or self._topics.committed(ending)).bare)

    def portions(self, start: Offset, end: Offset) -> list[Portion]:
        """Return the work of the micro-batch [start, end), by tasks; a replay gets the same."""
        behind = self._read(end)
        begin = behind.since(self._read(start))
        return self._topics.portions(begin, behind)

    def _wait_ms(self) -> int:
        """Return for how long the broker may wait for news. Where another core set is promoted, a
        partition may end below what was read: no news come then, and a look tells it.
        """
        now = SYSTEM.get().monotonic()
        if now < self._looks_at:
            return self._options.idle_wait_ms
        self._looks_at = now + LOOK_EVERY
        return 0

    def _stored(self, cut: Cut) -> Offset:
        """Return a cut as Spark stores it, with what the query leaves out."""
        digest = self._options.selection.digest
        return self._topics.to_json(cut) | ({_SELECTION: digest} if digest else {})

    def _read(self, offset: Offset) -> Cut:
        """Read a cut that Spark stored. Raises `CheckpointMismatch` if it is another query's."""
        cut = self._topics.from_json(offset)
        # What was left out before lies behind the offsets of the checkpoint and would not come.
        if offset.get(_SELECTION, "") != self._options.selection.digest:
            raise CheckpointMismatch(
                f"the checkpoint was written with other options keys, tags or partitions than "
                f"this query of {self._options.of!r} has: give those again, or use a new "
                "checkpointLocation"
            )
        return cut

    def _first_cut(self) -> Cut:
        # A pinned end counts as the latest, lest a query begin behind where it must end.
        if isinstance(self._options.starting, Latest):
            return self._target or self._end()
        begin = self._topics.begin(self._options.starting)
        self._topics.check_order(begin, self._end())
        return begin

    def _end(self) -> Cut:
        """Return the end as of now: a barrier in total order, else the committed end; or where the
        options say that the stream ends if it is less.
        """
        ending = self._options.ending
        if not self._topics.at_barriers:
            return self._topics.committed(ending)
        end = self._topics.barrier()
        match ending:
            case Stamped(stamp) if stamp <= end.stamp:
                return self._topics.at(stamp - 1, Cut(end.epoch, {}), end)
            case Offsets(by_partition):
                least = {p: min(at, by_partition.get(p, at)) for p, at in end.positions.items()}
                return Cut(end.epoch, least, end.begins, end.stamp)
        return end
