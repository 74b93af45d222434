"""A subscription at work: what it lets begin, and what it tells the broker of each message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

import weir
from rigs.apps import bury_by, end_pause, pause_by
from weir.app.core.breaker import State
from weir.app.dispatcher import Workers
from weir.app.work_queue import WorkQueue

RETRY = weir.Backoff(attempts=3, first=1, factor=2, most=100, jitter=0)


async def settled(*deliveries: Any) -> list[object]:
    """What became of them, once that is known."""
    async with asyncio.timeout(10):
        for one in deliveries:
            await one.settled.wait()
    return [one.outcome for one in deliveries]


def test_returning_acks_raising_retries_rejecting_buries(begun: Any, delivery: Any) -> None:
    async def work(message: weir.Message) -> None:
        if message.value == b"late":
            raise OSError("no database")
        if message.value == b"no":
            raise weir.Reject("no such door")

    async def test() -> None:
        async with begun(work, retry=RETRY) as run:
            all_of_them = [delivery("good"), delivery("late"), delivery("late", 2), delivery("no")]
            run.source.add(*all_of_them)
            assert await settled(*all_of_them) == ["done", 1.0, 2.0, "done"]
            assert run.dead == [(b"no", 1, "no such door")]

    asyncio.run(test())


def test_the_last_attempt_is_followed_by_the_dead_letter(begun: Any, delivery: Any) -> None:
    async def work(message: weir.Message) -> None:
        raise OSError("no database")

    async def test() -> None:
        async with begun(work, retry=RETRY) as run:
            last = delivery("x", 3)
            run.source.add(last)
            assert await settled(last) == ["done"]
            assert run.dead == [(b"x", 3, "OSError: no database")]

    asyncio.run(test())


def test_a_message_whose_handlers_died_is_buried_unseen(begun: Any, delivery: Any) -> None:
    seen: list[bytes] = []

    async def work(message: weir.Message) -> None:
        seen.append(message.value)

    async def test() -> None:
        async with begun(work, retry=RETRY) as run:
            deadly, good = delivery("deadly", 4), delivery("good", 3)
            run.source.add(deadly, good)
            assert await settled(deadly, good) == ["done", "done"]
            assert [value for value, _, _ in run.dead] == [b"deadly"]
            assert seen == [b"good"]

    asyncio.run(test())


def test_what_cannot_be_buried_comes_again(begun: Any, delivery: Any) -> None:
    async def work(message: weir.Message) -> None:
        raise weir.Reject("no")

    async def test() -> None:
        async with begun(work, retry=RETRY) as run:

            async def bury(*_: object) -> None:
                raise weir.errors.Disconnected("nobody answers")

            bury_by(run.handling, bury)
            one = delivery("x")
            run.source.add(one)
            # Else it would be buried in the end for what its attempts had used up.
            assert await settled(one) == [("untried", 1.0)]

    asyncio.run(test())


def test_so_many_are_handled_at_once_and_no_more(begun: Any, delivery: Any) -> None:
    begun_by_now, gate = 0, asyncio.Event()

    async def work(message: weir.Message) -> None:
        nonlocal begun_by_now
        begun_by_now += 1
        if begun_by_now == 3:
            reached.set()
        await gate.wait()

    async def test() -> None:
        nonlocal reached
        reached = asyncio.Event()
        async with begun(work, concurrency=3) as run:
            all_of_them = [delivery(str(number)) for number in range(5)]
            run.source.add(*all_of_them)
            async with asyncio.timeout(10):
                await reached.wait()
            assert begun_by_now == 3
            assert len(run.source.waiting) == 2
            gate.set()
            assert await settled(*all_of_them) == ["done"] * 5

    reached: asyncio.Event
    asyncio.run(test())


def test_messages_of_a_key_are_handled_one_after_the_other(begun: Any, delivery: Any) -> None:
    order: list[str] = []
    gates: dict[bytes, asyncio.Event] = {}

    async def work(message: weir.Message) -> None:
        order.append(f"+{message.value.decode()}")
        await gates[message.value].wait()
        order.append(f"-{message.value.decode()}")

    async def test() -> None:
        a1, a2, b1 = delivery("a1", key=b"a"), delivery("a2", key=b"a"), delivery("b1", key=b"b")
        gates.update({name: asyncio.Event() for name in (b"a1", b"a2", b"b1")})
        async with begun(work, mode="keyed", concurrency=4) as run:
            run.source.add(a1, a2, b1)
            gates[b"b1"].set()
            gates[b"a2"].set()
            await settled(b1)
            assert order == ["+a1", "+b1", "-b1"]
            gates[b"a1"].set()
            await settled(a1, a2)
            assert order == ["+a1", "+b1", "-b1", "-a1", "+a2", "-a2"]

    asyncio.run(test())


@pytest.mark.parametrize("mode", ["keyed", "ordered"])
def test_what_is_in_order_is_so_in_each_topic_by_itself(
    begun: Any, delivery: Any, mode: str
) -> None:
    async def test() -> None:
        began = list[str]()
        gate = asyncio.Event()

        async def work(message: weir.Message) -> None:
            began.append(f"{message.topic} {message.value.decode()}")
            await gate.wait()

        async with begun(work, mode=mode, concurrency=4) as run:
            doors = [delivery(str(number), key=b"k") for number in range(2)]
            gates = [delivery(str(number), key=b"k", topic="gates") for number in range(2)]
            run.source.add(doors[0], doors[1], gates[0], gates[1])
            async with asyncio.timeout(30):
                while len(began) < 2:
                    await asyncio.sleep(0)
                assert began == ["doors 0", "gates 0"]
                gate.set()
                for one in (*doors, *gates):
                    await one.settled.wait()
        assert sorted(began) == ["doors 0", "doors 1", "gates 0", "gates 1"]

    asyncio.run(test())


def test_what_is_held_no_more_is_not_begun(begun: Any, delivery: Any) -> None:
    seen: list[bytes] = []

    async def work(message: weir.Message) -> None:
        seen.append(message.value)

    async def test() -> None:
        async with begun(work, mode="ordered", concurrency=1) as run:
            gone, next_one = delivery("gone"), delivery("next")
            gone.held = False
            run.source.add(gone, next_one)
            await settled(next_one)
            assert seen == [b"next"]
            assert gone.outcome == "untried"

    asyncio.run(test())


def test_what_is_held_no_more_is_left_out_of_a_list_and_goes_back(
    begun: Any, delivery: Any
) -> None:
    seen: list[list[bytes]] = []

    async def work(messages: Sequence[weir.Message]) -> None:
        seen.append([message.value for message in messages])

    async def test() -> None:
        async with begun(work, batch=True, max_messages=3) as run:
            gone, *others = [delivery(value) for value in "123"]
            gone.held = False
            run.source.add(gone, *others)
            assert await settled(gone, *others) == ["untried", "done", "done"]
        assert seen == [[b"2", b"3"]]

    asyncio.run(test())


def test_lists_are_settled_together_and_what_failed_comes_alone(begun: Any, delivery: Any) -> None:
    seen: list[list[bytes]] = []

    async def work(messages: Sequence[weir.Message]) -> None:
        values = [message.value for message in messages]
        seen.append(values)
        if b"bad" in values:
            raise OSError("one of them")

    async def test() -> None:
        async with begun(work, retry=RETRY, batch=True, max_messages=3) as run:
            first = [delivery(value) for value in ("1", "bad", "3")]
            again, last = [delivery("1", 2), delivery("3", 2)], delivery("bad", 3)
            run.source.add(*first, *again, delivery("4"))
            assert await settled(*first) == [1.0, 1.0, 1.0]
            assert await settled(*again) == ["done", "done"]
            run.source.add(last)
            assert await settled(last) == ["done"]
            assert run.dead == [(b"bad", 3, "OSError: one of them")]
        assert sorted(seen) == [[b"1"], [b"1", b"bad", b"3"], [b"3"], [b"4"], [b"bad"]]

    asyncio.run(test())


def test_a_list_is_of_one_topic(begun: Any, delivery: Any) -> None:
    async def test() -> None:
        lists: list[list[str]] = []

        async def work(messages: Sequence[weir.Message]) -> None:
            lists.append([message.topic for message in messages])

        async with begun(work, batch=True, concurrency=1) as run:
            found = [delivery(topic, topic=topic) for topic in ("doors", "doors", "gates")]
            run.source.add(*found)
            async with asyncio.timeout(30):
                for one in found:
                    await one.settled.wait()
        assert lists == [["doors", "doors"], ["gates"]]

    asyncio.run(test())


def test_an_outage_pauses_and_buries_nothing(
    begun: Any, delivery: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A database is away: handling stops, one message is tried, and none is a dead letter."""
    seen: list[bytes] = []
    away = True

    async def work(message: weir.Message) -> None:
        seen.append(message.value)
        if away:
            raise OSError("no database")

    async def test() -> None:
        nonlocal away
        async with begun(work, retry=RETRY, concurrency=1) as run:
            breaker = run.handling.breaker
            pause_by(breaker, weir.Backoff(first=0.01, most=0.02, jitter=0))
            failed = [delivery(str(number), 1) for number in range(10)]
            tried = delivery("tried", 9)
            run.source.add(*failed, tried)
            await settled(*failed)
            assert await settled(tried) == [100.0]  # it was tried, and forgiven
            assert breaker.state is not State.CLOSED
            away = False
            healing, after = delivery("healing", 9), delivery("after", 9)
            run.source.add(healing, after)
            assert await settled(healing, after) == ["done", "done"]
            assert breaker.state is State.CLOSED
            # Of those that failed for nothing; one that fails now is judged.
            away = True
            poison = delivery("poison", 9)
            run.source.add(poison)
            assert await settled(poison) == ["done"]
            assert run.dead == [(b"poison", 9, "OSError: no database")]
            assert run.source.pauses >= 2

    with caplog.at_level(logging.INFO, "weir.app"):
        asyncio.run(test())
    assert "10 of the last 10 messages failed" in caplog.text


