"""`weir.App` on a node in memory: what users write, and what comes of it."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

import weir


def test_every_message_is_handled_and_acked(node: Any, seen: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

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


def test_handlers_of_a_new_cluster_begin_where_they_are_told_to(node: Any, seen: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

        @app.subscribe("unlocks", cluster="ledger", start="latest")
        async def record(message: weir.Message) -> None:
            seen.add(message)

        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks", partitions=2)
            await w.publish("unlocks", b"before")
            async with app.running():
                await w.publish("unlocks", b"after")
                assert await seen.some(1) == [b"after"]

    asyncio.run(test())
    with pytest.raises(weir.errors.BadRequest, match="start='soon'"):
        weir.App().subscribe("unlocks", cluster="ledger", start="soon")(print)


def test_a_handler_takes_several_topics_and_those_of_a_prefix_that_come_later(
    node: Any, seen: Any, all_done: Any
) -> None:
    async def test() -> None:
        app = weir.App(node.url)

        @app.subscribe(["gates", "doors.*"], cluster="ledger")
        async def record(message: weir.Message) -> None:
            seen.add(message)

        async with weir.connect(node.url) as w:
            for topic in ("gates", "doors.north", "windows"):
                await w.create_topic(topic)
                await w.publish(topic, topic)
            async with app.running():
                await seen.some(2)
                await w.create_topic("doors.south")
                await w.publish("doors.south", b"later")
                values = await seen.some(3)
                for topic in ("gates", "doors.north", "doors.south"):
                    await all_done(w, topic, "ledger")
            assert sorted(values) == [b"doors.north", b"gates", b"later"]
            assert not await w.clusters("windows")

    asyncio.run(test())


def test_plain_functions_run_in_threads_beside_each_other(node: Any, seen: Any) -> None:
    async def test() -> None:
        app, both = weir.App(node.url), threading.Barrier(2, timeout=30)
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


def test_lists_of_messages(node: Any, seen: Any) -> None:
    async def test() -> None:
        app, sizes = weir.App(node.url), []

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


def test_hooks_and_the_app_s_own_connection(node: Any, seen: Any) -> None:
    async def test() -> None:
        app, told = weir.App(node.url), []

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
        with pytest.raises(RuntimeError, match="is not running"):
            _ = app.client

    asyncio.run(test())


def test_it_goes_on_after_a_power_cut_of_the_broker(node: Any, seen: Any, all_done: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

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
                    message = await anext(consumer)
                assert (message.value, message.attempts) == (b"1", 1)  # nobody tried it

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


def test_one_signal_ends_all_apps_of_a_process(node: Any) -> None:
    """The one that had begun last took it from the others, which went on."""

    async def test() -> None:
        apps = [weir.App(node.url) for _ in range(2)]
        async with weir.connect(node.url) as w:
            await w.create_topic("unlocks")
            await w.publish("unlocks", b"x")
            both = asyncio.Barrier(3)

            async def record(message: weir.Message) -> None:
                await both.wait()

            for number, app in enumerate(apps):
                app.subscribe("unlocks", cluster=f"ledger-{number}")(record)
            runs = [asyncio.ensure_future(app.run()) for app in apps]
            async with asyncio.timeout(30):
                await both.wait()
                # Those that end by themselves leave the others their signals.
                ended = weir.App(node.url)
                ended.subscribe("nowhere", cluster="ledger")(record)
                with pytest.raises(weir.errors.UnknownTopic):
                    await ended.run()
                signal.raise_signal(signal.SIGTERM)
                await asyncio.gather(*runs)

    asyncio.run(test())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_one_that_cannot_begin_ends_when_it_is_told(node: Any) -> None:
    """Its broker is away, or what is to be there before the first message does not come."""

    async def test() -> None:
        app, entered, seen = weir.App(), asyncio.Event(), []

        @app.on_start
        async def begin() -> None:
            entered.set()
            await asyncio.Event().wait()

        @app.on_stop
        def over() -> None:
            seen.append("over")

        @app.subscribe("unlocks", cluster="ledger")
        async def record(message: weir.Message) -> None: ...

        for url in (node.url, "weir://127.0.0.1:1"):
            stop = asyncio.Event()
            running = asyncio.ensure_future(app.run(url, stop=stop))
            if url == node.url:
                await entered.wait()
            stop.set()
            async with asyncio.timeout(20):
                await running
        assert seen == ["over"]

    asyncio.run(test())


def test_what_cannot_work_is_said_where_it_is_written() -> None:
    app = weir.App()

    def handler(message: weir.Message) -> None: ...

    for options, words in (
        ({"mode": "share"}, "shared, keyed, ordered"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"dead_letter": "default/unlocks"}, "takes itself"),
        ({"retry": weir.Backoff(attempts=3)}, "dead_letter="),
        ({"lease": "soon"}, "5ms"),
        ({"lease": "0s"}, "1 ms"),
        ({"max_messages": 0}, "1 or more"),
        ({"inbox": weir.Inbox("billing")}, "'billing'"),
    ):
        with pytest.raises(ValueError, match=words):
            app.subscribe("unlocks", cluster="ledger", **options)(handler)  # type: ignore[arg-type]
    with pytest.raises(weir.errors.BadName):
        app.subscribe("un locks", cluster="ledger")(handler)
    assert app.subscribe("unlocks", cluster="ledger")(handler) is handler
    with pytest.raises(ValueError, match="already"):
        app.subscribe("unlocks", cluster="ledger")(handler)
    for same in ("default/unlocks", ["doors", "unlocks"], "un*", ["un*"]):
        with pytest.raises(ValueError, match="a handler of 'unlocks' already"):
            app.subscribe(same, cluster="ledger")(handler)
    app.subscribe(["doors.*", "gates"], cluster="ledger")(handler)
    for same in ("doors.north", "gates", "doors.n*", "doo*", "*"):
        with pytest.raises(ValueError, match="already"):
            app.subscribe(same, cluster="ledger")(handler)
    for other in ("doors", "doors-*", "north/doors.*", "north/gates"):
        app.subscribe(other, cluster="ledger")(handler)
    app.subscribe("*", cluster="audit")(handler)
    with pytest.raises(ValueError, match=r"'unlocks.dead' is a topic that the handler takes"):
        app.subscribe("unlocks*", cluster="billing", dead_letter="unlocks.dead")(handler)
    with pytest.raises(TypeError, match="give a topic, a prefix"):
        app.subscribe(7, cluster="billing")(handler)  # type: ignore[arg-type]
    with pytest.raises(weir.errors.BadRequest, match="at least one"):
        app.subscribe([], cluster="billing")(handler)
    with pytest.raises(ValueError, match="weir://"):
        weir.App("localhost")
    with pytest.raises(ValueError, match="decorate one"):
        asyncio.run(weir.App().run())
