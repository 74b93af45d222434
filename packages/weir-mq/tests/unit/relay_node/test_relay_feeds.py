"""Marks for many readers: each stamp is asked for once, by one who waits for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.errors import Disconnected, Unauthorized, Unavailable, UnknownTopic, WeirError
from weir.model.limits import RELAY_MARKS_AWAITED_MAX
from weir.protocol.client import messages as m
from weir.relay_node import uppers
from weir.relay_node.host import RelayHost
from weir.relay_node.uppers import MarkAsker, MarkFeeds, UpperRelay

TOPIC = 3


class Above:
    """An upper node: it answers what the test lets it."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[m.AwaitMark, asyncio.Future[m.OrderMark]]] = {}
        self.count = 0

    async def ask_core(self, request: m.AwaitMark, reply: object, wait: float) -> m.OrderMark:
        self.count += 1
        answer = asyncio.get_running_loop().create_future()
        self.asked[request.stamp] = request, answer
        return await answer

    async def question(self, stamp: int) -> m.AwaitMark:
        while stamp not in self.asked:
            await asyncio.sleep(0.001)
        return self.asked[stamp][0]

    async def tell(self, stamp: int, at: int, *, reached: bool = True, size: int = 2) -> None:
        await self.question(stamp)
        _, answer = self.asked.pop(stamp)
        answer.set_result(m.OrderMark(TOPIC, at, size, [(0, at)], 0, reached))

    async def fail(self, stamp: int, error: WeirError) -> None:
        await self.question(stamp)
        self.asked.pop(stamp)[1].set_exception(error)


def wait(
    feeds: MarkFeeds, above: Above, stamp: int, since: int = 0, ms: int = 60_000
) -> asyncio.Future[m.OrderMark]:
    request = m.AwaitMark(TOPIC, since, stamp, ms)
    return asyncio.ensure_future(feeds.next_mark(request, cast(MarkAsker, above)))


