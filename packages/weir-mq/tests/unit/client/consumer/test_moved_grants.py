"""A consumer that goes on by another connection names its grants by the numbers of now."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import pytest

import weir
from rigs.fake_broker import FakeBroker
from weir import testing
from weir.client.consumer.moves import KeptGrants
from weir.client.consumer.pulls import Pulling
from weir.client.core.grants import Run
from weir.errors import StaleGrant, TooLarge, Unavailable
from weir.model.limits import CONSUMER_TOKEN_BYTES
from weir.protocol.client import messages as m

R = TypeVar("R", bound=m.Request)
#: How far the numbers of grants that are moved lie above the former ones.
MOVED = 1_000


def seen(broker: FakeBroker, kind: type[R]) -> list[R]:
    return [request for request in broker.seen if isinstance(request, kind)]


def move_all(broker: FakeBroker) -> None:
    """Let the broker have a topic, whose grants get other numbers when they are moved."""
    broker.topic("t")
    broker.moved = {fence: fence + MOVED for fence in range(10)}


def hosts_of(broker: FakeBroker) -> str:
    """Return the URL of a set of two addresses, without which no client moves grants."""
    return f"weir://127.0.0.1:{broker.port},localhost:{broker.port}"


def test_what_was_moved_is_extended_and_acked_by_the_number_of_now(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            move_all(broker)
            # The answer to the first move goes with the next connection.
            cuts = iter(["cut after"])
            broker.script = lambda request: (
                next(cuts, None) if isinstance(request, m.MoveGrants) else None
            )
            async with weir.connect(hosts_of(broker)) as w:
                await w.publish("t", b"0")
                async with w.consumer("t", cluster="c", ack_within=0) as consumer:
                    message = await anext(consumer)
                    (holding,) = consumer.settlement.leases.topics["t"].held.values()
                    broker.cut()
                    while len(seen(broker, m.MoveGrants)) < 2:
                        await asyncio.sleep(0.01)
                    await consumer.settlement.leases.topics["t"].move()
                    assert await message.extend()
                    await message.ack(confirmed=True)
            moves = seen(broker, m.MoveGrants)
            numbers = [one.number for one in moves]
            assert numbers == sorted({*numbers}), "each that is sent has a greater one"
            assert moves[0].fences == moves[1].fences == [holding.fence]
            assert {one.token for one in moves} == {moves[0].token}
            assert len(moves[0].token) == CONSUMER_TOKEN_BYTES
            now = holding.fence + MOVED
            assert [one.fences for one in seen(broker, m.Extend)] == [[now]]
            assert [one.ranges for one in seen(broker, m.Ack)] == [[(now, 0, 1)]]

    asyncio.run(scenario())


def test_what_was_moved_is_acked_with_a_scattering_by_the_number_of_now(fake_broker) -> None:
    """By the former one it was refused, though the lease ran."""

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            move_all(broker)
            broker.script = lambda request: (
                m.Refusal(TooLarge.code, "no") if isinstance(request, m.Scatter) else None
            )
            async with weir.connect(hosts_of(broker)) as w:
                await w.publish("t", b"0")
                async with w.consumer("t", cluster="c") as consumer:
                    message = await anext(consumer)
                    (holding,) = consumer.settlement.leases.topics["t"].held.values()
                    await consumer.settlement.leases.topics["t"].move()

                    async def scatter() -> None:
                        async with w.scatter() as scattering:
                            scattering.publish("t", b"1")
                            scattering.ack(message)

                    with pytest.raises(TooLarge):
                        await scatter()
            (asked,) = seen(broker, m.Scatter)
            acks = [part.acks for part in asked.parts if part.acks]
            assert acks == [[("c", [(holding.fence + MOVED, 0, 1)])]]

    asyncio.run(scenario())


def test_what_is_being_moved_is_not_over_because_an_extension_is_refused(fake_broker) -> None:
    """By its former number it is nobody's any more, and by the one of now it is not known yet."""

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20):
            move_all(broker)

            def script(request: m.Request) -> m.Refusal | None:
                if isinstance(request, m.MoveGrants) and not seen(broker, m.Extend):
                    return m.Refusal(Unavailable.code, "it is answered another time")
                if isinstance(request, m.Extend) and request.fences[0] < MOVED:
                    return m.Refusal(StaleGrant.code, "it is moved")
                return None

            broker.script = script
            async with weir.connect(hosts_of(broker)) as w:
                await w.publish("t", b"0")
                async with w.consumer("t", cluster="c") as consumer:
                    message = await anext(consumer)
                    (holding,) = consumer.settlement.leases.topics["t"].held.values()
                    broker.cut()
                    while not seen(broker, m.MoveGrants):
                        await asyncio.sleep(0.01)
                    assert await message.extend()
                    assert not holding.over
            asked = [one.fences for one in seen(broker, m.Extend)]
            assert asked == [[holding.fence], [holding.fence + MOVED]]

    asyncio.run(scenario())


