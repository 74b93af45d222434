"""Topics and producer ids, through Raft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rigs.shards import device_producer_of
from weir.broker.metadata.catalog import Catalog
from weir.broker.records.registry import ProducerOpened, TopicCreated
from weir.errors import BadName, BadRequest, TopicExists, UnknownTopic, UnknownVersion
from weir.protocol.client import messages as m


def test_a_topic_is_created_once(rig: Any) -> None:
    rig.connect()
    first = rig.answer(1, m.CreateTopic("ns/t", 3))
    assert (first.namespace, first.name, len(first.addresses)) == ("ns", "t", 3)
    assert rig.answer(1, m.CreateTopic("ns/t", 3)) == first
    assert rig.answer(1, m.CreateTopic("ns/t", 2)).code == TopicExists.code
    assert rig.answer(1, m.CreateTopic("ns/t", 3, if_absent=False)).code == TopicExists.code
    assert rig.answer(1, m.DescribeTopic("ns/t")) == first
    assert rig.answer(1, m.DescribeTopic("t")).code == UnknownTopic.code
    assert rig.answer(1, m.CreateTopic("t")).id == first.id + 1
    assert [t.name for t in rig.answer(1, m.ListTopics()).topics] == ["t", "t"]
    assert rig.answer(1, m.ListTopics("ns")).topics == [first]


def test_two_who_create_the_same_topic_at_once_get_the_same(rig: Any) -> None:
    rig.connect()
    same, twice = m.CreateTopic("t"), m.CreateTopic("t", if_absent=False)
    numbers = [rig.ask(1, request) for request in (same, same, twice)]
    rig.settle()
    replies = dict(rig.replies[1])
    assert replies[numbers[0]] == replies[numbers[1]]
    assert replies[numbers[2]].code == TopicExists.code


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (m.CreateTopic("no name"), BadName.code),
        (m.CreateTopic("t", 0), BadRequest.code),
        (m.CreateTopic("t", 1, "causal"), BadRequest.code),
    ],
)
def test_topics_that_cannot_be_are_refused(rig: Any, request_: Any, code: int) -> None:
    rig.connect()
    assert rig.answer(1, request_).code == code


def test_epochs_asked_for_together_differ(rig: Any) -> None:
    rig.connect()
    grant = rig.answer(1, m.OpenProducer())
    numbers = [rig.ask(1, m.OpenProducer(grant.producer)) for _ in range(3)]
    rig.settle()
    epochs = [dict(rig.replies[1])[number].epoch for number in numbers]
    assert epochs == [grant.epoch + 1, grant.epoch + 2, grant.epoch + 3]


def test_ids_are_never_granted_twice_whatever_the_clock_does(
    make_rig: Callable[..., Any],
) -> None:
    for checkpoint_bytes in (1, 1 << 30):
        rig = make_rig(checkpoint_bytes=checkpoint_bytes)
        granted = []
        for _ in range(4):
            rig.connect()
            granted += [rig.answer(1, m.OpenProducer()).producer for _ in range(3)]
            granted.append(device_producer_of(rig.shard).id)
            rig.tick()
            rig.settle()
            rig.time.wall -= 60_000
            rig.disk.crash()
            rig.boot()
        assert len(set(granted)) == len(granted)


def test_topics_and_producers_outlive_a_restart(make_rig: Callable[..., Any]) -> None:
    for checkpoint_bytes in (1, 1 << 30):
        rig = make_rig(checkpoint_bytes=checkpoint_bytes)
        info = rig.topic(rig.connect(), partitions=2)
        grant = rig.answer(1, m.OpenProducer())
        rig.tick()
        rig.settle()
        rig.disk.crash()
        rig.boot()
        rig.connect()
        assert rig.answer(1, m.DescribeTopic("t")) == info
        assert rig.answer(1, m.OpenProducer(grant.producer)).epoch == grant.epoch + 1
        assert rig.shard.ready
        assert rig.shard.partitions_led == 2


def test_a_catalog_comes_back_from_its_snapshot() -> None:
    catalog = Catalog()
    catalog.create(TopicCreated("ns", "t", 2, "partition", 70))
    catalog.open(ProducerOpened(50, 0, "anonymous"))
    assert catalog.open(ProducerOpened(50, 0, "anonymous")).epoch == 1
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(catalog.encode()), strict=False)
    copy = Catalog.decode(data)
    assert copy.find("ns", "t") == catalog.find("ns", "t") == copy.by_id(1)
    assert copy.producer(50) == catalog.producer(50)
    assert copy.producer(50)[:2] == (1, "anonymous")
    assert copy.forgotten_below == catalog.forgotten_below
    assert copy.last_stamp == 70
    assert copy.create(TopicCreated("ns", "u", 1, "partition", 80))[0].id == 2
    assert Catalog().last_stamp == 0
    with pytest.raises(UnknownVersion, match="version 11"):
        Catalog.decode((11, 1, 0, [], []))
