"""What is declared of a pipeline, and what that engine cannot express, by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from weir.cli.main import main
from weir.errors import BadPipeline
from weir.spark.lake.tables import Account, Table
from weir.spark.pipeline import declared, plan

LEAST = """
url = "weir://localhost:6800"
[bronze.events]
topics = ["locks"]
[silver.locks]
topic = "locks"
schema = "topic"
"""
SINK = '\n[sinks.s]\nsql = "sqlite:///r.db"\n'


def test_files_are_written_that_name_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / plan.FILE).write_text(LEAST)
    assert main(["pipeline", "declare", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "weir.pipeline-declare/1"
    specification, program = map(Path, told["files"])
    assert specification == tmp_path / "declared" / "spark-pipeline.yml"
    text = specification.read_text()
    assert f"storage: file://{tmp_path}/checkpoints/declared\n" in text
    assert f"declare(Path({str(tmp_path)!r}))" in program.read_text()
    compile(program.read_text(), str(program), "exec")
    # Written again, they are the same.
    assert declared.write(tmp_path) == [specification, program]
    assert specification.read_text() == text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["locks"]', '["locks", "keys"]', "bronze.events: .* several topics that end at one cut"),
        ('["locks"]', '["locks"]\non_data_loss = "earliest"', "bronze.events: .* gaps that are"),
        ('"topic"\n', '"topic"\nto = ["s"]\n' + SINK, "silver.locks: .* SQL by the number of the"),
        (
            '"topic"\n',
            '"topic"\nto = ["s"]\n' + SINK.replace('sql = "sqlite:///r.db"', 'topic = "t"'),
            "silver.locks: .* a topic by the number of the micro-batch",
        ),
        (
            '"topic"\n',
            '"topic"\n[gold.seen]\nfrom = ["locks"]\n',
            "gold.seen: .* cannot express windows .* and sessions: take it out",
        ),
    ],
)
def test_what_cannot_be_declared_is_refused_by_name(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    (tmp_path / plan.FILE).write_text(LEAST.replace(old, new, 1))
    with pytest.raises(BadPipeline, match=words):
        declared.write(tmp_path)
    assert not (tmp_path / declared.FOLDER).exists()


@pytest.mark.parametrize("flow", ["locks", "locks_bad"])
def test_a_flow_that_would_add_all_rows_again_is_refused(tmp_path: Path, flow: str) -> None:
    (tmp_path / plan.FILE).write_text(LEAST)
    found = plan.read(tmp_path)
    folder = {"locks": found.table_of("silver", "locks"), "locks_bad": found.quarantine_of("locks")}
    columns = StructType([StructField("n", LongType())])
    tables = {name: Table(path, columns) for name, path in folder.items()}
    # Without a micro-batch there is nothing that could come twice.
    declared.check_tables(found)

    tables[flow].add("query", 0, [], Account(0, 7, 3, rows=3))
    words = f"step locks: {folder[flow]} has rows, and .* no checkpoint of the flow {flow}, "
    with pytest.raises(BadPipeline, match=words):
        declared.declare(tmp_path)
    own = found.checkpoints / "declared" / "_checkpoints" / f"{flow}_table" / flow
    # A checkpoint of the other flow, or one of `weir pipeline run`, is none of this flow.
    other = "locks_bad" if flow == "locks" else "locks"
    for path in (own.parents[1] / f"{other}_table" / other / "0", found.checkpoint_of("locks")):
        (path / "offsets").mkdir(parents=True)
        (path / "offsets" / "0").touch()
    with pytest.raises(BadPipeline, match=words):
        declared.check_tables(found)
    (own / "9" / "offsets").mkdir(parents=True)
    (own / "9" / "offsets" / "0").touch()
    declared.check_tables(found)
    # A full refresh that was stopped has a newer one, which the flow would begin by.
    (own / "10").mkdir()
    with pytest.raises(BadPipeline, match=words):
        declared.check_tables(found)
