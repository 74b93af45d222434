"""A Spark query goes on under a checkpoint that an earlier release wrote."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from weir import sync
from weir.testing.nodes import Node, start_node


def beside() -> ModuleType:
    path = Path(__file__).parents[1] / "data" / "old_data.py"
    spec = util.spec_from_file_location("old_data_for_spark", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


old = beside()


@pytest.fixture
def old_node(tmp_path: Path) -> Iterator[Node]:
    old.unpack(tmp_path, "node", "checkpoint")
    with start_node(tmp_path / "node", tmp_path, **old.SETTINGS) as node:
        yield node


def test_a_query_reads_its_last_batch_again_and_then_what_it_has_not_read(
    spark: SparkSession, old_node: Node, tmp_path: Path
) -> None:
    then = old.manifest()["node"]
    *done, cut_short = then["batches"]
    read = [row for rows in done for row in rows]
    unread = [
        [row[0], row[1], row[7]]
        for row in then["seen"]["rows"]
        if [row[0], row[1], row[7]] not in [*read, *cut_short]
    ]
    assert len(unread) == 10
    checkpoint = tmp_path / "checkpoint"
    found = old.read_in(spark, old_node.url, "rows", checkpoint, maxRowsPerBatch=16)
    assert found == [cut_short, unread], "the cut of the last batch is that of the checkpoint"
    with sync.connect(old_node.url) as w:
        receipt = w.publish("rows", b"row 50", partition=0)
    found = old.read_in(spark, old_node.url, "rows", checkpoint)
    assert found == [[[0, receipt.offset, "row 50"]]]
    by_number = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    told = ['"l": 0' in path.read_text(encoding="utf-8") for path in by_number]
    assert told == [False] * len(then["batches"]) + [True] * 2, "older ones have no lineages"
