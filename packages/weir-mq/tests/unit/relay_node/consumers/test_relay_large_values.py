"""Large values in clusters at a relay that does not keep them: their chunks are the core's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rigs.consuming import take
from rigs.relay_nodes import known, make_small, play, relay
from weir.client.client import connect
from weir.testing.memory_node import Node

SIZE = 9 << 20


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.mark.parametrize("value_bytes_max", [2 * SIZE, 0])
def test_a_large_value_that_the_relay_does_not_keep_is_read(
    core: Node, tmp_path: Path, value_bytes_max: int
) -> None:
    value = bytes(range(256)) * (SIZE // 256)

    async def work() -> None:
        async with connect(core.url) as client:
            await client.create_topic("t")
            await client.publish("t", value, tag="a")
            await client.publish("t", b"kept", tag="b")
        async with relay(core, tmp_path, tags=frozenset("b")) as url, connect(url) as near:
            await known(near, end=2)
            async with near.consumer(
                "t", cluster="crew", value_bytes_max=value_bytes_max
            ) as consumer:
                message = await asyncio.wait_for(anext(consumer), 10)
                if value_bytes_max:
                    assert message.value == value
                else:
                    assert b"".join([bytes(one) async for one in message.chunks()]) == value
                await message.ack(confirmed=True)
                assert (await take(consumer)).value == b"kept"

    play(work)
