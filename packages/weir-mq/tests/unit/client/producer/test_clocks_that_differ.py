"""Nodes whose clocks differ: a producer waits for the slower one, unless that is hopeless."""

from __future__ import annotations

import asyncio

import pytest

from weir.client.client import connect
from weir.errors import StampTooFar
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m


def too_far(request: m.Produce, behind_ms: int) -> m.Refusal:
    """Refuse what was seen, as a node does whose clock lacks `behind_ms` to accept it."""
    return m.Refusal(StampTooFar.code, "too far", request.seen - stamp_at(behind_ms))


def test_a_clock_that_is_a_little_behind_is_waited_for(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            slow = broker.topic("slow").addresses[0].group
            broker.topic("quick")
            broker.stamp = stamp_at(broker.wall_ms)
            first = await w.publish("quick", b"a")
            behind, seen = [20, 10], []

            def script(request: m.Request) -> m.Refusal | None:
                if not isinstance(request, m.Produce) or request.address.group != slow:
                    return None
                seen.append(request.seen)
                return too_far(request, behind.pop()) if behind else None

            broker.script = script
            async with w.producer("slow") as producer:
                producer.send(b"b")
                while len(behind) == 2:
                    await asyncio.sleep(0)
                # What is seen meanwhile is not what that message has to lie behind.
                broker.stamp += stamp_at(60_000)
                await w.publish("quick", b"c")
                await producer.flush()
            assert seen == [first.stamp] * 3
            assert broker.values("slow") == [b"b"]

    asyncio.run(scenario())


def test_a_clock_that_is_far_behind_is_an_error(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            broker.stamp = stamp_at(broker.wall_ms)
            await w.publish("t", b"a")
            broker.script = lambda r: too_far(r, 60_000) if isinstance(r, m.Produce) else None
            with pytest.raises(StampTooFar):
                await w.publish("t", b"b")

    asyncio.run(scenario())
