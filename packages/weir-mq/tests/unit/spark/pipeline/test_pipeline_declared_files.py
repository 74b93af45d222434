"""What is declared of a pipeline, and what that engine cannot express, by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.errors import BadPipeline
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
