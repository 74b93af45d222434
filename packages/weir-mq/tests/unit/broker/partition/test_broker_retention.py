"""Messages past retention go by an entry: what remains, what is said of it, what outlives it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rigs.shards import be_stopping
from weir.broker.partition.retention import new_start
from weir.broker.state.state import PartitionState
from weir.errors import OffsetOutOfRange
from weir.model.batch import split
from weir.model.topic import SettingsChange, TopicSettings
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def make(make_rig: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that founds a node with one topic; every tick looks at retention."""

    def found(**change: int) -> tuple[Any, m.TopicInfo, m.ProducerGrant]:
        rig = make_rig(retention_every_ms=1, checkpoint_bytes=1)
        session = rig.connect()
        info = rig.answer(session, m.CreateTopic("t", settings=SettingsChange(**change)))
        assert isinstance(info, m.TopicInfo)
        return rig, info, rig.answer(session, m.OpenProducer())

    return found


def publish(rig: Any, info: m.TopicInfo, grant: m.ProducerGrant, first: int, count: int) -> None:
    """Publish messages of 1,000 bytes, each an entry of its own."""
    for sequence in range(first, first + count):
        value = b"%06d" % sequence + bytes(994)
        reply = rig.answer(1, rig.batch(info, grant, sequence, value))
        assert isinstance(reply, m.Confirm), reply


def look(rig: Any, ms: int = 50) -> None:
    rig.tick(ms)
    rig.settle()


def restart(rig: Any) -> None:
    """Lose the power, and all that was not synced with it."""
    rig.disk.crash()
    rig.boot()
    rig.connect()


def positions(rig: Any, info: m.TopicInfo) -> tuple[int, int]:
    reply = rig.answer(1, m.Positions(info.addresses[0]))
    return reply.start, reply.end


def fetch(rig: Any, info: m.TopicInfo, offset: int) -> Any:
    return rig.answer(1, m.Fetch(info.addresses[0], offset, 1 << 20))


