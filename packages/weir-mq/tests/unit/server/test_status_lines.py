"""The lines a node tells: for people, and for programs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from weir.server.config import StatusConfig
from weir.server.status import JsonLines, TextLines, configure


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def told(config: StatusConfig) -> str:
    stream = io.StringIO()
    configure(config, stream)
    log = logging.getLogger("weir.server.test")
    log.debug("too much")
    log.info("listening on %s:%d", "h", 1, extra={"fields": {"connections": 3, "ts": "mine"}})
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it broke")
    return stream.getvalue()


def test_objects_for_programs() -> None:
    first, second = map(json.loads, told(StatusConfig("json")).splitlines())
    assert first.pop("ts").endswith("+00:00")
    assert first == {
        "level": "info",
        "event": "listening on h:1",
        "from": "weir.server.test",
        "connections": 3,
    }
    assert (second["level"], second["event"]) == ("error", "it broke")
    assert second["trace"].endswith("ValueError: broken")


def test_lines_for_people() -> None:
    lines = told(StatusConfig("text")).splitlines()
    assert lines[0].endswith(" INFO listening on h:1 connections=3 ts=mine")
    assert lines[-1] == "ValueError: broken"


def test_the_level_decides_what_is_told() -> None:
    assert told(StatusConfig("json", "error")).count("\n") == 1


def test_a_line_names_its_shard_and_says_nothing_twice() -> None:
    about = {"fields": {"url": "http://h:1/metrics", "shards": 2, "log": 7}}
    record = logging.makeLogRecord({"msg": "2 shards at http://h:1/metrics", **about})
    text = TextLines(shard=1).format(record)
    assert text.endswith(" shard 1: 2 shards at http://h:1/metrics log=7")
    found = json.loads(JsonLines(shard=1).format(record))
    assert (found["shard"], found["url"], found["log"]) == (1, "http://h:1/metrics", 7)
