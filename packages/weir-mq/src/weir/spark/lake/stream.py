"""`format("weir-lake")`: a table of a lake as a stream, in the order of stamps.

A micro-batch is what lies between two stamps, in all partitions, and nothing else. So compaction,
which changes files and no rows, changes no micro-batch, and a replay reads the same rows. Years in
a lake and what a broker adds to it meet at a stamp, row for row.

Streams of several tables in one query end their micro-batches at one stamp when each is told of
the others and of one `until`: they count the same rows, and so decide the same.

Options: `path`, the table; `with`, a JSON list of the others; `until`, the highest stamp to read,
by default as far as all tables are whole; `maxRowsPerBatch`, of all tables together; `after`, where
a query without a checkpoint begins, as its checkpoint would have it: {"n": rows, "s": stamp};
`time`, the column of a row's time, and `watermark`, how far behind the highest time of earlier
micro-batches rows are late: these are left out and counted, as "l" of the offset, where "w" is the
highest time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from weir.client.core.retries import seconds
from weir.errors import BadOption, CheckpointMismatch
from weir.spark.lake.files import STAMP
from weir.spark.lake.lateness import Lateness, is_late, times
from weir.spark.lake.layout import Cut, KeptFile, read_cut
from weir.spark.lake.sink import LakeWriter, stream_writer
from weir.spark.lake.stamps import groups_in, stamps_in
from weir.spark.lake.tables import Table

NAME = "weir-lake"
#: Small files share a task until they have so many bytes together.
TASK_BYTES = 32 << 20
_ROWS = 1 << 16
_DAY_MS = 86_400_000
_ROWS_MAX = (1 << 63) - 1
#: As Spark stores it in a checkpoint: rows so far, the stamp up to which they were read and, where
#: late rows are counted, the highest time in microseconds since 1970 and the late rows so far.
Offset = dict[str, int]


def cut_of(folder: Path) -> Cut:
    """Return how far a lake or a table is whole. Raises `LakeMismatch`."""
    return read_cut(folder) or Table(folder).cut


@dataclass(frozen=True)
class Piece:
    """A file, and whether all of its rows are in the micro-batch."""

    path: str
    is_whole: bool


@dataclass(frozen=True)
class Task(InputPartition):
    """The work of one Spark task: files, of which rows with stamps in (low, high] are read, but for
    those whose time is at or below the `watermark`, in microseconds since 1970.
    """

    pieces: tuple[Piece, ...]
    low: int
    high: int
    watermark: int | None = None


@dataclass(frozen=True)
class Options:
    """What a stream of a lake is told."""

    path: Path
    others: tuple[Path, ...] = ()
    until: int | None = None
    rows_max: int | None = None
    after: Offset = field(default_factory=lambda: {"n": 0, "s": 0})
    lateness: Lateness | None = None
    #: Of a sink: whether a table takes the rows of one query only.
    exclusive: bool = False

    @classmethod
    def parse(cls, given: dict[str, str]) -> Options:
        """Read what a query says. Raises `BadOption`."""
        known = {"path", "with", "until", "maxrowsperbatch", "after", "time", "watermark"}
        known |= {
            "exclusive",
            "checkpointlocation",
            "queryname",
        }  # Spark hands on what a writer is told
        lower = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(lower.keys() - known):
            raise BadOption(f"format({NAME!r}) has no option {unknown[0]!r}")
        if "path" not in lower:
            raise BadOption(f"format({NAME!r}) needs the option path: the folder of a table")
        try:
            others = tuple(Path(one) for one in json.loads(lower.get("with", "[]")))
            until = int(lower["until"]) if "until" in lower else None
            most = int(lower["maxrowsperbatch"]) if "maxrowsperbatch" in lower else None
            after = _offset(json.loads(lower.get("after", '{"n": 0, "s": 0}')))
            delay = seconds(lower["watermark"]) if "watermark" in lower else None
        except (ValueError, KeyError, TypeError) as error:
            raise BadOption(
                f"an option of format({NAME!r}) is not what it is to be: {error}"
            ) from None
        if most is not None and not 0 < most <= _ROWS_MAX:
            raise BadOption("maxRowsPerBatch: give 1 or more")
        if ("time" in lower) != (delay is not None):
            raise BadOption("time and watermark: give both, or neither")
        if (exclusive := lower.get("exclusive", "false").lower()) not in ("true", "false"):
            raise BadOption("exclusive: give true or false")
        lateness = None if delay is None else Lateness.of(lower["time"], delay)
        path = Path(lower["path"])
        return cls(path, others, until, most, after, lateness, exclusive == "true")

    @property
    def tables(self) -> tuple[Path, ...]:
        """All tables that end micro-batches at one stamp."""
        return (self.path, *self.others)


class LakeDataSource(DataSource):
    """`format("weir-lake")`."""

    def __init__(self, options: dict[str, str]) -> None:
        """Check the options. Raises `BadOption`."""
        super().__init__(options)
        self._checked = Options.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name that queries use."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table. Raises `LakeMismatch` if it is none, `BadOption` if it
        has no stamps.
        """
        table = Table(self._checked.path)
        if not table.has_days:
            raise BadOption(f"{table.folder} has no column 'stamp', so no order to be read in")
        if self._checked.lateness is not None:
            column = self._checked.lateness.column
            if column not in table.schema.names:
                raise BadOption(f"time: {table.folder} has no column {column!r}")
            if not pa.types.is_timestamp(type := table.schema.field(column).type):
                raise BadOption(f"time: column {column!r} is {type}, and is to be a timestamp")
        return table.columns

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of the stream."""
        return LakeReader(self._checked, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeWriter:
        """Return a writer of a stream. Raises `BadOption` and `LakeMismatch`."""
        return stream_writer(self._checked.path, schema, overwrite, self._checked.exclusive)


class LakeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches by stamps, and reads files."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Keep the options: this is pickled."""
        self._options = options
        self._schema = schema
        self._end: int | None = options.until

    def initialOffset(self) -> Offset:
        """Return where a query without a checkpoint begins."""
        return dict(self._options.after)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        most = self._options.rows_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Pin today's end."""
        if self._end is None:
            self._end = self._whole()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the stamp that the next micro-batch ends at, or `start` if nothing is new."""
        begin = _offset(start)
        end = self._whole() if self._end is None else self._end
        if end <= begin["s"]:
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _ROWS_MAX
        stamp, rows = admitted(self._options.tables, begin["s"], end, most)
        return {"n": begin["n"] + rows, "s": stamp, **self._times(begin, stamp)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of the micro-batch; a replay gets the same rows."""
        low, high = _offset(start)["s"], _offset(end)["s"]
        watermark = self._watermark(_offset(start))
        tasks: list[InputPartition] = []
        pieces: list[Piece] = []
        size = 0
        for file in _between(Table(self._options.path).files(), low, high):
            whole = file.stamps is not None and low < file.stamps[0] and file.stamps[1] <= high
            pieces.append(Piece(str(self._options.path / file.path), whole))
            size += file.size
            if size >= TASK_BYTES:
                tasks.append(Task(tuple(pieces), low, high, watermark))
                pieces, size = [], 0
        return [*tasks, Task(tuple(pieces), low, high, watermark)] if pieces else tasks

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows; Spark gives None for a batch without tasks."""
        if not isinstance(partition, Task):
            return
        columns = to_arrow_schema(self._schema, timezone="UTC")
        for piece in partition.pieces:
            with pq.ParquetFile(piece.path) as file:
                for group in groups_in(file, partition.low, partition.high):
                    for batch in file.iter_batches(_ROWS, [group], columns.names):
                        rows = pa.table(batch)
                        if not piece.is_whole:
                            rows = rows.filter(_mask(rows[STAMP], partition.low, partition.high))
                        if partition.watermark is not None:
                            rows = rows.filter(pc.invert(self._is_late(rows, partition.watermark)))
                        yield from rows.select(columns.names).cast(columns).to_batches()

    def commit(self, end: Offset) -> None:
        """Do nothing: the checkpoint is the query's position."""

    def _watermark(self, start: Offset) -> int | None:
        lateness = self._options.lateness
        return None if lateness is None else lateness.watermark(start.get("w"))

    def _is_late(self, rows: pa.Table, watermark: int) -> pa.ChunkedArray:
        assert self._options.lateness is not None
        return is_late(rows, self._options.lateness.column, watermark)

    def _times(self, begin: Offset, high: int) -> Offset:
        """Return what an offset says of times, at the end of a micro-batch behind `begin`."""
        kept: Offset = {name: begin[name] for name in ("w", "l") if name in begin}
        lateness, low = self._options.lateness, begin["s"]
        if lateness is None:
            return kept  # what was counted before stays so
        files = _between(Table(self._options.path).files(), low, high)
        paths = [self._options.path / file.path for file in files]
        found = times(paths, lateness.column, low, high, self._watermark(begin))
        newest = [time for time in (kept.get("w"), found.newest) if time is not None]
        return {**({"w": max(newest)} if newest else {}), "l": kept.get("l", 0) + found.late}

    def _whole(self) -> int:
        return min(cut_of(folder).stamp for folder in self._options.tables)


