"""Scatterings as applications use them, against a node in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import weir
from rigs.clients import idle_scatterings, in_loop, network_of
from rigs.consuming import take
from weir import sync, testing
from weir.cli.backup import topics
from weir.cli.backup.manifest import read
from weir.cli.main import main
from weir.client import scattering
from weir.errors import BadRequest, Disconnected, SequenceGap, StaleGrant, TooLarge
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part
from weir.testing import Node


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        yield one


async def failing(w: weir.Client) -> None:
    async with w.scatter() as s:
        s.publish("orders", b"a", partition=0)
        raise RuntimeError


async def values(w: weir.Client, topic: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    async with w.reader(topic, follow=False) as reader:
        async for message in reader:
            found.setdefault(message.partition, []).append(message.value)
    return found


@in_loop
async def test_all_of_it_has_one_stamp(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("orders", partitions=3)
        async with w.scatter() as s:
            for partition in range(3):
                s.publish("orders", f"m{partition}", partition=partition, tag="x")
            s.publish("orders", {"a": 1}, partition=0, headers={"h": b"1"})
        assert len({receipt.stamp for receipt in s.receipts}) == 1
        assert [(r.partition, r.offset) for r in s.receipts] == [(0, 0), (1, 0), (2, 0), (0, 1)]
        found = await values(w, "orders")
        assert found == {0: [b"m0", b'{"a":1}'], 1: [b"m1"], 2: [b"m2"]}


@in_loop
async def test_an_error_in_it_sends_nothing(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("orders", partitions=2)
        with pytest.raises(RuntimeError):
            await failing(w)
        assert await values(w, "orders") == {}


@in_loop
async def test_many_at_once(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("orders", partitions=4)

        async def one(number: int) -> int:
            async with w.scatter() as s:
                for partition in range(4):
                    s.publish("orders", b"%d" % number, partition=partition)
            return s.receipts[0].stamp

        stamps = await asyncio.gather(*(one(number) for number in range(20)))
        assert len(set(stamps)) == 20
        found = await values(w, "orders")
        assert [len(some) for some in found.values()] == [20] * 4
        # Every partition has them in the order of their stamps, so all have the same order.
        assert len({tuple(some) for some in found.values()}) == 1


@in_loop
async def test_consume_transform_produce(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("in", partitions=2)
        await w.create_topic("out", partitions=2)
        for number in range(6):
            await w.publish("in", b"%d" % number, partition=number % 2)
        done = 0
        async with w.consumer("in", cluster="crew", max_messages=2) as consumer:
            async for message in consumer:
                async with w.scatter() as s:
                    s.publish("out", message.value + b"!", key=message.value)
                    s.ack(message)
                done += 1
                if done == 6:
                    break
        found = await values(w, "out")
        assert sorted(value for some in found.values() for value in some) == [
            b"%d!" % number for number in range(6)
        ]
        (cluster,) = await w.clusters("in", "crew")
        assert (cluster.lag, cluster.granted) == (0, 0)


@in_loop
async def test_whole_grants_are_acked(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("in")
        await w.create_topic("out")
        for number in range(4):
            await w.publish("in", b"%d" % number)
        async with w.consumer("in", cluster="crew") as consumer:
            async for grant in consumer.batches():
                async with w.scatter() as s:
                    s.publish("out", b"sum")
                    s.ack(grant)
                break
        (cluster,) = await w.clusters("in", "crew")
        assert cluster.lag == 0
        assert await values(w, "out") == {0: [b"sum"]}


@in_loop
async def test_what_is_another_consumers_publishes_nothing(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("in")
        await w.create_topic("out")
        await w.publish("in", b"a")
        async with w.consumer("in", cluster="crew", lease=30) as late:
            message = await anext(late)
            await w.seek_cluster("in", "crew", "earliest")  # what is granted is nobody's now
            async with w.consumer("in", cluster="crew") as other:
                async for again in other:
                    async with w.scatter() as s:
                        s.publish("out", b"b")
                        s.ack(again)
                    break
            s = w.scatter()
            s.publish("out", b"late")
            s.ack(message)
            with pytest.raises(StaleGrant):
                await s.send()
        assert await values(w, "out") == {0: [b"b"]}


@in_loop
async def test_what_no_scattering_takes(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("a")
        await w.create_topic("b")
        with pytest.raises(BadRequest, match="at least one message"):
            async with w.scatter():
                pass
        s = w.scatter()
        s.publish("a", b"1")
        with pytest.raises(TooLarge):
            s.publish("a", bytes(2 << 20))


@in_loop
async def test_topics_that_say_so_are_scattered_to_together(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("orders", partitions=2, scatter_with=["invoices"])
        await w.create_topic("invoices")
        s = w.scatter()
        s.publish("orders", b"o1", partition=1)
        s.publish("invoices", b"i1")
        with pytest.raises(BadRequest, match="weir topic alter invoices --scatter-with orders"):
            await s.send()
        await w.alter_topic("invoices", scatter_with=["default/orders"])
        assert (await w.describe("invoices")).settings.scatter_with == ("orders",)
        first, second = await s.send()
        assert (first.topic, first.partition, first.offset) == ("orders", 1, 0)
        assert (second.topic, second.partition, second.offset) == ("invoices", 0, 0)
        assert first.stamp == second.stamp
        assert await values(w, "orders") == {1: [b"o1"]}
        assert await values(w, "invoices") == {0: [b"i1"]}
        await w.alter_topic("orders", scatter_with=[])
        again = w.scatter()
        again.publish("orders", b"o2")
        again.publish("invoices", b"i2")
        with pytest.raises(BadRequest, match="orders and invoices"):
            await again.send()


def test_keys_go_where_publishes_go_after_a_topic_has_grown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client went by the partitions that a topic had when it first scattered, for ever."""

    async def scenario() -> None:
        async with weir.connect(node.url) as w, weir.connect(node.url) as other:
            await w.create_topic("t")
            async with w.scatter() as s:
                s.publish("t", b"a")
            await other.alter_topic("t", partitions=4)
            async with w.scatter() as s:
                s.publish("t", b"b", partition=3)
            assert s.receipts[0].partition == 3, "one that was added is there when it is named"
            await other.alter_topic("t", partitions=9)
            monkeypatch.setattr(scattering, "ASK_EVERY", 0.0)
            keys = [b"%d" % number for number in range(20)]
            async with w.scatter() as s:
                for key in keys:
                    s.publish("t", b"c", key=key)
            published = [await other.publish("t", b"d", key=key) for key in keys]
            assert [r.partition for r in s.receipts] == [r.partition for r in published]

    asyncio.run(asyncio.wait_for(scenario(), 30))


