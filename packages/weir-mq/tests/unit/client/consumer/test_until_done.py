"""Messages go once clusters have acknowledged them, where a topic says so (S1.11)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weir import sync, testing
from weir.errors import BadName, BadRequest

#: Seconds after which every partition was looked at, twice: cursors are told with the first look.
SWEEPS = 31


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as one:
        yield one


def publish(w: sync.Client, topic: str, *values: bytes) -> None:
    for value in values:  # each an entry of its own
        w.publish(topic, value, key=value)


def consume(
    w: sync.Client, topic: str, cluster: str, count: int, mode: str = "shared"
) -> list[bytes]:
    values = []
    with w.consumer(topic, cluster=cluster, mode=mode) as consumer:
        while len(values) < count:
            message = next(consumer)
            values.append(message.value)
            message.ack(confirmed=True)
    return values


def sweep(node: testing.Node, times: int = 2) -> None:
    for _ in range(times):
        node.advance(SWEEPS)


def kept(w: sync.Client, topic: str) -> list[tuple[int, int]]:
    starts, ends = w.positions(topic)
    return list(zip(starts, ends, strict=True))


def test_what_a_named_cluster_has_done_goes(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("bills", until_done=["billing"])
        publish(w, "bills", b"a", b"b", b"c", b"d")
        consume(w, "bills", "audit", 4)
        sweep(node)
        assert kept(w, "bills") == [(0, 4)], "billing has not begun"
        assert consume(w, "bills", "billing", 3) == [b"a", b"b", b"c"]
        sweep(node)
        assert kept(w, "bills") == [(3, 4)]
        assert consume(w, "bills", "billing", 1) == [b"d"]
        sweep(node)
        assert kept(w, "bills") == [(4, 4)]


def test_every_cluster_there_is_must_be_done(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("bills", until_done=["*"])
        publish(w, "bills", b"a", b"b", b"c")
        sweep(node)
        assert kept(w, "bills") == [(0, 3)], "there is no cluster"
        consume(w, "bills", "billing", 3)
        consume(w, "bills", "audit", 2)
        sweep(node)
        assert kept(w, "bills") == [(2, 3)]
        w.delete_cluster("bills", "audit")
        sweep(node)
        assert kept(w, "bills") == [(3, 3)]


def test_age_and_size_are_outer_bounds(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("old", until_done=["billing"], retention="1s")
        w.create_topic("large", until_done=["billing"], retention_bytes=1_000)
        for topic in ("old", "large"):
            publish(w, topic, *[b"%02d" % n + bytes(500) for n in range(10)])
        sweep(node)
        assert kept(w, "old") == [(10, 10)]
        ((start, end),) = kept(w, "large")
        assert 6 <= start < end == 10


def test_it_survives_a_restart_and_is_switched_off(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("bills")
        w.alter_topic("bills", until_done=["audit", "billing"])
        node.restart()
        assert (w.describe("bills")).settings.until_done == ("audit", "billing")
        publish(w, "bills", b"a")
        w.alter_topic("bills", until_done=[])
        consume(w, "bills", "audit", 1)
        consume(w, "bills", "billing", 1)
        sweep(node)
        assert kept(w, "bills") == [(0, 1)]


@pytest.mark.parametrize("until_done", [["crew"], ["*"], ["crew", "desk"]])
def test_a_cluster_in_total_order_counts_in_every_partition(
    node: testing.Node, until_done: list[str]
) -> None:
    values = [b"%02d" % n for n in range(12)]
    with sync.connect(node.url) as w:
        w.create_topic("moves", partitions=3, order="total", until_done=until_done)
        publish(w, "moves", *values)
        consume(w, "moves", "desk", 12)
        ends = [end for _, end in kept(w, "moves")]
        assert min(ends) > 1
        if until_done != ["*"]:
            sweep(node)
            assert kept(w, "moves") == [(0, end) for end in ends], "crew has not begun"
        seen = consume(w, "moves", "crew", 5, mode="ordered")
        sweep(node)
        starts = [start for start, _ in kept(w, "moves")]
        if until_done == ["*"]:
            assert sum(starts) >= 5, "crew might have begun after desk's messages went"
        else:
            assert sum(starts) == 5
        assert seen == values[:5]
        consume(w, "moves", "crew", 7, mode="ordered")
        sweep(node)
        assert kept(w, "moves") == [(end, end) for end in ends]


def test_wrong_clusters_are_refused_with_words(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        with pytest.raises(BadRequest, match="give a list of clusters"):
            w.create_topic("bills", until_done="billing")
        with pytest.raises(BadRequest, match="alone, for every cluster"):
            w.create_topic("bills", until_done=["*", "billing"])
        with pytest.raises(BadName, match="cluster 'b/c' is not allowed"):
            w.create_topic("bills", until_done=["b/c"])
        with pytest.raises(BadRequest, match="64 are allowed"):
            w.create_topic("bills", until_done=[f"c{n}" for n in range(65)])