def admitted(tables: Sequence[Path], low: int, high: int, most: int) -> tuple[int, int]:
    """Return the stamp at which a micro-batch behind `low` ends, and how many rows it has: up to
    `high` or, if these are more than `most`, at the last stamp within that, but at least one stamp.
    """
    files = [
        (folder, file) for folder in tables for file in _between(Table(folder).files(), low, high)
    ]
    if (rows := _count(files, low, high)) <= most:
        return high, rows
    taken, ended = 0, low
    for day in sorted({file.day for _, file in files}):
        its = [(folder, file) for folder, file in files if file.day == day]
        there = _count(its, low, high)
        if taken + there > most:
            break
        taken, ended = taken + there, _last_stamp(day)
    # One more than there is room for says where it is too many.
    stamps = _least(its, max(low, ended), high, most - taken + 1)
    end = int(stamps[-1]) - 1
    if fits := int(np.searchsorted(stamps, end, "right")):
        return end, taken + fits
    if taken:
        return ended, taken
    return int(stamps[0]), _count(files, low, int(stamps[0]))


_Files = Sequence[tuple[Path, KeptFile]]


def _count(files: _Files, low: int, high: int) -> int:
    """Return how many rows have stamps in (low, high]; a file that is whole is not opened."""
    rows = 0
    for folder, file in files:
        if file.stamps is not None and low < file.stamps[0] and file.stamps[1] <= high:
            rows += file.rows
        else:
            rows += sum(len(stamps) for stamps in stamps_in(folder / file.path, low, high))
    return rows


