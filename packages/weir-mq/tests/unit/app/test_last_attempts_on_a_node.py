"""A message's last attempt on a node, in each mode and order: it is made, and it counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import weir

RETRY = weir.Backoff(attempts=3, first="10ms", most="10ms", jitter=0)


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
@pytest.mark.parametrize("order", ["partition", "total"])
def test_a_last_attempt_that_succeeds_is_the_end(
    node: Any, all_done: Any, order: str, mode: str
) -> None:
    """In total order the turn ended before it, and the message was buried untried."""

    async def test() -> None:
        app, tries = weir.App(node.url), Counter[bytes]()

        @app.subscribe("doors", cluster="ledger", mode=mode, retry=RETRY, dead_letter="dead")
        async def record(message: weir.Message) -> None:
            tries[message.value] += 1
            if message.value == b"2" and tries[b"2"] < 3:
                raise RuntimeError("not yet")

        async with weir.connect(node.url) as w:
            await w.create_topic("doors", partitions=2, order=order)
            for number in range(6):
                await w.publish("doors", str(number), key=str(number % 3))
            async with app.running():
                await all_done(w, "doors", "ledger")
            assert tries == {b"%d" % n: 3 if n == 2 else 1 for n in range(6)}
            assert [m.value async for m in w.reader("dead", follow=False)] == []

    asyncio.run(test())


@pytest.mark.parametrize("order", ["partition", "total"])
def test_a_last_attempt_elsewhere_repeats_nothing_that_is_at_work(
    node: Any, all_done: Any, order: str
) -> None:
    """In total order the turn ended in front of what was at work, which came again."""

    async def test() -> None:
        app, begun, tries = weir.App(node.url), asyncio.Event(), Counter[bytes]()
        failed = asyncio.Event()

        @app.subscribe("doors", cluster="ledger", mode="ordered")
        async def record(message: weir.Message) -> None:
            tries[message.value] += 1
            begun.set()
            if message.value == b"0":
                await failed.wait()  # the other is about to be alone
                await asyncio.sleep(0.2)

        @app.subscribe("windows", cluster="ledger", retry=RETRY, dead_letter="dead")
        async def fail(message: weir.Message) -> None:
            await begun.wait()
            tries[message.value] += 1
            if tries[message.value] == 2:
                failed.set()
            raise RuntimeError("never")

        async with weir.connect(node.url) as w:
            await w.create_topic("doors", order=order)
            await w.create_topic("windows")
            async with w.producer("doors") as producer:
                await producer.send_many([b"%d" % number for number in range(4)])
            await w.publish("windows", b"x")
            async with app.running():
                await all_done(w, "doors", "ledger")
                await all_done(w, "windows", "ledger")
            assert tries == {b"0": 1, b"1": 1, b"2": 1, b"3": 1, b"x": 3}

    asyncio.run(test())
