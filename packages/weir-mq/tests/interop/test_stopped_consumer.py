"""A consumer whose process stands still costs nobody else anything."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import weir
from weir.server.assembly import serve
from weir.server.config import Config, LogConfig, NodeConfig

LEASE_SECONDS = 2.0
MESSAGES = 3_000

#: Takes one message of the cluster, says so, and goes on to ask for more.
HANDLER = f"""
import asyncio, sys, weir

async def work(url):
    async with weir.connect(url) as client:
        consumer = client.consumer("t", cluster="crew", max_messages=5, lease={LEASE_SECONDS})
        async for message in consumer:
            print(message.offset, flush=True)
            await asyncio.sleep(3600)

asyncio.run(work(sys.argv[1]))
"""


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[str]:
    config = Config(
        node=NodeConfig(data=str(folder), port=0), log=LogConfig(segment_mib=32, spares=0)
    )
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(config, lambda _, given: port.set_result(given), stop))
    try:
        yield f"weir://127.0.0.1:{await port}"
    finally:
        stop.set()
        assert await task


async def taken(client: weir.Client, cluster: str, wanted: set[int]) -> None:
    """Consume until all of these messages were seen."""
    async with client.consumer("t", cluster=cluster, lease=LEASE_SECONDS) as consumer:
        async for message in consumer:
            await message.ack()
            wanted.discard(message.offset)
            if not wanted:
                return


def test_a_stopped_consumer_costs_the_others_nothing(tmp_path: Path) -> None:
    async def whole() -> None:
        async with node(tmp_path) as url, weir.connect(url) as client:
            await client.create_topic("t", partitions=1)
            stopped = await asyncio.create_subprocess_exec(
                sys.executable, "-c", HANDLER, url, stdout=asyncio.subprocess.PIPE
            )
            try:
                assert stopped.stdout is not None
                await client.publish("t", b"first")
                assert await asyncio.wait_for(stopped.stdout.readline(), 60) == b"0\n"
                os.kill(stopped.pid, signal.SIGSTOP)
                async with client.producer("t") as producer:
                    await asyncio.gather(*[producer.send(b"%d" % n) for n in range(MESSAGES - 1)])
                everything = set(range(MESSAGES))
                crew, other = set(everything), set(everything)
                # What it holds comes to the others when its lease is over, the rest at once; a
                # pull of its own may have taken a few more when it was stopped.
                await asyncio.wait_for(
                    asyncio.gather(taken(client, "crew", crew), taken(client, "other", other)),
                    20 * LEASE_SECONDS,
                )
                assert (crew, other) == (set(), set())
                assert stopped.returncode is None, "it stands still, and is there"
            finally:
                stopped.kill()
                await stopped.wait()

    asyncio.run(asyncio.wait_for(whole(), 100))
