"""The stamps of rows in Parquet files, of which row groups say the least and the most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from weir.spark.lake.files import STAMP
from weir.spark.lake.tables import Table

_STAMP_MAX = (1 << 63) - 1


def newest_stamp(folder: Path) -> int:
    """Return the highest stamp in a lake or a table, 0 where there are no rows."""
    newest = 0
    for file in Table(folder).files():
        if file.stamps is not None:
            newest = max(newest, file.stamps[1])
            continue
        for stamps in stamps_in(folder / file.path, newest, _STAMP_MAX):
            newest = max(newest, int(stamps.max(initial=newest)))
    return newest


def stamps_in(
    path: Path, low: int, high: int
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Yield the stamps of a file's rows in (low, high], a row group at a time."""
    with pq.ParquetFile(path) as file:
        for group in groups_in(file, low, high):
            stamps = file.read_row_group(group, columns=[STAMP])[STAMP].to_numpy()
            yield stamps[(stamps > low) & (stamps <= high)]


def groups_in(file: pq.ParquetFile, low: int, high: int) -> Iterator[int]:
    """Yield the row groups that may have stamps in (low, high]."""
    metadata = file.metadata
    if not metadata.num_row_groups:
        return
    names = [metadata.row_group(0).column(at).path_in_schema for at in range(metadata.num_columns)]
    at = names.index(STAMP)
    for group in range(metadata.num_row_groups):
        known = metadata.row_group(group).column(at).statistics
        if known is None or not known.has_min_max or (known.max > low and known.min <= high):
            yield group
