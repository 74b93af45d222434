"""Topics and clusters of a node with several shards, on a real disk, killed and started again."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from weir import sync
from weir.errors import UnknownTopic
from weir.testing.nodes import Node, start_node

SMALL: dict[str, Any] = {"segment_mib": 32, "spares": 0, "budget_mib": 66, "cache_mib": 4}
PARTITIONS = 4
EACH = 25


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "data", tmp_path / "scratch"


def start(folders: tuple[Path, Path], shards: int) -> Node:
    return start_node(*folders, shards=shards, logs=PARTITIONS, **SMALL)


def fill(w: sync.Client, topic: str) -> None:
    with w.producer(topic) as producer:
        for partition in range(PARTITIONS):
            producer.send_many([b"%d" % n for n in range(EACH)], partition=partition)


def test_lag_is_what_a_full_count_gives_after_a_kill(folders: tuple[Path, Path]) -> None:
    done: set[tuple[int, int]] = set()
    for shards, moves in ((2, 6), (3, 5)):
        node = start(folders, shards)
        try:
            with sync.connect(node.url) as w:
                if not done:
                    w.create_topic("t", PARTITIONS)
                    fill(w, "t")
                with w.consumer("t", cluster="crew", max_messages=3) as consumer:
                    for grant in islice(consumer.batches(), moves):
                        assert grant.ack(confirmed=True)
                        offsets = range(grant.offset, grant.next_offset)
                        done |= {(grant.partition, offset) for offset in offsets}
                (crew,) = w.clusters("t")
                assert crew.lag == PARTITIONS * EACH - len(done)
        finally:
            node.kill()
    with start(folders, 1) as node, sync.connect(node.url) as w:
        (crew,) = w.clusters("t")
        assert crew.lag == PARTITIONS * EACH - len(done)
        assert w.seek_cluster("t", "crew", "latest").lag == 0


def test_topics_are_altered_and_deleted_on_all_shards(folders: tuple[Path, Path]) -> None:
    node = start(folders, 2)
    try:
        with sync.connect(node.url) as w:
            for name in ("gone", "kept"):
                w.create_topic(name, PARTITIONS)
                fill(w, name)
            waiting = w.reader("gone", start="latest").open()
            w.alter_topic("kept", partitions=PARTITIONS + 3, retention="forever")
            for partition in range(PARTITIONS + 3):
                assert w.publish("kept", b"after", partition=partition).partition == partition
            w.delete_topic("gone")
            with pytest.raises(UnknownTopic):
                next(iter(waiting))
            with pytest.raises(UnknownTopic):
                w.publish("gone", b"x")
    finally:
        node.kill()
    with start(folders, 3) as node, sync.connect(node.url) as w:
        assert [info.name for info in w.topics()] == ["kept"]
        assert w.describe("kept").settings.retention_ms == 0
        starts, ends = w.positions("kept")
        assert sum(ends) - sum(starts) == PARTITIONS * EACH + PARTITIONS + 3
        made = w.create_topic("gone", 2)
        assert w.positions("gone") == ([0, 0], [0, 0])
        assert made.id > 2
