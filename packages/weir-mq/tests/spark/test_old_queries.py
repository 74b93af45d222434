"""Queries and a lake of the previous release, format level 2, go on with this one, row for row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

import weir
from weir import sync
from weir.model.limits import FORMAT_LEVEL
from weir.spark.jobs.archive import archive, read
from weir.testing.nodes import Node, start_node

DATA = Path(__file__).parents[1] / "data"
GIVEN: dict[str, dict[str, str]] = {
    "one": {"topic": "rows"},
    "total": {"topic": "moves"},
    "both": {"topics": json.dumps(["moves", "more"])},
}

pytestmark = pytest.mark.timeout(300)


def beside() -> ModuleType:
    spec = util.spec_from_file_location("old_data_of_queries", DATA / "old_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


old = beside()


@pytest.fixture
def old_node(tmp_path: Path) -> Iterator[Node]:
    old.unpack(tmp_path, "node", "lake", *GIVEN, archive=DATA / "spark" / "old-spark.tar.xz")
    with start_node(tmp_path / "node", tmp_path, **old.SETTINGS) as node:
        yield node


def everything(name: str, behind: int) -> list[list[Any]]:
    """Return what was published to the topics of a query, as `old.read_in` gives it."""
    found: list[list[Any]] = []
    for topic in {"one": ("rows",), "total": ("moves",), "both": ("moves", "more")}[name]:
        for number in range(behind):
            place = [0, number] if topic == "more" else [number % 2, number // 2]
            found.append([*place, f"{topic} {number:02}"])
    return sorted(found)


async def raised(url: str) -> int:
    """Raise the format level to this release's, and return it."""
    async with weir.connect(url) as client:
        await client.nodes.raise_level()
        async with asyncio.timeout(30):
            while (level := (await client.nodes.status()).level) != FORMAT_LEVEL:
                await asyncio.sleep(0.05)
    return level


def test_checkpoints_and_a_lake_of_level_2_go_on(
    spark: SparkSession, old_node: Node, tmp_path: Path
) -> None:
    then = json.loads((DATA / "spark" / "manifest.json").read_text(encoding="utf-8"))
    assert then["level"] == 2 < FORMAT_LEVEL
    for name, given in GIVEN.items():
        *done, cut_short = then["batches"][name]
        found = old.read_in(spark, old_node.url, given, tmp_path / name, maxRowsPerBatch=8)
        assert found[0] == cut_short, "the cut of the last batch is that of the checkpoint"
        assert len(found) > 1
        assert sorted(row for rows in [*done, *found] for row in rows) == everything(name, 25)
    # The lake has the micro-batch that runs again, under its number.
    lake = str(tmp_path / "lake")
    again = archive(spark, old_node.url, "moves", lake, rows_per_batch=8)
    assert (again.repeated, again.messages, again.lake_messages) == (1, 5, 25)

    # Then the format level is raised, and all go on.
    assert asyncio.run(raised(old_node.url)) == FORMAT_LEVEL
    with sync.connect(old_node.url) as w:
        for topic in ("rows", "moves", "more"):
            w.publish(topic, f"{topic} 25", partition=0 if topic == "more" else 1)
    for name, given in GIVEN.items():
        found = old.read_in(spark, old_node.url, given, tmp_path / name)
        new = [row for row in everything(name, 26) if row[2].endswith("25")]
        assert [sorted(rows) for rows in found] == [new]
    archive(spark, old_node.url, "moves", lake)
    kept = read(spark, lake).select("partition", "offset", "value").collect()
    assert sorted([r.partition, r.offset, bytes(r.value).decode()] for r in kept) == everything(
        "total", 26
    )
