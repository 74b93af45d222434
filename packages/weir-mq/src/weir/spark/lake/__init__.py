"""A topic kept in a lake: Parquet files that executors write, and a log that names them.

`open_lake` returns a lake of either format: Delta Lake, by delta-rs, or plain Parquet with a
manifest. Both take a micro-batch in one transaction and remember it, so a replay adds nothing.
"""

from __future__ import annotations

from weir.errors import BadOption
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import FORMATS, Format, Home, check_folder
from weir.spark.lake.parquet import ParquetLake

__all__ = ["FORMATS", "Format", "Home", "Lake", "open_lake"]

Lake = DeltaLake | ParquetLake


def open_lake(folder: str, home: Home | None = None, format: Format | None = None) -> Lake:
    """Open the lake in `folder`, or found one there for the topic `home`.

    `format` is "delta" or "parquet"; None takes what is there, and "delta" for a new one. Raises
    `BadOption` if the folder holds the other format, no lake and `home` is None, or is no path, and
    `LakeMismatch` if it keeps another topic.
    """
    path = check_folder(folder)
    there: Format | None = (
        "delta" if DeltaLake.is_at(path) else "parquet" if ParquetLake.is_at(path) else None
    )
    if format is not None and format not in FORMATS:
        raise BadOption(f"format {format!r} is no format of a lake: give {' or '.join(FORMATS)}")
    if there is not None and format not in (None, there):
        raise BadOption(f"{folder} holds a lake of format {there}: give that, or another folder")
    if there is None and home is None:
        raise BadOption(f"{folder} holds no lake: archive a topic there first")
    kind = DeltaLake if (there or format or "delta") == "delta" else ParquetLake
    return kind(path, home)
