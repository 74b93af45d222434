"""A turn in total order that ends while its holder is about to say what it did."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from rigs import cursor_leases
from weir import testing
from weir.broker.runtime.outbox import Outbox
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import REAL
from weir.client.consumer.acknowledgements import Acking
from weir.client.consumer.cursor_lease import TurnReading, Turns
from weir.client.consumer.delivery import Holding, Lessor
from weir.client.consumer.leases import TopicLeases
from weir.client.consumer.moves import KeptGrants
from weir.client.consumer.pulls import Demand
from weir.client.consumer.subscription import ConsumerOptions
from weir.client.core.grants import Grant
from weir.client.reader.reader import TotalOrder
from weir.errors import Disconnected, OffsetOutOfRange, StaleGrant, Unavailable
from weir.protocol.client import messages as m

FENCE = 7


class Home:
    """A client of which only the clocks are used."""

    system = REAL


class Leader:
    """Stands for the places of a topic: each request waits for `go`, and gets the next answer."""

    topic = "t"

    def __init__(self, *answers: m.Reply | Exception) -> None:
        self.go = asyncio.Event()
        self.answers = list(answers)

    async def ask(self, *_: Any, **__: Any) -> m.Reply:
        await self.go.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Taker:
    """Has nothing to tell."""

    def __init__(self) -> None:
        self.outcomes = self

    def note_news(self) -> None: ...

    def soon(self) -> None: ...


def turns_of(leader: Leader) -> Turns:
    """Return a consumer that has a turn, and works at message 0."""
    options = ConsumerOptions(
        cluster="c", max_messages=10, max_bytes=1_000, lease=30.0, ack_within=0.0, mode="ordered"
    )
    home = cast(NetworkClient, SimpleNamespace(system=REAL))
    acking = Acking("t", "c", lambda stale: None, KeptGrants("c", home))
    turns = Turns(
        cast(NetworkClient, Home()), cast(NetworkClient, None), cast(Places, leader), options,
        acking, Demand(), cast(Lessor, Taker()),
    )  # fmt: skip
    cursor_leases.begin(turns, FENCE)
    return turns


def holding() -> Holding:
    grant = Grant("t", 0, FENCE, 0, 0, 1, 1, ())
    return Holding(grant, time.monotonic() + 30, time.monotonic, cast(Lessor, None))


async def beside(turns: Turns, leader: Leader, what: Coroutine[Any, Any, Any]) -> Any:
    """Begin something while another request about the turn is under way, then let that go on."""
    loop = asyncio.get_running_loop()
    keeping = loop.create_task(turns.extend(holding(), 30.0))
    await asyncio.sleep(0)
    asked = loop.create_task(what)
    await asyncio.sleep(0)
    leader.go.set()
    await keeping
    return await asked


def test_an_ack_counts_for_nothing_if_another_request_heard_that_the_turn_was_over() -> None:
    async def scenario() -> None:
        leader = Leader(StaleGrant("over"))
        turns = turns_of(leader)
        assert not await beside(turns, leader, turns.ack(0, FENCE, [(0, 1)]))

    asyncio.run(scenario())


def test_what_goes_back_then_went_back_too_late() -> None:
    async def scenario() -> None:
        leader = Leader(StaleGrant("over"))
        turns = turns_of(leader)
        assert not await beside(turns, leader, turns.now(0, FENCE, [(0, 1)], 0))

    asyncio.run(scenario())


def test_an_ack_that_moved_the_cursor_counts() -> None:
    async def scenario() -> None:
        leader = Leader(m.Moved(1 << 40), m.Moved(1 << 40))
        turns = turns_of(leader)
        assert await beside(turns, leader, turns.ack(0, FENCE, [(0, 1)]))

    asyncio.run(scenario())


def test_an_ack_counts_that_was_done_in_a_turn_before_it_was_over() -> None:
    async def scenario() -> None:
        leader = Leader(StaleGrant("over", -FENCE))
        turns = turns_of(leader)
        leader.go.set()
        assert await turns.ack(0, FENCE, [(0, 1)])
        assert (cursor_leases.fence_of(turns), turns.cursors, turns.stale) == (0, {0: 1}, 0)

    asyncio.run(scenario())


def test_what_went_back_counts_if_only_the_answer_was_lost() -> None:
    async def scenario() -> None:
        for answer, in_time in ((-FENCE, True), (FENCE, False)):
            leader = Leader(StaleGrant("over", answer))
            turns = turns_of(leader)
            leader.go.set()
            assert await turns.now(0, FENCE, [(0, 1)], 0) is in_time
            assert cursor_leases.fence_of(turns) == 0

    asyncio.run(scenario())


def test_of_several_moves_without_an_answer_the_last_that_was_done_counts() -> None:
    """The first ack was done and not answered, the second came too late."""

    async def scenario() -> None:
        lost = Disconnected("gone")
        leader = Leader(lost, lost, StaleGrant("", FENCE), *[StaleGrant("", -FENCE)])
        turns = turns_of(leader)
        cursor_leases.hand_out(turns, 1, 2)
        cursor_leases.hand_out(turns, 2, 3)
        leader.go.set()
        with pytest.raises(Disconnected):
            await turns.ack(0, FENCE, [(0, 1)])
        with pytest.raises(Disconnected):
            await turns.ack(0, FENCE, [(1, 2)])
        assert not await turns.ack(0, FENCE, [(2, 3)])
        assert (turns.cursors, turns.stale) == ({0: 2}, 1)
        assert leader.answers == []

    asyncio.run(scenario())


def test_a_turn_that_outlives_its_reading_is_given_back() -> None:
    async def scenario() -> None:
        turns = turns_of(Leader())
        assert await cursor_leases.next_piece(turns) is None
        assert cursor_leases.ending_of(turns) == (0, True)

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["ack", "nack"])
@pytest.mark.parametrize("others", [0, 1])
def test_who_loses_the_answer_of_a_move_is_told_what_it_did(
    monkeypatch: pytest.MonkeyPatch, way: str, others: int
) -> None:
    """The connection breaks between the commit and its answer; another may have the turn then."""
    loses, lost, reply = threading.Event(), threading.Event(), Outbox.reply

    def losing(self: Outbox, caller: Any, answer: Any) -> None:
        if isinstance(answer, m.Moved) and loses.is_set():
            loses.clear()
            lost.set()
        else:
            reply(self, caller, answer)

    monkeypatch.setattr(Outbox, "reply", losing)

    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w, weir.connect(node.url) as v:
            await w.create_topic("t", partitions=2, order="total")
            for n in range(4):
                await w.publish("t", b"%d" % n, partition=n % 2)
            consumer = w.consumer("t", cluster="c", mode="ordered", ack_within=0)
            await (await anext(consumer)).ack(confirmed=True)
            message, next_one = await anext(consumer), None
            async with v.consumer("t", cluster="c", mode="ordered") as other:
                if others:
                    next_one = asyncio.ensure_future(anext(other))
                    await asyncio.sleep(0.05)
                loses.set()
                settle = (
                    message.ack(confirmed=True)
                    if way == "ack"
                    else message.nack(0.0, confirmed=True)
                )
                settling = asyncio.ensure_future(settle)
                await asyncio.to_thread(lost.wait)
                if next_one is not None and way == "nack":
                    await next_one
                node.cut()
                assert await settling, "it was told that it came too late"
                if next_one is None:
                    next_one = asyncio.ensure_future(anext(other))
                    await consumer.close()
                assert (await next_one).value == (b"2" if way == "ack" else b"1")
            await consumer.close()
            assert consumer.stale == 0

    async def whole() -> None:
        async with testing.node() as node, asyncio.timeout(30):
            await scenario(node)

    asyncio.run(whole())


def test_a_turn_begins_where_others_were_in_a_partition_that_joined() -> None:
    class Grown(Leader):
        """Knows of a second partition once it is asked for."""

        topic, count = "t", 1

        def __len__(self) -> int:
            return self.count

        async def find_all(self, count: int) -> None:
            self.count = count

        async def positions(self) -> dict[int, m.PositionsReply]:
            return {p: m.PositionsReply(0, 9, 0) for p in range(self.count)}

    async def scenario() -> None:
        leader = Grown(m.Turn(FENCE + 1, 1 << 40, (3, 4), 1))
        leader.go.set()
        turns = turns_of(leader)
        assert await cursor_leases.take(turns)
        assert cursor_leases.offsets_of(turns) == (3, 4)

    asyncio.run(scenario())


def test_a_turn_whose_place_went_past_retention_is_given_back() -> None:
    class Gone:
        async def piece(self, size: int) -> None:
            raise OffsetOutOfRange("past retention", 5)

    async def scenario() -> None:
        turns = turns_of(Leader())
        cursor_leases.read_by(turns, Gone())
        assert await cursor_leases.next_piece(turns) is None
        assert cursor_leases.ending_of(turns) == (0, True)

    asyncio.run(scenario())


def test_a_consumer_whose_reading_fails_gives_its_turn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection ended, and with it most turns; but one that was taken by a connection that was
    lost since went on for its whole lease, and nobody did anything.
    """
    ended: list[bool] = []
    asks = NetworkClient.request

    async def request(self: NetworkClient, asked: Any, *given: Any, **named: Any) -> Any:
        reply = await asks(self, asked, *given, **named)
        if isinstance(asked, m.MoveCursor):
            ended.append(asked.ends)
        return reply

    async def fail(self: TurnReading, size: int) -> None:
        raise Unavailable("no leader")

    async def work(w: weir.Client) -> None:
        async with w.consumer("t", cluster="c", mode="ordered", lease=30.0) as consumer:
            message = await anext(consumer)
            monkeypatch.setattr(TurnReading, "piece", fail)
            await message.ack(confirmed=True)
            await anext(consumer)

    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("t", order="total")
            await w.publish("t", b"a")
            with pytest.raises(Unavailable, match="no leader"):
                await work(w)

    async def whole() -> None:
        with testing.node() as node:
            async with asyncio.timeout(30):
                await scenario(node)

    monkeypatch.setattr(NetworkClient, "request", request)
    asyncio.run(whole())
    assert ended == [False, True]


