"""A node that has not met its set is passed over, unless it is the only one that answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import weir
from weir.client.connection import pool
from weir.errors import Disconnected
from weir.protocol.client import messages as m
from weir.spark.blocking_client import BlockingClient


def test_a_node_that_has_met_its_set_is_taken_at_once(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_UNMET_SECONDS", 3_600.0)  # whoever waits for it waits for ever

    async def scenario() -> None:
        async with fake_broker() as lost, fake_broker() as found:
            lost.met = False
            found.topic("t")
            url = f"{lost.url},{found.url.removeprefix('weir://')}"
            async with asyncio.timeout(20), weir.connect(url) as w:
                assert (await w.publish("t", b"x")).offset == 0
            assert [type(request) for request in lost.seen] == [m.Hello]

    asyncio.run(scenario())


def test_it_is_used_for_a_second_while_no_other_is_reached(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as lost, fake_broker() as found:
            lost.met = False
            found.topic("t")
            url = f"{lost.url},{found.url.removeprefix('weir://')}"
            await found.stop()
            async with asyncio.timeout(20), weir.connect(url) as w:
                assert await w.topics() == []  # what it knows
                await found.start()
                while not await w.topics():
                    await asyncio.sleep(0.05)
                assert (await w.publish("t", b"x")).offset == 0

    asyncio.run(scenario())


def test_the_only_node_of_a_url_is_used(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as lost:
            lost.met = False
            async with asyncio.timeout(20), weir.connect(lost.url) as w:
                assert await w.topics() == []
            with pytest.raises(Disconnected, match="is not connected to its set yet"):
                await asyncio.to_thread(BlockingClient, "127.0.0.1", lost.port)

    asyncio.run(scenario())
