"""What Spark's source asks of three real nodes: each leader for its partitions, or the nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir import sync
from weir.protocol.client import messages as m
from weir.spark import blocking_client
from weir.spark.blocking_client import BlockingClient
from weir.spark.fetcher import record_batches
from weir.spark.options import Options
from weir.spark.stream import Stream
from weir.testing.nodes import NodeSet, Patient

PARTITIONS = 12
EACH = 40


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeSet]:
    found = NodeSet(tmp_path, 3, 1)
    try:
        found.start(Patient())
        yield found
    finally:
        blocking_client.forget_all()
        found.stop()


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, m.Fetch]]:
    """Fill up with what is fetched, and the node that is asked."""
    found: list[tuple[int, m.Fetch]] = []
    honest = BlockingClient.requests

    def requests(
        client: BlockingClient, asked: list[m.Request], wait: float = 0.0
    ) -> list[m.Reply]:
        found.extend((client.welcome.node, one) for one in asked if isinstance(one, m.Fetch))
        return honest(client, asked, wait)

    monkeypatch.setattr(BlockingClient, "requests", requests)
    return found


def read(stream: Stream, options: Options) -> list[bytes]:
    """Return the values of one micro-batch that takes all there is."""
    begin = stream.initial()
    values: list[bytes] = []
    for portion in stream.portions(begin, stream.latest(begin)):
        for batch in record_batches(portion, options.fetch_bytes_max):
            values += batch.column("value").to_pylist()
    return values


def test_tasks_ask_each_leader_or_the_nearest_node_and_go_on_without_it(
    nodes: NodeSet, fetches: list[tuple[int, m.Fetch]]
) -> None:
    with sync.connect(nodes.url, request_timeout=20.0) as w:
        w.create_topic("t", PARTITIONS, "total")
        for partition in range(PARTITIONS):
            for number in range(EACH):
                w.publish("t", b"%d.%d" % (partition, number), partition=partition)
    expected = sorted(b"%d.%d" % (p, n) for p in range(PARTITIONS) for n in range(EACH))
    options = Options.parse({"topic": "t", "url": nodes.url})
    assert sorted(read(Stream(options), options)) == expected
    # How many each one leads depends on elections, which a busy machine may have had.
    asked = Counter(node for node, _ in fetches)
    assert set(asked) == {1, 2, 3}
    assert len({fetch.address.group for _, fetch in fetches}) == PARTITIONS
    assert all(node == fetch.address.node for node, fetch in fetches)

    fetches.clear()
    near = Options.parse({"topic": "t", "url": nodes.url, "readFrom": "nearest"})
    assert sorted(read(Stream(near), near)) == expected
    assert len({node for node, _ in fetches}) == 1
    assert all(fetch.replica for _, fetch in fetches)

    # A node that goes takes its partitions to others, and nothing of them is missing.
    victim = next(iter({node for node, _ in fetches}))
    nodes.kill([victim])
    for one in (options, near):
        assert sorted(read(Stream(one), one)) == expected
