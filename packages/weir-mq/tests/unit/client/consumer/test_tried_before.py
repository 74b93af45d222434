"""What was tried before is reported before it begins, however it is consumed (docs/adr/0064)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import weir
from rigs.consuming import take as take_one
from weir import sync, testing
from weir.client.consumer.consumer import Consumer, LeasedBatch, LeasedMessage
from weir.client.consumer.pulls import Pulling
from weir.client.core.grants import Run
from weir.errors import StaleGrant, Unavailable, WeirError

WAYS = ["iteration", "batches", "deliveries"]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[list[Run]]:
    """What consumers reported by itself, and not with what they ask for anyhow."""
    found: list[list[Run]] = []
    honest = Pulling.report

    async def report(self: Pulling, partition: int, runs: list[Run]) -> None:
        found.append(runs)
        await honest(self, partition, runs)

    monkeypatch.setattr(Pulling, "report", report)
    return found


async def fail_once(w: weir.Client) -> None:
    """Let three messages be there, of which the first was begun by one who did not end it."""
    await w.create_topic("t", partitions=1)
    async with w.producer("t") as producer:
        await producer.send_many([b"0", b"1", b"2"])
    async with w.consumer("t", cluster="c") as consumer:
        failed = await anext(consumer)
        assert failed.offset == 0


#: What was taken, and has no outcome until its consumer is closed.
Held = list[LeasedMessage | LeasedBatch]


async def take(consumer: Consumer, way: str, held: Held) -> tuple[int, int]:
    """Take one message; return its offset, and for the how-manieth time it came."""
    if way == "deliveries":
        delivery = await anext(consumer.deliveries())
        return delivery.message.offset, delivery.attempts
    held.append(await anext(consumer if way == "iteration" else consumer.batches()))
    return held[-1].offset, held[-1].attempts


def run(scenario: Callable[[testing.Node, weir.Client], object]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(30):
            await fail_once(w)
            found = scenario(node, w)
            assert asyncio.iscoroutine(found)
            await found

    asyncio.run(whole())


@pytest.mark.parametrize("way", WAYS)
def test_it_is_reported_before_it_is_handed_out(reports: list[list[Run]], way: str) -> None:
    async def scenario(_: testing.Node, w: weir.Client) -> None:
        assert reports == [], "of what nobody tried nothing is reported"
        held: Held = []
        async with w.consumer("t", cluster="c") as consumer:
            assert await take(consumer, way, held) == (0, 2)
            assert reports == [[(0, 1)]]

    run(scenario)


def test_each_is_reported_and_what_nobody_tried_is_not(reports: list[list[Run]]) -> None:
    async def scenario(_: testing.Node, w: weir.Client) -> None:
        held: Held = []
        async with w.consumer("t", cluster="c") as consumer:
            assert await take(consumer, "batches", held) == (0, 2)
            assert (await take(consumer, "batches", held))[1] == 1
        async with w.consumer("t", cluster="c") as consumer:
            found = [(await take_one(consumer)).offset for _ in range(3)]
            assert sorted(found) == [0, 1, 2]
        # Each came alone the first time; two were at work as one batch, and come one by one.
        assert reports[0] == [(0, 1)]
        assert sorted(reports[1:]) == [[(0, 1)], [(1, 2)], [(2, 3)]]

    run(scenario)


def test_code_without_async_reports_too(reports: list[list[Run]]) -> None:
    with testing.node() as node, sync.connect(node.url) as client:
        client.create_topic("t", partitions=1)
        client.publish("t", b"0")
        for attempts in (1, 2, 3):
            with client.consumer("t", cluster="c") as consumer:
                message = next(consumer)
                assert (message.offset, message.attempts) == (0, attempts)
    assert reports == [[(0, 1)], [(0, 1)]]


def refusing(monkeypatch: pytest.MonkeyPatch, kind: type[WeirError] = Unavailable) -> None:
    async def report(self: Pulling, partition: int, runs: list[Run]) -> None:
        raise kind("no broker knows of it")

    monkeypatch.setattr(Pulling, "report", report)


@pytest.mark.parametrize("way", WAYS[:2])
def test_what_cannot_be_reported_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def scenario(_: testing.Node, w: weir.Client) -> None:
        held: Held = []
        async with w.consumer("t", cluster="c", max_messages=1) as consumer:
            with monkeypatch.context() as patch:
                refusing(patch)
                with pytest.raises(Unavailable):
                    await take(consumer, way, held)
            await consumer.flush()
            found = [await take(consumer, way, held) for _ in range(3)]
            assert sorted(found) == [(0, 2), (1, 1), (2, 1)]

    run(scenario)


@pytest.mark.parametrize("way", WAYS[:2])
def test_what_was_lost_with_its_connection_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def scenario(_: testing.Node, w: weir.Client) -> None:
        held: Held = []
        async with w.consumer("t", cluster="c") as consumer:
            with monkeypatch.context() as patch:
                refusing(patch, StaleGrant)
                assert await take(consumer, way, held) == (1, 1)

    run(scenario)


def test_a_delivery_that_cannot_be_reported_goes_back_untried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(_: testing.Node, w: weir.Client) -> None:
        async with w.consumer("t", cluster="c") as consumer:
            with monkeypatch.context() as patch:
                refusing(patch)
                assert await take(consumer, "deliveries", []) == (1, 1)
            await consumer.flush()
        async with w.consumer("t", cluster="c") as consumer:
            deliveries = consumer.deliveries()
            found = [await anext(deliveries) for _ in range(3)]
            counts = {one.message.offset: one.attempts for one in found}
            assert counts == {0: 2, 1: 2, 2: 1}

    run(scenario)
