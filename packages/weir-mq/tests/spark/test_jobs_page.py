"""The page of the jobs: its commands print what it shows, and its program runs."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from rigs.pages import shown
from weir.cli.main import main
from weir.cli.spark import sessions

if TYPE_CHECKING:
    from rigs.spark_node import Node

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/how-to/jobs.md"
PROGRAM = ROOT / "examples/jobs/read_lake.py"


@pytest.mark.slow  # each job has tests of its own
def test_the_commands_print_what_the_page_shows(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_URL", node.url)
    monkeypatch.setattr(sessions, "WATCH_SECONDS", 0.05)
    told = io.StringIO()
    commands = [*shown(PAGE.read_text(encoding="utf-8"))]
    assert len(commands) == 5
    for line, expected in commands:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
            assert main(shlex.split(line)[1:]) == 0
        assert out.getvalue() == expected, line
    assert re.search(r"^audit: \d+ of [1-9]\d* tasks$", told.getvalue(), re.MULTILINE)
    node.send("locks", [{"value": b"later"}])
    out = io.StringIO()
    code = PROGRAM.read_text(encoding="utf-8").replace("weir://localhost:6800", node.url)
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(PROGRAM), "exec"), {"__name__": "example"})
    assert out.getvalue() == "3 4\n"
    # The verbs leave the session to who has it.
    assert spark.range(3).count() == 3