def test_who_waits_for_more_does_not_block_the_try_of_the_breaker(
    begun: Any, delivery: Any
) -> None:
    """One worker waits at the source, others behind it, when a failure stops all pulls."""
    run: Any = None

    async def work(message: weir.Message) -> None:
        if message.value == b"bad":
            run.source.asked.clear()
            await run.source.asked.wait()
            raise OSError("no database")

    async def test() -> None:
        nonlocal run
        async with begun(work, retry=RETRY, concurrency=4) as run:
            breaker = run.handling.breaker
            pause_by(breaker, weir.Backoff(first=3_600, most=3_600, jitter=0))
            failed = [delivery("bad") for _ in range(10)]
            for one in failed:
                run.source.add(one)
                await settled(one)
            for _ in range(20):
                await asyncio.sleep(0)
            assert (run.source.pauses, run.source.paused) == (1, True)
            end_pause(run.handling)  # an hour later
            good = delivery("good")
            run.source.add(good)
            assert await settled(good) == ["done"]

    asyncio.run(test())


def test_a_handler_that_is_cancelled_from_within_has_failed(begun: Any, delivery: Any) -> None:
    async def work(message: weir.Message) -> None:
        if message.value == b"awaited":
            task = asyncio.ensure_future(asyncio.Event().wait())
            task.cancel()
            await task
        if message.value == b"itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async def test() -> None:
        async with begun(work, retry=RETRY, concurrency=1) as run:
            all_of_them = [delivery("awaited"), delivery("itself"), delivery("good")]
            run.source.add(*all_of_them)
            assert await settled(*all_of_them) == [1.0, 1.0, "done"]

    asyncio.run(test())


