"""Where readers begin and end, and what they leave out, against a node in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

import weir
from weir import testing
from weir.client.client import Client
from weir.client.reader.options import begin_of
from weir.client.reader.positions import Barriers, Moment
from weir.errors import BadRequest
from weir.model.ids import LINEAGE_MAX
from weir.order.clock import milliseconds_of


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Client, testing.Node]]:
    with testing.node() as node:
        async with weir.connect(node.url) as w:
            yield w, node


def run(scenario: Callable[[Client, testing.Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with connected() as (w, node), asyncio.timeout(30):
            await scenario(w, node)

    asyncio.run(whole())


async def values(w: Client, **options: object) -> list[bytes]:
    return [message.value async for message in w.reader("t", **options)]  # type: ignore[arg-type]


async def fill(w: Client, count: int, partitions: int = 1) -> None:
    await w.create_topic("t", partitions)
    for partition in range(partitions):
        async with w.producer("t", partition=partition) as producer:
            await producer.send_many([b"%d/%d" % (partition, i) for i in range(count)])


def test_the_last_messages_of_each_partition() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await fill(w, 3, partitions=2)
        await w.publish("t", b"more", partition=0)
        assert set(await values(w, start="last", follow=False)) == {b"more", b"1/2"}
        found = await values(w, start=weir.last(2), follow=False)
        assert sorted(found) == [b"0/2", b"1/1", b"1/2", b"more"]
        assert len(await values(w, start=weir.last(100), follow=False)) == 7

    run(scenario)


def test_a_cluster_goes_on_at_the_last_messages() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await fill(w, 10)
        await w.seek_cluster("t", "crew", "last", create=True)
        assert [one.lag for one in await w.clusters("t", "crew")] == [1]
        await w.seek_cluster("t", "crew", weir.last(4))
        assert [one.lag for one in await w.clusters("t", "crew")] == [4]

    run(scenario)


def test_the_last_messages_of_a_key() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await w.create_topic("t", 3)
        for i in range(30):
            await w.publish("t", b"%d" % i, key=f"k{i % 5}", tag="even" if i % 2 == 0 else "odd")
        for key in range(5):
            assert await values(w, start="last", key=f"k{key}", follow=False) == [
                b"%d" % (25 + key)
            ]
        assert await values(w, start=weir.last(3), key="k1", follow=False) == [b"16", b"21", b"26"]
        assert len(await values(w, start=weir.last(100), key="k1", follow=False)) == 6
        assert await values(w, start="last", key="k1", tag="odd", follow=False) == [b"21"]
        assert await values(w, start="last", key="nobody", follow=False) == []
        # Several keys, or tags: the last of each partition that pass.
        two = await values(w, start="last", key=["k1", "k2"], follow=False)
        assert b"27" in two
        assert set(two) <= {b"26", b"27"}
        odd = await values(w, start="last", tag="odd", follow=False)
        assert b"29" in odd
        assert len(odd) == len({*odd}) <= 3
        # It goes on with what comes.
        async with w.reader("t", start="last", key="k0") as reader:
            assert (await anext(reader)).value == b"25"
            await w.publish("t", b"other", key="k1")
            await w.publish("t", b"news", key="k0")
            assert (await anext(reader)).value == b"news"
        async with w.reader("t", start="last", key="nobody") as reader:
            await w.publish("t", b"somebody", key="nobody")
            assert (await anext(reader)).value == b"somebody"

    run(scenario)


def test_the_last_of_a_key_far_back_and_in_several_partitions() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await w.create_topic("t", 2)
        await w.publish("t", b"old", key="k", partition=1)
        for i in range(3):
            await w.publish("t", b"%d" % i, key="k", partition=0)
        for partition in (0, 1):
            async with w.producer("t", partition=partition) as producer:
                for i in range(2_000):
                    producer.send(b"x", key=f"other {i}")
        assert await values(w, start="last", key="k", follow=False) == [b"2"]
        assert await values(w, start=weir.last(2), key="k", follow=False) == [b"1", b"2"]
        assert set(await values(w, start=weir.last(9), key="k", follow=False)) == {
            b"old", b"0", b"1", b"2",
        }  # fmt: skip
        assert await values(w, start="last", key="k", partitions=[1], follow=False) == [b"old"]
        await w.publish("t", b"new", key="k", partition=1)
        assert await values(w, start="last", key="k", follow=False) == [b"new"]
        found = await values(w, start=weir.last(2), key="k", follow=False)
        assert set(found) == {b"2", b"new"}

    run(scenario)


def test_the_last_of_a_key_lie_far_apart() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await w.create_topic("t")
        async with w.producer("t") as producer:
            for i in range(3_000):
                producer.send(b"%d" % i, key="rare" if i % 300 == 0 else "often")
        rare = [b"%d" % i for i in range(0, 3_000, 300)]
        for count in (1, 2, 3, 7, 10, 11):
            found = await values(w, start=weir.last(count), key="rare", follow=False)
            assert found == rare[-count:]

    run(scenario)


def test_what_is_published_beside_does_not_hide_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(w: Client, node: testing.Node) -> None:
        await w.create_topic("t", order="total")
        await w.publish("t", b"last", key="k")
        now = Barriers.now

        async def and_publish(barriers: Barriers) -> Moment:
            moment = await now(barriers)
            node.advance(1)
            await w.publish("t", b"behind the end", key="k")
            return moment

        monkeypatch.setattr(Barriers, "now", and_publish)
        assert await values(w, start="last", follow=False) == [b"last"]
        assert await values(w, start="last", key="k", follow=False) == [b"behind the end"]

    run(scenario)


def test_the_last_before_an_end_and_in_total_order() -> None:
    async def scenario(w: Client, node: testing.Node) -> None:
        await w.create_topic("t", 2, order="total")
        stamps = []
        for i in range(12):
            receipt = await w.publish("t", b"%d" % i, key=f"k{i % 3}", partition=i % 2)
            stamps.append(receipt.stamp)
            node.advance(1)
        assert await values(w, start="last", key="k1", follow=False) == [b"10"]
        assert await values(w, start=weir.last(2), key="k1", follow=False) == [b"7", b"10"]
        assert await values(w, start="last", follow=False) == [b"10", b"11"]
        for order in ("total", "partition"):
            middle = datetime.fromtimestamp(milliseconds_of(stamps[7]) / 1_000, UTC)
            before = await values(w, start="last", key="k1", until=middle, order=order)
            assert before == [b"4"]
            assert await values(
                w, start="last", key="k1", until={0: 3, 1: 3}, order=order, follow=False
            ) == [b"4"]
            assert sorted(await values(w, start="last", until=middle, order=order)) == [b"5", b"6"]

    run(scenario)


def test_a_time_splits_the_messages_in_two() -> None:
    async def scenario(w: Client, node: testing.Node) -> None:
        await w.create_topic("t")
        stamps = []
        for i in range(10):
            stamps.append((await w.publish("t", b"%d" % i)).stamp)
            node.advance(1)
        for i in (0, 4, 9):
            then = datetime.fromtimestamp(milliseconds_of(stamps[i]) / 1_000, UTC)
            late = await values(w, start=then, follow=False)
            assert late == [b"%d" % j for j in range(i, 10)]
        assert await values(w, start=weir.at("2001-01-01"), follow=False) == await values(
            w, follow=False
        )

    run(scenario)


def test_an_end_in_time() -> None:
    async def scenario(w: Client, node: testing.Node) -> None:
        await w.create_topic("t")
        first = (await w.publish("t", b"early")).stamp
        node.advance(3_600)
        await w.publish("t", b"late")
        then = weir.at(milliseconds_of(first) / 1_000 + 0.001)
        await asyncio.sleep(0.002)  # so that `then` has passed here too
        reader = w.reader("t", until=then)
        assert [message.value async for message in reader] == [b"early"]
        assert reader.positions == {0: 1}
        assert await values(w, start=then, follow=False) == [b"late"]

    run(scenario)


def test_an_end_by_offset_is_waited_for() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await fill(w, 3)
        assert await values(w, until={0: 2}) == [b"0/0", b"0/1"]
        assert await values(w, until={0: 5}, follow=False) == [b"0/0", b"0/1", b"0/2"]
        reader = w.reader("t", start="latest", until={0: 5})
        found = asyncio.ensure_future(_all(reader))
        for value in (b"a", b"b", b"c"):
            await w.publish("t", value)
        assert await found == [b"a", b"b"]

    async def _all(reader: object) -> list[bytes]:
        return [message.value async for message in reader]  # type: ignore[attr-defined]

    run(scenario)


def test_positions_are_there_before_the_first_message() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await fill(w, 3, partitions=2)
        async with w.reader("t", start={1: 2}) as reader:
            assert reader.positions == {0: 0, 1: 2}
        async with w.reader("t", start="latest", partitions=[1]) as reader:
            assert reader.positions == {1: 3}

    run(scenario)


def test_positions_go_on_over_what_is_left_out() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await w.create_topic("t")
        for i in range(6):
            tag, key = "xyz"[i % 3], "ab"[i % 2]
            await w.publish("t", b"%d" % i, key=key, tag=tag)
        reader = w.reader("t", tag="x", follow=False)
        assert [message.value async for message in reader] == [b"0", b"3"]
        assert reader.positions == {0: 6}
        assert await values(w, tag=["x", "z"], follow=False) == [b"0", b"2", b"3", b"5"]
        assert await values(w, key="a", follow=False) == [b"0", b"2", b"4"]
        assert await values(w, key=[b"b", "no"], tag="x", follow=False) == [b"3"]
        assert await values(w, key="no", follow=False) == []
        batches = w.reader("t", tag="y", follow=False).batches()
        assert [(part.values(), len(part)) async for part in batches] == [([b"1"], 1), ([b"4"], 1)]

    run(scenario)


def test_a_filtered_reader_can_be_left_and_taken_up() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await w.create_topic("t")
        async with w.producer("t") as producer:
            await producer.send_many(
                [b"%d" % i for i in range(100)],
                tags=["even" if i % 2 == 0 else "odd" for i in range(100)],
            )
        found, positions = [], {}
        while len(found) < 50:
            async with w.reader("t", start=positions, tag="odd", follow=False) as reader:
                for _ in range(min(7, 50 - len(found))):
                    found.append((await anext(reader)).value)
                positions = reader.positions
        assert found == [b"%d" % i for i in range(1, 100, 2)]

    run(scenario)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"partitions": []}, "name at least one"),
        ({"partitions": [-1]}, "from 0 on"),
        ({"key": []}, "picks nothing"),
        ({"tag": []}, "picks nothing"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"start": "soonest"}, "earliest"),
        ({"until": "soon"}, "no time"),
    ],
)
def test_choices_that_cannot_work_are_refused_at_once(
    options: dict[str, object], hint: str
) -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        with pytest.raises(BadRequest, match=hint):
            w.reader("t", **options)  # type: ignore[arg-type]

    run(scenario)


@pytest.mark.parametrize("pair", [(2, 0), (2, -1), [2, 0], 2])
def test_a_start_may_name_the_lineage_of_an_offset(pair: Any) -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await fill(w, 3)
        async with w.reader("t", start={0: pair}, follow=False) as reader:
            assert reader.checkpoint() == {0: (2, pair[1] if pair != 2 else -1)}
            assert [message.value async for message in reader] == [b"0/2"]
            assert reader.checkpoint() == {0: (3, 0)}

    run(scenario)


def test_a_cluster_begins_at_offsets_alone() -> None:
    async def scenario(w: Client, _: testing.Node) -> None:
        await fill(w, 3)
        with pytest.raises(BadRequest, match="a cluster begins at offsets"):
            w.consumer("t", cluster="c", start={0: (2, 0)})
        with pytest.raises(BadRequest, match="a cluster begins at offsets"):
            await w.seek_cluster("t", "c", {0: (2, 0)}, create=True)

    run(scenario)


@pytest.mark.parametrize(
    "start",
    [{0: (2,)}, {0: (2, 0, 1)}, {0: (2, -2)}, {0: (2, LINEAGE_MAX + 1)}, {0: (-1, 0)}, {0: "20"},
     {0: ("2", 0)}, {0: (2, None)}, {"0": (2, 0)}, {0: None}],
)  # fmt: skip
def test_what_is_no_offset_with_a_lineage_is_refused(start: Any) -> None:
    with pytest.raises(BadRequest, match="start="):
        begin_of(start)
