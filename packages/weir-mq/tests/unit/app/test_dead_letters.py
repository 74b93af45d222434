"""Dead letters on their way back: one that went halfway before is reported first."""

from __future__ import annotations

import asyncio

import pytest

import weir
from weir import testing
from weir.app.dead_letters import redrive
from weir.client.consumer.pulls import Pulling
from weir.client.consumer.settlement import bury
from weir.client.core.grants import Run


def test_a_letter_that_went_halfway_before_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Run]] = []
    honest = Pulling.report

    async def report(self: Pulling, partition: int, runs: list[Run]) -> None:
        found.append(runs)
        await honest(self, partition, runs)

    monkeypatch.setattr(Pulling, "report", report)

    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            for topic in ("t", "dead"):
                await w.create_topic(topic, partitions=1)
            for number in range(3):
                message = weir.Message(b"%d" % number, topic="t", partition=0, offset=number)
                await bury(w, "dead", message, "c", 4, "it is one of those")
            async with w.consumer("dead", cluster="c") as consumer:
                halfway = await anext(consumer)  # and it dies
                assert halfway.offset == 0
            back = await redrive(w, "dead", "c")
            assert (back.topics, found) == ({"t": 3}, [[(0, 1)]])
            values = [m.value async for m in w.reader("t", start="earliest", follow=False)]
            assert sorted(values) == [b"0", b"1", b"2"]

    asyncio.run(scenario())
