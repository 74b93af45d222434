"""The timer of a shard's ticks: put off for a rest, and back as soon as the shard wakes."""

from __future__ import annotations

import asyncio

from weir.broker.api import events as ev
from weir.server.driver import Ticker

_LONG_MS = 3_600_000


def test_a_rest_ends_when_the_shard_wakes_and_the_tick_comes_once() -> None:
    async def body() -> None:
        ticker, ticked = Ticker(), asyncio.Event()
        calls: list[int] = []

        def tick() -> None:
            calls.append(1)
            ticked.set()

        ticker.call_after(_LONG_MS, tick)
        ticker.wake()
        ticker.wake()
        await asyncio.wait_for(ticked.wait(), 20)
        ticker.call_after(_LONG_MS, tick)  # the next one is put off again
        await asyncio.sleep(0)
        assert calls == [1]
        ticker.cancel()

    asyncio.run(body())


def test_a_timer_that_was_cancelled_is_woken_by_nothing() -> None:
    async def body() -> None:
        ticker, calls = Ticker(), list[int]()
        ticker.wake()  # before the first tick nothing is to be called
        ticker.call_after(_LONG_MS, lambda: calls.append(1))
        ticker.cancel()
        ticker.wake()
        await asyncio.sleep(3 * ev.TICK_MS / 1_000)
        assert calls == []

    asyncio.run(body())
