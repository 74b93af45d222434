"""What Spark reports of streaming queries, added up. Without PySpark.

Spark reports a micro-batch when its sink has it: so `cut` is always what a query is done with.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weir.errors import CheckpointMismatch
from weir.model.limits import NAME_CHARACTERS_MAX
from weir.order.clock import milliseconds_of
from weir.spark.planning import Cut

#: So many queries are remembered; of more, those go that ended first.
QUERIES_MAX = 100
#: The name of the observation that `count_bad` adds to a query, and of its column.
OBSERVATION = "weir"
BAD = "bad"
#: The name of the observation that `weir.spark.count_lost` adds to a query, and of its columns.
LOST_OBSERVATION = "weir_lost"
LOST, OUT_OF_RANGE = "lost", "times_out_of_range"
#: Digits of a query's id that stand for a query without a name.
_ID_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query is in one topic: its `cut`, and where the topic ended when that was planned,
    if Spark knew it.
    """

    cut: Cut
    committed: Cut | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets of the topic the query had not read; None if nobody said."""
        if self.committed is None:
            return None
        ends = self.committed.positions
        return sum(max(end - self.cut.first(p, self.committed), 0) for p, end in ends.items())

    def barrier_age(self, now_ms: int) -> float | None:
        """How many seconds ago all was stamped that the query has read; None without barriers."""
        if not self.cut.stamp:
            return None
        return max(now_ms - milliseconds_of(self.cut.stamp), 0) / 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """One query: what it has done since it is watched, and by topic id how far it is."""

    id: str
    name: str
    running: bool = True
    failures: int = 0
    batches: int = 0
    batch_seconds: float = 0.0
    rows: int = 0
    #: Messages that retention deleted before the query read them, and it went on behind.
    lost: int = 0
    bad: int | None = None
    times_out_of_range: int | None = None
    #: Rows that came behind the watermark: of a lake's stream, or as Spark counts them, which are
    #: rows of a state and not of a topic. None for a query without one.
    late: int | None = None
    #: When its last micro-batch was reported, in seconds since 1970; 0 before the first.
    reported: float = 0.0
    positions: Mapping[int, Position] = field(default_factory=dict)
    #: The run and the number of the last micro-batch.
    last: tuple[str, int] = ("", -1)


class Standings:
    """All queries of a session, as far as they were reported; for several threads."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._queries: dict[str, Standing] = {}

    def all(self) -> list[Standing]:
        """Return the queries as they stand, the one that was started first first."""
        with self._lock:
            return [*self._queries.values()]

    def start(self, query: str, name: str | None) -> None:
        """A query was started, perhaps one that ran before."""
        with self._lock:
            known = self._queries.get(query) or Standing(query, "")
            self._queries[query] = replace(known, name=self._name(query, name), running=True)
            self._forget()

    def end(self, query: str, failed: bool) -> None:
        """A query has ended; it is remembered, so that it is seen that it does not run."""
        with self._lock:
            if known := self._queries.pop(query, None):
                # Behind all others: the first is the one to forget.
                failures = known.failures + failed
                self._queries[query] = replace(known, running=False, failures=failures)

    def report(self, progress: Mapping[str, Any], now: float) -> None:
        """Take what Spark tells of a micro-batch: `StreamingQueryProgress`, which is a dict.

        Sources that are not of `format("weir")` are left out.
        """
        query, last = str(progress["id"]), (str(progress["runId"]), int(progress["batchId"]))
        sources = [one for one in progress["sources"] if cuts(one["endOffset"])]
        observed = progress["observedMetrics"]
        with self._lock:
            known = self._queries.get(query)
            if known is None:  # it was running before somebody watched
                known = Standing(query, self._name(query, progress["name"]))
            begun = last != known.last
            self._queries[query] = replace(
                known,
                batches=known.batches + begun,
                rows=known.rows + sum(int(one["numInputRows"]) for one in sources),
                lost=known.lost + (_lost(sources, observed) if begun else 0),
                batch_seconds=progress["durationMs"].get("triggerExecution", 0) / 1_000,
                bad=_add(known.bad, observed, OBSERVATION, BAD),
                times_out_of_range=_add(
                    known.times_out_of_range, observed, LOST_OBSERVATION, OUT_OF_RANGE
                ),
                late=_late(known.late, progress) if begun else known.late,
                reported=now,
                positions=_positions(sources),
                last=last,
            )
            self._forget()

    def _name(self, query: str, name: str | None) -> str:
        """Return what a query is called; no other that is remembered is called so."""
        called = name_of(query, name)
        for other in [*self._queries.values()]:
            if other.name == called and other.id != query:
                if other.running:
                    return name_of(query, f"{query[:_ID_DIGITS]}-{name}")
                # Its checkpoint was given up: this one goes on under the name.
                del self._queries[other.id]
        return called

    def _forget(self) -> None:
        while len(self._queries) > QUERIES_MAX:
            ended = (one.id for one in self._queries.values() if not one.running)
            del self._queries[next(ended, next(iter(self._queries)))]


