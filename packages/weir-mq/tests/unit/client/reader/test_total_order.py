"""Reading all partitions of a topic in one order: merged up to the barrier, within its room."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rigs.clients import error_of, merge_of, network_of
from weir.client.client import connect
from weir.client.connection import metadata
from weir.client.reader import reader as readers
from weir.errors import (
    BadRequest,
    NotLeader,
    OffsetOutOfRange,
    RemoteProtocolError,
    Unavailable,
)
from weir.model.ids import Address, group_of
from weir.model.message import Message
from weir.protocol.client import messages as m

Place = tuple[int, int, int]


def place(message: Message) -> Place:
    return message.stamp, message.partition, message.offset


async def publish_at_random(w: Any, topic: str, count: int, partitions: int, seed: int = 1) -> None:
    dice = random.Random(seed)
    for i in range(count):
        await w.publish(topic, b"%d" % i, partition=dice.randrange(partitions))


async def read(reader: Any, count: int) -> list[Message]:
    found = []
    async with asyncio.timeout(10):
        async for message in reader:
            found.append(message)
            if len(found) == count:
                break
    return found


def questions(broker: Any) -> int:
    return sum(isinstance(request, m.AskBarriers) for request in broker.seen)


def test_live_and_replayed_and_from_a_middle_it_is_the_same_sequence(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 3)
            async with w.reader("t", order="total") as live:
                assert live.order == "total"
                follower = asyncio.ensure_future(read(live, 120))
                await publish_at_random(w, "t", 120, 3)
                seen = await follower
            assert [x.value for x in seen] == [b"%d" % i for i in range(120)]
            async with w.reader("t", order="total", follow=False) as again:
                first = await read(again, 50)
                middle = dict(again.positions)
            assert first == seen[:50]
            async with w.reader("t", order="total", follow=False, start=middle) as rest:
                assert [x async for x in rest] == seen[50:]
                assert rest.positions == rest.committed

    asyncio.run(scenario())


def test_a_topic_says_itself_how_it_is_read(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            broker.topics["t"] = m.TopicInfo(info.id, "default", "t", "total", info.addresses)
            await publish_at_random(w, "t", 40, 2)
            async with w.reader("t", follow=False) as reader:
                assert reader.order == "total"
                assert [x.value async for x in reader] == [b"%d" % i for i in range(40)]
            async with w.reader("t", order="partition", follow=False) as reader:
                assert reader.order == "partition"
                assert len([x async for x in reader]) == 40
            with pytest.raises(BadRequest, match="order='causal'"):
                w.reader("t", order="causal")
            with pytest.raises(BadRequest, match="read_from='nearest'"):
                w.reader("t", read_from="nearest")

    asyncio.run(scenario())


def test_nothing_is_asked_while_nothing_is_published(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 2)
            async with w.reader("t", order="total") as reader:
                await w.publish("t", b"a", partition=0)
                assert [x.value for x in await read(reader, 1)] == [b"a"]
                waiting = asyncio.ensure_future(reader.more())
                await w.ping()
                asked = questions(broker)
                await asyncio.wait([waiting], timeout=4 * readers.ASK_EVERY)
                assert questions(broker) == asked
                waiting.cancel()

    asyncio.run(scenario())


def test_a_stalled_partition_holds_back_what_comes_after_it_within_bounds(
    fake_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "HELD_BYTES", 64 * 1024)
    monkeypatch.setattr(readers, "_HELD_BYTES_MIN", 1024)

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            stalled = info.addresses[1].group
            await w.publish("t", b"before", partition=0)
            broker.stalled[stalled] = broker.stamp, 0
            broker.stamp += 1  # what partition 1 may have at its next stamp is to be waited for
            async with w.reader("t", order="total") as reader:
                assert [x.value for x in await read(reader, 1)] == [b"before"]
                for _ in range(100):  # 400 kB
                    await w.publish("t", bytes(4_000), partition=0)
                more = asyncio.ensure_future(reader.more())
                merge = merge_of(reader)
                async with asyncio.timeout(10):
                    while merge.wants(0):
                        await w.ping()
                done, _ = await asyncio.wait([more], timeout=10 * readers.ASK_EVERY)
                assert not done
                # Its share, and one answer of three batches: no more is asked for.
                assert 32 * 1024 <= merge.held <= 32 * 1024 + 3 * 5_000
                del broker.stalled[stalled]
                assert await more
                assert [len(x.value) for x in await read(reader, 100)] == [4_000] * 100

    asyncio.run(scenario())


def test_a_replay_with_little_room_is_merged_by_its_data_alone(
    fake_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were barriers alone counted, one whose room is full before it ends would never go on."""
    monkeypatch.setattr(readers, "HELD_BYTES", 1)
    monkeypatch.setattr(readers, "_HELD_BYTES_MIN", 1)

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 4)
            await publish_at_random(w, "t", 200, 4)
            async with w.reader("t", order="total", follow=False) as reader, asyncio.timeout(10):
                assert [x.value async for x in reader] == [b"%d" % i for i in range(200)]

    asyncio.run(scenario())


