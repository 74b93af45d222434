"""Readers of some tags get what readers of everything get, less other tags, and move less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest
from msgspec.structs import replace

import weir
from weir import testing
from weir.client.core import session
from weir.codec import total
from weir.model.message import Message
from weir.protocol.client import codec
from weir.protocol.client import messages as m

PARTITIONS = 3
EACH = 120


@pytest.fixture(params=["partition", "total"])
def order(request: pytest.FixtureRequest) -> Any:
    return request.param


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


def tag_of(number: int) -> str | None:
    """Return the tag of a message: long runs, then all mixed."""
    return (None, "a", "b", "c")[number // 20 % 4 if number < 60 else number % 4]


async def published(w: Any, order: str, batches: int = 6) -> None:
    await w.create_topic("t", partitions=PARTITIONS, order=order)
    async with w.producer("t", linger=0) as producer:
        for batch in range(batches):
            rows = range(batch * EACH // batches, (batch + 1) * EACH // batches)
            for partition in range(PARTITIONS):
                await producer.send_many(
                    [b"%d.%d" % (partition, row) * 20 for row in rows],
                    tags=[tag_of(row) for row in rows],
                    keys=[b"k%d" % partition for _ in rows],
                )


async def read(w: Any, **options: Any) -> list[Message]:
    reader = w.reader("t", follow=False, **options)
    found = [message async for message in reader]
    assert sum(reader.positions.values()) == PARTITIONS * EACH
    return found


def those(messages: Sequence[Message], *tags: str) -> list[Message]:
    return [one for one in messages if (one.tag or "") in tags]


def sequences(messages: Sequence[Message], order: str) -> Any:
    """Return what is ordered: all, or those of each partition."""
    if order == "total":
        return list(messages)
    return {p: [one for one in messages if one.partition == p] for p in range(PARTITIONS)}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[m.Fetched]:
    """Fill up with what brokers answer."""
    found: list[m.Fetched] = []

    def decode(frame: Any) -> Any:
        reply = codec.decode_reply(frame)
        if isinstance(reply, m.Fetched):
            found.append(reply)
        return reply

    monkeypatch.setattr(session, "decode_reply", decode)
    return found


@pytest.mark.parametrize("tags", [["a"], [""], ["b", "c"], ["x"], ["", "a", "b", "c"]])
@scenario
async def test_a_reader_of_some_tags_gets_the_same_less_others(order: Any, tags: list[str]) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, order)
        everything = await read(w)
        assert len(everything) == PARTITIONS * EACH
        found = await read(w, tag=tags)
        assert sequences(found, order) == sequences(those(everything, *tags), order)
        again = [one async for one in w.reader("t", follow=False, tag=tags, max_bytes=1)]
        assert sequences(again, order) == sequences(found, order)
        keyed = await read(w, tag=tags, key=[b"k1"])
        assert keyed == [] or {one.tag for one in keyed} <= {one.tag for one in found}


@scenario
async def test_less_is_moved_and_the_answers_say_what_was_skipped(moved: list[m.Fetched]) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, "partition")
        await read(w)
        whole = sum(total(one.batches) for one in moved)
        moved.clear()
        found = await read(w, tag="a")
        assert sum(total(one.batches) for one in moved) < 0.6 * whole
        assert all(one.is_filtered for one in moved)
        assert any(one.skipped for one in moved)
        assert len(found) == PARTITIONS * sum(tag_of(row) == "a" for row in range(EACH))


@scenario
async def test_a_reader_goes_on_from_its_positions_in_the_middle_of_a_slice(order: Any) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, order, batches=2)
        whole = await read(w, tag=["c"])
        found: list[Message] = []
        start: Any = "earliest"
        while True:
            reader = w.reader("t", follow=False, tag=["c"], start=start, order=order)
            taken = 0
            async for message in reader:
                found.append(message)
                taken += 1
                if taken == 7:
                    break
            start = dict(reader.positions)
            await reader.close()
            if taken < 7:
                break
        assert sequences(found, order) == sequences(whole, order)


@scenario
async def test_a_live_reader_in_total_order_moves_on_over_other_tags() -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, "total")
        reader = w.reader("t", start="latest", tag="rare")
        async with reader, w.producer("t", linger=0) as producer:
            for number in range(30):
                tag = "rare" if number % 10 == 9 else "other"
                await producer.publish(b"%d" % number, key=b"%d" % number, tag=tag)
            found = [await anext(reader) for _ in range(3)]
        assert [one.value for one in found] == [b"9", b"19", b"29"]


@scenario
async def test_a_broker_of_the_release_before_sends_everything(
    monkeypatch: pytest.MonkeyPatch, moved: list[m.Fetched]
) -> None:
    honest = codec.decode_request

    def decode(frame: Any) -> Any:
        request = honest(frame)
        if isinstance(request, m.Fetch):
            # It knows neither tags nor lineages.
            return m.Fetch(*[getattr(request, one) for one in request.__struct_fields__[:-2]])
        return request

    monkeypatch.setattr("weir.broker.router.decode_request", decode)
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, "partition")
        everything = await read(w)
        found = await read(w, tag=["a", "b"])
        assert sequences(found, "partition") == sequences(those(everything, "a", "b"), "partition")
        assert not any(one.is_filtered for one in moved)


@scenario
async def test_more_tags_than_a_fetch_may_ask_for_are_picked_here(moved: list[m.Fetched]) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, "partition")
        found = await read(w, tag=["a", *map(str, range(64))])
        assert {one.tag for one in found} == {"a"}
        assert not any(one.is_filtered for one in moved)


@scenario
async def test_an_answer_with_a_hole_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lies = 2

    def decode(frame: Any) -> Any:
        nonlocal lies
        found = codec.decode_reply(frame)
        if isinstance(found, m.Fetched) and found.skipped and lies:
            lies -= 1
            return replace(found, skipped=found.skipped[1:])
        return found

    monkeypatch.setattr(session, "decode_reply", decode)
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w, "partition")
        found = await read(w, tag=["a"])
        assert len(found) == PARTITIONS * sum(tag_of(row) == "a" for row in range(EACH))
        assert not lies
