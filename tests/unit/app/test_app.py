"""`weir.App` on a node in memory: what users write, and what comes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import weir
from weir.app.redrive import redrive

AT_ONCE = weir.Backoff(attempts=2, first=0.0, jitter=0)


@pytest.fixture
def node() -> Iterator[Any]:
    with weir.testing.node() as node:
        yield node


class Seen:
    """What handlers got; `some(n)` waits for n messages."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._more = asyncio.Event()

    def add(self, message: weir.Message) -> None:
        self.values.append(message.value)
        self._more.set()

    async def some(self, count: int) -> list[bytes]:
        async with asyncio.timeout(30):
            while len(self.values) < count:
                self._more.clear()
                await self._more.wait()
        return self.values


async def all_done(w: Any, topic: str, cluster: str) -> None:
    async with asyncio.timeout(30):
        while not (found := await w.clusters(topic, cluster)) or found[0].lag:
            await asyncio.sleep(0.01)


def test_every_message_is_handled_and_acked(node: Any) -> None:
    async def test() -> None:
        app, seen = weir.App(node.url), Seen()

        @app.subscribe("unlocks", cluster="ledger")
        async def record(message: weir.Message) -> None:
            seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks", partitions=3)
            async with app.running():
                for number in range(50):
                    await w.publish("unlocks", str(number))
                values = await seen.some(50)
            assert sorted(values, key=int) == [b"%d" % number for number in range(50)]
            (cluster,) = await w.clusters("unlocks")
            assert (cluster.lag, cluster.granted, cluster.consumers) == (0, 0, 0)

    asyncio.run(test())


def test_dead_letters_say_why_and_go_back(node: Any) -> None:
    async def test() -> None:
        app, seen, mended = weir.App(node.url), Seen(), False

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


def test_an_outage_fills_no_dead_letter_topic(node: Any) -> None:
    async def test() -> None:
        app, seen, away, tries = weir.App(node.url), Seen(), True, 0

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
                breaker = running._all[0]._handling.breaker  # type: ignore[union-attr]
                breaker._pauses = weir.Backoff(first=0.02, most=0.05, jitter=0)
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


def test_dead_letters_may_go_elsewhere(node: Any) -> None:
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


