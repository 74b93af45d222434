"""What a stream of `format("weir")` decides: where micro-batches end, and which tasks read them.

Without PySpark: `weir.spark.source` hands on what Spark asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weir.errors import CheckpointMismatch
from weir.spark import planning
from weir.spark.cuts import BarrierCuts, Cuts
from weir.spark.fetcher import Portion, portions
from weir.spark.options import Latest, Offsets, Options, Stamped
from weir.spark.planning import Cut

#: As Spark stores it in a checkpoint.
Offset = dict[str, Any]
#: Beside the fields of a cut: the digest of what the query selects; not there if it is everything.
_SELECTION = "f"


class Stream:
    """Plans micro-batches between two cuts, and says which ranges lie between them."""

    def __init__(self, options: Options) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options
        self._cuts = Cuts(options)
        self._barriers = BarrierCuts(self._cuts)
        self._initial: Cut | None = None
        self._target: Cut | None = None

    def initial(self) -> Offset:
        """Return where a query without a checkpoint begins; the same however often it is asked."""
        if self._initial is None:
            self._initial = self._first_cut()
        return self._stored(self._initial.bare)

    def pin_end(self) -> None:
        """Pin today's end: what is published later belongs to the next run."""
        self._target = self._end()

    def latest(self, start: Offset, rows_max: int | None) -> Offset:
        """Return the cut that the next micro-batch ends at, or `start` itself if nothing is new.

        Two round trips to the broker; in total order a few more, for the cut lies at a barrier.
        Raises `RangeLost` and `CheckpointMismatch`.
        """
        begin = self._read(start)
        self._cuts.expect(begin.positions)
        if self._target is None and self._barriers.wanted and not self._barriers.moved(begin):
            return start
        end = self._target or self._end()
        if self._target is None:
            planning.check_growth(self._options.topic, begin, end)
        if not planning.moved(begin, end):
            # The same text: Spark takes any other for new data and runs an empty batch.
            return start
        if end.stamp:
            cut = self._barriers.within(begin, end, rows_max)
        else:
            cut = planning.next_cut(begin, end, rows_max)
        if self._initial is not None and start == self._stored(self._initial.bare):
            cut = replace(cut, begins={**cut.begins, **begin.positions})
        return self._stored(cut)

    def committed(self) -> Offset:
        """Return the committed end, which the query's progress shows beside its own position."""
        return self._stored(self._committed().bare)

    def portions(self, start: Offset, end: Offset) -> list[Portion]:
        """Return the work of the micro-batch [start, end), by tasks; a replay gets the same."""
        behind = self._read(end)
        begin = behind.since(self._read(start))
        self._cuts.expect(behind.positions)
        info = self._cuts.describe()
        # Whether the messages are still there shows when they are read; here, whether the topic is.
        there = {p: behind.positions.get(p, 0) for p in range(len(info.addresses))}
        planning.check_growth(self._options.topic, behind, Cut(info.id, there))
        return portions(self._options, info, begin, behind)

    def _stored(self, cut: Cut) -> Offset:
        """Return a cut as Spark stores it, with what the query leaves out."""
        digest = self._options.selection.digest
        return cut.to_json() | ({_SELECTION: digest} if digest else {})

    def _read(self, offset: Offset) -> Cut:
        """Read a cut that Spark stored. Raises `CheckpointMismatch` if it is another query's."""
        cut = Cut.from_json(offset)
        # What was left out before lies behind the offsets of the checkpoint and would not come.
        if offset.get(_SELECTION, "") != self._options.selection.digest:
            raise CheckpointMismatch(
                f"the checkpoint was written with other options keys, tags or partitions than "
                f"this query of {self._options.topic!r} has: give those again, or use a new "
                "checkpointLocation"
            )
        return cut

    def _first_cut(self) -> Cut:
        # A pinned end counts as the latest, lest a query begin behind where it must end.
        if isinstance(self._options.starting, Latest):
            return self._target or self._end()
        begin = self._barriers.resolve("startingOffsets", self._options.starting)
        end = self._end()
        planning.check_order(self._options.topic, begin, end)
        return begin

    def _end(self) -> Cut:
        """Return the end as of now: a barrier in total order, else the committed end; or where the
        options say that the stream ends if it is less.
        """
        if not self._barriers.wanted:
            return self._committed()
        end = self._barriers.end()
        match self._options.ending:
            case Stamped(stamp) if stamp <= end.stamp:
                return self._barriers.at(stamp - 1, Cut(end.epoch, {}), end)
            case Offsets(by_partition):
                least = {p: min(at, by_partition.get(p, at)) for p, at in end.positions.items()}
                return Cut(end.epoch, least, end.begins, end.stamp)
        return end

    def _committed(self) -> Cut:
        """Return the committed end, or where the options say that the stream ends if it is less;
        and where each partition begins.
        """
        ending = self._options.ending
        standing = self._cuts.standing(ending.stamp if isinstance(ending, Stamped) else 0)
        end = Cut(standing.info.id, standing.end.positions, standing.begin.positions)
        match ending:
            case Stamped(stamp):
                least: Mapping[int, int] = self._cuts.first_from(standing, stamp)
            case Offsets(by_partition):
                least = by_partition
            case _:
                return end
        shortened = {p: min(at, least.get(p, at)) for p, at in end.positions.items()}
        return Cut(end.epoch, shortened, end.begins)