@in_loop
async def test_a_backup_keeps_which_topics_are_scattered_to_together(node: Node) -> None:
    with TemporaryDirectory() as folder, testing.node() as another:
        async with weir.connect(node.url) as w, weir.connect(another.url) as to:
            for name, others in (("a", ["b", "x/c"]), ("b", ["a"]), ("x/c", ["a"])):
                await w.create_topic(name, scatter_with=others)
            path = Path(folder) / "backup"
            await topics.back_up(w, [], path, lambda _: None)
            assert not await topics.restore(to, path, read(path), lambda _: None)
            async with to.scatter() as s:
                s.publish("a", b"1")
                s.publish("b", b"2")
            apart = to.scatter()
            for name in ("a", "b", "x/c"):
                apart.publish(name, b"3")
            with pytest.raises(BadRequest, match="b and x/c"):
                await apart.send()


def test_without_async(node: Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("in")
        w.create_topic("out", partitions=2)
        w.publish("in", b"a")
        with w.consumer("in", cluster="crew") as consumer:
            for message in consumer:
                with w.scatter() as s:
                    s.publish("out", b"x", partition=0)
                    s.publish("out", b"y", partition=1)
                    s.ack(message)
                break
        assert [r.partition for r in s.receipts] == [0, 1]
        (cluster,) = w.clusters("in", "crew")
        assert cluster.lag == 0


@in_loop
async def test_a_restart_in_between(node: Node) -> None:
    async with weir.connect(node.url) as w:
        await w.create_topic("orders", partitions=2)
        for turn in range(3):
            async with w.scatter() as s:
                s.publish("orders", b"%d" % turn, partition=0)
                s.publish("orders", b"%d" % turn, partition=1)
            node.restart()
        found = await values(w, "orders")
        assert found == {0: [b"0", b"1", b"2"], 1: [b"0", b"1", b"2"]}


async def abort(w: weir.Client, topic: str, partition: int = 0) -> None:
    """Leave a void in a partition: the next one refuses its part, for a sequence is missing."""
    network, info = network_of(w), await w.describe(topic)
    grant = await network.request(m.OpenProducer(), m.ProducerGrant)
    first, second = info.addresses[partition : partition + 2]
    scattered = Scattered(0, (batch_part(first.group), batch_part(second.group)))
    parts = [
        Part(address, bytes(encode(
            [b"never", b"was"], group=address.group, producer=grant.producer, epoch=grant.epoch,
            sequence=sequence, scattered=scattered,
        )))
        for address, sequence in ((first, 0), (second, 5))
    ]  # fmt: skip
    request = m.Scatter(grant.producer, grant.epoch, 0, 0, parts)
    with pytest.raises(SequenceGap):
        await network.request(request, m.ScatterConfirm)


@pytest.mark.parametrize("order", ["partition", "total"])
def test_readers_and_backups_pass_by_what_was_aborted(
    node: Node, tmp_path: Path, order: str
) -> None:
    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(30):
            await w.create_topic("t", partitions=2, order=order)
            await w.publish("t", b"a", partition=0)
            await abort(w, "t")
            await w.publish("t", b"b", partition=0)
            await abort(w, "t")
            assert await values(w, "t") == {0: [b"a", b"b"]}
            assert (await w.positions("t"))[1] == [6, 0]
            async with w.consumer("t", cluster="crew") as consumer:
                found = [await take(consumer), await take(consumer)]
            assert [message.offset for message in found] == [0, 3]
            (cluster,) = await w.clusters("t", "crew")
            assert cluster.lag == 0
            backup = await topics.back_up(w, ["t"], tmp_path / "backup", lambda _: None)
            assert [part.messages for part in backup.topics[0].partitions] == [2, 0]

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_lag_counts_nothing_that_was_aborted(
    node: Node, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """Partition 0 ended with offsets of no message, and a second one may hold no others."""

    def lag() -> tuple[int, list[int]]:
        assert main(["cluster", "lag", "t", "crew", "--json", "--url", node.url]) == 0
        told = json.loads(capsys.readouterr().out)
        return told["lag"], [share["lag"] for share in told["partitions"]]

    async def scenario(todo: int) -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(30):
            if todo:
                await w.create_topic("t", partitions=4, order="total")
                for value in (b"a", b"b"):
                    await w.publish("t", value, partition=0)
                    await abort(w, "t")
                await abort(w, "t", 2)
                await w.publish("t", b"c", partition=1)
            async with w.consumer("t", cluster="crew", mode=mode) as consumer:
                for _ in range(todo or 2):
                    await (await anext(consumer)).ack(confirmed=True)

    asyncio.run(scenario(1))
    assert lag()[0] == 2
    asyncio.run(scenario(0))
    assert lag() == (0, [0, 0, 0, 0])


@in_loop
async def test_a_producer_id_of_which_the_end_is_not_known_is_never_used_again(node: Node) -> None:
    """Whether the cut one came to be is not known: its sequences may be used or not.

    With the same producer id the next one was `SequenceReused`, or told as a repeat of the other.
    """
    unknown = 0
    for cut in range(6):
        async with weir.connect(node.url, request_timeout=5.0) as w:
            name = f"orders{cut}"
            await w.create_topic(name, partitions=2)
            await scatter(w, name, b"before")
            pause = network_of(w).pause
            network_of(w).pause = lambda *_: (
                60.0
            )  # longer than a request may take: it gives up at once
            lost = asyncio.ensure_future(scatter(w, name, b"lost"))
            for _ in range(cut):
                await asyncio.sleep(0)
            node.cut()
            told = await asyncio.gather(lost, return_exceptions=True)
            network_of(w).pause = pause
            await scatter(w, name, b"behind")
            await scatter(w, name, b"last")
            found = await values(w, name)
            assert found[0] == found[1]
            assert [value for value in found[0] if value != b"lost"] == [
                b"before", b"behind", b"last",
            ]  # fmt: skip
            if told == [None]:
                assert found[0][1] == b"lost"
            else:
                assert isinstance(told[0], Disconnected)
                unknown += 1
    assert unknown, "each was answered before its connection ended"


async def scatter(w: weir.Client, topic: str, value: bytes) -> None:
    async with w.scatter() as s:
        for partition in range(2):
            s.publish(topic, value, partition=partition)


@in_loop
async def test_each_scattering_of_a_producer_id_has_a_number_of_its_own(node: Node) -> None:
    """By it a broker tells a repeat from the next one."""
    async with weir.connect(node.url) as w:
        await w.create_topic("orders", partitions=2)
        for expected in range(1, 4):
            await scatter(w, "orders", b"x")
            (producer,) = idle_scatterings(w)
            assert producer.number == expected
            assert [*producer.sequences.values()] == [expected] * 2
