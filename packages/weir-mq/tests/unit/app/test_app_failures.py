"""What becomes of messages that fail, by `weir.App` on a node in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import weir
from rigs.apps import dispatcher_of, pause_by
from weir.app.dead_letters import redrive

AT_ONCE = weir.Backoff(attempts=2, first=0.0, jitter=0)


def test_dead_letters_say_why_and_go_back(node: Any, seen: Any, all_done: Any) -> None:
    async def test() -> None:
        app, mended = weir.App(node.url), False

        @app.subscribe("unlocks", cluster="ledger", retry=AT_ONCE, dead_letter="unlocks.dead")
        async def record(message: weir.Message) -> None:
            if not mended and message.tag == "no":
                raise weir.Reject("no such door")
            if not mended and message.tag == "late":
                raise OSError("no database")
            seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            async with app.running():
                await w.publish("unlocks", b"1", tag="no", key="a", headers={"unit": b"7"})
                await w.publish("unlocks", b"2", tag="late")
                await w.publish("unlocks", b"3")
                await seen.some(1)
                await all_done(w, "unlocks", "ledger")
            letters = {m.value: m async for m in w.reader("unlocks.dead", follow=False)}
            assert letters[b"1"].headers == {
                "unit": b"7",
                "weir-reason": b"no such door",
                "weir-attempts": b"1",
                "weir-topic": b"unlocks",
                "weir-partition": b"0",
                "weir-offset": b"0",
                "weir-cluster": b"ledger",
            }
            assert (letters[b"1"].key, letters[b"1"].tag) == (b"a", "no")
            assert letters[b"2"].headers["weir-reason"] == b"OSError: no database"
            assert letters[b"2"].headers["weir-attempts"] == b"2"

            other = await redrive(w, "unlocks.dead", "billing")
            assert (other.messages, other.others) == (0, 2)
            mended = True
            back = await redrive(w, "unlocks.dead", "ledger")
            assert (back.topics, back.others) == ({"unlocks": 2}, 0)
            assert (await redrive(w, "unlocks.dead", "ledger")).messages == 0
            async with app.running():
                assert sorted((await seen.some(3))[1:]) == [b"1", b"2"]
            again = [m async for m in w.reader("unlocks", start={0: 3}, follow=False)]
            assert {m.value: m.headers for m in again} == {b"1": {"unit": b"7"}, b"2": {}}

    asyncio.run(test())


def test_an_outage_fills_no_dead_letter_topic(node: Any, seen: Any, all_done: Any) -> None:
    async def test() -> None:
        app, away, tries = weir.App(node.url), True, 0

        @app.subscribe("unlocks", cluster="ledger", retry=AT_ONCE, dead_letter="unlocks.dead")
        async def record(message: weir.Message) -> None:
            nonlocal tries
            if away:
                tries += 1
                raise OSError("no database")
            seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks", partitions=2)
            for number in range(40):
                await w.publish("unlocks", str(number))
            async with app.running() as running, asyncio.timeout(60):
                breaker = dispatcher_of(running).breaker
                pause_by(breaker, weir.Backoff(first=0.02, most=0.05, jitter=0))
                # Each that is tried alone is tried for the last time, and again, and again.
                while tries < 60:
                    await asyncio.sleep(0.01)
                away = False
                await all_done(w, "unlocks", "ledger")
            dead = {m.value async for m in w.reader("unlocks.dead", follow=False)}
            # Some may have died before most had failed; none did in the outage.
            assert len(dead) <= 10
            assert {*seen.values} | dead == {b"%d" % number for number in range(40)}
            assert not {*seen.values} & dead

    asyncio.run(test())


def test_dead_letters_may_go_elsewhere(node: Any, all_done: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

        @app.subscribe("unlocks", cluster="ledger", dead_letter="unlocks.dead")
        async def record(message: weir.Message) -> None:
            raise weir.Reject

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            await w.create_topic("by-hand")
            async with app.running():
                await w.publish("unlocks", b"x")
                await all_done(w, "unlocks", "ledger")
            assert (await redrive(w, "unlocks.dead", "ledger", to="by-hand")).messages == 1
            assert [m.value async for m in w.reader("by-hand", follow=False)] == [b"x"]
            with pytest.raises(weir.errors.UnknownTopic):
                await redrive(w, "nowhere", "ledger")

    asyncio.run(test())


def test_a_letter_that_cannot_go_back_takes_no_others_along(node: Any, all_done: Any) -> None:
    """Those beside it had gone back, were not acked, and went back again each time."""

    async def test() -> None:
        app = weir.App(node.url)
        for topic in ("unlocks", "gone"):

            @app.subscribe(topic, cluster="ledger", dead_letter="dead")
            async def record(message: weir.Message) -> None:
                raise weir.Reject

        async with weir.connect(node.url) as w:
            for topic in ("unlocks", "gone"):
                await w.create_topic(topic)
                await w.publish(topic, topic)
            async with app.running():
                await all_done(w, "unlocks", "ledger")
                await all_done(w, "gone", "ledger")
            await w.delete_topic("gone")
            for _ in range(2):
                with pytest.raises(weir.errors.UnknownTopic, match="gone"):
                    await redrive(w, "dead", "ledger")
            values = [m.value async for m in w.reader("unlocks", follow=False)]
            assert values == [b"unlocks"] * 2
            await w.create_topic("gone")
            assert (await redrive(w, "dead", "ledger")).topics == {"gone": 1}

    asyncio.run(test())


def test_keys_are_handled_in_order_and_a_failure_holds_back_its_key(
    node: Any, all_done: Any
) -> None:
    async def test() -> None:
        app, order, failed = weir.App(node.url), [], False

        @app.subscribe(
            "unlocks", cluster="ledger", mode="keyed", retry=weir.Backoff(first=0, jitter=0)
        )
        async def record(message: weir.Message) -> None:
            nonlocal failed
            if message.value == b"a3" and not failed:
                failed = True
                raise OSError("no database")
            order.append(message.value.decode())

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks", partitions=2)
            for number in range(10):
                for key in "abc":
                    await w.publish("unlocks", f"{key}{number}", key=key)
            async with app.running():
                await all_done(w, "unlocks", "ledger")
        assert failed
        for key in "abc":
            mine = [value for value in order if value.startswith(key)]
            assert mine == [f"{key}{number}" for number in range(10)]

    asyncio.run(test())


def test_an_ordered_cluster_is_handled_in_order(node: Any, all_done: Any) -> None:
    async def test() -> None:
        app, order, tries = weir.App(node.url), [], 0

        @app.subscribe(
            "unlocks", cluster="ledger", mode="ordered", retry=weir.Backoff(first=0, jitter=0)
        )
        async def record(message: weir.Message) -> None:
            nonlocal tries
            tries += 1
            if tries in (3, 4):
                raise OSError("no database")
            order.append(int(message.value))

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            for number in range(20):
                await w.publish("unlocks", str(number))
            async with app.running():
                await all_done(w, "unlocks", "ledger")
        assert order == [*range(20)]

    asyncio.run(test())


def test_a_dead_letter_topic_may_be_there_as_one_likes_it(node: Any, seen: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

        @app.subscribe("unlocks", cluster="ledger", dead_letter="dead")
        async def record(message: weir.Message) -> None:
            seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            await w.create_topic("dead", partitions=3, retention="90d")
            async with app.running():
                await w.publish("unlocks", b"x")
                await seen.some(1)

    asyncio.run(test())
