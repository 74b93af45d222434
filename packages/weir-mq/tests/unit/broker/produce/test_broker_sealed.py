"""A partition that ends takes nothing new, of devices either, and goes on answering repeats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weir.broker.metadata.catalog import Catalog
from weir.broker.records.snapshots import pack
from weir.broker.state.state import PartitionState
from weir.errors import PartitionEnded, SequenceGap, Unavailable
from weir.model.columns import NO_SEQUENCE
from weir.model.ids import group_of
from weir.model.topic import Topic
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

PARTITIONS = 3


def hub_of(partition: int) -> int:
    """Return a hub whose place is this partition."""
    topic = Topic(1, "default", "t", PARTITIONS, PARTITIONS)
    return next(hub for hub in range(1, 99) if topic.partition_of_hub(hub) == partition)


HUB = hub_of(2)


@pytest.fixture
def hub(rig: Any) -> Any:
    """A node with a topic and a hub in session 50 that publishes to partition 2."""
    rig.topic(rig.connect(), partitions=PARTITIONS)
    rig.device(50, d.hello(HUB, 1, "t"))
    assert rig.device_replies[50].pop().code == 0
    return rig


def codes(rig: Any, session: int = 50) -> list[int]:
    rig.settle()
    found = [reply.code for reply in rig.device_replies[session]]
    rig.device_replies[session].clear()
    return found


def ended(rig: Any) -> m.TopicInfo:
    info = rig.answer(1, a.EndPartition("t", 2))
    assert isinstance(info, m.TopicInfo), info
    return info


def test_a_device_is_told_and_its_repeats_are_answered(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0), d.publish(1, b"b", 1))
    assert codes(hub) == [0, 0]
    assert ended(hub).closed == {2}
    hub.device(
        50, d.publish(1, b"b", 1), d.publish(1, b"c", 2), d.publish(1, b"d", 9),
        d.publish(2, b"e", 0), d.publish(1, b"f", NO_SEQUENCE), d.publish(1, b"x", 1),
    )  # fmt: skip
    gone = PartitionEnded.code
    assert codes(hub) == [0, gone, gone, gone, gone, 10]


def test_who_says_hello_again_publishes_elsewhere(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0))
    assert codes(hub) == [0]
    ended(hub)
    hub.device(50, d.publish(1, b"b", 1))
    assert codes(hub) == [PartitionEnded.code]
    hub.device(50, d.hello(HUB, 1, "t"), d.publish(1, b"b", 1), d.publish(1, b"b", 0))
    assert codes(hub) == [0, SequenceGap.code, 0], "sequences are counted in each partition"
    partitions = [p for p in hub.shard.topics.partitions() if p.state.next_offset]
    homes = {p.group.id & 0xFFFF: p.state.next_offset for p in partitions}
    assert homes.pop(2) == 1
    assert list(homes.values()) == [1]


def test_nothing_is_refused_for_good_before_the_seal_is_durable(hub: Any) -> None:
    """Another leader might take what this one refuses, until the seal is committed."""
    (partition,) = [p for p in hub.shard.topics.partitions() if p.group.id == group_of(1, 2)]
    hub.device(50, d.publish(1, b"a", 0))
    partition.leading.seal(hub.time.wall_ms())
    hub.device(50, d.publish(2, b"b", 0))
    assert not partition.state.membership.sealed
    assert codes(hub)[1:] == [Unavailable.code]
    partition.leading.seal(hub.time.wall_ms())
    hub.settle()
    assert partition.state.membership.sealed
    hub.device(50, d.publish(2, b"b", 0), d.publish(1, b"a", 0))
    assert codes(hub) == [PartitionEnded.code, 0]


def test_a_seal_that_is_there_stays(hub: Any) -> None:
    (partition,) = [p for p in hub.shard.topics.partitions() if p.group.id == group_of(1, 2)]
    state = partition.state
    assert state.encode()[0] == 7, "nothing has ended: as the release before has it"
    again = PartitionState.decode(msgspec.msgpack.decode(pack(state.encode())))
    assert again.membership.sealed == 0
    state.seal(7)
    state.seal(9)
    assert (state.membership.sealed, state.last_stamp) == (7, 9)
    state.membership.end(5, 7, 1)
    state.membership.end(5, 9, 2)
    again = PartitionState.decode(msgspec.msgpack.decode(pack(state.encode())))
    assert (again.membership.sealed, again.membership.ends) == (7, {5: (7, 1)})
    assert state.encode()[0] == 8
    catalog = hub.shard.registry.catalog
    assert catalog.encode()[0] == 5
    ended(hub)
    assert catalog.encode()[0] == 6
    known = Catalog.decode(msgspec.msgpack.decode(pack(catalog.encode())))
    assert known.topics() == catalog.topics()
    assert not known.ending
    assert Catalog.decode(msgspec.msgpack.decode(pack(Catalog().encode()))).topics() == []
