"""`weir sink`: what it lists, and what it forgets."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from weir import sync, testing
from weir.cli.main import main
from weir.testing import Node


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one, sync.connect(one.url) as w:
        w.create_topic("report")
        for query, batch in (("nightly", 3), ("hourly", 7)):
            sink = w.sink(query)
            writer = sink.writer(batch)
            writer.write("report", pa.RecordBatch.from_pydict({"value": [b"a"]}))
            sink.publish(batch, writer.finish())
        yield one


def said(capsys: pytest.CaptureFixture[str], node: Node, *arguments: str) -> tuple[int, str]:
    code = main([*arguments, "--url", node.url])
    captured = capsys.readouterr()
    return code, captured.out


def test_it_lists_queries_by_their_names(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, node, "sink", "list", "report")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == ["QUERY", "LAST", "BATCH", "PUBLISHED"]
    assert [line[:2] for line in lines[1:3]] == [["hourly", "7"], ["nightly", "3"]]
    code, out = said(capsys, node, "sink", "list", "report", "--json")
    shown = json.loads(out)
    assert (code, shown["schema"]) == (0, "weir.sinks/1")
    known = [(one["query"], one["batch"]) for one in shown["sinks"]]
    assert known == [("hourly", 7), ("nightly", 3)]
    assert all(one["stamp"] >> 16 == one["published_ms"] > 0 for one in shown["sinks"])


def test_what_is_forgotten_is_not_listed(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, node, "sink", "forget", "report", "hourly", "--yes")
    assert (code, out) == (0, "query hourly is forgotten in report\n")
    code, out = said(capsys, node, "sink", "forget", "report", "hourly", "--yes", "--json")
    assert (code, json.loads(out)["was_known"]) == (0, False)
    code, out = said(capsys, node, "sink", "forget", "report", "hourly", "--yes")
    assert out.startswith("query hourly has published nothing to report")
    _, out = said(capsys, node, "sink", "forget", "report", "nightly", "--yes")
    _, out = said(capsys, node, "sink", "list", "report")
    assert out == "no query has published to report\n"


def test_it_asks_before_it_forgets(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("another\n"))
    code, _ = said(capsys, node, "sink", "forget", "report", "hourly")
    assert code == 1
    _, out = said(capsys, node, "sink", "list", "report", "--json")
    assert len(json.loads(out)["sinks"]) == 2
