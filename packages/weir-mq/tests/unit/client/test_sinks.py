"""Sinks as applications use them, against a node in memory."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import weir
from rigs.clients import in_loop
from weir import sync, testing
from weir.client import sinks
from weir.client.connection.metadata import Places
from weir.client.sinks import StagedPart
from weir.errors import (
    BadRequest,
    NotTogether,
    PartitionEnded,
    StagedRunGone,
    TooLarge,
    UnknownTopic,
)
from weir.model.columns import StagedRun
from weir.model.ids import group_of
from weir.model.topic import partition_for
from weir.protocol.client.sinks import Stage
from weir.testing import Node


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        yield one


def rows(*values: bytes, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [*values], **columns})


async def staged(
    sink: Any, batch: int, topic: str, data: pa.RecordBatch, **where: Any
) -> list[StagedPart]:
    writer = sink.writer(batch)
    await writer.write(topic, data, **where)
    return await writer.finish()  # type: ignore[no-any-return]


async def values(w: weir.Client, topic: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    async with w.reader(topic, follow=False) as reader:
        async for message in reader:
            found.setdefault(message.partition, []).append(message.value)
    return found


@in_loop
async def test_what_is_staged_is_seen_once_it_is_published_at_one_stamp(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=3)
        await w.publish("report", b"before", partition=1)
        sink = w.sink("q")
        data = rows(b"a", b"b", b"c", b"d")
        parts = await staged(sink, 0, "report", data, partition=pa.array([2, 0, 2, 0]))
        assert [(one.topic, one.partition, one.run.messages) for one in parts] == [
            ("report", 0, 2),
            ("report", 2, 2),
        ]
        assert await values(w, "report") == {1: [b"before"]}
        parts = pickle.loads(pickle.dumps(parts))
        done = await sink.publish(0, parts)
        assert not done.duplicate
        assert await values(w, "report") == {0: [b"b", b"d"], 1: [b"before"], 2: [b"a", b"c"]}
        firsts: dict[tuple[str, int], int] = {}
        async with w.reader("report", follow=False, partitions=[0, 2]) as reader:
            async for message in reader:
                assert message.stamp == done.stamp
                firsts.setdefault(("report", message.partition), message.offset)
        assert done.offsets == firsts


@in_loop
async def test_a_batch_is_published_once_whoever_stages_it_again(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=2)
        for attempt in range(3):
            sink = w.sink("q")
            done = await sink.publish(4, await staged(sink, 4, "report", rows(b"a"), partition=0))
            assert done.duplicate == (attempt > 0)
        old = await sink.publish(3, await staged(sink, 3, "report", rows(b"old"), partition=0))
        assert old.duplicate
        new = await sink.publish(5, await staged(sink, 5, "report", rows(b"b"), partition=0))
        assert not new.duplicate
        other = w.sink("another")
        await other.publish(0, await staged(other, 0, "report", rows(b"c"), partition=0))
        assert await values(w, "report") == {0: [b"a", b"b", b"c"]}
        assert [(one.query, one.batch_id) for one in await w.sinks("report")] == [
            ("another", 0),
            ("q", 5),
        ]
        assert await w.forget_sink("report", "q")
        assert not await w.forget_sink("report", "q")
        assert [one.query for one in await w.sinks("report")] == ["another"]
        again = await sink.publish(0, await staged(sink, 0, "report", rows(b"a"), partition=0))
        assert not again.duplicate


@in_loop
async def test_runs_of_several_writers_come_in_the_order_that_is_given(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=2)
        sink = w.sink("q")
        first, second, left_out = [
            await staged(sink, 0, "report", rows(value), partition=0)
            for value in (b"first", b"second", b"left out")
        ]
        assert left_out
        await sink.publish(0, [*second, *first])
        assert await values(w, "report") == {0: [b"second", b"first"]}
        # A producer id is used again, with the sequences that follow.
        await sink.publish(1, await staged(sink, 1, "report", rows(b"x", b"y"), partition=0))
        await sink.publish(2, await staged(sink, 2, "report", rows(b"z"), partition=0))
        assert await values(w, "report") == {0: [b"second", b"first", b"x", b"y", b"z"]}


@in_loop
async def test_rows_go_where_producers_send_their_keys(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=5)
        await w.end_partition("report", 3)
        info = await w.describe("report")
        keys = [b"k%d" % number for number in range(200)]
        sink = w.sink("q")
        data = rows(*keys, key=keys)
        await sink.publish(0, await staged(sink, 0, "report", data))
        found = await values(w, "report")
        expected: dict[int, list[bytes]] = {}
        for key in keys:
            expected.setdefault(partition_for(key, 5, info.closed), []).append(key)
        assert found == expected
        assert 3 not in found


@in_loop
async def test_rows_without_a_key_take_turns_and_some_may_name_a_partition(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=3)
        sink = w.sink("q")
        writer = sink.writer(0)
        body = b"v" * 1_000
        for _ in range(6):
            await writer.write("report", rows(*[body] * 1_000))
        named = pa.array([None, 1, None])
        await writer.write(
            "report", rows(b"x", b"y", b"z", key=[b"k", b"k", b"k"]), partition=named
        )
        await sink.publish(0, await writer.finish())
        found = await values(w, "report")
        assert sorted(found) == [0, 1, 2]
        assert sum(one.count(body) for one in found.values()) == 6_000
        at = partition_for(b"k", 3)
        assert [one for one in found[at] if len(one) == 1 and one != b"y"] == [b"x", b"z"]
        assert b"y" in found[1]


@in_loop
async def test_large_batches_are_cut_and_stay_in_order(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=2)
        sink = w.sink("q")
        writer = sink.writer(0)
        expected = [b"%06d" % number + b"." * 3_000 for number in range(4_000)]
        for first in range(0, 4_000, 500):
            await writer.write("report", rows(*expected[first : first + 500]), partition=1)
        parts = await writer.finish()
        assert 11 <= parts[0].run.batches <= 16
        await sink.publish(0, parts)
        assert await values(w, "report") == {1: expected}


@in_loop
async def test_a_broken_connection_loses_and_repeats_nothing(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report")
        sink = w.sink("q")
        writer = sink.writer(0)
        expected = [b"%06d" % number + b"." * 3_000 for number in range(3_000)]
        for first in range(0, 3_000, 500):
            await writer.write("report", rows(*expected[first : first + 500]))
            if first == 1_000:
                node.restart()
        await sink.publish(0, await writer.finish())
        assert await values(w, "report") == {0: expected}


@in_loop
async def test_a_row_that_no_batch_holds_is_named_before_anything_is_sent(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report")
        writer = w.sink("q").writer(9)
        await writer.write("report", rows(b"a", b"b"))
        with pytest.raises(TooLarge, match=r"row 3 for topic report .* batch 9 of query q"):
            await writer.write("report", rows(b"c", b"d" * (8 << 20)))
        assert await values(w, "report") == {}


@in_loop
async def test_what_is_no_partition_is_refused(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=2)
        writer = w.sink("q").writer(0)
        with pytest.raises(UnknownTopic, match="no partition 7"):
            await writer.write("report", rows(b"a", b"b"), partition=pa.array([0, 7]))
        with pytest.raises(BadRequest, match=r"partition -1 of topic report: give 0 to 1"):
            await writer.write("report", rows(b"a"), partition=pa.array([-1]))
        with pytest.raises(BadRequest, match="2 partitions for 1 rows"):
            await writer.write("report", rows(b"a"), partition=pa.array([1, 1]))
        with pytest.raises(BadRequest, match="give a number, or an Arrow array"):
            await writer.write("report", rows(b"a"), partition="1")
        with pytest.raises(UnknownTopic):
            await writer.write("nowhere", rows(b"a"))
        with pytest.raises(BadRequest, match="query of 0 characters"):
            w.sink("")
        with pytest.raises(BadRequest, match="batch_id=-1"):
            w.sink("q").writer(-1)


@in_loop
async def test_several_topics_are_published_together_or_not_at_all(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("good", scatter_with=["bad"])
        await w.create_topic("bad", scatter_with=["good"])
        await w.create_topic("alone")
        sink = w.sink("q")
        writer = sink.writer(0)
        await writer.write("good", rows(b"g"))
        await writer.write("bad", rows(b"b"))
        done = await sink.publish(0, await writer.finish())
        assert {*(done.offsets or {})} == {("good", 0), ("bad", 0)}
        writer = sink.writer(1)
        await writer.write("good", rows(b"g"))
        await writer.write("alone", rows(b"a"))
        parts = await writer.finish()
        with pytest.raises(NotTogether):
            await sink.publish(1, parts)
        assert await values(w, "good") == {0: [b"g"]}
        assert [one.batch_id for one in await w.sinks("bad")] == [0]


@in_loop
async def test_runs_that_are_gone_are_named_and_nothing_is_published(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=2)
        sink = w.sink("q")
        parts = await staged(sink, 0, "report", rows(b"a", b"b"), partition=pa.array([0, 1]))
        wrong = parts[1]._replace(run=parts[1].run._replace(number=77))
        with pytest.raises(StagedRunGone, match=r"run 77 in report/1, .* batch 0 of query q"):
            await sink.publish(0, [parts[0], wrong])
        assert await values(w, "report") == {}
        await sink.publish(0, parts)
        assert await values(w, "report") == {0: [b"a"], 1: [b"b"]}


@in_loop
async def test_a_topic_that_was_made_again_is_another(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report")
        sink = w.sink("q")
        parts = await staged(sink, 0, "report", rows(b"a"))
        await w.delete_topic("report")
        await w.create_topic("report")
        async with weir.connect(node.url) as other:
            with pytest.raises(UnknownTopic, match="deleted and created again"):
                await other.sink("q").publish(0, parts)
        # This client still knew the old one; it has learned of the new one by now.
        with pytest.raises(UnknownTopic):
            await sink.publish(0, parts)
        await sink.publish(0, await staged(sink, 0, "report", rows(b"b")))
        assert await values(w, "report") == {0: [b"b"]}


@in_loop
async def test_a_partition_that_ended_is_left_out_by_the_next_writer(node: Node) -> None:
    async with weir.connect(node.url) as w, weir.connect(node.url) as operator:
        await w.create_topic("report", partitions=2)
        sink, keys = w.sink("q"), [b"k%d" % number for number in range(20)]
        await sink.publish(0, await staged(sink, 0, "report", rows(*keys, key=keys)))
        await operator.end_partition("report", 1)
        with pytest.raises(PartitionEnded):
            await staged(sink, 1, "report", rows(*keys, key=keys))
        await sink.publish(1, await staged(sink, 1, "report", rows(*keys, key=keys)))
        for batch in range(2, 6):  # rows without a key go to the other one, whosever turn it is
            await sink.publish(batch, await staged(sink, batch, "report", rows(b"x")))
        assert sum(map(len, (await values(w, "report")).values())) == 44


@in_loop
async def test_rows_of_one_batch_may_have_different_columns(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report")
        sink = w.sink("q")
        writer = sink.writer(0)
        await writer.write("report", rows(b"a", key=[b"k"]))
        await writer.write("report", rows(b"b"))
        await writer.write("report", rows(b"c", tag=["t"]))
        await sink.publish(0, await writer.finish())
        async with w.reader("report", follow=False) as reader:
            found = [(one.value, one.key, one.tag) async for one in reader]
        assert found == [(b"a", b"k", None), (b"b", None, None), (b"c", None, "t")]


def test_what_is_gathered_for_all_topics_is_bounded(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_GATHERED_BYTES_MAX", 1 << 20)
    sent: list[int] = []

    async def counted(send: Ask, number: int, made: Any) -> Any:
        sent.append(len(made.batch))
        return await send()

    intercept(monkeypatch, counted)

    async def scenario() -> None:
        async with asyncio.timeout(30), weir.connect(node.url) as w:
            sink = w.sink("q")
            writer = sink.writer(0)
            given = 0
            for topic in ("one", "two", "three"):
                await w.create_topic(topic, 4)
                await writer.write(topic, rows(*[b"." * 1_000] * 400, key=[b"k"] * 400))
                given += 400_000
                assert given - sum(sent) <= 1 << 20
            assert sent

    asyncio.run(scenario())


@in_loop
async def test_what_was_staged_over_an_hour_ago_is_gone(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report")
        sink = w.sink("q")
        parts = await staged(sink, 0, "report", rows(b"a"))
        node.advance(3_700)
        with pytest.raises(StagedRunGone, match="in report/0") as refused:
            await sink.publish(0, parts)
        assert refused.value.detail == parts[0].run.number
        await sink.publish(0, await staged(sink, 0, "report", rows(b"again")))
        assert await values(w, "report") == {0: [b"again"]}


def test_sinks_are_listed_page_by_page(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.broker.partition.topics._SINKS_PER_PAGE", 2)
    with sync.connect(node.url) as w:
        w.create_topic("report")
        for query in "dbcae":
            sink = w.sink(query)
            writer = sink.writer(0)
            writer.write("report", rows(b"a"))
            sink.publish(0, writer.finish())
        assert [one.query for one in w.sinks("report")] == [*"abcde"]


Ask = Callable[..., Awaitable[Any]]


def intercept(monkeypatch: pytest.MonkeyPatch, change: Callable[[Ask, int, Any], Any]) -> None:
    """Let `change` send what is staged: it gets how, the number of the batch, and its request."""
    plain = Places.ask

    async def ask(self: Places, partition: int, request: Any, kind: Any, **named: Any) -> Any:
        made = request(self[partition])
        if not isinstance(made, Stage):
            return await plain(self, partition, request, kind, **named)

        async def send() -> Any:
            return await plain(self, partition, request, kind, **named)

        return await change(send, made.number, made)

    monkeypatch.setattr(Places, "ask", ask)


LARGE = [b"%06d" % number + b"." * 3_000 for number in range(1_500)]


async def write_large(writer: Any) -> list[StagedPart]:
    for first in range(0, len(LARGE), 100):
        await writer.write("report", rows(*LARGE[first : first + 100]), partition=0)
    return await writer.finish()  # type: ignore[no-any-return]


def test_a_batch_that_comes_before_the_one_before_it_is_sent_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    async def late(send: Ask, number: int, _: Any) -> Any:
        if number == 0 and 0 not in sent:
            sent.append(0)
            await asyncio.sleep(0.6)  # longer than it is tried again without news of the first one
        sent.append(number)
        return await send()

    intercept(monkeypatch, late)

    async def scenario() -> None:
        async with asyncio.timeout(30), weir.connect(node.url) as w:
            await w.create_topic("report")
            sink = w.sink("q")
            await sink.publish(0, await write_large(sink.writer(0)))
            assert await values(w, "report") == {0: LARGE}

    asyncio.run(scenario())
    assert sent.count(1) > 1, "the second batch was to come first"


def test_an_answer_that_is_lost_adds_nothing_when_it_is_sent_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def twice(send: Ask, number: int, _: Any) -> Any:
        await send()
        return await send()

    intercept(monkeypatch, twice)

    async def scenario() -> None:
        async with asyncio.timeout(30), weir.connect(node.url) as w:
            await w.create_topic("report")
            sink = w.sink("q")
            await sink.publish(0, await write_large(sink.writer(0)))
            assert await values(w, "report") == {0: LARGE}

    asyncio.run(scenario())


def test_a_run_whose_batches_are_lost_is_to_be_staged_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(send: Ask, number: int, _: Any) -> Any:
        return None if number == 0 else await send()

    intercept(monkeypatch, lost)

    async def scenario() -> None:
        async with asyncio.timeout(30), weir.connect(node.url) as w:
            await w.create_topic("report")
            writer = w.sink("q").writer(0)
            with pytest.raises(
                StagedRunGone, match=r"in report/0 is gone: .* Stage the batch again"
            ):
                await write_large(writer)
            with pytest.raises(StagedRunGone):
                await writer.write("report", rows(b"more"))

    asyncio.run(scenario())


def test_what_fails_ends_all_that_is_under_way(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(send: Ask, number: int, made: Any) -> Any:
        if made.address.group & 1:
            raise BadRequest("no")
        await asyncio.Event().wait()

    intercept(monkeypatch, failing)

    async def scenario() -> None:
        async with asyncio.timeout(30), weir.connect(node.url) as w:
            await w.create_topic("report", 2)
            writer = w.sink("q").writer(3)
            await writer.write("report", rows(b"a", b"b"), partition=pa.array([0, 1]))
            with pytest.raises(BadRequest) as refused:
                await writer.finish()
            assert refused.value.__notes__ == ["while batch 3 of query q was staged"]
            assert not [one for one in asyncio.all_tasks() if one.get_name() == "weir stage"]

    asyncio.run(scenario())


def test_little_is_under_way_while_the_broker_does_not_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    async def scenario() -> None:
        answering = asyncio.Event()

        async def held(send: Ask, number: int, made: Any) -> Any:
            sizes.append(len(made.batch))
            await answering.wait()
            return await send()

        intercept(monkeypatch, held)
        async with asyncio.timeout(30), weir.connect(node.url) as w:
            await w.create_topic("report")
            sink = w.sink("q")
            writer = sink.writer(0)
            large = rows(*[b"." * 100_000] * 200)
            writing = asyncio.create_task(writer.write("report", large))
            await asyncio.wait([writing], timeout=0.5)
            assert not writing.done()
            assert 7 << 20 <= sum(sizes) <= 8 << 20
            answering.set()
            await writing
            await sink.publish(0, await writer.finish())
            assert len((await values(w, "report"))[0]) == 200

    asyncio.run(scenario())


@in_loop
async def test_limits_of_a_publication_are_told_before_it_is_sent(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report", partitions=4)
        sink, run = w.sink("q"), StagedRun(1, 1, 1, 1)
        topic = (await w.describe("report")).id

        def parts(partitions: int, runs: int = 1) -> list[StagedPart]:
            return [
                StagedPart("report", number, group_of(topic, number), run)
                for number in range(partitions)
                for _ in range(runs)
            ]

        with pytest.raises(TooLarge, match=r"a batch for 768 partitions of report; 767 are"):
            await sink.publish(0, parts(768))
        with pytest.raises(TooLarge, match=r"65,537 runs for report/0; 65,536 are allowed"):
            await sink.publish(0, parts(1, 65_537))
        with pytest.raises(TooLarge, match=r"take over 7,340,032 bytes"):
            await sink.publish(0, parts(4, 65_536))


@in_loop
async def test_a_batch_without_rows_is_no_batch(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("report")
        sink = w.sink("q")
        parts = await staged(sink, 0, "report", rows().slice(0, 0))
        assert parts == []
        done = await sink.publish(0, parts)
        assert (done.stamp, done.duplicate) == (0, False)
        assert await w.sinks("report") == []


def test_the_client_without_async_writes_too(node: Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("report")
        sink = w.sink("q")
        writer = sink.writer(0)
        pairs = pa.array([[("h", b"1")]], pa.map_(pa.string(), pa.binary()))
        writer.write("report", rows(b"a", tag=["t"], key=["k"], headers=pairs))
        assert not sink.publish(0, writer.finish()).duplicate
        (message,) = w.reader("report", follow=False)
        assert (message.value, message.key, message.tag) == (b"a", b"k", "t")
        assert message.headers == {"h": b"1"}
        assert [one.query for one in w.sinks("report")] == ["q"]
        assert w.forget_sink("report", "q")