def test_a_reader_in_total_order_that_is_closed_at_once_leaves_nothing_unawaited() -> None:
    async def scenario() -> None:
        portions = cast(Any, SimpleNamespace(places=None))
        span = cast(Any, SimpleNamespace(ends=None, join=lambda _: None))
        merging = TotalOrder(portions, cast(Any, None), {0: 0, 1: 0}, span, grows=True)
        await merging.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert not caught


def test_a_ping_tells_nothing_of_a_partition_that_is_not_known_yet() -> None:
    class Two:
        """Two partitions: the one that is held joined later."""

        topic, id, order = "t", 1, "total"

        def __len__(self) -> int:
            return 2

    home = cast(NetworkClient, SimpleNamespace(system=REAL))
    options = ConsumerOptions(
        cluster="c", max_messages=10, max_bytes=1_000, lease=30.0, ack_within=0.0, mode="ordered"
    )

    async def scenario() -> None:
        places = cast(Places, Two())
        leases = TopicLeases(home, places, options, Demand(), None, ())
        leases.begin(home, places)
        grant = Grant("t", 2, FENCE, 0, 0, 1, 1, ())
        leases.held.put(Holding(grant, time.monotonic() + 30, time.monotonic, leases))
        assert [*leases.in_hand(100)] == []

    asyncio.run(scenario())
