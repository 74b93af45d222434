"""`kill -9` of a core node, of a relay of it and of a relay of one tag below that one, while it is
written and read: readers of both relays get what the core holds, each message once, at its offset,
with its stamp, in the core's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.client.client import Client, connect
from weir.testing.nodes import RelayProcess, free_ports, start_node

TOPIC, MESSAGES, TOGETHER = "t", 2_000, 20
#: Partition, offset, stamp, value.
Row = tuple[int, int, int, bytes]


@pytest.fixture
def relays() -> Iterator[list[RelayProcess]]:
    started: list[RelayProcess] = []
    yield started
    for one in started:
        one.kill()


async def read(client: Client, count: int, **options: object) -> list[Row]:
    """Read so many messages from the beginning on."""
    rows: list[Row] = []
    async with client.reader(TOPIC, start="earliest", **options) as reader:  # type: ignore[arg-type]
        async for message in reader:
            rows.append((message.partition, message.offset, message.stamp, bytes(message.value)))
            if len(rows) == count:
                return rows
    raise AssertionError("a reader that follows does not end")


def test_a_relay_and_its_core_are_killed(tmp_path: Path, relays: list[RelayProcess]) -> None:
    core_port, *ports = free_ports(3)
    settings = {"port": core_port, "shards": 1}
    core = start_node(tmp_path / "core", tmp_path, **settings)
    whole = RelayProcess(core.url, tmp_path / "whole", ports[0])
    of_whole = ("--upper", whole.url, "--tags", "odd")
    below = RelayProcess(core.url, tmp_path / "below", ports[1], *of_whole)
    relays += [whole, below]

    async def write(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            for first in range(0, MESSAGES, TOGETHER):
                some = range(first, first + TOGETHER)
                await asyncio.gather(
                    *(producer.send(b"%d" % n, tag="odd" if n % 2 else "even") for n in some)
                )
                await asyncio.sleep(0.04)  # so that some of it comes with each fault

    def restart(relay: RelayProcess) -> None:
        relay.kill()
        relay.start()

    async def faults() -> None:
        nonlocal core
        await asyncio.sleep(0.4)
        await asyncio.to_thread(restart, whole)  # the one below goes on
        await asyncio.sleep(0.4)
        await asyncio.to_thread(core.kill)
        await asyncio.to_thread(restart, below)
        core = await asyncio.to_thread(start_node, tmp_path / "core", tmp_path, **settings)

    async def work() -> tuple[list[Row], dict[str, list[Row]]]:
        async with connect(core.url, request_timeout=90) as client:
            await client.create_topic(TOPIC, partitions=3, order="total")
            for one in relays:
                await asyncio.to_thread(one.start)
            async with (
                connect(whole.url, request_timeout=90) as near,
                connect(below.url, request_timeout=90) as far,
            ):
                writing = asyncio.ensure_future(write(client))
                live = asyncio.ensure_future(read(near, MESSAGES))
                tagged = asyncio.ensure_future(read(far, MESSAGES // 2, tag="odd"))
                await faults()
                await writing
                truth = await read(client, MESSAGES)
                found = {"live": await live, "tagged": await tagged}
                found["again"] = await read(near, MESSAGES)
                found["tagged, again"] = await read(far, MESSAGES // 2, tag="odd")
                found["parts"] = await read(near, MESSAGES, order="partition")
                return truth, found

    truth, found = asyncio.run(asyncio.wait_for(work(), 200))
    assert len({row[3] for row in truth}) == MESSAGES
    odd = [row for row in truth if int(row[3]) % 2]
    assert found["live"] == found["again"] == truth
    assert found["tagged"] == found["tagged, again"] == odd
    assert sorted(found["parts"]) == sorted(truth)
    assert (whole.stop(), below.stop()) == (0, 0)
    core.stop()
