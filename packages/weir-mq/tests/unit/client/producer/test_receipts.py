"""Who waits for a batch: each for itself, and nobody for ever."""

from __future__ import annotations

import asyncio

import pytest

from weir.client.producer.receipts import Confirmed, Handed, Limits, Receipt, Sent
from weir.errors import Disconnected

CONFIRMED = Confirmed(2, 0, 3, 70, 9, False)


def stalled() -> Disconnected:
    return Disconnected("nothing was confirmed")


def test_one_who_gives_up_waiting_takes_the_result_from_nobody() -> None:
    async def body() -> None:
        batch = Handed("t", 2)
        gives_up = asyncio.ensure_future(batch.wait())
        stays = asyncio.ensure_future(batch.wait())
        await asyncio.sleep(0)
        gives_up.cancel()
        await asyncio.wait([gives_up])
        batch.settle(CONFIRMED)
        assert await stays is CONFIRMED
        assert await batch.wait() is CONFIRMED

    asyncio.run(body())


def test_a_time_that_is_over_ends_one_wait_alone() -> None:
    async def body() -> None:
        batch = Handed("t", 2)
        at_once = Limits(0, stalled)
        stays = Sent(batch, 1)._expected(Limits(600, stalled))
        with pytest.raises(Disconnected, match="nothing was confirmed"):
            await Sent(batch, 0)._expected(at_once)
        assert not stays.done()
        batch.settle(CONFIRMED)
        assert Sent(batch, 1)._receipt(await stays) == Receipt("t", 2, 71, 9)
        sent = Sent(batch, 2)
        assert sent._receipt(await sent._expected(at_once)) == Receipt("t", 2, 72, 9)

    asyncio.run(body())


def test_all_who_wait_hear_of_a_failure() -> None:
    async def body() -> None:
        batch = Handed("t", 2)
        waiting = [asyncio.ensure_future(batch.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        batch.settle(stalled())
        for one in waiting:
            with pytest.raises(Disconnected):
                await one

    asyncio.run(body())
