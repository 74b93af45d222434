"""Links to a process that stands still, goes on, dies and comes back: each side a real driver, with
a shard that sends back what it is sent. Run as a program, this file is the other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any, cast

from rigs import drivers
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.links import ShardInfo
from weir.model.ids import place_of
from weir.protocol import link
from weir.server.assembly import assemble
from weir.server.driver import Driver
from weir.server.interpreter import run_loop
from weir.server.network.poller import listening

#: How long the other process stands still; longer than a link may be silent.
STOPPED_SECONDS = float(os.environ.get("WEIR_STOPPED_SECONDS", "3"))
HOST = "127.0.0.1"
THERE = place_of(2, 0)


class Talking:
    """A shard that notes what happens, or sends back what it is sent, on the same lane."""

    ready = True
    has_deferred = True

    def __init__(self, node: int, echoes: bool) -> None:
        self.identity = Identity(7, 0, node)
        self.budget = Budget(64 << 20)
        self.echoes = echoes
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    def idle_ms(self, most: int) -> int:
        return 0

    def start(self) -> list[ef.Effect]:
        return []

    def step(self, *events: Any) -> list[ef.Effect]:
        sent = [event for event in events if isinstance(event, ev.PeerSent)]
        if not self.echoes:
            for event in events:
                if isinstance(event, ev.LinkOpened | ev.LinkClosed | ev.PeerSent):
                    self.heard.put_nowait(event)
            return []
        return [
            ef.SendToPeer(event.place, one.kind == 1, link.encode(one.kind, one.group, one.body))
            for event in sent
            for one in event.frames
        ]

    def run_deferred(self) -> list[ef.Effect]:
        return []

    def passed_on(self, shard: int, size: int) -> None:
        self.budget.release(size)


@contextlib.asynccontextmanager
async def running(node: int, echoes: bool, port: int) -> AsyncIterator[tuple[Talking, Driver]]:
    shard = Talking(node, echoes)
    own = ShardInfo(shard.identity, 2, 1, (), HOST, port)
    driver = assemble(cast(Shard, shard), {}, None, own)
    async with listening(driver, HOST, port) as (_, port):
        drivers.be_at(driver, ShardInfo(shard.identity, 2, 1, (), HOST, port))
        await driver.start()
        try:
            yield shard, driver
        finally:
            driver.links.close()
            drivers.end(driver)


async def other(port: int) -> Process:
    """Start the other process, and wait until it listens."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(port), stdin=PIPE, stdout=PIPE, env=environment
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def echoed(shard: Talking, driver: Driver) -> None:
    """Send on both lanes until both came back: the link back may come up a little later."""
    missing = {1: b"vote", 2: bytes(1 << 20)}
    while missing:
        for kind, body in missing.items():
            frame = link.encode(kind, 5, body)
            drivers.do(driver, ef.SendToPeer(THERE, kind == 1, frame))
        with contextlib.suppress(TimeoutError):
            event = await asyncio.wait_for(shard.heard.get(), 0.2)
            assert isinstance(event, ev.PeerSent), event
            for frame in event.frames:
                assert bytes(frame.body) == {1: b"vote", 2: bytes(1 << 20)}[frame.kind]
                missing.pop(frame.kind, None)


async def until(shard: Talking, kind: type[Any]) -> Any:
    """Wait for an event of a kind; drop what comes before."""
    while not isinstance(event := await shard.heard.get(), kind):
        pass
    return event


def test_a_process_that_stood_still_is_left_and_linked_again() -> None:
    async def body() -> None:
        process = await other(0)
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        loop = asyncio.get_running_loop()
        async with running(1, False, 0) as (shard, driver):
            try:
                drivers.do(driver, ef.Connect(2, HOST, port))
                first = await until(shard, ev.LinkOpened)
                await echoed(shard, driver)
                process.send_signal(signal.SIGSTOP)
                stopped = loop.time()
                await until(shard, ev.LinkClosed)
                await asyncio.sleep(stopped + STOPPED_SECONDS - loop.time())
                process.send_signal(signal.SIGCONT)
                assert await until(shard, ev.LinkOpened) == first, "the same process goes on"
                await echoed(shard, driver)
                process.kill()
                await process.wait()
                await until(shard, ev.LinkClosed)
                process = await other(port)
                again = await until(shard, ev.LinkOpened)
                assert (again.place, again.run == first.run) == (THERE, False)
                await echoed(shard, driver)
            finally:
                process.kill()
                await process.wait()

    asyncio.run(asyncio.wait_for(body(), STOPPED_SECONDS + 60))


async def _be_other(port: int) -> None:
    async with running(2, True, port) as (_, driver):
        print(f"listening\n{drivers.own_of(driver).port}", flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        await reader.read()  # until whoever started this is gone


if __name__ == "__main__":
    run_loop(_be_other(int(sys.argv[1])))