def test_the_end_lies_at_a_barrier_and_so_does_the_latest(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 3)
            await publish_at_random(w, "t", 30, 3)
            async with (
                w.reader("t", order="total", follow=False) as ends,
                w.reader("t", order="total", start="latest") as begins,
            ):
                await publish_at_random(w, "t", 20, 3, seed=2)
                assert [x.value async for x in ends] == [b"%d" % i for i in range(30)]
                assert [x.value for x in await read(begins, 20)] == [b"%d" % i for i in range(20)]
            async with w.reader("t", order="total", start="latest", follow=False) as nothing:
                assert [x async for x in nothing] == []

    asyncio.run(scenario())


def test_keys_tags_and_some_partitions_keep_the_order(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 3)
            dice = random.Random(3)
            for i in range(90):
                await w.publish("t", b"%d" % i, key=b"%d" % (i % 9), partition=dice.randrange(3))
            whole = [x async for x in w.reader("t", order="total", follow=False)]
            assert [place(x) for x in whole] == sorted(place(x) for x in whole)
            some = w.reader("t", order="total", key=["1", "4"], follow=False)
            assert [x async for x in some] == [x for x in whole if x.key in (b"1", b"4")]
            assert some.positions == {p: broker.end_of(group_of(1, p)) for p in range(3)}
            two = w.reader("t", order="total", partitions=[2, 0], follow=False)
            assert [x async for x in two] == [x for x in whole if x.partition != 1]
            ends = {0: 5, 1: 0, 2: 7}
            upto = w.reader("t", order="total", until=ends)
            assert [x async for x in upto] == [x for x in whole if x.offset < ends[x.partition]]

    asyncio.run(scenario())


