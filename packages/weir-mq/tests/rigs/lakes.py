"""Messages as Arrow, and files of them below a lake, as a task of Spark writes them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from weir.model.arrow import SCHEMA
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import NewFile

DAY_MS = 86_400_000


def messages(
    partition: int, first: int, behind: int, ms: int = DAY_MS, topic: str = "t"
) -> pa.RecordBatch:
    """Return messages [first, behind) of a partition, a stamp each millisecond from `ms` on."""
    offsets = range(first, behind)
    columns = {
        "topic": [topic] * len(offsets),
        "partition": [partition] * len(offsets),
        "offset": offsets,
        "stamp": [(ms + offset - first) << 16 for offset in offsets],
        "time": [(ms + offset - first) * 1_000 for offset in offsets],
        "key": [b"k%d" % (offset % 3) for offset in offsets],
        "tag": ["x"] * len(offsets),
        "value": [b"%d" % offset for offset in offsets],
        "headers": [[("a", b"b")] for _ in offsets],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def written(folder: Path, *batches: pa.RecordBatch) -> list[NewFile]:
    """Write messages below a folder, and return the files; no lake knows of them yet."""
    reports = parquet.written(iter(batches), str(folder), "part")
    return [parquet.new_file(row) for batch in reports for row in batch.to_pylist()]