def name_of(query: str, name: str | None) -> str:
    """Return what a query is called among readers: its name as far as names of the broker allow
    its characters, or the begin of its id, which is the same after a restart.
    """
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name or "")
    return f"spark.{safe or query[:_ID_DIGITS]}"[:NAME_CHARACTERS_MAX]


def cuts(offset: str | None) -> dict[int, Cut]:
    """Return the cut of each topic that an offset of a source names, by topic id; of an offset of
    another source, none.
    """
    found = map(_cut, _parts(offset))
    return {cut.epoch: cut for cut in found if cut is not None}


def _positions(sources: Sequence[Mapping[str, Any]]) -> dict[int, Position]:
    """Return where the sources of a micro-batch stand; a topic that is read twice is one."""
    found: dict[int, Position] = {}
    for source in sources:
        ends = cuts(source["latestOffset"])
        for topic, cut in cuts(source["endOffset"]).items():
            other = found.get(topic)
            at = cut if other is None else _least(other.cut, cut)
            found[topic] = Position(at, ends.get(topic))
    return found


def _lost(sources: Sequence[Mapping[str, Any]], observed: Mapping[str, Any]) -> int:
    """Return how many messages were gone when a micro-batch came to read them: as its rows say if
    the query counts those, for they know also of messages that went after it was planned.
    """
    counted = _add(None, observed, LOST_OBSERVATION, LOST)
    if counted is not None:
        return counted
    ends = [cut for source in sources for cut in cuts(source["endOffset"]).values()]
    return sum(cut.begins.get(p, first) - first for cut in ends for p, first in cut.lost.items())


def _parts(offset: str | None) -> list[dict[str, Any]]:
    """Return an offset's part of each topic; it has one of a kind if it is of one topic alone."""
    try:
        told = json.loads(offset or "null")
    except ValueError:
        return []
    match told:
        case {"t": dict(topics)}:
            stamp = {"s": told["s"]} if "s" in told else {}
            return [{**one, **stamp} for one in topics.values() if isinstance(one, dict)]
        case dict():
            return [told]
    return []


def _cut(offset: Mapping[str, object]) -> Cut | None:
    try:
        return Cut.from_json(offset)
    except CheckpointMismatch:
        return None


def _least(one: Cut, other: Cut) -> Cut:
    """Return what both hold: a query is done with that."""
    common = one.positions.keys() & other.positions.keys()
    positions = {p: min(one.positions[p], other.positions[p]) for p in sorted(common)}
    return Cut(one.epoch, positions, stamp=min(one.stamp, other.stamp))


def _late(known: int | None, progress: Mapping[str, Any]) -> int | None:
    """Add the rows of a micro-batch that came behind the watermark."""
    found = [
        end - begin
        for source in progress["sources"]
        if (end := _late_rows(source["endOffset"])) is not None
        for begin in (_late_rows(source["startOffset"]) or 0,)
    ]
    found += [int(one["numRowsDroppedByWatermark"]) for one in progress["stateOperators"]]
    return (known or 0) + sum(found) if found else known


def _late_rows(offset: str | None) -> int | None:
    """Return how many late rows an offset of a lake's stream counts; None if it counts none."""
    try:
        told = json.loads(offset or "null")
    except ValueError:
        return None
    match told:
        case {"n": int(), "s": int(), "l": int(late)}:
            return late
    return None


def _add(
    known: int | None, observed: Mapping[str, Any], observation: str, column: str
) -> int | None:
    """Add what a micro-batch has of a column of an observation; None for a query without it."""
    row = observed.get(observation)
    columns = row.asDict() if row is not None else {}
    return (known or 0) + int(columns[column] or 0) if column in columns else known
