"""Spark queries that read the topic, as their sinks and checkpoints have them; what is promised."""

from __future__ import annotations

from collections.abc import Iterator

from weir_lab.sim.checkers.one_order import Log, log_of
from weir_lab.sim.checkers.whole import left_out
from weir_lab.sim.history import History, Reading
from weir_lab.sim.observations import Query, Row


class Streamed:
    """Each message from where a query begins is in one micro-batch, in the order of its partition,
    or the query ends with an error, or is told of it as gone, if it is; a micro-batch that is run
    again has the same rows, but for those that are gone by then.
    """

    name = "Streamed"

    def check(self, history: History) -> Iterator[str]:
        """Compare what each sink has with the log."""
        if not history.queries:
            return
        log = log_of(history)
        for query in history.queries:
            yield from (f"{query.name}: {text}" for text in _wrong(query, log, history))


def _wrong(query: Query, log: Log, history: History) -> Iterator[str]:
    if query.earliest:
        for partition, first in query.begin.items():
            if first > history.starts.get(partition, 0):
                yield f"it was to begin at the earliest message, and began {partition} at {first}"
    yield from _replays(query)
    done = [batch for batch in query.batches if batch.committed]
    rows = [row for batch in done for row in batch.runs[0]]
    gaps = [gap for batch in done for gap in (batch.gaps[0] if batch.gaps else ())]
    for gap in gaps:
        if gap.behind > (start := history.starts.get(gap.partition, 0)):
            yield f"it was told of {gap}, and what is gone lies below {start}"
    for partition in sorted({row.partition for row in rows}):
        here = [row for row in rows if row.partition == partition]
        start = history.starts.get(partition, 0)
        gone = [range(gap.first, gap.behind) for gap in gaps if gap.partition == partition]
        there = {at: one for at, one in log[partition].items() if not any(at in g for g in gone)}
        yield from _gaps(query, partition, here, there, start)
    yield from _cuts(query, log)
    if query.cut >= 0:
        yield from left_out(Reading(query.name, query.begin, rows, cut=query.cut), history)


def _replays(query: Query) -> Iterator[str]:
    for number, batch in enumerate(query.batches):
        for later, again in enumerate(batch.runs[1:], 1):
            gone = batch.gaps[later] if batch.gaps else []
            left = [row for row in batch.runs[0] if not any(gap.holds(row) for gap in gone)]
            if again != left:
                yield f"micro-batch {number} had {_span(batch.runs[0])}, then {_span(again)}"


def _span(rows: list[Row]) -> str:
    found = [(row.partition, row.offset) for row in rows]
    return f"{len(found)} rows from {min(found)} to {max(found)}" if found else "no row"


def _gaps(
    query: Query, partition: int, rows: list[Row], there: dict[int, tuple[int, bytes]], start: int
) -> Iterator[str]:
    """Each message from the query's begin on is there once, as it is in the log."""
    known = partition in query.begin
    first = query.begin.get(partition, 0)
    expected = iter(sorted(offset for offset in there if offset >= first))
    for number, row in enumerate(rows):
        if row.offset < start and row.offset not in there:
            continue  # nobody else saw it before retention took it
        offset = next(expected, None)
        # Of a partition that joined, retention may have taken the beginning before the query came.
        while not known and not number and offset is not None and offset < min(row.offset, start):
            offset = next(expected, None)
        belongs = None
        if offset is not None:
            belongs = Row(there[offset][0], partition, offset, there[offset][1])
        if not row.is_like(belongs):
            yield f"{row} is row {number} of partition {partition}, where {belongs} belongs"
            return


def _cuts(query: Query, log: Log) -> Iterator[str]:
    """At a barrier, a micro-batch ends between two messages of the one order."""
    below = 0
    for number, batch in enumerate(query.batches):
        if not batch.committed or not batch.stamp:
            continue
        for row in batch.runs[0]:
            if not below < row.stamp <= batch.stamp:
                yield f"{row} is in micro-batch {number}, of {below} to {batch.stamp}"
                return
        for partition, behind in batch.positions.items():
            left = [o for o, (stamp, _) in log[partition].items() if stamp <= batch.stamp]
            if left and max(left) >= behind:
                text = f"without {max(left)} of {partition}, stamped at or below"
                yield f"micro-batch {number} is cut at {batch.stamp}, {text}"
                return
        below = batch.stamp
