"""What a reader is told who has read in a lineage of a partition that has ended, or in none yet."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import NotLeader, OffsetOutOfRange
from weir.model.ids import Address
from weir.protocol.client import messages as m


class Topic:
    """A partition of one lineage with three messages."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.info = rig.topic(rig.connect())
        self.grant = rig.answer(1, m.OpenProducer())
        self.count = 0
        self.publish(3)
        (partition,) = rig.shard.topics.partitions()
        self.state = partition.state

    @property
    def address(self) -> Address:
        address: Address = self.info.addresses[0]
        return address

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.rig.answer(1, self.rig.batch(self.info, self.grant, self.count, b"one"))
            self.count += 1

    def ask(self, offset: int, lineage: int, wait_ms: int = 0, replica: bool = False) -> m.Fetch:
        return m.Fetch(self.address, offset, 1 << 20, wait_ms, replica, True, (), lineage)

    def fetch(self, offset: int, lineage: int, replica: bool = False) -> Any:
        return self.rig.answer(1, self.ask(offset, lineage, replica=replica))


@pytest.fixture
def topic(rig: Any) -> Topic:
    return Topic(rig)


@pytest.mark.parametrize("lineage", [-1, 0])
def test_an_answer_says_which_lineage_it_ends_with(topic: Topic, lineage: int) -> None:
    fetched = topic.fetch(1, lineage)
    assert (fetched.next_offset, fetched.lineage) == (3, 0)
    topic.state.begin_lineage(2)
    fetched = topic.fetch(3, lineage)
    assert (fetched.next_offset, fetched.lineage) == (3, 2)


@pytest.mark.parametrize("replica", [False, True])
def test_who_has_read_past_the_fork_is_told_though_the_partition_has_grown_since(
    topic: Topic, replica: bool
) -> None:
    topic.state.begin_lineage(1)
    topic.publish(3)
    for offset in range(4):
        assert topic.fetch(offset, 0, replica).lineage == 1, "up to the fork both have the same"
    for offset in range(4, 7):
        refused = topic.fetch(offset, 0, replica)
        assert (refused.code, refused.detail) == (OffsetOutOfRange.code, 3)
        assert f"offset {offset} lies behind the end of lineage 0" in refused.message
    assert topic.fetch(5, 1, replica).next_offset == 6
    assert topic.fetch(5, -1, replica).next_offset == 6, "nobody said where it was read"


def test_of_several_forks_the_lowest_counts_that_the_reader_does_not_know(topic: Topic) -> None:
    topic.state.begin_lineage(1)
    topic.publish(2)
    topic.state.begin_lineage(4)
    topic.publish(2)
    assert topic.fetch(4, 0).detail == 3
    assert topic.fetch(6, 1).detail == 5
    assert topic.fetch(4, 1).next_offset == 7
    assert topic.fetch(6, 2).detail == 5, "a lineage of which this partition took no part"
    assert topic.fetch(7, 4).next_offset == 7


@pytest.mark.parametrize("replica", [False, True])
def test_a_node_that_lacks_the_readers_lineage_is_not_read(topic: Topic, replica: bool) -> None:
    """It may be a home that was left behind, and does not know it."""
    refused = topic.fetch(2, 1, replica)
    assert (refused.code, refused.detail) == (NotLeader.code, 0)
    assert "has not heard of lineage 1" in refused.message


def test_who_waits_is_told_as_well(topic: Topic) -> None:
    rig = topic.rig
    ahead = [rig.ask(1, topic.ask(offset, 0, 60_000, True)) for offset in (3, 4, 9)]
    topic.state.begin_lineage(1)
    topic.publish(2)
    rig.settle()
    told = {number: reply for number, reply in rig.replies[1] if number in ahead}
    assert told[ahead[0]].next_offset == 4
    refused = told[ahead[1]]
    assert (refused.code, refused.detail) == (OffsetOutOfRange.code, 3)
    assert ahead[2] not in told
    rig.time.pass_ms(60_000)
    rig.tick()
    (late,) = [reply for number, reply in rig.replies[1] if number == ahead[2]]
    assert (late.code, late.detail) == (OffsetOutOfRange.code, 3), (
        "an empty answer would say all is well"
    )
