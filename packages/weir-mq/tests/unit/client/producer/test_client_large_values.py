"""Large values through the client: cut, sent again, closed, and put together."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rigs.consuming import take
from weir.client.client import connect
from weir.client.core.retries import Backoff
from weir.client.producer.chunker import first_of, pieces_of
from weir.errors import BadBatch, Overloaded, TooLarge, ValueLost
from weir.model.batch import HEADER_SIZE, Batch
from weir.model.limits import MIB, VALUE_CHUNK_BYTES
from weir.model.message import LargeMessage, Message
from weir.protocol.client import messages as m

QUICK = Backoff(0.001, 0.01)
VALUE = b"".join(b"%08d" % n for n in range(3 * MIB // 8 + 5))


async def collected(source: Any) -> list[bytes]:
    return [bytes(piece) async for piece in pieces_of(source)]


def sources(data: bytes, tmp_path: Path) -> Iterator[Any]:
    async def trickle() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 77_777):
            yield data[at : at + 77_777]

    path = tmp_path / "value"
    path.write_bytes(data)
    yield from (data, bytearray(data), memoryview(data), io.BytesIO(data), trickle())
    yield (data[at : at + 1_999_999] for at in range(0, len(data), 1_999_999))
    with path.open("rb") as file:
        yield file


@pytest.mark.parametrize("size", [0, 1, VALUE_CHUNK_BYTES, VALUE_CHUNK_BYTES + 1, len(VALUE)])
def test_whatever_a_value_comes_from_its_pieces_are_the_same(size: int, tmp_path: Path) -> None:
    data = VALUE[:size]
    for source in sources(data, tmp_path):
        pieces = asyncio.run(collected(source))
        assert b"".join(pieces) == data
        assert all(len(piece) == VALUE_CHUNK_BYTES for piece in pieces[:-1])
        assert len(pieces) == -(-size // VALUE_CHUNK_BYTES)


@pytest.mark.parametrize("source", ["text", 7, ["text"], io.StringIO("text"), None])
def test_what_is_not_bytes_is_refused(source: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        asyncio.run(collected(source))


def test_a_stream_of_one_piece_is_an_ordinary_message() -> None:
    async def scenario() -> None:
        assert (await first_of(pieces_of([b"a", b"b"])))[0] == b"ab"
        assert (await first_of(pieces_of([])))[0] == b""
        whole, pieces = await first_of(pieces_of(VALUE))
        assert whole is None
        assert b"".join([bytes(piece) async for piece in pieces]) == VALUE

    asyncio.run(scenario())


async def read(w: Any, **options: Any) -> list[Message]:
    return [message async for message in w.reader("t", follow=False, **options)]


def test_a_value_survives_refusals_cuts_and_lost_answers(fake_broker) -> None:
    numbers = count()

    def script(request: m.Request) -> Any:
        if not isinstance(request, m.Produce):
            return None
        return {
            2: m.Refusal(Overloaded.code, "later", 1), 4: "cut after", 7: "cut", 9: "cut after",
        }.get(next(numbers))  # fmt: skip

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            broker.script = script
            async with w.producer("t", window=2) as producer:
                large = asyncio.ensure_future(producer.publish(VALUE, key="k", headers={"h": b"1"}))
                second = asyncio.ensure_future(producer.publish_from([VALUE, b"more"]))
                small = [await producer.publish(b"%d" % n) for n in range(9)]
                receipts = [await large, await second, *small]
            assert sorted(receipt.offset for receipt in receipts) == [*range(11)]
            broker.script = lambda _: None
            messages = {message.offset: message for message in await read(w)}
            found = messages[receipts[0].offset]
            assert (found.value, found.key, found.headers) == (VALUE, b"k", {"h": b"1"})
            assert messages[receipts[1].offset].value == VALUE + b"more"
            assert [messages[r.offset].value for r in small] == [b"%d" % n for n in range(9)]

    asyncio.run(scenario())


def test_only_messages_are_told_to_on_confirm(fake_broker) -> None:
    async def scenario() -> None:
        told = []
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            async with w.producer("t", on_confirm=told.append) as producer:
                receipt = await producer.publish(VALUE)
            assert [(done.offset, done.count) for done in told] == [(receipt.offset, 1)]

    asyncio.run(scenario())


def test_a_source_that_fails_leaves_the_producer_well(fake_broker) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield VALUE
        raise OSError("the camera is gone")

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            async with w.producer("t") as producer:
                with pytest.raises(OSError, match="camera"):
                    await producer.publish_from(broken())
                assert (await producer.publish(VALUE)).offset == 0
            assert [message.value for message in await read(w)] == [VALUE]

    asyncio.run(scenario())


def test_chunks_that_the_broker_lost_are_told_to_the_publisher(fake_broker) -> None:
    def script(request: m.Request) -> Any:
        if isinstance(request, m.Produce) and Batch(request.batch).references is not None:
            return m.Refusal(ValueLost.code, "they expired")
        return None

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            broker.script = script
            with pytest.raises(ValueLost, match="expired"):
                await w.publish("t", VALUE)
            broker.script = lambda _: None
            assert (await w.publish("t", VALUE)).offset == 0  # by another producer

    asyncio.run(scenario())


def test_a_value_over_the_limit_streams_and_says_so(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            await w.publish("t", VALUE)
            (message,) = await read(w, value_bytes_max=len(VALUE) - 1)
            assert isinstance(message, LargeMessage)
            assert (message.size, message.offset) == (len(VALUE), 0)
            with pytest.raises(TooLarge, match="chunks"):
                _ = message.value
            assert b"".join([bytes(piece) async for piece in message.chunks()]) == VALUE
            async with w.consumer("t", cluster="c", value_bytes_max=9) as consumer:
                assert await (await take(consumer)).read() == VALUE

    asyncio.run(scenario())


def test_a_value_that_changed_in_the_store_is_not_believed(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            await w.publish("t", VALUE)
            chunk = bytearray(broker.chunks[8].view)
            kept, chunk[HEADER_SIZE + 40] = broker.chunks[8], 0
            broker.chunks[8] = Batch(chunk)
            reader = w.reader("t", follow=False)
            with pytest.raises(BadBatch, match="hash"):
                await anext(reader)
            broker.chunks[8] = kept
            assert (await anext(reader)).value == VALUE  # from where it was
            await reader.close()

    asyncio.run(scenario())


def test_a_message_that_is_here_is_read_the_same_way() -> None:
    async def scenario() -> None:
        message = Message(b"value")
        assert (message.size, message.loaded) == (5, True)
        assert await message.read() == b"value"
        assert [piece async for piece in message.chunks()] == [b"value"]
        alone = LargeMessage(message._replace(topic="t", partition=1, offset=7), 99)
        assert not alone.loaded
        with pytest.raises(TooLarge, match="t/1 offset 7 has 99 bytes"):
            _ = alone.value
        with pytest.raises(TooLarge, match="does not fetch"):
            await alone.read()

    asyncio.run(scenario())


def test_a_slow_source_is_cut_by_time_too() -> None:
    """What was gathered for five minutes goes: a value that does not grow for an hour is void."""
    times = iter([0.0, *(100.0 * n for n in range(1, 99))])

    async def scenario() -> None:
        found = [bytes(piece) async for piece in pieces_of([b"a"] * 7, lambda: next(times))]
        assert b"".join(found) == b"a" * 7
        assert len(found) == 3

    asyncio.run(scenario())


def test_the_hash_of_a_value_is_that_of_the_bytes_that_were_sent(fake_broker) -> None:
    """Also where somebody writes into the buffer meanwhile: what is confirmed can be read."""

    async def scenario() -> None:
        value = bytearray(VALUE)

        def script(request: m.Request) -> Any:
            if isinstance(request, m.Produce):
                value[-1] ^= 1
                value[VALUE_CHUNK_BYTES] ^= 1
            return None

        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t")
            broker.script = script
            async with w.producer("t", window=1) as producer:
                await producer.publish(value)
            (message,) = await read(w)
            assert len(message.value) == len(value)

    asyncio.run(scenario())


def test_a_value_that_cannot_be_read_says_how_to_go_on(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, retry=QUICK) as w:
            broker.topic("t")
            await w.publish("t", VALUE)
            await w.publish("t", b"behind")
            broker.chunks[8] = Batch(broker.chunks[7].view)
            with pytest.raises(BadBatch, match=r"start=\{0: 1\}"):
                await read(w)
            assert [one.value for one in await read(w, start={0: 1})] == [b"behind"]

    asyncio.run(scenario())
