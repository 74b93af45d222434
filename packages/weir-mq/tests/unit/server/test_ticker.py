"""The timer of a shard's ticks: put off for a rest, and back as soon as the shard wakes. How late
it comes is how late the loop is.
"""

from __future__ import annotations

import asyncio
import time

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


def test_how_late_ticks_come_is_kept_and_a_rest_or_its_end_is_not_late() -> None:
    async def body() -> None:
        loop, ticker, ticked = asyncio.get_running_loop(), Ticker(), asyncio.Event()

        async def tick_of(milliseconds: int, block_s: float = 0.0, *, wakes: bool = False) -> float:
            """Let one tick come; return how late it could be at most, in seconds."""
            ticked.clear()
            began = loop.time()
            ticker.call_after(milliseconds, ticked.set)
            if wakes:
                ticker.wake()
            time.sleep(block_s)  # the loop stands still
            await asyncio.wait_for(ticked.wait(), 20)
            return loop.time() - began - (ev.TICK_MS if wakes else milliseconds) / 1_000

        await tick_of(20, 0.6)
        assert sum(ticker.lag.counts) == 1
        assert 0.5 <= ticker.lag.total <= 20
        for milliseconds, wakes in ((300, False), (_LONG_MS, True)):
            before = ticker.lag.total
            most = await tick_of(milliseconds, wakes=wakes)
            assert ticker.lag.total - before <= most + 0.005, "a rest of an hour may end early"
        assert sum(ticker.lag.counts) == 3
        ticker.cancel()

    asyncio.run(body())
