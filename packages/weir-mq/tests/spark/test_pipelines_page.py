"""The page of pipelines: its commands print what it shows, and its files are those of `init`."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from rigs.pages import shown
from weir import sync
from weir.cli.main import main

if TYPE_CHECKING:
    from rigs.spark_node import Node

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/how-to/pipelines.md"
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def printed(line: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(shlex.split(line)[1:])
    return code, out.getvalue()


@pytest.mark.slow  # test_pipeline.py runs such a pipeline, with kills
def test_the_commands_print_what_the_page_shows(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_URL", node.url)
    with sync.connect(node.url) as client:
        for topic in client.topics():
            client.delete_topic(topic.full_name)
    commands = [*shown(PAGE.read_text(encoding="utf-8"))]
    assert len(commands) == 5
    for line, expected in commands:
        code, out = printed(line)
        assert (code, _TIME.sub("TIME", out)) == (0, _TIME.sub("TIME", expected)), line
    for name in ("pipeline.toml", "silver.py"):
        text = (ROOT / "examples/pipelines" / name).read_text(encoding="utf-8")
        there = (tmp_path / "house" / name).read_text(encoding="utf-8")
        assert there == text.replace("weir://localhost:6800", node.url)
    with sync.connect(node.url) as client:
        assert {topic.full_name for topic in client.topics()} == {"locks", "locks.bad"}
        (bad,) = client.reader("locks.bad", follow=False)
        assert (bad.value, bad.key) == (b"rubbish", b"front")
        assert dict(bad.headers) == {
            "reason": b"the value is no JSON of the schema",
            "topic": b"locks",
            "partition": b"1",
            "offset": b"3",
        }

    # Nothing is new: nothing runs, and both verbs say so to programs.
    code, out = printed("weir pipeline run house --once --json")
    told = json.loads(out)
    assert (code, told["schema"]) == (0, "weir.pipeline-run/1")
    assert [(one["step"], one["messages"], one["batches"]) for one in told["steps"]] == [
        ("events", 0, 0), ("locks", 0, 0), ("unlocks", 0, 0), ("sessions", 0, 0),
    ]  # fmt: skip
    code, out = printed("weir pipeline status house --json")
    told = json.loads(out)
    assert (code, told["schema"]) == (0, "weir.pipeline-status/1")
    locks = told["steps"][1]
    assert {name: locks[name] for name in ("rows_in", "rows_out", "bad", "repeated", "lag")} == {
        "rows_in": 4, "rows_out": 2, "bad": 1, "repeated": 1, "lag": 0,
    }  # fmt: skip
    # A step alone.
    node.send("locks", [{"value": b"more rubbish"}])
    code, out = printed("weir pipeline run house --once --json --step events --metrics-port 0")
    assert [(one["step"], one["messages"]) for one in json.loads(out)["steps"]] == [("events", 1)]
    code, out = printed("weir pipeline status house --json")
    assert [one["lag"] for one in json.loads(out)["steps"]] == [0, 1, 0, 0]


def test_what_cannot_be_begun_is_refused(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEIR_URL", node.url)
    assert main(["pipeline", "init", str(tmp_path / "p"), "--topic", "absent"]) == 1
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()
    assert main(["pipeline", "status", str(tmp_path)]) == 1
    assert "weir pipeline init" in capsys.readouterr().err
