"""A message's last attempt has the process to itself: it may be what ends processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import weir
from weir.errors import Disconnected

RETRY = weir.Backoff(attempts=3, first=1, factor=2, most=100, jitter=0)


class Work:
    """Handlers that begin, and end when they are let."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.gates: dict[bytes, asyncio.Event] = {}

    async def __call__(self, message: weir.Message) -> None:
        self.begun.append(message.value)
        await self.gate(message.value).wait()

    def gate(self, value: bytes) -> asyncio.Event:
        return self.gates.setdefault(value, asyncio.Event())


async def until(done: Any) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0)


def test_nothing_is_handled_beside_it_and_what_was_done_is_acked_before(
    begun: Any, delivery: Any
) -> None:
    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, concurrency=3) as run:
            slow, last, other = delivery("slow"), delivery("last", 3), delivery("other", 3)
            run.source.add(slow, last)
            await until(lambda: run.source.pauses == 1)
            run.source.add(other)
            assert (work.begun, run.source.flushes) == ([b"slow"], 0)
            work.gate(b"slow").set()
            await until(lambda: b"last" in work.begun)
            assert (slow.outcome, run.source.flushes) == ("done", 1)
            assert len(work.begun) == 2
            work.gate(b"last").set()
            work.gate(b"other").set()
            await until(lambda: other.outcome)
            assert (last.outcome, work.begun[2:]) == ("done", [b"other"])
            await until(lambda: run.source.flushes == 4)

    asyncio.run(test())


def test_what_waits_behind_it_is_given_back_before(begun: Any, delivery: Any) -> None:
    """Of its key in front of all; else the end of its process would be an attempt of theirs."""

    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, mode="keyed", concurrency=2) as run:
            slow = delivery("slow", key=b"a")
            behind, last = delivery("behind", key=b"a"), delivery("last", 3, key=b"b")
            run.source.add(slow, behind, last)
            await until(lambda: behind.outcome)
            assert (behind.outcome, work.begun) == ("untried", [b"slow"])
            work.gate(b"slow").set()
            work.gate(b"last").set()
            await until(lambda: last.outcome)
            assert last.outcome == "done"

    asyncio.run(test())


def test_who_waits_to_be_alone_is_stopped_untried(begun: Any, delivery: Any) -> None:
    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, concurrency=2) as run:
            slow, last = delivery("slow"), delivery("last", 3)
            run.source.add(slow, last)
            await until(lambda: run.source.pauses == 1)
            stopping = asyncio.ensure_future(run.handling.stop(10.0))
            await until(lambda: last.outcome)
            work.gate(b"slow").set()
            assert await stopping == 0
            assert (slow.outcome, last.outcome, work.begun) == ("done", "untried", [b"slow"])

    asyncio.run(test())


def test_where_nothing_can_be_told_it_is_not_begun(begun: Any, delivery: Any) -> None:
    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY) as run:
            last = delivery("last", 3)

            async def flush() -> None:
                raise Disconnected("no broker")

            run.source.flush = flush
            run.source.add(last)
            await until(lambda: last.outcome)
            assert (last.outcome, work.begun) == ("untried", [])
            later = delivery("later")
            work.gate(b"later").set()
            run.source.add(later)
            await until(lambda: later.outcome)

    asyncio.run(test())


def test_what_was_tried_is_reported_when_it_begins_and_no_sooner(begun: Any, delivery: Any) -> None:
    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, concurrency=2) as run:
            slow, last = delivery("slow"), delivery("last", 3)
            run.source.add(slow, last)
            await until(lambda: run.source.pauses == 1)
            assert (slow.reports, last.reports) == (0, 0), "it waits to be alone"
            work.gate(b"slow").set()
            await until(lambda: b"last" in work.begun)
            assert (slow.reports, last.reports) == (0, 1)
            work.gate(b"last").set()
            await until(lambda: last.outcome)

    asyncio.run(test())