class Moving:
    """A move that lasts for as long as a test wants. What is reported meanwhile is refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ends = asyncio.Event(), asyncio.Event()
        self.reports = list[list[Run]]()
        #: Whether a report is under way until the move has begun; and whether the move succeeds.
        self.is_behind_report, self.succeeds = False, True
        honest = Pulling.report

        async def ask(*_: object) -> m.GrantsMoved:
            self.begun.set()
            await self.ends.wait()
            if not self.succeeds:
                raise StaleGrant("the consumer has moved on since")
            return m.GrantsMoved(())

        async def report(pulling: Pulling, partition: int, runs: list[Run]) -> None:
            self.reports.append(runs)
            if self.is_behind_report:
                await self.begun.wait()
            if self.begun.is_set() and not self.ends.is_set():
                raise StaleGrant("no grant has the reported messages any more: pull again")
            await honest(pulling, partition, runs)

        monkeypatch.setattr(KeptGrants, "_ask", ask)
        monkeypatch.setattr(Pulling, "report", report)


@pytest.mark.parametrize(
    ("is_behind_report", "succeeds"), [(False, True), (True, True), (False, False)]
)
@pytest.mark.parametrize("way", ["iteration", "batches", "deliveries"])
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_what_is_being_moved_is_not_lost_because_a_report_is_refused(
    monkeypatch: pytest.MonkeyPatch, mode: Any, way: str, is_behind_report: bool, succeeds: bool
) -> None:
    """Counterexample: the client held the message no more, and the broker let it have it by the
    connection of now. In order, the broker granted what is behind: that was handed out first.
    """

    async def scenario() -> None:
        async with testing.node() as node, AsyncExitStack() as stack, asyncio.timeout(20):
            hosts = f"{node.url},localhost:{node.url.rsplit(':', 1)[1]}"
            w = await stack.enter_async_context(weir.connect(hosts))
            await w.create_topic("t", partitions=1)
            async with w.producer("t") as producer:
                await producer.send_many([b"0", b"1"])
            async with w.consumer("t", cluster="c", mode=mode) as consumer:
                first = await anext(consumer)  # it is not done
            moving = Moving(monkeypatch)
            moving.is_behind_report, moving.succeeds = is_behind_report, succeeds
            async with w.consumer("t", cluster="c", mode=mode) as consumer:
                leases = consumer.settlement.leases
                await leases.open()
                topic = leases.topics["t"]

                async def move() -> None:
                    if is_behind_report:
                        while not moving.reports:
                            await asyncio.sleep(0.01)
                    await topic.move()

                ways = {"iteration": consumer, "batches": consumer.batches()}
                taking = asyncio.ensure_future(anext(ways.get(way, consumer.deliveries())))
                moves = asyncio.ensure_future(move())
                await moving.begun.wait()
                await asyncio.sleep(0.1)
                assert not taking.done()
                assert moving.reports == [[(0, 1)]] * is_behind_report
                moving.ends.set()
                with suppress(StaleGrant):
                    await moves
                found = await taking
                offset = found.message.offset if way == "deliveries" else found.offset
                assert (offset, found.attempts) == (first.offset, 2)
                assert moving.reports == [[(0, 1)]] * (1 + is_behind_report)

    asyncio.run(scenario())
