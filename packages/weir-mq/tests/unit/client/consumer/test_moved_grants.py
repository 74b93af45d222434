"""A consumer that goes on by another connection names its grants by the numbers of now."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import weir
from rigs.fake_broker import FakeBroker
from weir.model.limits import CONSUMER_TOKEN_BYTES
from weir.protocol.client import messages as m

R = TypeVar("R", bound=m.Request)
#: How far the numbers of grants that are moved lie above the former ones.
MOVED = 1_000


def seen(broker: FakeBroker, kind: type[R]) -> list[R]:
    return [request for request in broker.seen if isinstance(request, kind)]


def test_what_was_moved_is_extended_and_acked_by_the_number_of_now(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            broker.topic("t")
            broker.moved = {fence: fence + MOVED for fence in range(10)}
            # The answer to the first move goes with the next connection.
            cuts = iter(["cut after"])
            broker.script = lambda request: (
                next(cuts, None) if isinstance(request, m.MoveGrants) else None
            )
            hosts = f"weir://127.0.0.1:{broker.port},localhost:{broker.port}"
            async with weir.connect(hosts) as w:
                await w.publish("t", b"0")
                async with w.consumer("t", cluster="c", ack_within=0) as consumer:
                    message = await anext(consumer)
                    (holding,) = consumer.settlement.leases.topics["t"].held.values()
                    broker.cut()
                    while len(seen(broker, m.MoveGrants)) < 2:
                        await asyncio.sleep(0.01)
                    await consumer.settlement.leases.topics["t"].move()
                    assert await message.extend()
                    await message.ack(confirmed=True)
            moves = seen(broker, m.MoveGrants)
            numbers = [one.number for one in moves]
            assert numbers == sorted({*numbers}), "each that is sent has a greater one"
            assert moves[0].fences == moves[1].fences == [holding.fence]
            assert {one.token for one in moves} == {moves[0].token}
            assert len(moves[0].token) == CONSUMER_TOKEN_BYTES
            now = holding.fence + MOVED
            assert [one.fences for one in seen(broker, m.Extend)] == [[now]]
            assert [one.ranges for one in seen(broker, m.Ack)] == [[(now, 0, 1)]]

    asyncio.run(scenario())
