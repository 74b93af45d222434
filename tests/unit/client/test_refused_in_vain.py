"""A publish that runs out of time says what the broker refused it with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weir.client.backoff import Backoff
from weir.client.connect import connect
from weir.errors import Disconnected, Overloaded
from weir.wire import messages as m


def test_a_timeout_carries_the_last_refusal(fake_broker: Any) -> None:
    words = "the disk is full: free space or add a disk"
    quick = Backoff(first=0.005, most=0.02)

    async def scenario() -> None:
        def full(request: m.Request) -> m.Refusal | None:
            return m.Refusal(Overloaded.code, words, 5) if isinstance(request, m.Produce) else None

        async with (
            fake_broker() as broker,
            connect(broker.url, retry=quick, request_timeout=0.3) as w,
        ):
            await w.create_topic("t")
            broker.script = full
            with pytest.raises(Disconnected) as refused:
                await w.publish("t", b"x")
            assert f"refused it last with: Overloaded: {words}" in str(refused.value)
            assert "majority" not in str(refused.value)

    asyncio.run(scenario())


def test_a_timeout_without_a_refusal_asks_for_the_broker(fake_broker: Any) -> None:
    async def scenario() -> None:
        def cut(request: m.Request) -> str | None:
            return "cut" if isinstance(request, m.Produce) else None

        async with fake_broker() as broker, connect(broker.url, request_timeout=0.3) as w:
            await w.create_topic("t")
            with pytest.raises(
                Disconnected, match="Check that the broker is up and has a majority"
            ):
                await w.publish("t", b"x")

    asyncio.run(scenario())
