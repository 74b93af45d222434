"""A pipeline of one topic for tests, and what ends a run of it in the middle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from weir.spark.pipeline import plan

SCHEMA = """{"type": "object", "required": ["id", "n"],
 "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}"""
KEEP = """return rows.selectExpr("topic", "partition", "offset", "stamp", "data.id", "data.n",
        "timestamp_millis(shiftright(stamp, 16)) at")"""
SILVER = f"""
def numbers(rows):
    {KEEP}
"""
GOLD = """
def kept(numbers):
    return numbers.dropDuplicatesWithinWatermark(["id"]).select("id", "n")
"""
PIPELINE = """
url = "{url}"
[bronze.events]
topics = ["{topic}"]
[silver.numbers]
topic = "{topic}"
schema = "schema.json"
id = "data.id"
[silver.numbers.rules]
small = "data.n < 100"
[gold.kept]
from = ["numbers"]
time = "at"
watermark = "1h"
to = ["report"]
[sinks.report]
sql = "sqlite:///report.db"
"""


def written(folder: Path, text: str, silver: str = SILVER, gold: str = GOLD) -> plan.Plan:
    folder.mkdir(exist_ok=True)
    for name, data in (("pipeline.toml", text), ("schema.json", SCHEMA), ("silver.py", silver),
                       ("gold.py", gold)):  # fmt: skip
        (folder / name).write_text(data)
    return plan.read(folder)


def value(id: object, n: int) -> bytes:
    return json.dumps({"id": str(id), "n": n}).encode()


def rows(frame: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


class Killed(Exception):
    """Ends a run in the middle, as a kill does: nothing behind it happens."""


def killing(
    patch: pytest.MonkeyPatch, owner: Any, name: str, is_behind: bool, only: str = ""
) -> None:
    """End a run before or behind a call, of an object whose folder has a name with `only`."""
    call: Callable[..., Any] = getattr(owner, name)

    def killed(*arguments: Any) -> Any:
        if only and only not in str(arguments[0].folder):
            return call(*arguments)
        if is_behind:
            call(*arguments)
        raise Killed

    patch.setattr(owner, name, killed)
