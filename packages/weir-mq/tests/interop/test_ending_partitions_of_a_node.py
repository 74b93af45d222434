"""`weir topic end-partition` on a real node of several shards, under load and while one reads."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from weir import sync
from weir.model.topic import partition_for
from weir.testing.nodes import Node, start_node

SMALL: dict[str, Any] = {"segment_mib": 32, "spares": 0, "budget_mib": 66, "cache_mib": 4}
PARTITIONS = 4
ENDING = 2
KEYS = [b"k%d" % n for n in range(40)]
MESSAGES = 3_000


def start(folder: Path, shards: int) -> Node:
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    return start_node(folder / "data", folder / "scratch", shards=shards, logs=PARTITIONS, **SMALL)


def weir(node: Node, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "weir.cli", *arguments, "--url", node.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Load(threading.Thread):
    """Publishes by key, and tells when it has sent a third."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.third = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with sync.connect(self._url) as w, w.producer("t", linger=0.001) as producer:
                for number in range(MESSAGES):
                    producer.send(b"%d" % number, key=KEYS[number % len(KEYS)])
                    if number == MESSAGES // 3:
                        self.third.set()
                    if number % 50 == 0:
                        producer.flush()
        except Exception as error:
            self.error = error
            self.third.set()


def test_a_reader_in_order_gets_all_and_goes_on(tmp_path: Path) -> None:
    node = start(tmp_path, 3)
    try:
        with sync.connect(node.url) as w:
            w.create_topic("t", PARTITIONS, order="total")
            load, followed = Load(node.url), list[Any]()
            with w.reader("t") as reader:
                load.start()
                load.third.wait(60)
                told = weir(node, "topic", "end-partition", "t", str(ENDING))
                assert told == "partition 2 of t has ended; 3 take messages\n"
                for message in reader:
                    followed.append(message)
                    if len(followed) == MESSAGES:
                        break
            load.join(60)
            assert load.error is None
            found = json.loads(weir(node, "topic", "describe", "t", "--json"))["topic"]
            assert [row["state"] for row in found["partitions"]] == [
                "open",
                "open",
                "ended",
                "open",
            ]
            with w.reader("t", follow=False) as again:
                assert [*again] == followed
    finally:
        node.kill()
    places = [(m.stamp, m.partition, m.offset) for m in followed]
    assert places == sorted(set(places))
    assert sorted(int(m.value) for m in followed) == [*range(MESSAGES)]
    for key in KEYS:
        mine = [m for m in followed if m.key == key]
        assert [int(m.value) for m in mine] == sorted(int(m.value) for m in mine)
        home = partition_for(key, PARTITIONS)
        moved = [home] * (home != ENDING) or [ENDING, partition_for(key, PARTITIONS, {ENDING})]
        assert {m.partition for m in mine} <= {*moved}
    assert any(m.partition == ENDING for m in followed)
    with start(tmp_path, 2) as again, sync.connect(again.url) as w:
        assert w.describe("t").closed == {ENDING}
        w.publish("t", b"after", key=next(k for k in KEYS if partition_for(k, 4) == ENDING))
        with w.reader("t", follow=False) as last:
            assert [m.value for m in last][-1] == b"after"