def test_a_partition_that_joins_is_read_before_anything_behind_its_floor(
    fake_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ASK_EVERY", 3_600.0)  # it is told in time by partition 0 alone

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            broker.members[info.id] = 2
            async with w.reader("t", order="total") as reader:
                await publish_at_random(w, "t", 10, 2)
                assert len(await read(reader, 10)) == 10
                floor = broker.stamp + 1
                broker.stamp = floor
                added = Address(0, 0, group_of(info.id, 2))
                broker.logs[added.group] = []
                info.addresses.append(added)
                broker.members[info.id], broker.floors[info.id] = 3, [(2, floor)]
                async with connect(broker.url) as later:
                    await later.publish("t", b"new", partition=2)
                    await later.publish("t", b"old", partition=0)
                    await later.publish("t", b"newer", partition=2)
                    await later.publish("t", b"older", partition=1)
                found = [x.value for x in await read(reader, 4)]
                assert found == [b"new", b"old", b"newer", b"older"]
                assert reader.positions[2] == 2
            replayed = [x.value async for x in w.reader("t", order="total", follow=False)]
            assert replayed[-4:] == found

    asyncio.run(scenario())


def test_a_broken_promise_is_told_and_not_handed_out(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 2)
            async with w.reader("t", order="total") as reader:
                broker.stamp = 1_000
                await w.publish("t", b"a", partition=0)
                assert [x.value for x in await read(reader, 1)] == [b"a"]
                broker.stamp, network_of(w).seen = 500, 0
                await w.publish("t", b"late", partition=1)
                with pytest.raises(RemoteProtocolError, match="all at or below 1001 was said"):
                    await read(reader, 1)

    asyncio.run(scenario())


def test_who_has_no_leader_is_named_when_an_end_is_to_be_found(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, request_timeout=1.0) as w:
            info = broker.topic("t", 2)
            await w.publish("t", b"a", partition=0)
            broker.stalled[info.addresses[1].group] = 0, 0
            with pytest.raises(Unavailable, match="partition 1 of t has not said for"):
                await w.reader("t", order="total", follow=False).open()
            async with w.reader("t", order="partition", follow=False) as reader:
                assert [x.value async for x in reader] == [b"a"]

    asyncio.run(scenario())


def test_it_goes_on_after_the_connection_was_cut_and_after_it_was_closed(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", 2)
            await publish_at_random(w, "t", 20, 2)
            reader = w.reader("t", order="total")
            found = [x.value for x in await read(reader, 7)]
            broker.cut()
            found += [x.value for x in await read(reader, 6)]
            await reader.close()
            found += [x.value for x in await read(reader, 7)]
            assert found == [b"%d" % i for i in range(20)]
            await reader.close()

    asyncio.run(scenario())


def test_what_is_past_retention_is_told_and_the_earliest_begins_behind_it(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            await publish_at_random(w, "t", 40, 2)
            broker.starts[info.addresses[1].group] = 9
            whole = [x async for x in w.reader("t", order="total", follow=False)]
            assert [place(x) for x in whole] == sorted(place(x) for x in whole)
            assert min(x.offset for x in whole if x.partition == 1) == 9
            why = r"t/1 has no offset 4; the nearest one is 9.* with start=\{1: 9\}$"
            with pytest.raises(OffsetOutOfRange, match=why):
                await read(w.reader("t", order="total", start={0: 0, 1: 4}), 40)

    asyncio.run(scenario())


def test_who_has_ended_holds_nobody_back_and_need_not_be_there(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, request_timeout=1.0) as w:
            info = broker.topic("t", 2)
            gone = info.addresses[1].group
            await w.publish("t", b"in it", partition=1)
            broker.stalled[gone] = broker.stamp, 1
            broker.stamp += 1
            async with w.reader("t", order="total") as reader:
                await w.publish("t", b"a", partition=0)
                waits = asyncio.ensure_future(read(reader, 2))
                await asyncio.sleep(4 * readers.ASK_EVERY)
                assert not waits.done(), "its partition says nothing of what lies behind"
                broker.ends[info.id] = [(1, broker.stamp + 5, 1)]
                refuse = m.Refusal(NotLeader.code, "nobody leads it")
                fetches = (m.Fetch, m.Positions)

                def script(request: m.Request) -> m.Refusal | None:
                    of_it = isinstance(request, fetches) and request.address.group == gone
                    return refuse if of_it else None

                broker.script = script
                broker.cut()  # what was asked of it is asked again, and refused
                assert [x.value for x in await waits] == [b"in it", b"a"]
                asked = questions(broker)
                for number in range(20):
                    await w.publish("t", b"%d" % number, partition=0)
                    assert [x.value for x in await read(reader, 1)] == [b"%d" % number]
                await asyncio.sleep(1.1)  # longer than a request may take
                assert questions(broker) == asked
                assert error_of(reader) is None

    asyncio.run(scenario())


def test_an_end_counts_once_all_before_it_was_received(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            late = info.addresses[1].group
            for number in range(3):
                await w.publish("t", b"%d" % number, partition=1)
            held, broker.logs[late] = broker.logs[late], []
            broker.stalled[late] = 0, 0
            broker.ends[info.id] = [(1, broker.stamp + 5, 3)]
            await w.publish("t", b"a", partition=0)
            async with w.reader("t", order="total") as reader:
                waits = asyncio.ensure_future(read(reader, 4))
                await asyncio.sleep(6 * readers.ASK_EVERY)
                assert not waits.done(), "what comes before it was not received"
                broker.logs[late] = held
                async with broker.news:
                    broker.news.notify_all()
                assert [x.value for x in await waits] == [b"0", b"1", b"2", b"a"]

    asyncio.run(scenario())
