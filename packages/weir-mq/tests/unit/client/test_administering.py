"""Topics and clusters looked after through the client, on a node in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from weir import sync, testing
from weir.client.administration import Cluster, Share, change_of
from weir.errors import (
    BadRequest,
    ClusterInUse,
    OffsetOutOfRange,
    StaleGrant,
    UnknownCluster,
    UnknownTopic,
)
from weir.model.topic import SettingsChange, TopicSettings
from weir.order.clock import milliseconds_of
from weir.protocol.client.admin import PartitionStats

DAY_SECONDS = 24 * 3600


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


@pytest.fixture
def w(node: testing.Node) -> Iterator[sync.Client]:
    with sync.connect(node.url) as client:
        yield client


def fill(w: sync.Client, partitions: int = 2, each: int = 5) -> None:
    w.create_topic("t", partitions)
    for partition in range(partitions):
        for number in range(each):
            w.publish("t", b"%d" % number, partition=partition)


def work(w: sync.Client, count: int, cluster: str = "crew") -> None:
    """Do `count` messages as a consumer that then leaves."""
    with w.consumer("t", cluster=cluster, max_messages=1) as consumer:
        for grant in islice(consumer.batches(), count):
            grant.ack(confirmed=True)


def test_a_topic_tells_its_settings_and_takes_others(w: sync.Client) -> None:
    made = w.create_topic("t", retention="2h", retention_bytes=1_000)
    assert made.settings == TopicSettings(2 * 3600 * 1000, 1_000)
    assert w.create_topic("t").settings == made.settings
    assert w.alter_topic("t", retention="forever").settings == TopicSettings(0, 1_000)
    assert w.alter_topic("t", retention_bytes="forever", partitions=3).settings == TopicSettings(
        0, 0
    )
    assert len(w.describe("t").addresses) == 3
    with pytest.raises(BadRequest, match="never fewer"):
        w.alter_topic("t", partitions=2)
    with pytest.raises(UnknownTopic):
        w.alter_topic("absent", retention=5)


@pytest.mark.parametrize(
    ("retention", "size", "expected"),
    [
        (None, None, SettingsChange()),
        ("7d", None, SettingsChange(7 * 86_400_000)),
        (1.5, 9, SettingsChange(1_500, 9)),
        ("forever", "forever", SettingsChange(0, 0)),
    ],
)
def test_retention_is_read_as_people_write_it(
    retention: str | float | None, size: int | str | None, expected: SettingsChange
) -> None:
    assert change_of(retention, size) == expected


@pytest.mark.parametrize("retention", ["7 parsecs", -1, 0, "0s", "0.4ms", 0.0001, 1e18, 1e300])
def test_what_is_no_retention_is_refused(retention: str | float) -> None:
    with pytest.raises((ValueError, BadRequest)):
        change_of(retention, None)


@pytest.mark.parametrize("size", [-1, 0, 1 << 63, 1.5, "7d", "none"])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(BadRequest, match='or "forever"'):
        change_of(None, size)


def test_no_retention_of_any_size_is_lost_on_the_way(w: sync.Client) -> None:
    w.create_topic("t", retention=9e15, retention_bytes=(1 << 63) - 1)
    assert w.describe("t").settings == TopicSettings(9 * 10**18, (1 << 63) - 1)


def test_parts_say_what_each_partition_holds(w: sync.Client) -> None:
    fill(w, partitions=2, each=3)
    work(w, 1)
    parts = w.parts("t")
    assert [(p.partition, p.start, p.end, p.address.group & 0xFFFF) for p in parts] == [
        (0, 0, 3, 0),
        (1, 0, 3, 1),
    ]
    assert all(part.bytes > 0 for part in parts)
    assert {name for part in parts for name in part.clusters} == {"crew"}


def test_stats_say_how_much_each_partition_holds_and_from_when(
    node: testing.Node, w: sync.Client
) -> None:
    fill(w, partitions=2, each=3)
    node.advance(60)
    w.publish("t", b"late", partition=1)
    first, second = w.topic_stats("t")
    assert (first.start, first.end, first.messages) == (0, 3, 3)
    assert (second.start, second.end, second.messages) == (0, 4, 4)
    assert first.bytes > 0
    assert first.first_stamp <= first.last_stamp < second.last_stamp
    published = milliseconds_of(second.last_stamp) - milliseconds_of(second.first_stamp)
    assert published >= 60_000
    w.create_topic("empty")
    assert w.topic_stats("empty") == [PartitionStats(0, 0, 0, 0)]


def test_old_messages_go_and_readers_are_told_where_to_go_on(
    node: testing.Node, w: sync.Client
) -> None:
    w.create_topic("t", retention=2 * DAY_SECONDS)
    for value in (b"old", b"older"):
        w.publish("t", value)
    node.advance(3 * DAY_SECONDS)
    w.publish("t", b"new")
    node.advance(60)  # long enough for the broker to have looked
    with pytest.raises(OffsetOutOfRange, match="past retention") as caught:
        list(w.reader("t", start={0: 0}, follow=False))
    assert caught.value.detail == 2
    assert [m.value for m in w.reader("t", follow=False)] == [b"new"]


def test_a_deleted_topic_is_gone_for_readers_and_producers(w: sync.Client) -> None:
    fill(w, partitions=1, each=1)
    reader = w.reader("t")
    assert next(iter(reader)).value == b"0"
    producer = w.producer("t").open()
    producer.publish(b"1")
    w.delete_topic("t")
    with pytest.raises(UnknownTopic, match="deleted"):
        producer.publish(b"2")
    producer.close()
    with pytest.raises(UnknownTopic, match="deleted"):
        for _ in reader:
            pass
    with pytest.raises(UnknownTopic):
        w.delete_topic("t")
    assert w.create_topic("t").id > 1
    assert list(w.reader("t", follow=False)) == []


def test_the_lag_adds_up_over_partitions_and_restarts(node: testing.Node, w: sync.Client) -> None:
    fill(w, partitions=3, each=4)
    work(w, 5)
    assert w.clusters("t", "nobody") == []
    for _ in range(2):
        (crew,) = w.clusters("t")
        assert crew.lag == sum(share.lag for share in crew.shares) == 7
        assert [share.end for share in crew.shares] == [4, 4, 4]
        assert sum(share.cursor for share in crew.shares) == 5
        assert crew.skipped == 0
        assert not crew.paused
        node.restart()
    work(w, 7)
    (crew,) = w.clusters("t", "crew")
    assert (crew.lag, crew.oldest_seconds) == (0, None)


def test_a_cluster_goes_on_where_it_is_sent(w: sync.Client) -> None:
    fill(w, partitions=2, each=5)
    work(w, 10)
    assert w.seek_cluster("t", "crew", "earliest").lag == 10
    assert w.seek_cluster("t", "crew", "latest").lag == 0
    assert w.seek_cluster("t", "crew", {1: 3}).lag == 2
    assert w.seek_cluster("t", "crew", "earliest", partitions=[0]).lag == 7
    assert w.seek_cluster("t", "crew", "-1h").lag == 10
    with pytest.raises(OffsetOutOfRange):
        w.seek_cluster("t", "crew", {0: 6})
    with pytest.raises(UnknownTopic, match="no partition 7"):
        w.seek_cluster("t", "crew", {7: 0})
    with pytest.raises(UnknownCluster, match="no cluster 'typo'"):
        w.seek_cluster("t", "typo", "latest")
    assert w.seek_cluster("t", "new", "latest", create=True).lag == 0
    w.publish("t", b"for the new one", partition=0)
    with w.consumer("t", cluster="new") as consumer, next(iter(consumer)) as message:
        assert message.value == b"for the new one"


def test_acks_of_before_a_seek_come_too_late(w: sync.Client) -> None:
    fill(w, partitions=1, each=4)
    with w.consumer("t", cluster="crew", max_messages=2) as consumer:
        grant = next(iter(consumer.batches()))
        w.seek_cluster("t", "crew", "earliest")
        try:
            grant.ack(confirmed=True)
        except StaleGrant:
            pass
        else:
            assert consumer.stale == 1
    (crew,) = w.clusters("t")
    assert crew.shares[0].cursor == 0


def test_a_paused_cluster_gets_nothing_and_goes_on_when_resumed(w: sync.Client) -> None:
    fill(w, partitions=1, each=3)
    work(w, 1)
    assert w.pause_cluster("t", "crew").paused
    w.publish("t", b"while paused")
    (crew,) = w.clusters("t")
    assert (crew.lag, crew.paused) == (3, True)
    assert not w.resume_cluster("t", "crew").paused
    work(w, 3)
    assert w.clusters("t")[0].lag == 0
    for steer in (w.pause_cluster, w.resume_cluster, w.delete_cluster):
        with pytest.raises(UnknownCluster):
            steer("t", "absent")


def test_a_cluster_is_forgotten_once_nobody_works_for_it(w: sync.Client) -> None:
    fill(w, partitions=2, each=2)
    with w.consumer("t", cluster="crew") as consumer, next(iter(consumer)):
        with pytest.raises(ClusterInUse, match="at work"):
            w.delete_cluster("t", "crew")
        assert w.clusters("t")[0].lag == 4


def test_those_who_run_notice_new_partitions(
    w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.client.connection.metadata.ASK_EVERY", 0.01)
    fill(w, partitions=1, each=1)
    reader, consumer = w.reader("t"), w.consumer("t", cluster="crew")
    producer = w.producer("t").open()
    with next(iter(consumer)) as message:
        assert next(iter(reader)).value == message.value == b"0"
    w.alter_topic("t", partitions=2)
    w.publish("t", b"again", partition=0)
    while producer.publish(b"new").partition == 0:  # until it has noticed
        pass
    assert next(m.value for m in reader if m.partition == 1) == b"new"
    for message in consumer:
        with message:
            assert message.value in (b"again", b"new")
        if message.partition == 1:
            break
    producer.close()
    reader.close()
    consumer.close()


def test_a_paused_cluster_is_paused_in_new_partitions_too(w: sync.Client) -> None:
    fill(w, partitions=2, each=1)
    for name in ("crew", "others"):
        work(w, 1, name)
    w.pause_cluster("t", "crew")
    w.alter_topic("t", partitions=4)
    crew, others = w.clusters("t")
    assert [share.paused for share in crew.shares] == [True] * 4
    assert (crew.paused, crew.paused_in_part) == (True, False)
    assert not others.paused
    w.resume_cluster("t", "crew")
    assert not w.clusters("t", "crew")[0].paused


def test_a_pause_that_holds_in_part_is_told() -> None:
    shares = tuple(Share(n, 0, 0, 0, 0, paused=n == 1) for n in range(2))
    assert Cluster("crew", shares).paused_in_part
    assert not Cluster("crew", shares[1:]).paused_in_part


def test_a_topic_made_again_is_another_one(w: sync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.client.connection.metadata.ASK_EVERY", 0.01)
    fill(w, partitions=1, each=1)
    reader = w.reader("t")
    assert next(iter(reader)).value == b"0"
    w.delete_topic("t")
    w.create_topic("t")
    with pytest.raises(UnknownTopic, match="deleted"):
        next(iter(reader))