def run(work: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(whole())


def test_readers_that_wait_for_one_stamp_are_one_question() -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        waiting = [wait(feeds, above, 7) for _ in range(200)]
        await above.tell(7, 9)
        assert {(one.stamp, one.reached) for one in await asyncio.gather(*waiting)} == {(9, True)}
        assert above.count == 1
        assert (await wait(feeds, above, 8, since=3)).stamp == 9, "what is known is not asked for"
        assert above.count == 1

    run(work)


def test_a_lower_stamp_does_not_wait_for_a_higher_one() -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        high, low = wait(feeds, above, 50), wait(feeds, above, 7)
        await above.tell(7, 7)
        assert (await low).stamp == 7
        assert not high.done()
        await above.tell(50, 51)
        assert (await high).stamp == 51

    run(work)


def test_an_answer_to_one_ends_the_wait_of_all_that_it_reaches() -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        waiting = [wait(feeds, above, stamp) for stamp in (3, 5, 0)]
        await above.tell(5, 6)
        assert [one.stamp for one in await asyncio.gather(*waiting)] == [6, 6, 6]

    run(work)


def test_so_many_stamps_are_asked_for_at_once_and_the_others_with_the_next_answers() -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        stamps = range(1, RELAY_MARKS_AWAITED_MAX + 3)
        waiting = [wait(feeds, above, stamp) for stamp in stamps]
        await above.question(RELAY_MARKS_AWAITED_MAX)
        assert len(above.asked) == RELAY_MARKS_AWAITED_MAX
        await above.tell(1, 1)
        await above.tell(stamps[-1] - 1, 99)
        assert [one.stamp for one in await asyncio.gather(*waiting)] == [1, *[99] * 17]

    run(work)


def test_a_reader_whose_time_is_up_is_told_what_is_known() -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        told = await wait(feeds, above, 7, ms=1)
        assert (told.stamp, told.partitions, told.reached) == (0, 0, False)
        await above.tell(7, 5, reached=False)
        told = await wait(feeds, above, 9, ms=1)
        assert (told.stamp, told.throughs, told.reached) == (5, [(0, 5)], False)
        assert (await above.question(9)).above == 5
        await feeds.close()

    run(work)


def test_a_question_that_is_refused_fails_for_who_asked_and_others_ask_again() -> None:
    async def work() -> None:
        feeds, first, second = MarkFeeds(), Above(), Above()
        refused, other = wait(feeds, first, 7), wait(feeds, second, 7)
        await first.fail(7, Unauthorized("not any more"))
        with pytest.raises(Unauthorized):
            await refused
        await second.tell(7, 8)
        assert (await other).stamp == 8

    run(work)


@pytest.mark.parametrize("error", [Disconnected("gone"), Unavailable("away")])
def test_a_core_that_is_away_is_said_to_be(error: WeirError) -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        waiting = wait(feeds, above, 7)
        await above.fail(7, error)
        with pytest.raises(Unavailable, match=r"away|does not answer"):
            await waiting

    run(work)


def test_what_was_told_before_a_lineage_ended_counts_no_more() -> None:
    async def work() -> None:
        feeds, above = MarkFeeds(), Above()
        first, late = wait(feeds, above, 7), wait(feeds, above, 9)
        await above.tell(7, 8)
        assert (await first).stamp == 8
        await above.question(9)
        _, answer = above.asked.pop(9)
        feeds.forget(TOPIC)
        assert answer.cancelled() or not answer.done()
        assert (await above.question(9)).above == 0, "it is asked for anew"
        await above.tell(9, 10)
        assert (await late).stamp == 10
        gone = wait(feeds, above, 20)
        await above.fail(20, UnknownTopic("gone", TOPIC))
        with pytest.raises(UnknownTopic):
            await gone

    run(work)


class Network:
    """The connections to a relay above that says how far the order is complete."""

    is_up, error = True, None
    welcome = SimpleNamespace(system=9)
    reached = False
    count = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Reach it."""

    async def start(self) -> None:
        """It is reached."""

    async def close(self) -> None:
        """It is not needed any more."""

    async def request(self, request: m.AwaitMark, *_: object, **__: object) -> m.OrderMark:
        Network.count += 1
        return m.OrderMark(TOPIC, 5, 1, [], 0, self.reached)


@pytest.mark.parametrize(
    ("stamp", "reached", "count"), [(7, True, 2), (0, False, 2), (7, False, 1)]
)
def test_a_relay_that_does_not_get_to_a_stamp_is_left_alone(
    stamp: int, reached: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uppers, "NetworkClient", Network)
    monkeypatch.setattr(Network, "reached", reached)
    monkeypatch.setattr(Network, "count", 0)
    request = m.AwaitMark(TOPIC, 0, stamp, 1)

    async def work() -> None:
        upper = UpperRelay((("a", 1),), 2, 9, None)
        assert await upper.next_mark(request) is None, "it is not reached"
        keeping = asyncio.ensure_future(upper.keep())
        while not Network.count:
            await upper.next_mark(request)
            await asyncio.sleep(0)
        await upper.next_mark(request)
        assert Network.count == count
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run(work)


class Host(Above):
    """A relay whose core is reached, below one that may tell marks."""

    config = SimpleNamespace(core="weir://core")

    def __init__(self, mark: m.OrderMark | None) -> None:
        super().__init__()
        self.tiers = SimpleNamespace(uppers=self)
        self.network = SimpleNamespace(is_up=True, request=self.request)
        self.mark = mark

    async def next_mark(self, request: m.AwaitMark) -> m.OrderMark | None:
        return self.mark

    async def request(self, *_: object, **__: object) -> m.OrderMark:
        self.count += 1
        return m.OrderMark(TOPIC, 7, 1, [], 0, True)


@pytest.mark.parametrize(("above", "stamp", "count"), [(None, 7, 1), (5, 5, 0)])
def test_marks_come_from_a_relay_above_or_else_from_the_core(
    above: int | None, stamp: int, count: int
) -> None:
    async def work() -> None:
        mark = None if above is None else m.OrderMark(TOPIC, above, 1, [], 0, True)
        host = Host(mark)
        request = m.AwaitMark(TOPIC, 0, 3, 1)
        told = await RelayHost.ask_core(cast(RelayHost, host), request, m.OrderMark, 1.0)
        assert (told.stamp, host.count) == (stamp, count)

    run(work)
