"""A paused cluster stays paused when partitions are added, whatever becomes of the client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import weir
from rigs.clients import network_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.server.assembly import serve
from weir.server.config import Config, LogConfig, NodeConfig


def test_a_client_that_dies_while_it_adds_partitions_leaves_them_paused(tmp_path: Path) -> None:
    async def whole() -> None:
        config = Config(
            node=NodeConfig(data=str(tmp_path), port=0), log=LogConfig(segment_mib=32, spares=0)
        )
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        node = asyncio.ensure_future(serve(config, lambda _, p: port.set_result(p), stop))
        url = f"weir://127.0.0.1:{await port}"
        async with weir.connect(url) as client:
            await client.create_topic("t", partitions=1)
            await client.publish("t", b"first")
            async with client.consumer("t", cluster="crew") as consumer:
                async for message in consumer:
                    await message.ack(confirmed=True)
                    break
            assert (await client.pause_cluster("t", "crew")).paused
            # All that reaches the broker of `alter_topic`: the client dies behind it.
            await network_of(client).request(a.AlterTopic("t", partitions=3), m.TopicInfo)
        async with weir.connect(url) as client:
            for partition in range(3):
                await client.publish("t", b"held back", partition=partition)
            async with client.consumer("t", cluster="crew") as consumer:
                waiting = asyncio.ensure_future(anext(aiter(consumer)))
                done, _ = await asyncio.wait([waiting], timeout=0.5)
                assert not done, "a paused cluster was granted a message"
                (crew,) = await client.clusters("t", "crew")
                assert (crew.paused, crew.paused_in_part) == (True, False)
                assert not (await client.resume_cluster("t", "crew")).paused
                async with await asyncio.wait_for(waiting, 30) as message:
                    assert message.value == b"held back"
        stop.set()
        assert await node

    asyncio.run(whole())
