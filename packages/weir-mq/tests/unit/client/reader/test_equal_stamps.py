"""Reading in total order where many batches, of several partitions, have one stamp: a micro-batch.

Here an answer holds three batches at most, so each larger part of a micro-batch is cut.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from weir.client.client import connect
from weir.client.reader import reader as readers
from weir.client.reader.options import At
from weir.errors import RemoteProtocolError
from weir.model.message import Message
from weir.protocol.client import messages as m

Place = tuple[int, int, int]
_PARTITIONS = 3


def place(message: Message) -> Place:
    return message.stamp, message.partition, message.offset


async def fill(broker: Any, topic: str, seed: int) -> list[int]:
    """Publish micro-batches and what comes between them; return the stamps of the former."""
    dice, stamps = random.Random(seed), list[int]()
    for _ in range(4):
        parts = {
            partition: [[bytes(40)] * dice.randint(1, 3) for _ in range(dice.randint(1, 9))]
            for partition in range(_PARTITIONS)
            if dice.random() < 0.8
        }
        stamps.append(await broker.publish_at_once(topic, parts))
        for _ in range(dice.randint(0, 3)):
            await broker.publish_at_once(topic, {dice.randrange(_PARTITIONS): [[b"between"]]})
    return stamps


async def read(reader: Any, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(20):
        while len(found) < count and (await reader.more()):
            while len(found) < count and (message := reader.at_hand()) is not None:
                found.append(message)
    return found


@pytest.fixture(params=[1, 1 << 20], ids=["tiny rooms", "large rooms"])
def rooms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(readers, "HELD_BYTES", request.param)
    monkeypatch.setattr(readers, "_HELD_BYTES_MIN", request.param)
    return int(request.param)


def test_live_and_replayed_it_is_one_sequence_however_it_is_cut(fake_broker, rooms: int) -> None:
    async def scenario(seed: int) -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", _PARTITIONS)
            async with w.reader("t", order="total") as live:
                await fill(broker, "t", seed)
                count = sum(broker.end_of(address.group) for address in info.addresses)
                seen = [place(x) for x in await read(live, count)]
            assert seen == sorted(seen)
            assert len(set(seen)) == count
            replayed = w.reader("t", order="total", follow=False)
            async with asyncio.timeout(20):
                assert [place(x) async for x in replayed] == seen
            fetches = [request for request in broker.seen if isinstance(request, m.Fetch)]
            assert fetches
            assert all(request.equal_stamps for request in fetches)

    for seed in range(4):
        asyncio.run(scenario(seed))


def test_a_reader_goes_on_in_the_middle_of_a_stamp(fake_broker, rooms: int) -> None:
    """Wherever it stopped, nothing is left out of any partition, and nothing comes again."""

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", _PARTITIONS)
            await fill(broker, "t", 5)
            whole = [place(x) async for x in w.reader("t", order="total", follow=False)]
            for stop in range(0, len(whole), 3):
                async with w.reader("t", order="total") as first:
                    found = [place(x) for x in await read(first, stop)]
                    positions = dict(first.positions)
                async with (
                    w.reader("t", order="total", follow=False, start=positions) as rest,
                    asyncio.timeout(20),
                ):
                    found += [place(x) async for x in rest]
                assert found == whole, f"stopped behind {stop} messages, at {positions}"

    asyncio.run(scenario())


def test_consumers_take_turns_in_the_middle_of_a_stamp(fake_broker, rooms: int) -> None:
    """What one has not acked is the next one's, in the order in which all readers have it."""

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", _PARTITIONS)
            broker.topics["t"] = m.TopicInfo(info.id, "default", "t", "total", info.addresses)
            await fill(broker, "t", 13)
            whole = [place(x) async for x in w.reader("t", follow=False)]
            dice, done, within = random.Random(1), list[Place](), 0
            while len(done) < len(whole):
                most, found = dice.randint(1, 5), list[Place]()
                async with (
                    connect(broker.url) as other,
                    other.consumer("t", cluster="c", mode="ordered") as consumer,
                    asyncio.timeout(20),
                ):
                    async for message in consumer:
                        found.append(place(message))
                        await message.ack()
                        if len(found) == most or len(done) + len(found) == len(whole):
                            break
                done += found
                within += done[-1][0] in {stamp for stamp, _, _ in whole[len(done) :][:1]}
            assert done == whole
            assert within > 10, "hardly a turn ended within a stamp"

    asyncio.run(scenario())


def test_cuts_by_stamp_are_whole_and_those_by_offset_are_where_they_are(
    fake_broker, rooms: int
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", _PARTITIONS)
            stamps = await fill(broker, "t", 7)
            whole = [x async for x in w.reader("t", order="total", follow=False)]
            broker.wall_ms = (broker.stamp >> 16) + 1
            for stamp in stamps:
                before = w.reader("t", order="total", until=At(stamp))
                assert [x async for x in before] == [x for x in whole if x.stamp < stamp]
                through = w.reader("t", order="total", until=At(stamp + 1))
                assert [x async for x in through] == [x for x in whole if x.stamp <= stamp]
                behind = w.reader("t", order="total", start=At(stamp), follow=False)
                assert [x async for x in behind] == [x for x in whole if x.stamp >= stamp]
            for less in range(1, 8):
                ends = {
                    p: max(broker.end_of(address.group) - less * (p + 1), 0)
                    for p, address in enumerate(info.addresses)
                }
                upto = w.reader("t", order="total", until=ends)
                async with asyncio.timeout(20):
                    found = [x async for x in upto]
                assert found == [x for x in whole if x.offset < ends[x.partition]]

    asyncio.run(scenario())


def test_some_partitions_and_keys_have_the_same_order(fake_broker, rooms: int) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.topic("t", _PARTITIONS)
            await fill(broker, "t", 11)
            for number in range(9):
                await w.publish("t", b"x", key=b"%d" % (number % 3), partition=number % 3)
            whole = [x async for x in w.reader("t", order="total", follow=False)]
            two = w.reader("t", order="total", partitions=[2, 0], follow=False)
            assert [x async for x in two] == [x for x in whole if x.partition != 1]
            keyed = w.reader("t", order="total", key="1", follow=False)
            assert [x async for x in keyed] == [x for x in whole if x.key == b"1"]

    asyncio.run(scenario())


def test_parts_of_one_stamp_pass_though_nobody_promises_anything(fake_broker) -> None:
    """What came says by itself that it is all there is of its stamp."""

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            for address in info.addresses:
                broker.stalled[address.group] = 0, 0
            async with w.reader("t", order="total") as reader:
                await broker.publish_at_once("t", {0: [[b"a"]], 1: [[b"b"]]})
                assert [x.value for x in await read(reader, 2)] == [b"a", b"b"]
                parts = {0: [[b"%d" % i] for i in range(7)], 1: [[b"c"], [b"d"]]}
                await broker.publish_at_once("t", parts)
                found = [x.value for x in await read(reader, 9)]
                assert found == [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"c", b"d"]

    asyncio.run(scenario())


def test_a_cut_that_is_not_told_is_found_and_not_handed_out(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            info = broker.topic("t", 2)
            async with w.reader("t", order="total") as reader:
                await broker.publish_at_once("t", {0: [[b"b1"]]})
                assert [x.value for x in await read(reader, 1)] == [b"b1"]
                broker.stamp -= 1  # a second batch at the stamp that was told to be complete
                await broker.publish_at_once("t", {0: [[b"b2"]]})
                with pytest.raises(RemoteProtocolError, match="was said to be here"):
                    await read(reader, 1)
            assert broker.end_of(info.addresses[0].group) == 2

    asyncio.run(scenario())
