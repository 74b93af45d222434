"""Queries over a topic in total order: every cut holds what was stamped up to it, in all
partitions, whoever reads, in whichever portions, and again after kill -9.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import weir
from weir.server.interpreter import environment

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

HERE = Path(__file__).parent
PARTITIONS = 3
BATCHES = 400
PER_BATCH = 20
LIMIT = 2_000


def beside(name: str) -> ModuleType:
    """Import a file of this folder, which is no package."""
    spec = util.spec_from_file_location(f"cuts_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Gate = beside("gate").Gate


def publish(url: str, topic: str, batches: int, seed: int) -> None:
    """Publish batches to partitions by chance, so that their stamps are interleaved."""
    dice = random.Random(seed)

    async def work() -> None:
        async with AsyncExitStack() as stack:
            w = await stack.enter_async_context(weir.connect(url))
            await w.create_topic(topic, PARTITIONS, order="total")
            producers = [
                await stack.enter_async_context(w.producer(topic, partition=partition))
                for partition in range(PARTITIONS)
            ]
            for number in range(batches):
                producer = dice.choice(producers)
                rows = [b"%d/%d " % (number, i) + bytes(90) for i in range(PER_BATCH)]
                await producer.send_many(rows)
                await producer.flush()

    asyncio.run(work())


def in_order(url: str, topic: str) -> list[tuple[int, int, int]]:
    """Return (stamp, partition, offset) of all messages, as a reader in total order gets them."""

    async def work() -> list[tuple[int, int, int]]:
        async with weir.connect(url) as w, w.reader(topic, follow=False) as reader:
            assert reader.order == "total"
            return [(x.stamp, x.partition, x.offset) async for x in reader]

    return asyncio.run(work())


def cuts(folder: Path) -> list[dict[str, Any]]:
    """Return the cuts of a checkpoint, in the order of its micro-batches."""
    files = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
    return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def check(folder: Path, order: list[tuple[int, int, int]], until: int) -> list[int]:
    """Return how many rows lie before each cut, all of which must be pieces of the one order."""
    sizes = []
    for cut in cuts(folder):
        before = {(p, o) for s, p, o in order if s <= cut["s"]}
        assert {p: len([x for x in before if x[0] == p]) for p in range(PARTITIONS)} == {
            int(p): offset for p, offset in cut["p"].items()
        }
        sizes.append(len(before))
    assert sizes[-1] == until
    assert sizes == sorted(set(sizes))
    return sizes


def rows(stream: Stream, folder: Path) -> list[tuple[int, int, int]]:
    found = stream.spark.read.parquet(str(folder / "out")).select("stamp", "partition", "offset")
    return sorted(tuple(row) for row in found.collect())


@pytest.mark.timeout(240)
def test_any_queries_and_a_replay_after_a_kill_see_the_same_cuts(
    stream: Stream, node: Node, tmp_path: Path
) -> None:
    publish(node.url, stream.topic, BATCHES, seed=1)
    whole, steps, killed = (tmp_path / name for name in ("whole", "steps", "killed"))

    def drain(folder: Path, **options: object) -> None:
        folder.mkdir(exist_ok=True)
        query = type(stream)(stream.spark, node.url, stream.topic, folder).start(**options)
        assert query.awaitTermination(110)

    drain(whole)
    drain(steps, maxRowsPerBatch=LIMIT)
    killed.mkdir()
    # The first micro-batch asks for all there is, 0.9 MB; the second for what is left, and does
    # not get it.
    with Gate(node.port, hold_after=1_250_000) as gate:
        driver = subprocess.Popen(
            [sys.executable, str(HERE / "drain_topic.py"), gate.url, stream.topic, str(killed),
             str(LIMIT)],
            env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert driver.stdout is not None
        jvm = int(driver.stdout.readline())
        try:
            assert gate.held.wait(110)
        finally:
            os.kill(jvm, signal.SIGKILL)
            driver.kill()
            driver.wait(20)
            driver.stdout.close()
    begun = cuts(killed)
    done = len([*(killed / "checkpoint" / "commits").glob("[0-9]*")])
    assert len(begun) == done + 1, "the kill was to hit a batch that is begun and not done"
    drain(killed, maxRowsPerBatch=LIMIT)
    assert cuts(killed)[: len(begun)] == begun

    order = in_order(node.url, stream.topic)
    assert order == sorted(order)
    total = BATCHES * PER_BATCH
    assert check(whole, order, total) == [total]
    assert len(check(steps, order, total)) >= total // LIMIT
    check(killed, order, total)
    for folder in (whole, steps, killed):
        assert rows(stream, folder) == order

    # What comes later comes behind the cut that all of them ended at.
    publish(node.url, stream.topic, 5, seed=2)
    drain(whole)
    drain(steps)
    order = in_order(node.url, stream.topic)
    more = total + 5 * PER_BATCH
    assert check(whole, order, more)[-2:] == [total, more]
    assert check(steps, order, more)[-2:] == [total, more]


def test_a_barrier_that_has_more_rows_than_the_limit_is_taken_whole(
    stream: Stream, node: Node
) -> None:
    publish(node.url, stream.topic, 6, seed=3)
    drained = stream.drain(maxRowsPerBatch=PER_BATCH // 2)
    assert drained.batches == [PER_BATCH] * 6