def test_plain_functions_run_in_threads_beside_each_other(node: Any) -> None:
    async def test() -> None:
        app, both, seen = weir.App(node.url), threading.Barrier(2, timeout=30), Seen()
        loop = asyncio.get_running_loop()

        @app.subscribe("unlocks", cluster="ledger", concurrency=2)
        def record(message: weir.Message) -> None:
            both.wait()  # passes only if two are here at once
            loop.call_soon_threadsafe(seen.add, message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            async with app.running():
                await w.publish("unlocks", b"1")
                await w.publish("unlocks", b"2")
                await seen.some(2)

    asyncio.run(test())


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_slow_handlers_run_beside_each_other(node: Any, mode: str) -> None:
    async def test() -> None:
        app, here, gate = weir.App(node.url), 0, asyncio.Event()

        @app.subscribe("unlocks", cluster="ledger", mode=mode, concurrency=8)
        async def record(message: weir.Message) -> None:
            nonlocal here
            here += 1
            if here == 8:
                gate.set()
            await gate.wait()  # no pace to learn from: none of them ends before all are here

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            for number in range(8):
                await w.publish("unlocks", str(number), key=str(number))
            async with app.running(), asyncio.timeout(30):
                await gate.wait()

    asyncio.run(test())


def test_keys_are_handled_in_order_and_a_failure_holds_back_its_key(node: Any) -> None:
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


def test_an_ordered_cluster_is_handled_in_order(node: Any) -> None:
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


def test_an_inbox_must_know_its_database(node: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

        @app.subscribe("unlocks", cluster="ledger", inbox=weir.Inbox("ledger"))
        async def record(message: weir.Message) -> None: ...

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            with pytest.raises(RuntimeError, match="knows no database"):
                await app.run()

    asyncio.run(test())


def test_a_dead_letter_topic_may_be_there_as_one_likes_it(node: Any) -> None:
    async def test() -> None:
        app, seen = weir.App(node.url), Seen()

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


def test_lists_of_messages(node: Any) -> None:
    async def test() -> None:
        app, seen, sizes = weir.App(node.url), Seen(), []

        @app.subscribe("unlocks", cluster="ledger", batch=True, max_messages=10)
        async def record(messages: list[weir.Message]) -> None:
            sizes.append(len(messages))
            for message in messages:
                seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            for number in range(30):  # batches of one message
                await w.publish("unlocks", str(number))
            async with app.running():
                values = await seen.some(30)
            assert values == [b"%d" % number for number in range(30)]
            assert max(sizes) > 1
            assert max(sizes) <= 10

    asyncio.run(test())


def test_hooks_and_the_app_s_own_connection(node: Any) -> None:
    async def test() -> None:
        app, told, seen = weir.App(node.url), [], Seen()

        @app.on_start
        async def begin() -> None:
            told.append("start")
            await app.client.create_topic("unlocks")
            await app.client.create_topic("out")

        @app.on_stop
        def end() -> None:
            told.append("stop")

        @app.before
        def before(message: weir.Message) -> None:
            told.append(f"before {message.value.decode()}")

        @app.after
        async def after(message: weir.Message, error: BaseException | None) -> None:
            told.append(f"after {message.value.decode()} {error!r}")
            raise RuntimeError("changes nothing")

        @app.subscribe("unlocks", cluster="ledger", dead_letter="dead", concurrency=1)
        async def record(message: weir.Message) -> None:
            if message.value == b"2":
                raise weir.Reject("no")
            await app.client.publish("out", message.value + b"!")
            seen.add(message)

        async with weir.connect(node.url) as w:
            async with app.running():
                for value in (b"1", b"2", b"3"):
                    await w.publish("unlocks", value)
                await seen.some(2)
            assert [m.value async for m in w.reader("out", follow=False)] == [b"1!", b"3!"]
        assert (told[0], told[-1]) == ("start", "stop")
        assert told[1:5] == ["before 1", "after 1 None", "before 2", "after 2 Reject('no')"]
        with pytest.raises(RuntimeError, match="does not run"):
            _ = app.client

    asyncio.run(test())


def test_it_goes_on_after_a_power_cut_of_the_broker(node: Any) -> None:
    async def test() -> None:
        app, seen = weir.App(node.url), Seen()

        @app.subscribe("unlocks", cluster="ledger")
        async def record(message: weir.Message) -> None:
            seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks", partitions=2)
            async with app.running():
                for life in range(3):
                    for number in range(20):
                        await w.publish("unlocks", f"{life}/{number}")
                    await seen.some(20 * life + 1)
                    await asyncio.to_thread(node.restart)
                    # What it granted in the last moment, nobody may know of: that lease must end.
                    await asyncio.to_thread(node.advance, 31)
                await all_done(w, "unlocks", "ledger")
        assert len(set(seen.values)) == 60  # each at least once

    asyncio.run(test())


def test_a_stopped_app_gives_back_what_it_did_not_begin(node: Any) -> None:
    async def test() -> None:
        app, running, gate = weir.App(node.url), asyncio.Event(), asyncio.Event()

        @app.subscribe("unlocks", cluster="ledger", concurrency=1)
        async def record(message: weir.Message) -> None:
            running.set()
            await gate.wait()

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            for number in range(3):
                await w.publish("unlocks", str(number))
            async with app.running():
                await running.wait()
                asyncio.get_running_loop().call_soon(gate.set)
            (cluster,) = await w.clusters("unlocks")
            assert cluster.lag == 2
            async with w.consumer("unlocks", cluster="ledger") as consumer:
                async with asyncio.timeout(10):
                    assert (await anext(consumer)).value == b"1"
                assert consumer.attempts == 1  # nobody tried it

    asyncio.run(test())


def test_run_ends_when_it_is_told_and_when_a_topic_is_gone(node: Any) -> None:
    async def test() -> None:
        app, stop = weir.App(), asyncio.Event()

        @app.subscribe("unlocks", cluster="ledger")
        async def record(message: weir.Message) -> None:
            stop.set()

        with pytest.raises(weir.errors.UnknownTopic):
            await app.run(node.url)
        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            await w.publish("unlocks", b"x")
            async with asyncio.timeout(30):
                await app.run(node.url, cluster="ledger", stop=stop)
            (cluster,) = await w.clusters("unlocks")
            assert cluster.lag == 0
            with pytest.raises(ValueError, match="there are ledger"):
                await app.run(node.url, cluster="leger")

    asyncio.run(test())


def test_what_cannot_work_is_said_where_it_is_written() -> None:
    app = weir.App()

    def handler(message: weir.Message) -> None: ...

    for options, words in (
        ({"mode": "share"}, "shared, keyed, ordered"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"dead_letter": "default/unlocks"}, "the topic itself"),
        ({"retry": weir.Backoff(attempts=3)}, "dead_letter="),
        ({"lease": "soon"}, "5ms"),
        ({"inbox": weir.Inbox("billing")}, "'billing'"),
    ):
        with pytest.raises(ValueError, match=words):
            app.subscribe("unlocks", cluster="ledger", **options)(handler)  # type: ignore[arg-type]
    with pytest.raises(weir.errors.BadName):
        app.subscribe("un locks", cluster="ledger")(handler)
    assert app.subscribe("unlocks", cluster="ledger")(handler) is handler
    with pytest.raises(ValueError, match="already"):
        app.subscribe("unlocks", cluster="ledger")(handler)
    with pytest.raises(ValueError, match="weir://"):
        weir.App("localhost")
    with pytest.raises(ValueError, match="decorate one"):
        asyncio.run(weir.App().run())
