"""Values without a limit: streamed in, streamed out, a publisher killed midway, bounded memory.

WEIR_VALUE_MIB=1024 for a gibibyte; the node's memory must not grow with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.errors import TooLarge
from weir.model.limits import MIB
from weir.model.message import LargeMessage
from weir.spark.blocking_client import BlockingClient, forget
from weir.spark.fetcher import Portion, Source, record_batches
from weir.spark.planning import Range
from weir.testing.nodes import Node, running_node, start_node

VALUE_MIB = int(os.environ.get("WEIR_VALUE_MIB", "64"))
#: What a node may take more than before; less than the value itself, whatever its size.
GROWTH_BYTES = min(64, VALUE_MIB * 3 // 4) * MIB
PIECE = 192 * 1024 + 7

KILLED = """
import asyncio, sys
import weir
from weir.model.limits import MIB

async def half(mib):
    for _ in range(mib):
        yield bytes(MIB)
    print("half", flush=True)
    await asyncio.sleep(600)  # killed long before

async def main():
    async with weir.connect(sys.argv[1]) as w, w.producer("t") as producer:
        await producer.publish_from(half(int(sys.argv[2])), key="k")

asyncio.run(main())
"""


def pieces(mib: int, seed: int = 1) -> Iterator[bytes]:
    dice, left = random.Random(seed), mib * MIB
    while left:
        size = min(PIECE, left)
        yield dice.randbytes(size)
        left -= size


def digest(parts: Iterator[bytes]) -> str:
    whole = hashlib.blake2b()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


async def streamed(message: weir.Message) -> str:
    whole = hashlib.blake2b()
    async for part in message.chunks():
        whole.update(part)
    return whole.hexdigest()


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 where the system does not tell it this way."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return 0
    (line,) = (x for x in status.read_text(encoding="ascii").splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def kill_a_publisher_midway(node: Node) -> None:
    source = str(Path(weir.__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, node.url, str(VALUE_MIB // 2)],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
    finally:
        child.kill()
        child.wait(10)
        assert child.stdout is not None
        child.stdout.close()


async def read_both_ways(node: Node, cluster: str) -> AsyncIterator[weir.Message]:
    async with weir.connect(node.url) as w:
        async for message in w.reader("t", follow=False, value_bytes_max=MIB):
            yield message
        async with w.consumer("t", cluster=cluster, value_bytes_max=MIB) as consumer:
            for _ in range(3):
                yield await anext(consumer)


@pytest.mark.timeout(120 + VALUE_MIB)
def test_a_value_of_any_size_arrives_though_its_first_publisher_was_killed(
    tell: Callable[..., None],
) -> None:
    async def body(node: Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("t")
            await w.publish("t", b"before")
        before = peak_bytes(node.pid)
        await asyncio.to_thread(kill_a_publisher_midway, node)
        async with weir.connect(node.url) as w, w.producer("t", compression="lz4") as producer:
            large = await producer.publish_from(
                pieces(VALUE_MIB), key="k", tag="blue", headers={"h": b"1"}
            )
            small = await producer.publish(b"after")
        assert (large.offset, small.offset) == (1, 2)
        expected = digest(pieces(VALUE_MIB))
        messages = [message async for message in read_both_ways(node, "c")]
        assert [message.offset for message in messages] == [0, 1, 2] * 2
        for message in (messages[1], messages[4]):
            assert isinstance(message, LargeMessage)
            assert (message.size, message.key, message.tag) == (VALUE_MIB * MIB, b"k", "blue")
            assert message.headers == {"h": b"1"}
        async with weir.connect(node.url) as w:
            async for message in w.reader("t", start={0: 1}, follow=False, value_bytes_max=MIB):
                if message.offset == 1:
                    assert await streamed(message) == expected
        grown = peak_bytes(node.pid) - before
        tell(value_mib=VALUE_MIB, grown_mib=grown / MIB)
        assert grown < GROWTH_BYTES

    with running_node(cache_mib=8) as node:
        asyncio.run(body(node))


def test_what_fits_in_memory_is_loaded_and_what_does_not_says_how_to_stream_it() -> None:
    value = b"".join(pieces(9))
    view = memoryview(value)

    async def body(node: Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("t", partitions=2)
            receipts = await asyncio.gather(
                w.publish("t", value, partition=1),
                w.publish("t", view[:-1], partition=1),
                w.publish("t", b"small", partition=1),
            )
            assert sorted(receipt.offset for receipt in receipts) == [0, 1, 2]
            values = {
                receipt.offset: size for receipt, size in zip(receipts, (0, -1, 5), strict=True)
            }
            async for message in w.reader("t", follow=False):
                size = values[message.offset]
                assert message.value == (b"small" if size == 5 else value[: len(value) + size])
                assert await message.read() == message.value
            consumer = w.consumer("t", cluster="c")
            async with consumer:
                taken = [await anext(consumer) for _ in range(3)]
            assert sorted(len(message.value) for message in taken) == [
                5,
                len(value) - 1,
                len(value),
            ]
            reader = w.reader("t", start={1: receipts[0].offset}, follow=False, value_bytes_max=99)
            message = await anext(reader)
            with pytest.raises(TooLarge, match="stream it with `async for"):
                _ = message.value
            assert await message.read() == value
            await reader.close()

    with running_node() as node:
        asyncio.run(body(node))


def test_compressed_batches_arrow_and_large_values_meet_in_spark_s_columns() -> None:
    value = b"".join(pieces(9))
    rows = pa.RecordBatch.from_pydict(
        {"value": [b"row %d, again and again" % n for n in range(5_000)], "key": ["k"] * 5_000}
    )

    async def publish(node: Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("t")
            async with w.producer("t", compression="zstd", level=1) as producer:
                confirmed = await producer.publish_arrow(rows)
                assert sum(done.count for done in confirmed) == rows.num_rows
                await producer.publish(value, key="large")

    with running_node() as node:
        asyncio.run(publish(node))
        hosts = ((node.host, node.port),)
        with BlockingClient(node.host, node.port) as client:
            source = Source(hosts, "t", client.describe("t").addresses[0])
        portion = Portion(source, Range(0, 0, 5_001))
        found = pa.Table.from_batches(record_batches(portion, 1 << 20))
        forget(hosts)
    assert found["value"].to_pylist() == [*rows["value"].to_pylist(), value]
    assert set(found["key"].to_pylist()) == {b"k", b"large"}
    assert found["offset"].to_pylist() == [*range(5_001)]


def test_a_value_survives_kill_9_of_the_node_while_it_grows(tmp_path: Path) -> None:
    folder, mib = tmp_path / "data", 24
    nodes = [start_node(folder, tmp_path)]
    port = nodes[0].port

    def kill_and_start() -> None:
        nodes[-1].kill()
        nodes.append(start_node(folder, tmp_path, port=port))

    async def interrupted() -> AsyncIterator[bytes]:
        for number, piece in enumerate(pieces(mib)):
            if number == 60:
                await asyncio.to_thread(kill_and_start)
            yield piece

    async def body() -> None:
        async with weir.connect(nodes[0].url) as w:
            await w.create_topic("t")
            async with w.producer("t") as producer:
                receipt = await producer.publish_from(interrupted())
            (message,) = [message async for message in w.reader("t", follow=False)]
            assert message.offset == receipt.offset == 0
            assert digest(iter([message.value])) == digest(pieces(mib))

    try:
        asyncio.run(body())
        nodes[-1].stop()
    finally:
        nodes[-1].kill()
    assert len(nodes) == 2
