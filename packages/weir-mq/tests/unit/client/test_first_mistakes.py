"""What somebody types wrong at first is answered with what to type."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import weir


def test_a_number_for_retry_names_the_backoff() -> None:
    with pytest.raises(TypeError, match=r"retry=3: give weir\.Backoff\(attempts=3\)"):
        weir.connect("weir://localhost", retry=cast(Any, 3))
    with pytest.raises(TypeError, match=r"retry='often': give weir\.Backoff\(attempts=3\)"):
        weir.connect("weir://localhost", retry=cast(Any, "often"))


def test_a_number_for_retry_names_the_backoff_wherever_it_is_given(fake_broker: Any) -> None:
    three = cast(Any, 3)
    app = weir.App("weir://localhost")
    with pytest.raises(TypeError, match=r"retry=3: give weir\.Backoff\(attempts=3\)"):
        app.subscribe("t", cluster="c", retry=three)
    with pytest.raises(TypeError, match=r"retry=0: give weir\.Backoff\(attempts=3\)"):
        app.subscribe("t", cluster="c", retry=cast(Any, 0), dead_letter="dead")

    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            await w.create_topic("t")
            with pytest.raises(TypeError, match=r"retry=3: give weir\.Backoff\(attempts=3\)"):
                async with w.consumer("t", cluster="c", retry=three):
                    pass

    asyncio.run(scenario())


def test_a_client_that_was_entered_without_async_says_what_to_write() -> None:
    with (
        pytest.raises(TypeError, match=r"`async with weir\.connect\(.*`with weir\.sync\.connect\("),
        cast(Any, weir.connect("weir://localhost")),
    ):
        raise AssertionError("it was entered")


def test_a_client_that_was_not_awaited_says_so() -> None:
    client: Any = weir.connect("weir://localhost")
    with pytest.raises(AttributeError, match=r"no 'publish': write `async with weir\.connect") as e:
        client.publish("t", b"x")
    assert "`w = await weir.connect(...)`" in str(e.value)


def test_headers_that_are_no_mapping_are_refused(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            await w.create_topic("t")
            for headers in ([("a", b"1")], "a"):
                with pytest.raises(TypeError, match="headers are a mapping of text to bytes"):
                    await w.publish("t", b"x", headers=cast(Any, headers))
            assert (await w.publish("t", b"x", headers={"a": b"1"})).offset == 0

    asyncio.run(scenario())


def test_a_list_of_topics_is_refused_by_a_reader(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            with pytest.raises(TypeError, match="not list: open one reader for each topic"):
                w.reader(cast(Any, ["a", "b"]))

    asyncio.run(scenario())


def test_a_topic_of_a_namespace_has_its_full_name(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w:
            names = [(await w.create_topic(name)).full_name for name in ("t", "ns/t")]
            assert names == ["t", "ns/t"]

    asyncio.run(scenario())
