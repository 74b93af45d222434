"""A welcome that waits is not lost, whoever ends the connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rigs import drivers
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, ShardSettings
from weir.broker.replica.checkpoints import Opened
from weir.broker.shard import Shard
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request
from weir.server.assembly import assemble
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

WELCOME = device.encode_welcome(0, 0, 99)


class Clock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return 0


class Wire:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.data += data

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.write(b"".join(buffers))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close


@pytest.mark.parametrize("end", ["another dialect", "this node stops"])
def test_a_welcome_is_not_lost_to_who_ends_the_connection(end: str) -> None:
    async def body() -> None:
        disk = SimDisk(random.Random(1))
        found = recover(disk, Settings(0, 99, 64 * 1024, 16 * 1024, 1 << 20, 0))
        opened = Opened(found.log, found.groups, found.body)
        shard = Shard(Identity(99), [opened], Clock(), ShardSettings())
        driver = assemble(shard, {0: disk})
        await driver.start()
        driver.handle(ev.Opened(1))
        for number, request in enumerate((m.Hello("test"), m.CreateTopic("t", 1))):
            frames = ClientStream().receive(b"".join(encode_request(request, number)))
            drivers.receive(driver, 1, frames)
        for _ in range(4_000):
            await asyncio.sleep(0.005)
            if len(list(shard.topics.partitions())) and shard.topics.named("t"):
                break
        await asyncio.sleep(0.05)
        drivers.hang(driver)
        wire = Wire()
        peer = driver.protocol()
        peer.connection_made(cast(Any, wire))
        peer.data_received(device.hello(1, 1, "t") + device.publish(1, b"v", 0))
        assert not wire.data
        if end == "another dialect":
            peer.data_received(b"\xff" * 16)
            await asyncio.sleep(0)  # what clients say in a turn of the loop is taken behind it
        else:
            await driver.stop(0.01)
        assert wire.closed
        assert wire.data == WELCOME
        drivers.end(driver)

    asyncio.run(body())