def _least(
    files: _Files, low: int, high: int, most: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the `most` least stamps in (low, high], in order; no more are held at once."""
    kept = np.empty(0, np.int64)
    for folder, file in files:
        for stamps in stamps_in(folder / file.path, low, high):
            kept = np.concatenate([kept, stamps])
            if len(kept) > most:
                kept = np.partition(kept, most - 1)[:most]
    return np.sort(kept)


def _between(files: Sequence[KeptFile], low: int, high: int) -> list[KeptFile]:
    """Return the files that may have stamps in (low, high]."""
    return [f for f in files if f.stamps is None or (f.stamps[1] > low and f.stamps[0] <= high)]


def _mask(stamps: pa.ChunkedArray, low: int, high: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater(stamps, low), pc.less_equal(stamps, high))


def _last_stamp(day: str) -> int:
    days = int(np.datetime64(day, "D").astype(np.int64))
    return (((days + 1) * _DAY_MS) << 16) - 1


def _offset(stored: Offset) -> Offset:
    """Read what Spark stored. Raises `CheckpointMismatch` for another source's offset."""
    try:
        times: Offset = {name: int(stored[name]) for name in ("w", "l") if name in stored}
        return {"n": int(stored["n"]), "s": int(stored["s"]), **times}
    except (KeyError, TypeError, ValueError):
        raise CheckpointMismatch(
            f"the checkpoint is of another source than a lake: give a new one ({stored})"
        ) from None