@pytest.mark.parametrize("attempts", [2, 3])
def test_what_cannot_be_reported_does_not_begin(begun: Any, delivery: Any, attempts: int) -> None:
    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, concurrency=2) as run:
            again = delivery("again", attempts)
            again.may_begin = False
            run.source.add(again)
            await until(lambda: again.outcome)
            assert (again.outcome, work.begun, run.dead) == ("untried", [], [])
            later = delivery("later", attempts)
            work.gate(b"later").set()
            run.source.add(later)
            await until(lambda: later.outcome)
            assert later.outcome == "done"

    asyncio.run(test())


def test_nobody_holds_another_that_is_to_be_alone_later(begun: Any, delivery: Any) -> None:
    """Who had taken one, and waited until the room was free, lost an attempt of it."""

    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, concurrency=4) as run:
            several = [delivery(str(number), 3) for number in range(6)]
            run.source.add(*several)
            for number, one in enumerate(several):
                await until(lambda n=number: len(work.begun) > n)
                assert run.source.waiting == several[number + 1 :]
                work.gate(b"%d" % number).set()
                await until(lambda d=one: d.outcome)

    asyncio.run(test())


def test_who_has_one_attempt_is_handled_beside_others(begun: Any, delivery: Any) -> None:
    async def test() -> None:
        work = Work()
        once = weir.Backoff(attempts=1, first=1, factor=2, most=100, jitter=0)
        async with begun(work, retry=once, concurrency=2) as run:
            both = [delivery("1"), delivery("2")]
            run.source.add(*both)
            await until(lambda: len(work.begun) == 2)
            for value in work.begun:
                work.gate(value).set()
            await until(lambda: all(one.outcome for one in both))
            assert run.source.pauses == 0

    asyncio.run(test())


def test_other_subscriptions_of_the_process_begin_nothing_beside_it(
    begun: Any, delivery: Any
) -> None:
    """Its neighbours died with it in all their attempts where they were another subscription's."""

    async def test() -> None:
        work, others = Work(), Work()
        async with begun(work, retry=RETRY) as run, begun(others, concurrency=2) as other:
            slow, waits = delivery("slow"), delivery("waits")
            other.source.add(slow)
            await until(lambda: others.begun)
            last = delivery("last", 3)
            run.source.add(last)
            await until(lambda: other.source.pauses == 1)
            other.source.add(waits)
            others.gate(b"slow").set()
            await until(lambda: work.begun)
            assert (slow.outcome, other.source.flushes) == ("done", 1)
            assert others.begun == [b"slow"]
            work.gate(b"last").set()
            others.gate(b"waits").set()
            await until(lambda: waits.outcome)
            assert last.outcome == "done"

    asyncio.run(test())


def test_another_subscription_that_cannot_tell_holds_nobody_up(begun: Any, delivery: Any) -> None:
    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY) as run, begun(Work()) as other:

            async def flush() -> None:
                raise Disconnected("no broker")

            other.source.flush = flush
            last = delivery("last", 3)
            work.gate(b"last").set()
            run.source.add(last)
            await until(lambda: last.outcome)
            assert last.outcome == "done"

    asyncio.run(test())


def test_what_hangs_keeps_the_others_for_a_while_only(
    begun: Any, delivery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept all of its process from their work until its time limit, 30 minutes."""
    monkeypatch.setattr("weir.app.dispatcher.ALONE", 0.01)

    async def test() -> None:
        work = Work()
        async with begun(work, retry=RETRY, concurrency=2) as run:
            hangs, other, next_ = delivery("hangs", 3), delivery("other"), delivery("next", 3)
            run.source.add(hangs)
            await until(lambda: work.begun)
            run.source.add(other)
            work.gate(b"other").set()
            await until(lambda: other.outcome)
            # It is not alone any more, and leaves no door open when it ends.
            monkeypatch.setattr("weir.app.dispatcher.ALONE", 60)
            run.source.add(next_)
            work.gate(b"hangs").set()
            await until(lambda: hangs.outcome and b"next" in work.begun)
            late = delivery("late")
            run.source.add(late)
            for _ in range(100):
                await asyncio.sleep(0)
            assert late.outcome is None
            assert b"late" not in work.begun
            work.gate(b"next").set()
            work.gate(b"late").set()
            await until(lambda: late.outcome)

    asyncio.run(test())
