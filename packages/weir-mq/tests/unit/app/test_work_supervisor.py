"""What a supervisor sees of a cluster, and that it waits for a broker that is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

import weir
from rigs.apps import look
from rigs.consuming import take
from weir.app import supervisor as module
from weir.app.supervisor import Blind, Plan, Scaled, Seen, Supervisor
from weir.app.worker import starting
from weir.errors import Disconnected, UnknownTopic

CAT = starting(["/bin/cat"])


def plan(url: str) -> Plan:
    return Plan("ledger", url, 1, 8, 30.0, 1.0)


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
            supervisor = Supervisor(app_of("shared", "doors", "gates"), plan(node.url), CAT, print)
            assert (await look(supervisor, w)).left == 0  # there is no such cluster yet
            async with w.consumer("doors", cluster="ledger") as consumer:
                await (await anext(consumer)).nack(delay="1h", confirmed=True)
                for _ in range(4):
                    await take(consumer)
                more = asyncio.ensure_future(anext(consumer))  # comes by what is not due
                async with asyncio.timeout(30):
                    while (seen := await look(supervisor, w)).waiting or seen.left > 2:
                        await asyncio.sleep(0.01)
                assert (seen.published, seen.left) == (6, 2)  # one is held back, one not due
                more.cancel()
                await asyncio.wait((more,))
            async with w.consumer("gates", cluster="ledger", max_messages=1) as consumer:
                message = await anext(consumer)
                seen = await look(supervisor, w)
                assert (seen.published, seen.left) == (11, 7)
                assert 0 < seen.waiting < 5
                assert seen.useful is None
                await message.ack()

    asyncio.run(run())


def test_topics_of_a_prefix_are_counted_as_they_come_and_go(node: Any) -> None:
    async def run() -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("gates")
            supervisor = Supervisor(
                app_of("shared", "gates", "doors.*"), plan(node.url), CAT, print
            )
            for number, topic in enumerate(("doors.north", "doors.south", "windows")):
                await w.create_topic(topic)
                async with w.consumer(topic, cluster="ledger", start="earliest") as consumer:
                    await w.publish(topic, b"one")
                    await take(consumer)  # it has begun, and gives back what it took
                    await consumer.flush()
                seen = await look(supervisor, w)
                assert seen.published == min(number + 1, 2)

            class Late:
                """A client that lists a topic which is gone when it is asked for."""

                async def topics(self, namespace: str) -> list[Any]:
                    listed = await w.topics(namespace)
                    await w.delete_topic("doors.south")
                    return listed

                async def clusters(self, topic: str, cluster: str) -> list[Any]:
                    return await w.clusters(topic, cluster)

            assert (await look(supervisor, Late())).published == 1
            await w.delete_topic("gates")
            with pytest.raises(UnknownTopic):
                await look(supervisor, w)

    asyncio.run(run())


def test_an_ordered_cluster_has_use_for_a_process_a_partition(node: Any) -> None:
    async def run() -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("doors", partitions=3)
            await w.publish("doors", "one")
            supervisor = Supervisor(app_of("ordered", "doors"), plan(node.url), CAT, print)
            assert (await look(supervisor, w)).useful is None  # it has not begun
            async with w.consumer("doors", cluster="ledger", mode="ordered") as consumer:
                await take(consumer)
            assert (await look(supervisor, w)).useful == 3

    asyncio.run(run())


def test_a_broker_that_goes_is_waited_for(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.05)
    told: list[object] = []

    async def run() -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("doors")
        stop, blind = asyncio.Event(), asyncio.Event()

        def tell(event: object) -> None:
            told.append(event)
            if isinstance(event, Scaled):
                node.crash()
            if isinstance(event, Blind):
                blind.set()
            if isinstance(event, Seen):
                stop.set()

        supervisor = Supervisor(app_of("shared", "doors"), plan(node.url), CAT, tell)
        async with asyncio.timeout(30):
            running = asyncio.ensure_future(supervisor.run(stop))
            await blind.wait()
            await asyncio.sleep(0.2)  # as it looks again, and again
            node.restart()
            await running

    asyncio.run(run())
    (away,) = [event for event in told if isinstance(event, Blind)]
    assert away.away
    assert sum(isinstance(event, Seen) for event in told) == 1


def test_without_a_broker_at_the_start_no_process_begins() -> None:
    told: list[object] = []

    async def run() -> None:
        first = replace(plan("weir://127.0.0.1:1"), timeout=0.1)
        supervisor = Supervisor(app_of("shared", "doors"), first, CAT, told.append)
        with pytest.raises(Disconnected, match=r"within 0\.1 s"):
            await supervisor.run(asyncio.Event())

    asyncio.run(run())
    assert told == []
