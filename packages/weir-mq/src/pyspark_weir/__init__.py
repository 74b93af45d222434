"""Lets Spark find `format("weir")` by itself: it looks for `DefaultSource` in `pyspark_*`."""

from __future__ import annotations

from weir.spark.source import WeirDataSource as DefaultSource

__all__ = ["DefaultSource"]
