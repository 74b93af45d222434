"""One order over the shards of a real node: what is visible, growth, a restart after kill -9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weir import sync
from weir.testing.nodes import Node, start_node

SMALL: dict[str, Any] = {"segment_mib": 32, "spares": 0, "budget_mib": 66, "cache_mib": 4}
PARTITIONS = 6


def start(folder: Path, shards: int) -> Node:
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    return start_node(folder / "data", folder / "scratch", shards=shards, logs=PARTITIONS, **SMALL)


def publish(w: sync.Client, count: int, ack: str = "visible") -> list[int]:
    """Publish one message to each of the first partitions; return their stamps."""
    stamps: list[int] = []
    with w.producer("t", ack=ack, on_confirm=lambda c: stamps.append(c.stamp)) as producer:
        for partition in range(count):
            producer.send_many([b"%d" % partition], partition=partition)
            producer.flush()
    return stamps


def test_what_is_visible_has_nothing_to_come_before_it(tmp_path: Path) -> None:
    node = start(tmp_path, 3)
    try:
        with sync.connect(node.url) as w:
            w.create_topic("t", PARTITIONS - 1)
            stamps = publish(w, PARTITIONS - 1)
            assert stamps == sorted(stamps), "each was sent when nothing could come before the last"
            w.alter_topic("t", partitions=PARTITIONS)
            grown = publish(w, PARTITIONS)
            assert grown == sorted(grown)
            assert grown[0] > stamps[-1]
    finally:
        node.kill()
    with start(tmp_path, 2) as again, sync.connect(again.url) as w:
        after = publish(w, PARTITIONS)
        assert after == sorted(after)
        assert after[0] > grown[-1]