def test_a_handler_that_hangs_has_failed(begun: Any, delivery: Any) -> None:
    async def work(message: weir.Message) -> None:
        if message.value == b"hangs":
            await asyncio.Event().wait()
        if message.value == b"stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        async with asyncio.timeout(10):  # which a task that is being cancelled could not end
            await asyncio.sleep(0)

    async def test() -> None:
        async with begun(work, dead_letter="dead", concurrency=1, timeout=0.2) as run:
            first, second = delivery("hangs", 1), delivery("hangs", 5)
            stubborn, good = delivery("stubborn"), delivery("good")
            run.source.add(first, second, stubborn, good)
            assert (await settled(first, second, stubborn, good))[1:] == ["done"] * 3
            assert isinstance(first.outcome, float)
            assert run.dead == [(b"hangs", 5, "TimeoutError: not over after 0.2 s")]

    asyncio.run(test())


def test_stopping_lets_what_runs_end_and_gives_back_the_rest(begun: Any, delivery: Any) -> None:
    gate, running = asyncio.Event(), asyncio.Event()

    async def work(message: weir.Message) -> None:
        running.set()
        await gate.wait()

    async def test() -> None:
        async with begun(work, mode="keyed", concurrency=2) as run:
            begins, waits = delivery("1", key=b"a"), delivery("2", key=b"a")
            run.source.add(begins, waits)
            await running.wait()
            stopping = asyncio.ensure_future(run.handling.stop(10.0))
            await asyncio.sleep(0)
            gate.set()
            assert await stopping == 0
            assert (begins.outcome, waits.outcome) == ("done", "untried")

    asyncio.run(test())