def test_old_messages_go_and_young_ones_stay(make: Any) -> None:
    rig, info, grant = make(retention_ms=DAY_MS)
    publish(rig, info, grant, 0, 3)
    rig.time.pass_ms(DAY_MS // 2)
    publish(rig, info, grant, 3, 2)
    look(rig)
    assert positions(rig, info) == (0, 5)
    look(rig, DAY_MS // 2)
    assert positions(rig, info) == (3, 5)
    refused = fetch(rig, info, 2)
    assert (refused.code, refused.detail) == (OffsetOutOfRange.code, 3)
    assert "3 to 5" in refused.message
    (batch, *_) = split(b"".join(fetch(rig, info, 3).batches), info.addresses[0].group)
    assert batch.header.first_offset == 3


def test_a_partition_holds_at_least_its_size_and_no_entry_more(make: Any) -> None:
    rig, info, grant = make(retention_bytes=4_000)
    publish(rig, info, grant, 0, 10)
    look(rig)
    start, end = positions(rig, info)
    assert end == 10
    assert 5 <= start < 7
    held = rig.answer(1, a.DescribePartition(info.addresses[0]))
    assert (held.start, held.end) == (start, end)
    one = held.bytes // (end - start)
    assert 1_000 < one < 1_200
    assert 4_000 <= held.bytes < 4_000 + one
    rig.answer(1, a.AlterTopic("t", SettingsChange(retention_bytes=1)))
    look(rig)
    assert positions(rig, info) == (9, 10)


def test_an_idle_topic_past_its_retention_keeps_its_place_and_dedupe(make: Any) -> None:
    """Counterexample 13: next offset and last stamp are not reused."""
    rig, info, grant = make(retention_ms=DAY_MS)
    publish(rig, info, grant, 0, 3)
    last = rig.answer(1, rig.batch(info, grant, 3, b"x"))
    for _ in range(3):
        look(rig, 2 * DAY_MS)
        assert positions(rig, info) == (4, 4)
        restart(rig)
        assert positions(rig, info) == (4, 4)
        again = rig.answer(1, rig.batch(info, grant, 3, b"x"))
        assert again == m.Confirm(3, last.stamp, True)
    assert fetch(rig, info, 4).batches == ()
    rig.time.wall -= 30 * DAY_MS
    after = rig.answer(1, rig.batch(info, grant, 4, b"y"))
    assert after.offset == 4
    assert after.stamp > last.stamp


def test_the_start_is_the_same_after_a_restart_whatever_the_clock_says(make: Any) -> None:
    rig, info, grant = make(retention_ms=DAY_MS)
    publish(rig, info, grant, 0, 3)
    rig.time.pass_ms(DAY_MS)
    publish(rig, info, grant, 3, 3)
    look(rig, 1_000)
    assert positions(rig, info) == (3, 6)
    for clock in (-20 * DAY_MS, 20 * DAY_MS):
        rig.time.wall += clock
        restart(rig)
        assert positions(rig, info) == (3, 6)


def test_without_limits_everything_stays(make: Any) -> None:
    rig, info, grant = make(retention_ms=0)
    publish(rig, info, grant, 0, 3)
    look(rig, 1_000 * DAY_MS)
    assert positions(rig, info) == (0, 3)
    rig.answer(1, a.AlterTopic("t", SettingsChange(retention_ms=DAY_MS)))
    look(rig)
    assert positions(rig, info) == (3, 3)


def test_segments_are_used_again_and_a_restart_finds_the_rest(make: Any) -> None:
    rig, info, grant = make(retention_bytes=20_000)
    most = 0
    for round_ in range(12):
        publish(rig, info, grant, 50 * round_, 50)
        look(rig)
        look(rig)
        most = max(most, sum(rig.disk.size(name) for name in rig.disk.names()))
    assert most < 8 * rig.log_settings.segment_bytes, "600 kB went through"
    start, end = positions(rig, info)
    before = [bytes(part) for part in fetch(rig, info, start).batches]
    restart(rig)
    assert positions(rig, info) == (start, end)
    assert [bytes(part) for part in fetch(rig, info, start).batches] == before
    publish(rig, info, grant, 600, 1)


def test_a_cluster_behind_the_start_moves_up_and_says_how_much_it_missed(make: Any) -> None:
    rig, info, grant = make(retention_ms=DAY_MS)
    publish(rig, info, grant, 0, 4)
    address = info.addresses[0]
    held = rig.answer(1, m.Pull(address, "c", 2, 1 << 20))
    other = rig.answer(1, m.Pull(address, "c", 2, 1 << 20))
    assert (held.offset, other.offset) == (0, 2)
    rig.answer(1, m.Ack(address, "c", [(held.fence, 1, 2)]))
    rig.time.pass_ms(DAY_MS)
    publish(rig, info, grant, 4, 1)
    look(rig, 1_000)
    for _ in range(2):
        listed = rig.answer(1, a.ListClusters(address))
        (cluster,) = listed.clusters
        assert (listed.start, listed.end) == (4, 5)
        assert (cluster.cursor, cluster.lag, cluster.granted, cluster.skipped) == (4, 1, 0, 3)
        restart(rig)
    # What its consumers say of messages that are gone changes nothing, and does not hurt them.
    assert rig.answer(1, m.Ack(address, "c", [(other.fence, 2, 4)])) == m.Acked(4)
    next_ = rig.answer(1, m.Pull(address, "c", 9, 1 << 20))
    assert (next_.offset, next_.next_offset, next_.attempts) == (4, 5, 1)


def test_a_new_cluster_begins_at_the_first_message_there_is(make: Any) -> None:
    rig, info, grant = make(retention_bytes=2_500)
    publish(rig, info, grant, 0, 6)
    look(rig)
    start, _ = positions(rig, info)
    assert start > 0
    granted = rig.answer(1, m.Pull(info.addresses[0], "late", 1, 1 << 20))
    assert granted.offset == start
    (cluster,) = rig.answer(1, a.ListClusters(info.addresses[0], "late")).clusters
    assert (cluster.cursor, cluster.skipped) == (start, 0)


def test_a_pull_that_was_picked_before_the_start_moved_gets_what_is_left(make: Any) -> None:
    rig, info, grant = make(retention_ms=DAY_MS)
    publish(rig, info, grant, 0, 2)
    rig.time.pass_ms(DAY_MS)
    publish(rig, info, grant, 2, 2)
    rig.time.pass_ms(1_000)
    number = rig.ask(1, m.Pull(info.addresses[0], "c", 9, 1 << 20))  # proposed, not committed
    look(rig)
    assert positions(rig, info) == (2, 4)
    reply = dict(rig.replies[1])[number]
    assert (reply.offset, reply.next_offset) in ((0, 4), (2, 4))
    (cluster,) = rig.answer(1, a.ListClusters(info.addresses[0])).clusters
    assert (cluster.cursor, cluster.granted) == (2, 2)


def test_a_stopping_node_moves_no_start(make: Any) -> None:
    rig, info, grant = make(retention_ms=DAY_MS)
    publish(rig, info, grant, 0, 1)
    be_stopping(rig.shard)
    look(rig, 2 * DAY_MS)
    assert rig.shard.topics.partition(info.addresses[0].group)[1].state.log_start == 0


class _Log:
    """A log whose cuts are given, and its reader."""

    def __init__(self, by_stamp: Any, by_size: Any) -> None:
        self.reader = self
        self.by_stamp, self.by_size = by_stamp, by_size

    def cut_by_stamp(self, group: int, stamp: int) -> Any:
        return self.by_stamp

    def cut_by_size(self, group: int, size: int, beside: Any) -> Any:
        return self.by_size


class _Group:
    id = 7

    def __init__(self, log: _Log, applied: int) -> None:
        self.log = log
        self.node = SimpleNamespace(log=SimpleNamespace(applied=applied))


@pytest.mark.parametrize(
    ("by_stamp", "by_size", "expected"),
    [
        ((3, 30), (5, 50), (5, 50)),  # the limit that lets more go decides
        ((6, 60), (5, 50), (6, 60)),
        (None, (5, 50), (13, 100)),  # all are too old: what is applied goes, and no more
        ((3, 30), None, (3, 30)),
        ((2, 20), (2, 20), None),  # it starts there already
        ((20, 110), None, (13, 100)),  # durable and not applied yet
    ],
)
def test_the_cut_is_the_later_one_within_what_is_applied(
    by_stamp: Any, by_size: Any, expected: Any
) -> None:
    state = PartitionState()
    state.log_start, state.next_offset = 20, 100
    group: Any = _Group(_Log(by_stamp, by_size), 12)
    moved = new_start(group, state, TopicSettings(1_000, 1_000), 10_000_000)
    assert (moved and (moved.index, moved.offset)) == expected
    assert new_start(group, state, TopicSettings(0, 0), 10_000_000) is None
    state.log_start = 100
    assert new_start(group, state, TopicSettings(1_000, 1_000), 10_000_000) is None
