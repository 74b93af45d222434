"""Waits that are limited all alike share one timer."""

from __future__ import annotations

import asyncio

from rigs.clients import rows_of
from weir.client.producer.receipts import _FEW, SharedTimeout
from weir.errors import Disconnected


def stalled() -> Disconnected:
    return Disconnected("nothing was confirmed")


def test_each_fails_when_its_own_time_is_over_whatever_became_of_those_before() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        limits = SharedTimeout(0.05, stalled)
        first, confirmed, last = (loop.create_future() for _ in range(3))
        limits.put(first)
        limits.put(confirmed)
        confirmed.set_result(None)
        await asyncio.sleep(0.03)
        limits.put(last)
        began = loop.time()
        await asyncio.wait([first])
        assert isinstance(first.exception(), Disconnected)
        assert not last.done()
        await asyncio.wait([last])
        assert isinstance(last.exception(), Disconnected)
        assert loop.time() - began >= 0.045
        later = loop.create_future()
        limits.put(later)  # the timer begins anew where nobody waited
        await asyncio.wait([later])
        assert isinstance(later.exception(), Disconnected)

    asyncio.run(body())


def test_behind_one_that_waits_for_long_no_row_of_those_that_are_done_is_kept() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        limits = SharedTimeout(600, stalled)
        stuck = loop.create_future()
        limits.put(stuck)
        for _ in range(3 * _FEW):
            done = loop.create_future()
            limits.put(done)
            done.set_result(None)
        assert len(rows_of(limits)) <= _FEW
        assert rows_of(limits)[0][1] is stuck
        limits.close()

    asyncio.run(body())