def test_who_leaves_room_for_others_just_then_is_stopped_at_once(begun: Any) -> None:
    async def work(message: weir.Message) -> None: ...

    async def test() -> None:
        async with begun(work) as run:
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                assert await run.handling.stop(60.0) == 0

    asyncio.run(test())


def test_what_does_not_end_in_time_is_cancelled_and_not_acked(begun: Any, delivery: Any) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def work(message: weir.Message) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def test() -> None:
        async with begun(work) as run:
            one = delivery("1")
            run.source.add(one)
            await running.wait()
            assert await run.handling.stop(0.01) == 1
            assert cancelled.is_set()
            assert one.outcome is None

    asyncio.run(test())


def test_a_lost_connection_is_waited_for_and_a_lost_topic_ends_it(
    begun: Any, delivery: Any
) -> None:
    async def work(message: weir.Message) -> None: ...

    async def test() -> None:
        async with begun(work) as run:
            run.source.fail(weir.errors.Disconnected("gone"))
            one = delivery("1")
            run.source.add(one)
            assert await settled(one) == ["done"]
            run.source.fail(weir.errors.UnknownTopic("deleted"))
            async with asyncio.timeout(10):
                with pytest.raises(weir.errors.UnknownTopic):
                    await run.handling.failed

    asyncio.run(test())


def test_handlers_that_never_wait_leave_room_for_others(begun: Any, delivery: Any) -> None:
    import time

    async def work(message: weir.Message) -> None:
        time.sleep(0.002)  # a handler that computes

    async def test() -> None:
        async with begun(work, concurrency=2) as run:
            all_of_them = [delivery(str(number)) for number in range(50)]
            run.source.add(*all_of_them)
            turns = 0
            while all_of_them[-1].outcome is None:
                await asyncio.sleep(0)
                turns += 1
            assert turns > 5

    asyncio.run(test())


def test_idle_workers_end_in_the_order_in_which_they_began() -> None:
    """Worlds of applications repeat only if this does not follow where objects lie in memory."""
    order: list[int] = []

    async def main() -> None:
        workers = Workers(cast(WorkQueue, None))

        async def idle(number: int) -> None:
            try:
                await workers.idly(tasks[number], asyncio.sleep(100))
            finally:
                order.append(number)

        tasks: list[asyncio.Task[None]] = []
        for number in range(50):
            tasks.append(asyncio.create_task(idle(number)))
        await asyncio.sleep(0)
        for one in workers.idle:
            one.cancel()
        await asyncio.wait(tasks)

    asyncio.run(main())
    assert order == [*range(50)]
