"""Functions of every kind: what would only seem to handle a message is refused, or done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

import weir


def test_a_function_that_returns_a_coroutine_is_awaited(node: Any, seen: Any) -> None:
    """Its messages were acked, and the coroutine never ran."""

    async def test() -> None:
        app = weir.App(node.url)

        async def record(wanted: str, message: weir.Message) -> None:
            await asyncio.sleep(0)
            if seen.add(message) is None and message.value != wanted.encode():
                raise weir.Reject("another")

        app.subscribe("doors", cluster="lambda", dead_letter="dead")(lambda m: record("x", m))
        app.subscribe("doors", cluster="partial", dead_letter="dead")(partial(record, "x"))
        async with weir.connect(node.url) as w:
            await w.create_topic("doors")
            async with app.running():
                await w.publish("doors", "x")
                await w.publish("doors", "y")
                assert sorted(await seen.some(4)) == [b"x", b"x", b"y", b"y"]
            dead = [m.value async for m in w.reader("dead", follow=False)]
            assert dead == [b"y", b"y"]

    asyncio.run(test())


def test_what_yields_is_no_handler() -> None:
    """Its messages were acked, and nothing of it ran."""

    def some(message: weir.Message) -> Iterator[int]:
        yield 1

    async def others(message: weir.Message) -> AsyncIterator[int]:
        yield 1

    class Called:
        def __call__(self, message: weir.Message) -> Iterator[int]:
            yield 1

    app = weir.App()
    for handler in (some, others, Called()):
        with pytest.raises(TypeError, match="yields"):
            app.subscribe("doors", cluster="ledger")(handler)


@pytest.mark.parametrize("kind", [iter, aiter])
def test_a_function_that_returns_a_generator_has_failed(node: Any, kind: Any) -> None:
    async def test() -> None:
        app = weir.App(node.url)

        async def others() -> AsyncIterator[int]:
            yield 1

        generator: Any = (n for n in (1,)) if kind is iter else others()
        retry = weir.Backoff(attempts=1)
        subscribe = app.subscribe("doors", cluster="ledger", retry=retry, dead_letter="dead")
        subscribe(lambda message: generator)
        async with weir.connect(node.url) as w:
            await w.create_topic("doors")
            await w.publish("doors", "x")
            async with app.running(), asyncio.timeout(20):
                async for message in w.reader("dead"):
                    assert b"generator" in message.headers["weir-reason"]
                    break

    asyncio.run(test())


def test_what_takes_no_message_is_no_handler() -> None:
    app = weir.App()

    async def forgot() -> None: ...

    def two(message: weir.Message, wanted: str) -> None: ...

    def named(*, message: weir.Message) -> None: ...

    for handler in (forgot, two, named):
        with pytest.raises(TypeError, match=rf"write `def {handler.__name__}\(message\)`"):
            app.subscribe("doors", cluster="crew")(handler)
    with pytest.raises(TypeError, match=r"with a list of messages alone.*forgot\(messages\)"):
        app.subscribe("doors", cluster="crew", batch=True)(forgot)
    app.subscribe("doors", cluster="crew")(partial(two, wanted="x"))
    app.subscribe("doors", cluster="any")(lambda *message: None)
