"""Spark's option `tags` is asked of the broker, and gives the rows that picking here gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from weir import sync, testing
from weir.protocol.client import messages as m
from weir.spark import blocking_client
from weir.spark.blocking_client import BlockingClient
from weir.spark.fetcher import Portion, record_batches
from weir.spark.options import Latest, Options
from weir.spark.selection import Selection
from weir.spark.topics import topics_of

TAGS = (None, "a", "b", "b", "c", "b", "b", "b")
ROWS = 240


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("t")
            with w.producer("t", linger=0) as producer:
                for batch in range(6):
                    tags = [TAGS[batch if batch < 3 else row % 8] for row in range(40)]
                    producer.send_many([b"%d.%d" % (batch, row) for row in range(40)], tags=tags)
        yield node.url
        blocking_client.forget_all()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[m.Fetched]:
    found: list[m.Fetched] = []
    honest = BlockingClient.requests

    def requests(client: BlockingClient, *asked: object, **named: object) -> list[m.Reply]:
        replies = honest(client, *asked, **named)  # type: ignore[arg-type]
        found.extend(one for one in replies if isinstance(one, m.Fetched))
        return replies

    monkeypatch.setattr(BlockingClient, "requests", requests)
    return found


def portion_of(url: str) -> Portion:
    topics = topics_of(Options.parse({"topic": "t", "url": url}))
    begin, end = (
        topics.begin(Options.parse({"topic": "t", "url": url}).starting),
        topics.until(Latest()),
    )
    (portion,) = topics.portions(begin, end)
    return portion


@pytest.mark.parametrize("tags", [("a",), ("",), ("c", ""), ("x",)])
@pytest.mark.parametrize(("first", "behind"), [(0, ROWS), (125, 133), (165, 200)])
def test_the_rows_are_those_that_picking_gives(
    url: str, answers: list[m.Fetched], tags: tuple[str, ...], first: int, behind: int
) -> None:
    portion = portion_of(url)
    portion = replace(portion, range=replace(portion.range, first=first, behind=behind))
    everything = [row for one in record_batches(portion, 1 << 20) for row in one.to_pylist()]
    assert [row["offset"] for row in everything] == [*range(first, behind)]
    answers.clear()
    selection = Selection(tags=frozenset(tags))
    found = [row for one in record_batches(portion, 1 << 20, selection) for row in one.to_pylist()]
    assert found == [row for row in everything if (row["tag"] or "") in tags]
    assert answers
    assert all(one.is_filtered for one in answers)
