"""Consumer clusters of processes that are killed, over a node that is killed."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import weir
from rigs.consuming import take
from weir.server.interpreter import environment, python
from weir.testing.nodes import Node, running_node, start_node

COUNT = 300
BELOW_A_LEASE_SECONDS = 25
KEYS = 5
KILLS = int(os.environ.get("WEIR_NODE_KILLS", "2"))


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node(segment_mib=32, spares=0, shards=1) as one:
        yield one


@contextmanager
def consumer(node: Node, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `weir sub` until the block ends, however it does."""
    with subprocess.Popen(
        python("weir.cli", "sub", "t", "--cluster", "c", "-o", "json", *arguments),
        stdout=subprocess.PIPE,
        env={**environment(), "WEIR_URL": node.url},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())["value"])


def all_of(process: subprocess.Popen[bytes]) -> list[int]:
    assert process.stdout is not None
    return [int(json.loads(line)["value"]) for line in process.stdout.read().splitlines()]


async def fill(w: weir.client.client.Client, count: int = COUNT, behind: bytes = b"") -> None:
    await w.create_topic("t", partitions=1)
    async with w.producer("t") as producer:
        await producer.send_many(
            [b"%d%b" % (i, behind) for i in range(count)],
            keys=[b"%d" % (i % KEYS) for i in range(count)],
        )


async def until_done(w: weir.client.client.Client) -> None:
    while not (found := await w.clusters("t", "c")) or found[0].lag:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_what_a_killed_consumer_held_goes_to_others_at_once(node: Node, mode: str) -> None:
    """Else it would come with the end of a lease, 30 s later."""

    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(60):
            await fill(w)
            with ExitStack() as stack:
                first = stack.enter_context(consumer(node, "--mode", mode))
                before = [await asyncio.to_thread(next_of, first) for _ in range(5)]
                other = stack.enter_context(consumer(node, "--mode", mode))
                first.send_signal(signal.SIGSTOP)  # it holds what it has, and acks nothing
                first.kill()
                before += await asyncio.to_thread(all_of, first)
                async with asyncio.timeout(BELOW_A_LEASE_SECONDS):
                    await until_done(w)
                other.send_signal(signal.SIGINT)
                after = await asyncio.to_thread(all_of, other)
            assert {*before, *after} == {*range(COUNT)}
            if mode == "ordered":
                assert after == [*range(after[0], COUNT)]
                assert after[0] <= before[-1] + 1
            if mode == "keyed":
                for key in range(KEYS):
                    mine = [number for number in after if number % KEYS == key]
                    assert mine == sorted(mine)

    asyncio.run(scenario())


def test_a_consumer_that_stands_still_costs_the_others_nothing(node: Node) -> None:
    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(60):
            await fill(w, 5, b" " * 20_000)
            with consumer(node) as still:
                # It waits for its reader with the second message, and asks for none meanwhile.
                assert still.stdout is not None
                fcntl.fcntl(still.stdout, fcntl.F_SETPIPE_SZ, 4_096)
                await asyncio.to_thread(next_of, still)
                still.send_signal(signal.SIGSTOP)
                async with w.producer("t") as producer:
                    await producer.send_many([b"%d" % i for i in range(5, COUNT)])
                seen = set()
                async with (
                    asyncio.timeout(BELOW_A_LEASE_SECONDS),
                    w.consumer("t", cluster="c") as other,
                ):
                    while len(seen) < COUNT - 5:
                        number = int((await take(other)).value)
                        seen |= {number} & {*range(5, COUNT)}

    asyncio.run(scenario())


def test_failures_delays_and_order_live_through_a_node_that_is_killed(tmp_path: Path) -> None:
    """Each message is handled, those of a key in order, and none before it is due."""
    seen: dict[int, list[int]] = defaultdict(list)
    due: dict[int, float] = {}

    async def work(url: str) -> None:
        async with (
            weir.connect(url) as w,
            w.consumer("t", cluster="c", mode="keyed", max_messages=20, lease="5s") as consumer,
        ):
            async for message in consumer:
                number = int(message.value)
                assert time.monotonic() >= due.get(number, 0.0)
                if number % 10 == 7 and number not in due:
                    due[number] = time.monotonic() + 0.05
                    await message.nack(delay=0.05, confirmed=True)
                    continue
                seen[number % KEYS].append(number)
                await message.ack()

    async def scenario() -> None:
        node = start_node(tmp_path / "data", tmp_path, segment_mib=32, spares=0, shards=1)
        port, url = node.port, node.url
        try:
            async with weir.connect(url) as w, asyncio.timeout(100):
                await fill(w)
                tasks = [asyncio.create_task(work(url)) for _ in range(2)]
                for kill in range(KILLS):
                    while sum(map(len, seen.values())) < COUNT * (kill + 1) // (KILLS + 2):
                        await asyncio.sleep(0.005)
                    node.kill()
                    node = start_node(
                        tmp_path / "data", tmp_path, segment_mib=32, spares=0, shards=1, port=port
                    )
                await until_done(w)
                for task in tasks:
                    assert not task.done()
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            node.stop()

    asyncio.run(scenario())
    for key in range(KEYS):
        first = [*dict.fromkeys(seen[key])]
        assert first == [*range(key, COUNT, KEYS)], "first times are in order, whatever came again"


def test_a_delay_outlives_a_node_that_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = start_node(tmp_path / "data", tmp_path, segment_mib=32, spares=0, shards=1)
        port = node.port
        try:
            async with weir.connect(node.url) as w, asyncio.timeout(40):
                await w.create_topic("t")
                began = time.monotonic()
                await w.publish("t", b"later", delay="3s")
                await w.publish("t", b"gone", delay="200ms", ttl="300ms")
                await w.publish("t", b"now")
                async with w.consumer("t", cluster="c") as consumer:
                    # Where all of this takes long, the second one may be due by now.
                    while (value := (await take(consumer)).value) == b"gone":
                        pass
                    assert value == b"now"
                    await consumer.flush()
                    node.kill()
                    node = start_node(
                        tmp_path / "data", tmp_path, segment_mib=32, spares=0, shards=1, port=port
                    )
                    while (message := await take(consumer)).value == b"now":
                        pass
                    # A node that was away for long hands it out before it expires: neither is sure.
                    if message.value == b"gone":
                        message = await take(consumer)
                    assert message.value == b"later"
                    assert time.monotonic() - began >= 3.0
        finally:
            node.stop()

    asyncio.run(scenario())
