"""Every program of examples/spark, and README's, runs in a real Spark and prints what is shown."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from weir import sync

if TYPE_CHECKING:
    from rigs.spark_node import Node

ROOT = Path(__file__).parents[4]
PROGRAMS = sorted((ROOT / "examples" / "spark").glob("*.py"))
URL = "weir://localhost:6800"
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_prints_what_the_page_shows(
    spark: SparkSession,
    node: Node,
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with sync.connect(node.url) as client:  # each program makes topics of its own
        for topic in client.topics():
            client.delete_topic(topic.full_name)
    code = program.read_text(encoding="utf-8").replace(URL, node.url)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(program), "exec"), {"__name__": "example"})
    assert out.getvalue() == program.with_suffix(".txt").read_text(encoding="utf-8")


def test_the_page_shows_each_program() -> None:
    page = (ROOT / "docs/how-to/spark.md").read_text(encoding="utf-8")
    assert "```python" not in page
    shown = set(re.findall(r"\{literalinclude\} \.\./\.\./examples/spark/(\w+)\.py", page))
    assert shown == {path.stem for path in PROGRAMS}


def test_the_query_of_the_readme_has_the_columns_it_names(spark: SparkSession) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = (one for one in _FENCE.findall(text) if "weir.spark" in one)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    named = re.search(r"as a stream with the columns ([\w, ]+):", text)
    assert named is not None
    assert names["rows"].columns == named[1].split(", ")
