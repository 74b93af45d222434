"""What a supervisor sees of a cluster, and that it waits for a broker that is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import weir
from weir.app import supervising
from weir.app.supervising import Blind, Plan, Supervisor


def plan(url: str) -> Plan:
    return Plan("nowhere:app", "ledger", url, 1, 8, 30.0, 1.0)


def app_of(mode: str, *topics: str) -> weir.App:
    app = weir.App()
    for topic in topics:

        @app.subscribe(topic, cluster="ledger", mode=mode)
        async def handle(message: weir.Message) -> None: ...

    return app


def test_what_waits_is_what_nobody_has_and_may_be_had(node: Any) -> None:
    async def run() -> None:
        async with weir.connect(node.url) as w:
            for topic in ("doors", "gates"):
                await w.create_topic(topic)
                for number in range(5):
                    await w.publish(topic, str(number))
            await w.publish("doors", "later", delay="1h")
            supervisor = Supervisor(app_of("shared", "doors", "gates"), plan(node.url), print)
            assert (await supervisor._look(w)).left == 0  # there is no such cluster yet
            async with w.consumer("doors", cluster="ledger") as consumer:
                await consumer.nack(await anext(consumer), delay="1h")
                for _ in range(4):
                    await anext(consumer)
                more = asyncio.ensure_future(anext(consumer))  # comes by what is not due
                async with asyncio.timeout(30):
                    while (look := await supervisor._look(w)).waiting or look.left > 2:
                        await asyncio.sleep(0.01)
                assert (look.published, look.left) == (6, 2)  # one is held back, one not due
                more.cancel()
                await asyncio.wait((more,))
            async with w.consumer("gates", cluster="ledger", max_messages=1) as consumer:
                await anext(consumer)
                look = await supervisor._look(w)
                assert (look.published, look.left) == (11, 7)
                assert 0 < look.waiting < 5
                assert look.useful is None
                consumer.done()

    asyncio.run(run())


def test_an_ordered_cluster_has_use_for_a_process_a_partition(node: Any) -> None:
    async def run() -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("doors", partitions=3)
            await w.publish("doors", "one")
            supervisor = Supervisor(app_of("ordered", "doors"), plan(node.url), print)
            assert (await supervisor._look(w)).useful is None  # it has not begun
            async with w.consumer("doors", cluster="ledger", mode="ordered") as consumer:
                await anext(consumer)
                consumer.done()
            assert (await supervisor._look(w)).useful == 3

    asyncio.run(run())


def test_a_broker_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(supervising, "_PATIENCE_SECONDS", 0.05)
    told: list[object] = []

    async def run() -> None:
        stop = asyncio.Event()

        def tell(event: object) -> None:
            told.append(event)
            if isinstance(event, Blind):
                stop.set()

        supervisor = Supervisor(app_of("shared", "doors"), plan("weir://127.0.0.1:1"), tell)
        async with asyncio.timeout(30):
            await supervisor.run(stop)

    asyncio.run(run())
    assert sum(isinstance(event, Blind) for event in told) == 1
