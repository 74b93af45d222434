"""Clusters that take some tags: each wanted message once, all others done without being moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

import weir
from weir import testing
from weir.client.core import session
from weir.codec import total
from weir.errors import BadRequest, TooLarge
from weir.protocol.client import codec
from weir.protocol.client import messages as m

EACH, BATCHES = 240, 8


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[m.Granted]:
    """Fill up with what brokers grant."""
    found: list[m.Granted] = []

    def decode(frame: Any) -> Any:
        reply = codec.decode_reply(frame)
        if isinstance(reply, m.Granted):
            found.append(reply)
        return reply

    monkeypatch.setattr(session, "decode_reply", decode)
    return found


def tag_of(number: int) -> str | None:
    """Return the tag of a message: batches of one tag, then all mixed."""
    return (None, "a", "b", "c")[number // 30 % 4 if number < 120 else number % 4]


async def published(w: Any, partitions: int = 1) -> None:
    await w.create_topic("t", partitions=partitions)
    async with w.producer("t", linger=0) as producer:
        for batch in range(BATCHES):
            rows = range(batch * EACH // BATCHES, (batch + 1) * EACH // BATCHES)
            await producer.send_many(
                [b"%d" % row * 10 for row in rows],
                tags=[tag_of(row) for row in rows],
                keys=[b"k%d" % (row % 7) for row in rows],
            )
            await producer.flush()


def wanted(*tags: str) -> list[bytes]:
    return [b"%d" % row * 10 for row in range(EACH) if (tag_of(row) or "") in tags]


async def taken(w: Any, count: int, **options: Any) -> list[Any]:
    found = []
    async with w.consumer("t", cluster="c", **options) as consumer:
        while len(found) < count:
            message = await asyncio.wait_for(anext(consumer), 20)
            found.append(message)
            await message.ack()
    return found


async def done(w: Any, **options: Any) -> Any:
    """Return the cluster once nothing is left of it, with a consumer that waits meanwhile."""
    async with w.consumer("t", cluster="c", **options) as consumer:
        waiting = asyncio.ensure_future(anext(consumer))
        while True:
            found = await w.clusters("t")
            assert not waiting.done(), waiting.result()
            if found and not found[0].lag:
                break
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
    return found[0]


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
@pytest.mark.parametrize("tags", [["a"], [""], ["b", "c"], ["x"], ["", "a", "b", "c"]])
@scenario
async def test_each_wanted_message_comes_once_and_all_is_done(mode: Any, tags: list[str]) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w)
        expected = wanted(*tags)
        found = await taken(w, len(expected), tags=tags, mode=mode)
        assert sorted(one.value for one in found) == sorted(expected)
        assert all(one.attempts == 1 for one in found)
        if mode != "keyed":
            assert [one.value for one in found] == expected
        for key in {one.key for one in found}:
            offsets = [one.offset for one in found if one.key == key]
            assert offsets == sorted(offsets)
        cluster = await done(w, tags=tags, mode=mode)
        assert cluster.tags == tuple(sorted(tags))
        assert [share.cursor for share in cluster.shares] == [EACH]


@scenario
async def test_what_is_unwanted_is_not_moved(granted: list[m.Granted]) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w)
        moved = []
        for tags, count in ((None, EACH), ("a", len(wanted("a")))):
            granted.clear()
            async with w.consumer("t", cluster=f"of-{tags}", tags=tags) as consumer:
                async for batch in consumer.batches():
                    count -= len(batch)
                    await batch.ack()
                    if not count:
                        break
            moved.append(sum(total(one.batches) for one in granted))
        assert moved[1] < moved[0] / 2


@pytest.mark.parametrize("mode", ["shared", "ordered"])
@scenario
async def test_a_cluster_keeps_its_tags(mode: Any) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w)
        await taken(w, 3, tags=["b", "a"], mode=mode)
        assert len(await taken(w, 3, tags=["a", "b", "a"], mode=mode)) == 3
        for others, said in ((None, "all tags"), (["a"], "'a' alone"), ([""], "tags none alone")):
            with pytest.raises(BadRequest, match=f"'a', 'b' alone, and was opened .*{said}"):
                await taken(w, 1, tags=others, mode=mode)
        await w.delete_cluster("t", "c")
        assert len(await taken(w, 3, mode=mode)) == 3
        with pytest.raises(BadRequest, match="takes messages of all tags"):
            await taken(w, 1, tags="a", mode=mode)


@scenario
async def test_what_failed_comes_again_and_seeks_begin_anew() -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await published(w)
        async with w.consumer("t", cluster="c", tags="a", max_messages=50) as consumer:
            first = await anext(consumer)
            await first.nack(0, confirmed=True)
            again = {}
            while len(again) < len(wanted("a")):
                message = await asyncio.wait_for(anext(consumer), 20)
                again[message.value] = message.attempts
                await message.ack()
            assert again.pop(first.value) == 2
            assert set(again.values()) == {1}
        await done(w, tags="a")
        await w.seek_cluster("t", "c", "earliest")
        found = await taken(w, len(wanted("a")), tags="a")
        assert [one.value for one in found] == wanted("a")


@scenario
async def test_what_comes_while_it_waits_is_sifted_too() -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await w.create_topic("t")
        async with w.consumer("t", cluster="c", tags=["a"]) as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            async with w.producer("t", linger=0) as producer:
                for _ in range(20):
                    await producer.send(b"other", tag="b")
                await producer.send(b"mine", tag="a")
                await producer.send(b"none")
            message = await asyncio.wait_for(waiting, 20)
            assert (message.value, message.offset) == (b"mine", 20)
            await message.ack(confirmed=True)
        cluster = await done(w, tags=["a"])
        assert cluster.shares[0].cursor == 22


@scenario
async def test_in_total_order_a_cluster_takes_all() -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        await w.create_topic("t", partitions=2, order="total")
        with pytest.raises(BadRequest, match="in total order takes all messages"):
            await taken(w, 1, tags="a", mode="ordered")


@pytest.mark.parametrize("tags", [[], ["a"] * 65, ["x" * 300], 7])
@scenario
async def test_bad_tags_are_told_at_once(tags: Any) -> None:
    async with testing.node() as node, weir.connect(node.url) as w:
        with pytest.raises((BadRequest, TooLarge)):
            w.consumer("t", cluster="c", tags=tags)
