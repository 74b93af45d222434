"""What the jobs of a trial must come to: the flights that were published, counted without Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.errors import WeirError
from weir_lab.demo import flights as source

#: The sums of two machines may differ in their last bits, for they add in another order.
_TOLERANCE = 1e-9
KEYS = ["carrier", "hour"]


class RowsDiffer(WeirError):
    """What a job wrote is not what it must be; the message names the first difference."""


def values(limit: int) -> list[list[bytes]]:
    """Return the messages by partition, which is an airport. Raises `NoFlights`."""
    return [source.seal(source.load(origin, limit).heads, 0) for origin in source.ORIGINS]


def delays(limit: int) -> pa.Table:
    """Return what `weir.spark.jobs.delays` must write for the first `limit` flights."""
    rows = source.table(limit).select([*KEYS, "dep_delay"])
    rows = rows.append_column("cancelled", pc.cast(pc.is_null(rows["dep_delay"]), pa.int64()))
    grouped = rows.group_by(KEYS).aggregate(
        [("dep_delay", "count", pc.CountOptions(mode="all")), ("cancelled", "sum"),
         ("dep_delay", "mean"), ("dep_delay", "max")]
    )  # fmt: skip
    made = ["dep_delay_count", "cancelled_sum", "dep_delay_mean", "dep_delay_max"]
    table = grouped.select([*KEYS, *made]).rename_columns(
        [*KEYS, "flights", "cancelled", "mean_delay", "max_delay"]
    )
    return table.sort_by([(key, "ascending") for key in KEYS])


def check_delays(path: Path, wanted: pa.Table) -> int:
    """Compare the table at `path` with what it must be; return its rows. Raises `RowsDiffer`."""
    found = pq.read_table(path).select(wanted.schema.names)
    found = found.sort_by([(key, "ascending") for key in KEYS])
    if len(found) != len(wanted):
        raise RowsDiffer(f"delays: {len(found):,} rows instead of {len(wanted):,}")
    for name in wanted.schema.names:
        pairs = zip(found[name].to_pylist(), wanted[name].to_pylist(), strict=True)
        for at, (one, other) in enumerate(pairs):
            if not _same(one, other):
                where = {key: wanted[key][at].as_py() for key in KEYS}
                raise RowsDiffer(f"delays: {name} of {where} is {one} instead of {other}")
    return len(found)


def check_rows(out: Path, sent: Sequence[Sequence[bytes]]) -> pa.Table:
    """Compare a copy of the topic with what was sent; return it. Raises `RowsDiffer`."""
    found = pa.concat_tables(pq.read_table(path) for path in committed_files(out))
    found = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
    places = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    wanted = [(p, offset) for p, values in enumerate(sent) for offset in range(len(values))]
    if places != wanted:
        lost, more = set(wanted) - set(places), len(places) - len(set(places))
        raise RowsDiffer(
            f"rows: {len(places):,} instead of {len(wanted):,}; {len(lost):,} are lost, "
            f"{more:,} repeated; the first lost one is {min(lost, default=None)}"
        )
    expected = pa.chunked_array([pa.array([one for values in sent for one in values], pa.binary())])
    if not found["value"].combine_chunks().equals(expected.combine_chunks()):
        raise RowsDiffer("rows: values differ from those that were sent")
    return found


def committed_files(out: Path) -> Iterator[Path]:
    """Yield the Parquet files that Spark's sink has committed: others are of tries that failed."""
    seen = set()
    for log in sorted((out / "_spark_metadata").glob("[0-9]*")):
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            if path not in seen:
                seen.add(path)
                yield Path(path)


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return one == other
