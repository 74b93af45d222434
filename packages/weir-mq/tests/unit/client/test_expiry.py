"""What a consumer leaves out since it has expired: by the leader's clock, not by its stamps."""

from __future__ import annotations

import asyncio

import pytest

import weir
from rigs.consuming import take
from weir.order.clock import stamp_at


@pytest.mark.parametrize(
    ("ahead_ms", "expected"), [(60_000, [b"lives", b"stays"]), (0, [b"stays"])]
)
def test_a_stamp_that_is_ahead_lets_nothing_expire(
    fake_broker, ahead_ms: int, expected: list[bytes]
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            await w.publish("t", b"lives", ttl=30)
            await w.publish("t", b"stays")
            broker.granted_at = stamp_at(broker.wall_ms + 60_000), ahead_ms
            async with w.consumer("t", cluster="c", max_messages=10) as consumer:
                assert [(await take(consumer)).value for _ in expected] == expected

    asyncio.run(scenario())
