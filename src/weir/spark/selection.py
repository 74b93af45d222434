"""Filters taken over from Spark: which ranges to read at all, and which rows of them to pass on.

Partition, offset and stamp narrow what is fetched. Key and tag are looked for in what was fetched:
a batch lists its tags, so one without a wanted tag is passed over with its columns closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from weir.model.batch import Batch
from weir.spark.cuts import Cuts
from weir.spark.planning import Cut

_MOST = (1 << 63) - 1
_NUMBERS = ("partition", "offset", "stamp")
_NEVER_NULL = (*_NUMBERS, "topic", "time", "value")

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers [first, behind)."""

    first: int = 0
    behind: int = _MOST

    def within(self, first: int, behind: int) -> Span:
        """Return what this and another span have in common."""
        return Span(max(self.first, first), min(self.behind, behind))


@dataclass(frozen=True, slots=True)
class Where:
    """Rows to pass on, by key and tag; None means whatever it is."""

    keys: frozenset[bytes] | None = None
    tags: frozenset[str] | None = None

    def wants(self, batch: Batch) -> bool:
        """Return whether a row of `batch` may pass: told by its list of tags alone."""
        if self.tags is None:
            return True
        column = batch.tag_column
        return column is not None and not self.tags.isdisjoint(column[0])

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass."""
        for name, wanted in (("key", self.keys), ("tag", self.tags)):
            if wanted is not None:
                column = rows.column(name)
                among = pa.array(sorted(wanted), column.type)
                rows = rows.filter(pc.is_in(column, value_set=among))
        return rows


@dataclass(frozen=True, slots=True)
class Selection:
    """What a query asks for beyond its options' bounds; all of it must hold."""

    partitions: frozenset[int] | None = None
    offsets: Span = field(default_factory=Span)
    stamps: Span = field(default_factory=Span)
    where: Where = field(default_factory=Where)

    def taking(self, given: Filter) -> Selection | None:
        """Return this and `given`; None if Spark must go on with `given` itself."""
        match given:
            case IsNotNull((name,)) if name in _NEVER_NULL:
                return self
            case EqualTo((name,), value):
                return self._among(name, [value])
            case In((name,), values):
                return self._among(name, values)
            case GreaterThan((name,), int(value)):
                return self._between(name, value + 1, _MOST)
            case GreaterThanOrEqual((name,), int(value)):
                return self._between(name, value, _MOST)
            case LessThan((name,), int(value)):
                return self._between(name, 0, value)
            case LessThanOrEqual((name,), int(value)):
                return self._between(name, 0, value + 1)
        return None

    def narrow(self, cuts: Cuts, begin: Cut, behind: Cut) -> tuple[Cut, Cut]:
        """Return what of [begin, behind) this selection needs."""
        first, last = dict(begin.positions), dict(behind.positions)
        if self.stamps.first > 0:
            self._raise_to(first, self._stamped(cuts, self.stamps.first))
        if self.stamps.behind < _MOST:
            found = self._stamped(cuts, max(self.stamps.behind, 0))
            last = {p: min(at, found.get(p, at)) for p, at in last.items()}
        for partition, at in last.items():
            span = self.offsets.within(first.get(partition, 0), at)
            if self.partitions is not None and partition not in self.partitions:
                span = Span(at, at)
            first[partition], last[partition] = min(span.first, at), span.behind
        return Cut(begin.epoch, first), Cut(behind.epoch, last)

    def _stamped(self, cuts: Cuts, stamp: int) -> dict[int, int]:
        return cuts.first_from(cuts.standing(stamp), stamp)

    def _raise_to(self, first: dict[int, int], found: dict[int, int]) -> None:
        for partition, at in found.items():
            first[partition] = max(first.get(partition, 0), at)

    def _between(self, name: str, first: int, behind: int) -> Selection | None:
        if name == "offset":
            return replace(self, offsets=self.offsets.within(first, behind))
        if name == "stamp":
            return replace(self, stamps=self.stamps.within(first, behind))
        return None

    def _among(self, name: str, values: Sequence[Any]) -> Selection | None:
        if name == "partition" and _all(int, values):
            return replace(self, partitions=_both(self.partitions, frozenset(values)))
        if name in ("offset", "stamp") and len(values) == 1 and _all(int, values):
            return self._between(name, values[0], values[0] + 1)
        if name == "key" and _all((bytes, bytearray), values):
            keys = _both(self.where.keys, frozenset(map(bytes, values)))
            return replace(self, where=replace(self.where, keys=keys))
        if name == "tag" and _all(str, values):
            tags = _both(self.where.tags, frozenset(values))
            return replace(self, where=replace(self.where, tags=tags))
        return None


def _all(kind: type | tuple[type, ...], values: Sequence[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _both(one: frozenset[V] | None, other: frozenset[V]) -> frozenset[V]:
    return other if one is None else one & other
