"""Who waits for a batch: each for itself, and nobody for ever."""

from __future__ import annotations

import asyncio

import pytest

from weir.client.producer.receipts import (
    BatchReceipt,
    PendingMessage,
    Receipt,
    SharedTimeout,
    Unconfirmed,
)
from weir.errors import Disconnected

CONFIRMED = BatchReceipt(2, 0, 3, 70, 9, False)


def stalled() -> Disconnected:
    return Disconnected("nothing was confirmed")


def test_one_who_gives_up_waiting_takes_the_result_from_nobody() -> None:
    async def body() -> None:
        batch = Unconfirmed("t", 600, 1).begin(2)
        gives_up = asyncio.ensure_future(batch.wait())
        stays = asyncio.ensure_future(batch.wait())
        await asyncio.sleep(0)
        gives_up.cancel()
        await asyncio.wait([gives_up])
        batch.resolve(CONFIRMED)
        assert await stays is CONFIRMED
        assert await batch.wait() is CONFIRMED

    asyncio.run(body())


def test_a_time_that_is_over_ends_one_wait_alone() -> None:
    async def body() -> None:
        batch = Unconfirmed("t", 600, 1).begin(2)
        at_once = SharedTimeout(0, stalled)
        stays = batch.within(SharedTimeout(600, stalled))
        with pytest.raises(Disconnected, match="nothing was confirmed"):
            await batch.within(at_once)
        assert not stays.done()
        batch.resolve(CONFIRMED)
        assert PendingMessage(batch, 1).receipt(await stays) == Receipt("t", 2, 71, 9)
        sent = PendingMessage(batch, 2)
        assert sent.receipt(await sent.batch.within(at_once)) == Receipt("t", 2, 72, 9)

    asyncio.run(body())


def test_all_who_wait_hear_of_a_failure() -> None:
    async def body() -> None:
        batch = Unconfirmed("t", 600, 1).begin(2)
        waiting = [asyncio.ensure_future(batch.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        batch.resolve(stalled())
        for one in waiting:
            with pytest.raises(Disconnected):
                await one

    asyncio.run(body())
