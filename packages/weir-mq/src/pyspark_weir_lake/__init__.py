"""Lets Spark find `format("weir-lake")` by itself: it looks for `DefaultSource` in `pyspark_*`."""

from __future__ import annotations

from weir.spark.lake.stream import LakeDataSource as DefaultSource

__all__ = ["DefaultSource"]
